//! Putting the images together: the sources of credentials, which pods may use which images, and the image garbage collection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use prometheus::Registry;
use rubelet_agent::{AgentHandle, AgentSettings};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_credential_plugins::PluginPrograms;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_host::signals::HostSignals;
use rubelet_images::garbage::{self, GarbageHandle, GarbagePorts, GarbageSettings, NodeHolders};
use rubelet_images::{
    CredentialProviders, CredentialSources, Images, ImagesMetrics, ImagesSettings, NodeDockerConfig,
    PodAccounts, ProviderSettings, PullRecords, RecordsPorts, VerificationPolicy, configuration_hash,
    read_configuration,
};
use rubelet_ports::{ImageProvider, PodObjects, Spawner as _};
use tokio::sync::watch;

use crate::agent::std_duration;
use crate::cluster::Membership;
use crate::edges::Edges;

/// The images of this node.
pub(crate) struct NodeImages {
    provider: Arc<Images>,
    /// `None` where every pod may use every image.
    records: Option<PullRecords>,
    metrics: ImagesMetrics,
}

impl NodeImages {
    pub(crate) fn new(
        settings: &Settings,
        edges: &Edges,
        agent: &AgentSettings,
        membership: Option<&Membership>,
        registry: &Registry,
    ) -> Result<Self> {
        let metrics = ImagesMetrics::register(registry).context("register metrics of images")?;
        let Edges {
            clock, cri, events, ..
        } = edges.clone();
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        let credentials = CredentialSources {
            objects: membership.map(|membership| membership.objects.clone() as Arc<dyn PodObjects>),
            node_files: Some(NodeDockerConfig::usual_places(
                edges.files.clone(),
                agent.root_dir.clone(),
                PathBuf::from("."),
                home,
            )),
            providers: providers(settings, edges, membership, &metrics)?.map(Arc::new),
        };
        let images = Images::new(images_settings(settings), cri.clone(), cri.clone(), clock, events)
            .with_credentials(credentials)
            .with_progress(cri)
            .with_metrics(metrics.clone());
        let records = records(settings, edges, agent, &metrics)?;
        let images = match &records {
            Some(records) => images.with_records(records.clone()),
            None => images,
        };
        Ok(Self {
            provider: Arc::new(images),
            records,
            metrics,
        })
    }

    pub(crate) fn provider(&self) -> Arc<dyn ImageProvider> {
        self.provider.clone()
    }

    /// Starts the garbage collection of unused images, by the settings.
    pub(crate) fn keep_collected(
        self,
        settings: &Settings,
        edges: &Edges,
        agent: &AgentHandle,
        cgroup: CgroupVersion,
        node: Option<watch::Receiver<Option<Arc<Node>>>>,
    ) -> Result<GarbageHandle> {
        let layout = Layout::of_this_machine(cgroup).context("look for the machine's cgroups")?;
        let agent = Arc::new(agent.clone());
        let ports = GarbagePorts {
            clock: edges.clock.clone(),
            spawner: edges.spawner.clone(),
            reader: edges.cri.clone(),
            writer: edges.cri.clone(),
            holders: Arc::new(NodeHolders {
                runtime: edges.cri.clone(),
                seen: agent.clone(),
                to_run: agent,
            }),
            signals: Arc::new(HostSignals::new(&layout)),
            events: edges.node_events.clone(),
            node: node.unwrap_or_else(|| watch::channel(None).1),
            records: self.records,
            metrics: Some(self.metrics),
        };
        Ok(garbage::start(ports, garbage_settings(settings)))
    }
}

/// With the gate, the records of which pod pulled which image.
fn records(
    settings: &Settings,
    edges: &Edges,
    agent: &AgentSettings,
    metrics: &ImagesMetrics,
) -> Result<Option<PullRecords>> {
    if !settings.gates().enabled(Gate::KubeletEnsureSecretPulledImages) {
        return Ok(None);
    }
    let ports = RecordsPorts {
        reader: edges.files.clone(),
        writer: edges.files.clone(),
        images: edges.cri.clone(),
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
    };
    let records = PullRecords::new(&agent.root_dir, verification(settings)?, ports).with_metrics(metrics);
    edges
        .spawner
        .spawn("records of image pulls", Box::pin(records.clone().keep_clean()));
    Ok(Some(records))
}

