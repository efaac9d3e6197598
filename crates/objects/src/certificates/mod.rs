//! Certificates of pods: one small task per projected source that asks for one.
//!
//! Owns the keys, which are nowhere but in memory: after a restart every pod gets a new certificate. A
//! signer in the cluster watches the requests and signs them.

mod keys;
mod stage;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{ApiError, Changes, LONGEST_CALL, NodeReader, ObjectReader, PodCertificates};
use rubelet_ports::{
    Clock, EventRecorder, ObjectFailure, PodCertificate, PodEvent, Randomness, Spawner, within,
};
use tokio::sync::{Notify, Semaphore};

use crate::certificates::stage::{Asked, Look, News, Next, Sight, Stage, verdict};
use crate::pods::{Pods, namespace_of};
use crate::references::CertificatePlace;
use crate::table::Key;
use crate::whole_set::{Owner, WholeSet};

pub use crate::certificates::keys::{KeyAndProof, KeyError, KeyMaker, KeyType, make_key};

/// A request that is not seen for so long was deleted.
const LOST_AFTER: Duration = Duration::from_secs(10 * 60);
const MAX_JITTER: Duration = Duration::from_secs(5 * 60);
/// A long RSA key on a busy machine takes its time.
const KEY_LIMIT: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(5 * 60);
const NOT_YET: &str = "credential bundle is not issued yet";

/// What certificates are made with.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) node_name: String,
    pub(crate) reader: Arc<dyn ObjectReader>,
    pub(crate) node: Arc<dyn NodeReader>,
    pub(crate) requests: Arc<dyn PodCertificates>,
    pub(crate) keys: Arc<dyn KeyMaker>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) pods: Arc<Pods>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    uid: PodUid,
    volume: String,
    source: usize,
}

struct Record {
    wish: CertificatePlace,
    stage: Stage,
    /// Why the last try to ask failed.
    problem: Option<String>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct Records(Mutex<BTreeMap<Place, Record>>);

impl Records {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, Record>> {
        // A stage moves in one step; a panic elsewhere cannot tear it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, is_meant: impl Fn(&Place) -> bool) {
        let records = self.lock();
        for (_, record) in records.iter().filter(|(place, _)| is_meant(place)) {
            record.wake.notify_one();
        }
    }
}

/// The requests of this node's pods.
struct Requests {
    api: Arc<dyn PodCertificates>,
    node_name: String,
    records: Arc<Records>,
}

impl Owner for Requests {
    type Object = PodCertificateRequest;
    const WORD: &'static str = "pod certificate requests";

    fn follow(&self) -> Changes<PodCertificateRequest> {
        self.api.follow_pod_certificate_requests(&self.node_name)
    }

    fn on_change(&self, requests: &[Arc<PodCertificateRequest>]) {
        self.records.wake(|place| {
            let mut uids = requests.iter().map(|request| request.spec.pod_uid.as_str());
            uids.any(|uid| uid == place.uid.as_str())
        });
    }
}

pub(crate) struct Certificates {
    means: Means,
    records: Arc<Records>,
    requests: Arc<WholeSet<Requests>>,
    /// Keys are made one after the other: a long one takes a processor for seconds, and a restart makes all of them anew.
    key_turn: Semaphore,
}

impl Certificates {
    pub(crate) fn new(means: Means) -> Arc<Self> {
        let records = Arc::<Records>::default();
        let requests = Requests {
            api: Arc::clone(&means.requests),
            node_name: means.node_name.clone(),
            records: Arc::clone(&records),
        };
        let clock = Arc::clone(&means.clock);
        let spawner = Arc::clone(&means.spawner);
        Arc::new(Self {
            requests: WholeSet::new(requests, clock, spawner),
            means,
            records,
            key_turn: Semaphore::new(1),
        })
    }

