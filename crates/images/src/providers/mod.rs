//! Credential provider plugins: programs of the node that know credentials for some registries.
//!
//! Owns which plugin is asked for which image and pod, with which token, and for how long an answer is good. It must not know how a
//! program is run: that is a port. A plugin that fails or hangs gives nothing; the others and the pull go on, since each has its own places.
//!
//! ```text
//! image matches? ─► service account, token (if the plugin wants one) ─► answer kept? ─► one run for all who ask the same ─► keep it
//! ```

mod cache;
pub(crate) mod configuration;
mod exchange;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared, join_all};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use rubelet_model::pod::{name_of, namespace_of, uid_text};
use rubelet_ports::api::ObjectReader;
use rubelet_ports::{Clock, CredentialPlugins, PluginCall, PodObjects, TokenQuestion, within};
use tokio::sync::Semaphore;

use crate::credential::{Coordinates, Source, hex_sha256};
use crate::keyring::docker_config::DockerConfig;
use crate::keyring::{Address, Keyring};
use crate::metrics::ImagesMetrics;
use crate::providers::cache::{AccountKey, AnswerCache};
use crate::providers::configuration::{ProviderSettings, TokenAttributes, TokenCache};
use crate::providers::exchange::PluginAnswer;
use crate::pulls::unpoisoned;

/// As upstream: enough for a retry of the plugin's own.
const RUN_DEADLINE: Duration = Duration::from_secs(60);
/// An answer has a few lines.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Programs of one plugin at a time; further ones wait for these, each of which has its deadline.
const MAX_RUNS: usize = 16;
const ACCOUNT_DEADLINE: Duration = Duration::from_secs(10);
/// What a request without a time of its own gets.
const TOKEN_SECONDS: i64 = 3600;

/// Service accounts of pods, on a node of a cluster.
#[derive(Clone)]
pub struct PodAccounts {
    pub reader: Arc<dyn ObjectReader>,
    pub objects: Arc<dyn PodObjects>,
}

/// What all plugins share.
struct Deps {
    plugins: Arc<dyn CredentialPlugins>,
    accounts: Option<PodAccounts>,
    clock: Arc<dyn Clock>,
    metrics: Option<ImagesMetrics>,
}

/// The plugins of a node.
pub struct CredentialProviders {
    providers: Vec<Provider>,
}

/// What plugins gave for one image.
#[derive(Default)]
pub(crate) struct Provided {
    pub(crate) keyring: Keyring,
    /// Why a plugin gave nothing, as a message for users.
    pub(crate) failures: Vec<String>,
}

impl CredentialProviders {
    #[must_use]
    pub fn new(
        settings: Vec<ProviderSettings>,
        plugins: Arc<dyn CredentialPlugins>,
        accounts: Option<PodAccounts>,
        clock: Arc<dyn Clock>,
        metrics: Option<ImagesMetrics>,
    ) -> Self {
        let deps = Arc::new(Deps {
            plugins,
            accounts,
            clock,
            metrics,
        });
        let providers = settings
            .into_iter()
            .map(|settings| Provider::new(settings, &deps));
        Self {
            providers: providers.collect(),
        }
    }

    /// Asks every plugin that is for this repository.
    pub(crate) async fn provide(&self, repository: &str, pod: &Pod) -> Provided {
        let answers = self
            .providers
            .iter()
            .map(|provider| provider.provide(repository, pod));
        let mut provided = Provided::default();
        for (provider, answer) in self.providers.iter().zip(join_all(answers).await) {
            let name = &provider.settings.name;
            match answer {
                Ok(Some((source, users))) => provided.keyring.add(&source, users),
                Ok(None) => {}
                Err(problem) => {
                    tracing::warn!(
                        provider = name,
                        image = repository,
                        problem,
                        "A credential provider gave nothing"
                    );
                    provided
                        .failures
                        .push(format!("credential provider {name}: {problem}"));
                }
            }
        }
        provided
    }
}

type Run = Shared<BoxFuture<'static, Result<PluginAnswer, String>>>;
type WeakRun = WeakShared<BoxFuture<'static, Result<PluginAnswer, String>>>;