fn garbage_settings(settings: &Settings) -> GarbageSettings {
    let configuration = settings.configuration();
    // Percentages were checked with the configuration.
    let percent = |number: Option<i32>, default: u8| {
        let number = number.and_then(|number| u8::try_from(number).ok());
        number.unwrap_or(default).min(100)
    };
    GarbageSettings {
        high_percent: percent(configuration.image_gc_high_threshold_percent, 85),
        low_percent: percent(configuration.image_gc_low_threshold_percent, 80),
        min_age: std_duration(configuration.image_minimum_gc_age),
        max_age: std_duration(configuration.image_maximum_gc_age),
        by_runtime_handler: settings.gates().enabled(Gate::RuntimeClassInImageCriApi),
    }
}

fn verification(settings: &Settings) -> Result<VerificationPolicy> {
    let configuration = settings.configuration();
    let policy = &configuration.image_pull_credentials_verification_policy;
    let allowlist = &configuration.preloaded_images_verification_allowlist;
    VerificationPolicy::new(policy, allowlist)
        .with_context(|| format!("imagePullCredentialsVerificationPolicy: {policy:?} is no policy"))
}

fn providers(
    settings: &Settings,
    edges: &Edges,
    membership: Option<&Membership>,
    metrics: &ImagesMetrics,
) -> Result<Option<CredentialProviders>> {
    let Some(read) = read_plugins(settings)? else {
        return Ok(None);
    };
    metrics.plugins_configured(&read.hash);
    let accounts = match (&edges.api, membership) {
        (Some(api), Some(membership)) => Some(PodAccounts {
            reader: api.clone(),
            objects: membership.objects.clone(),
        }),
        (None, _) | (_, None) => None,
    };
    Ok(Some(CredentialProviders::new(
        read.plugins,
        Arc::new(read.programs),
        accounts,
        edges.clock.clone(),
        Some(metrics.clone()),
    )))
}

struct Plugins {
    plugins: Vec<ProviderSettings>,
    programs: PluginPrograms,
    /// Of their configuration.
    hash: String,
}

/// The plugins that the flags name. Errors in them are found here, not at the first pull.
fn read_plugins(settings: &Settings) -> Result<Option<Plugins>> {
    let flags = settings.flags();
    let (configuration, programs) = (
        &flags.image_credential_provider_config,
        &flags.image_credential_provider_bin_dir,
    );
    let (configuration, programs) = match (configuration, programs) {
        (None, None) => return Ok(None),
        (Some(configuration), Some(programs)) => (configuration, programs),
        (None, Some(_)) => {
            bail!("--image-credential-provider-bin-dir needs --image-credential-provider-config")
        }
        (Some(_), None) => {
            bail!("--image-credential-provider-config needs --image-credential-provider-bin-dir")
        }
    };
    let with_tokens = settings
        .gates()
        .enabled(Gate::KubeletServiceAccountTokenForCredentialProviders);
    let (plugins, hash) = read_providers(configuration, with_tokens)
        .with_context(|| format!("--image-credential-provider-config={}", configuration.display()))?;
    let names = plugins.iter().map(|plugin| plugin.name.as_str());
    let programs = PluginPrograms::open(programs, names).context("--image-credential-provider-bin-dir")?;
    Ok(Some(Plugins {
        plugins,
        programs,
        hash,
    }))
}

/// A file, or all files of a directory that are JSON or YAML by their names. With the hash of it all.
fn read_providers(path: &Path, with_tokens: bool) -> Result<(Vec<ProviderSettings>, String)> {
    let mut files = vec![path.to_owned()];
    if std::fs::metadata(path)?.is_dir() {
        files.clear();
        for entry in std::fs::read_dir(path)? {
            let file = entry?.path();
            let extension = file.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("json" | "yaml" | "yml")) && !file.is_dir() {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            bail!("no configuration files found in the directory");
        }
    }
    let read = |file: &PathBuf| -> Result<(String, Vec<u8>)> {
        let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        Ok((file.display().to_string(), bytes))
    };
    let contents: Vec<_> = files.iter().map(read).collect::<Result<_>>()?;
    let plugins = read_configuration(&contents, with_tokens).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", problems.join("; "))
    })?;
    Ok((plugins, configuration_hash(&contents)))
}

fn images_settings(settings: &Settings) -> ImagesSettings {
    let configuration = settings.configuration();
    let defaults = ImagesSettings::default();
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    ImagesSettings {
        serialize_pulls: configuration
            .serialize_image_pulls
            .unwrap_or(defaults.serialize_pulls),
        max_parallel_pulls: configuration.max_parallel_image_pulls.map_or(0, count),
        registry_pull_qps: configuration
            .registry_pull_qps
            .map_or(defaults.registry_pull_qps, f64::from),
        registry_burst: count(configuration.registry_burst),
        ensure_secret_pulled_images: settings.gates().enabled(Gate::KubeletEnsureSecretPulledImages),
        ..defaults
    }
}

#[cfg(test)]
mod tests;