    /// The pod has these places, and no others.
    pub(crate) fn register(self: &Arc<Self>, uid: &PodUid, wishes: &[CertificatePlace]) {
        let mut begun = Vec::new();
        {
            let mut records = self.records.lock();
            records.retain(|place, record| {
                let is_kept = place.uid != *uid || wishes.contains(&record.wish);
                if !is_kept {
                    record.wake.notify_one();
                }
                is_kept
            });
            for wish in wishes {
                let place = Place {
                    uid: uid.clone(),
                    volume: wish.volume.clone(),
                    source: wish.source,
                };
                if records.contains_key(&place) {
                    continue;
                }
                let wake = Arc::<Notify>::default();
                let record = Record {
                    wish: wish.clone(),
                    stage: Stage::Waiting,
                    problem: None,
                    wake: Arc::clone(&wake),
                };
                records.insert(place.clone(), record);
                begun.push((place, wake));
            }
        }
        for (place, wake) in begun {
            // Followed before the first request is made, so that no answer is missed.
            self.requests.begin();
            let name = format!("certificate of volume {}", place.volume);
            let run = Arc::clone(self).live(place, wake);
            self.means.spawner.spawn(&name, Box::pin(run));
        }
    }

    pub(crate) fn certificate(
        &self,
        uid: &PodUid,
        volume: &str,
        source: usize,
    ) -> Result<PodCertificate, ObjectFailure> {
        let place = Place {
            uid: uid.clone(),
            volume: volume.to_owned(),
            source,
        };
        let records = self.records.lock();
        let unavailable = |explanation: String| Err(ObjectFailure::Unavailable(explanation));
        let Some(record) = records.get(&place) else {
            return unavailable(format!(
                "no credentials yet for source {source} of volume {volume:?}"
            ));
        };
        match (&record.stage, &record.problem) {
            (Stage::Held(held), _) => Ok(held.certificate.clone()),
            (Stage::Refused { explanation, .. }, _) => unavailable(explanation.clone()),
            (Stage::Waiting | Stage::Asked(_), None) => unavailable(NOT_YET.to_owned()),
            (Stage::Waiting | Stage::Asked(_), Some(problem)) => unavailable(format!("{NOT_YET}: {problem}")),
        }
    }

    /// How many sources of each signer are in which state, as the metric has it.
    pub(crate) fn states(&self) -> BTreeMap<(String, &'static str), usize> {
        let now = self.means.clock.now();
        let mut states = BTreeMap::new();
        for record in self.records.lock().values() {
            let key = (record.wish.wish.signer_name.clone(), record.stage.metric(now));
            *states.entry(key).or_default() += 1;
        }
        states
    }

    /// The task of one place.
    async fn live(self: Arc<Self>, place: Place, wake: Arc<Notify>) {
        let mut failures = 0_u32;
        loop {
            let Some(look) = self.look(&place, &wake) else {
                return;
            };
            let wait = match look.next {
                Next::Rest => {
                    wake.notified().await;
                    continue;
                }
                Next::Wait(wait) => wait,
                Next::Ask => match self.ask(&place).await {
                    Ok(asked) => {
                        failures = 0;
                        self.note(&place, &wake, Ok(asked));
                        continue;
                    }
                    Err(problem) => {
                        let wait = FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(MAX_RETRY);
                        failures = failures.saturating_add(1);
                        self.note(&place, &wake, Err(problem));
                        wait
                    }
                },
            };
            // Both may be dropped: the next turn looks again.
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = self.means.clock.sleep(wait) => {}
            }
        }
    }

    /// `None` when the place is not wanted any more.
    fn look(&self, place: &Place, wake: &Arc<Notify>) -> Option<Look> {
        let pod = self.means.pods.pod(&place.uid)?;
        let namespace = namespace_of(&pod);
        let find = |name: &str| {
            self.requests
                .with(|members| members.get(&Key::new(namespace, name)).map(|one| verdict(one)))
        };
        let sight = Sight {
            now: self.means.clock.now(),
            jitter: self.means.randomness.part_of(MAX_JITTER),
            find: &find,
        };
        let look = {
            let mut records = self.records.lock();
            let record = records
                .get_mut(place)
                .filter(|record| Arc::ptr_eq(&record.wake, wake))?;
            record.stage.look(namespace, &sight)
        };
        for news in &look.news {
            self.means.events.record(&pod, event(news));
        }
        if look.has_changed {
            self.means.pods.changed.add([place.uid.clone()]);
        }
        Some(look)
    }