/// Who asks the same may share a run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RunKey {
    repository: String,
    token_hash: String,
    annotations: BTreeMap<String, String>,
}

struct Provider {
    settings: ProviderSettings,
    patterns: Vec<Address>,
    deps: Arc<Deps>,
    /// Held to look up and to note, never across an await.
    cache: Mutex<AnswerCache>,
    /// Held to look up and to note, never across an await.
    runs: Mutex<BTreeMap<RunKey, WeakRun>>,
    places: Arc<Semaphore>,
}

/// The service account that a plugin is asked for.
struct Account {
    coordinates: Coordinates,
    annotations: BTreeMap<String, String>,
    /// Secret.
    token: String,
}

/// What is known of the pod's service account.
enum Found {
    Account(Box<Account>),
    /// The plugin is asked without one.
    None,
    /// The plugin is not for this pod.
    NotAsked,
}

impl Provider {
    fn new(settings: ProviderSettings, deps: &Arc<Deps>) -> Self {
        Self {
            patterns: settings
                .match_images
                .iter()
                .filter_map(|pattern| Address::parse(pattern))
                .collect(),
            settings,
            deps: Arc::clone(deps),
            cache: Mutex::default(),
            runs: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_RUNS)),
        }
    }

    fn is_for(&self, repository: &str) -> bool {
        Address::parse(repository)
            .is_some_and(|wanted| self.patterns.iter().any(|pattern| pattern.covers(&wanted)))
    }

    async fn provide(&self, repository: &str, pod: &Pod) -> Result<Option<(Source, DockerConfig)>, String> {
        if !self.is_for(repository) {
            return Ok(None);
        }
        let account = match &self.settings.token {
            Some(attributes) => match self.account(attributes, pod).await? {
                Found::Account(account) => Some(*account),
                Found::None => None,
                Found::NotAsked => return Ok(None),
            },
            None => None,
        };
        let source = match &account {
            Some(account) => Source::ServiceAccount(account.coordinates.clone()),
            None => Source::Node,
        };
        let key = account.as_ref().map(|account| self.account_key(account));
        let kept = unpoisoned(&self.cache).find(repository, key.as_ref(), self.deps.clock.moment());
        if let Some(users) = kept {
            return Ok(Some((source, users)));
        }
        let answer = self.run(repository, account.as_ref()).await?;
        self.refuse_echo(&answer, account.as_ref())?;
        self.keep(repository, key, &answer);
        Ok(Some((source, answer.users)))
    }

    async fn account(&self, attributes: &TokenAttributes, pod: &Pod) -> Result<Found, String> {
        let name = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(match attributes.require_service_account {
                true => Found::NotAsked,
                false => Found::None,
            });
        };
        let Some(accounts) = &self.deps.accounts else {
            return Err("cannot get ServiceAccounts when kubelet is in standalone mode".to_owned());
        };
        let namespace = namespace_of(pod);
        let read = accounts.reader.service_account(namespace, name);
        let read = within(self.deps.clock.as_ref(), ACCOUNT_DEADLINE, read).await;
        let account = read
            .map_err(|elapsed| elapsed.to_string())
            .and_then(|read| read.map_err(|error| error.to_string()))
            .map_err(|problem| format!("failed to get service account: {problem}"))?;
        let Some(annotations) = wanted_annotations(attributes, &account) else {
            return Ok(Found::NotAsked);
        };
        let question = TokenQuestion {
            namespace: namespace.to_owned(),
            service_account: name.to_owned(),
            audiences: vec![attributes.audience.clone()],
            expiration_seconds: TOKEN_SECONDS,
            pod_name: name_of(pod).to_owned(),
            pod_uid: uid_text(pod).to_owned(),
        };
        let token = accounts
            .objects
            .token(&question)
            .await
            .map_err(|failure| format!("failed to get service account token: {failure}"))?;
        Ok(Found::Account(Box::new(Account {
            coordinates: Coordinates {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: account.metadata.uid.unwrap_or_default(),
            },
            annotations,
            token: token.text,
        })))
    }

    fn account_key(&self, account: &Account) -> AccountKey {
        let by_token = self
            .settings
            .token
            .as_ref()
            .is_some_and(|token| token.cache == TokenCache::Token);
        AccountKey {
            account: account.coordinates.clone(),
            annotations: account.annotations.clone(),
            token_hash: by_token.then(|| hex_sha256(account.token.as_bytes())),
        }
    }

    /// One run for all callers that ask the same at the same time. The waiting callers drive it, and it ends with the last of them.
    async fn run(&self, repository: &str, account: Option<&Account>) -> Result<PluginAnswer, String> {
        let key = RunKey {
            repository: repository.to_owned(),
            token_hash: account
                .map(|one| hex_sha256(one.token.as_bytes()))
                .unwrap_or_default(),
            annotations: account.map(|one| one.annotations.clone()).unwrap_or_default(),
        };
        let run = {
            let mut runs = unpoisoned(&self.runs);
            runs.retain(|_, run| run.upgrade().is_some_and(|run| run.peek().is_none()));
            match runs.get(&key).and_then(WeakShared::upgrade) {
                Some(run) => run,
                None => {
                    let run = self.new_run(repository, account);
                    if let Some(weak) = run.downgrade() {
                        runs.insert(key, weak);
                    }
                    run
                }
            }
        };
        run.await
    }

    fn new_run(&self, repository: &str, account: Option<&Account>) -> Run {
        let settings = &self.settings;
        let none = BTreeMap::new();
        let token = account.map(|one| one.token.clone()).unwrap_or_default();
        let annotations = account.map_or(&none, |one| &one.annotations);
        let call = PluginCall {
            name: settings.name.clone(),
            args: settings.args.clone(),
            env: settings.env.clone(),
            input: exchange::request(settings.api, repository, &token, annotations),
            deadline: RUN_DEADLINE,
            max_output_bytes: MAX_OUTPUT_BYTES,
        };
        let (deps, places, api) = (Arc::clone(&self.deps), Arc::clone(&self.places), settings.api);
        async move {
            // Never closed, so there is a place in the end.
            let _place = places.acquire().await;
            let (name, began) = (call.name.clone(), deps.clock.moment());
            let ran = deps.plugins.run(call).await;
            if let Some(metrics) = &deps.metrics {
                metrics.plugin_ran(&name, deps.clock.moment().since(began), ran.is_ok());
            }
            match ran {
                Ok(output) => exchange::answer(api, &output).map_err(|error| error.to_string()),
                Err(failure) => Err(failure.reason),
            }
        }
        .boxed()
        .shared()
    }

    /// A token that comes back as the password would be kept for others than its pod.
    fn refuse_echo(&self, answer: &PluginAnswer, account: Option<&Account>) -> Result<(), String> {
        let is_kept_for_others = |attributes: &TokenAttributes| attributes.cache != TokenCache::Token;
        let Some(account) = account.filter(|_| self.settings.token.as_ref().is_some_and(is_kept_for_others))
        else {
            return Ok(());
        };
        if answer.users.values().any(|user| user.password == account.token) {
            return Err(
                "credential provider plugin returned the service account token as the password which is not \
                        allowed when service account cache type is not set to 'Token'"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn keep(&self, repository: &str, key: Option<AccountKey>, answer: &PluginAnswer) {
        let duration = match answer.duration {
            // Less than nothing is nothing.
            Some(duration) => duration.to_std().unwrap_or_default(),
            None => self.settings.default_cache_duration,
        };
        if duration.is_zero() {
            return;
        }
        let now = self.deps.clock.moment();
        let users = answer.users.clone();
        unpoisoned(&self.cache).keep(answer.scope, repository, key, users, (now, now.plus(duration)));
    }
}

/// The annotations that the plugin gets; `None` when a required one is missing.
fn wanted_annotations(
    attributes: &TokenAttributes,
    account: &ServiceAccount,
) -> Option<BTreeMap<String, String>> {
    let none = BTreeMap::new();
    let all = account.metadata.annotations.as_ref().unwrap_or(&none);
    let mut wanted = BTreeMap::new();
    for key in &attributes.required_annotations {
        wanted.insert(key.clone(), all.get(key)?.clone());
    }
    let optional = attributes.optional_annotations.iter();
    wanted.extend(optional.filter_map(|key| Some((key.clone(), all.get(key)?.clone()))));
    Some(wanted)
}