    fn note(&self, place: &Place, wake: &Arc<Notify>, outcome: Result<Asked, String>) {
        let mut records = self.records.lock();
        let record = records
            .get_mut(place)
            .filter(|record| Arc::ptr_eq(&record.wake, wake));
        let Some(record) = record else { return };
        match outcome {
            Ok(asked) => {
                record.stage.ask(asked);
                record.problem = None;
            }
            Err(problem) => {
                if record.problem.as_ref() != Some(&problem) {
                    tracing::warn!(pod = %place.uid, volume = place.volume, problem, "No certificate for a pod yet");
                }
                record.problem = Some(problem);
            }
        }
    }

    /// Makes a key and asks for a certificate of it.
    async fn ask(&self, place: &Place) -> Result<Asked, String> {
        let pod = self.means.pods.pod(&place.uid).ok_or("the pod is gone")?;
        let wish = {
            let records = self.records.lock();
            let record = records.get(place).ok_or("the pod is gone")?;
            record.wish.wish.clone()
        };
        let key_type = KeyType::by_name(&wish.key_type)
            .ok_or_else(|| format!("unknown key type {:?}", wish.key_type))?;
        let namespace = namespace_of(&pod);
        let account = service_account(&pod);
        let account_uid = self
            .call(
                "while fetching service account",
                self.means.reader.service_account(namespace, account),
            )
            .await?
            .metadata
            .uid;
        let node = self.means.node.node(&self.means.node_name);
        let node_uid = self.call("while getting node object", node).await?.metadata.uid;
        // Outside of the limit: the tasks before this one have theirs. It is never closed.
        let turn = self.key_turn.acquire().await;
        self.means.pods.pod(&place.uid).ok_or("the pod is gone")?;
        let made = self.means.keys.make(key_type);
        let made = within(self.means.clock.as_ref(), KEY_LIMIT, made).await;
        drop(turn);
        let made = made
            .map_err(|elapsed| format!("while generating keypair: {elapsed}"))?
            .map_err(|error| format!("while generating keypair: {error}"))?;
        let spec = PodCertificateRequestSpec {
            max_expiration_seconds: wish.max_expiration_seconds,
            node_name: self.means.node_name.clone(),
            node_uid: node_uid.unwrap_or_default(),
            pod_name: pod.metadata.name.clone().unwrap_or_default(),
            pod_uid: place.uid.as_str().to_owned(),
            service_account_name: account.to_owned(),
            service_account_uid: account_uid.unwrap_or_default(),
            signer_name: wish.signer_name,
            stub_pkc_s10_request: ByteString(made.proof),
            unverified_user_annotations: wish.user_annotations,
        };
        let request = request(&pod, spec);
        let creation = self.means.requests.create_pod_certificate_request(&request);
        let created = self
            .call("while creating PodCertificateRequest", creation)
            .await?;
        let jitter = self.means.randomness.part_of(MAX_JITTER);
        let begun = created.metadata.creation_timestamp.as_ref().map(timestamp);
        // The node's clock may be ahead: a request is not lost before it could be seen.
        let begun = begun.unwrap_or_default().max(self.means.clock.now());
        Ok(Asked {
            key: made.key,
            request: created.metadata.name.unwrap_or_default(),
            lost_at: begun.plus(LOST_AFTER).plus(jitter),
        })
    }

    async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, String> {
        match within(self.means.clock.as_ref(), LONGEST_CALL, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(format!("{what}: {error}")),
            Err(elapsed) => Err(format!("{what}: {elapsed}")),
        }
    }
}

fn timestamp(Time(at): &Time) -> Timestamp {
    Timestamp::from_unix_nanos(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX))
}

fn service_account(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.service_account_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or("default")
}

fn request(pod: &Pod, spec: PodCertificateRequestSpec) -> PodCertificateRequest {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: spec.pod_name.clone(),
        uid: spec.pod_uid.clone(),
        ..OwnerReference::default()
    };
    PodCertificateRequest {
        metadata: ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            generate_name: Some("req-".to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

fn event(news: &News) -> PodEvent {
    match news {
        News::Refused { refusal, message } => PodEvent::warning(refusal.as_str(), message.clone()),
        News::Overdue => PodEvent::warning("CertificateOverdueForRefresh", "PodCertificate refresh overdue"),
        News::Expired => PodEvent::warning("CertificateExpired", "PodCertificate expired"),
    }
}
