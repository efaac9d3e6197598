//! What must always hold, judged from the history alone.
//!
//! Owns the checks after every step. Each violation is one sentence; the first one ends a run. The precise form of what the
//! design asks for is at each check, because races with calls under way are allowed and nothing else is.

mod api;
mod asked;
mod handlers;
mod happened;
mod resizes;
mod room;
mod rules;
mod said;
mod settled;
mod storms;
mod told;
mod truth;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_config::FeatureGates;

use crate::dice::{hash_bytes, hash_start};
use crate::history::Fact;
use crate::node;
use truth::Truth;

pub struct Checker {
    truth: Truth,
    violations: Vec<String>,
    /// How long after it could know of a removal the agent may still send starts.
    slack: Duration,
    gates: FeatureGates,
    parsed: BTreeMap<(PathBuf, u64), Option<Arc<Pod>>>,
    /// The last document that was read, by its hash.
    document: Option<(u64, Vec<Arc<Pod>>)>,
}

impl Checker {
    #[must_use]
    pub fn new(has_http: bool, has_api: bool, slack: Duration) -> Self {
        Self {
            truth: Truth {
                has_http,
                has_api,
                ..Truth::default()
            },
            violations: Vec::new(),
            slack,
            gates: FeatureGates::default(),
            parsed: BTreeMap::new(),
            document: None,
        }
    }

    /// The pod of a manifest; `None` when it is none.
    fn parse(&mut self, path: &Path, content: &[u8]) -> Option<Arc<Pod>> {
        let key = (path.to_owned(), hash_bytes(hash_start(), content));
        let read = || {
            let text = path.to_str()?;
            let mut read = rubelet_manifest::read_file(content, text, node::NODE_NAME, &self.gates).ok()?;
            read.pods.pop().map(Arc::new)
        };
        self.parsed.entry(key).or_insert_with(read).clone()
    }

    /// The pods of a document of the web server. It is the same one nearly always.
    fn parse_document(&mut self, content: &[u8]) -> Vec<Arc<Pod>> {
        let hash = hash_bytes(hash_start(), content);
        if let Some((_, pods)) = self.document.as_ref().filter(|(known, _)| *known == hash) {
            return pods.clone();
        }
        let read = rubelet_manifest::read_url(content, node::URL, node::NODE_NAME, &self.gates);
        let pods = read.map(|read| read.pods).unwrap_or_default();
        let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        self.document = Some((hash, pods.clone()));
        pods
    }

    /// Somebody changed the manifest folder. A file that is no manifest leaves the pod of its path as it was.
    pub fn disk_changed(&mut self, path: &Path, content: Option<&[u8]>) {
        let pod = match content {
            Some(content) => match self.parse(path, content) {
                Some(pod) => Some(pod),
                None => return,
            },
            None => None,
        };
        self.truth.half_written.remove(path);
        let old = match pod {
            Some(pod) => {
                let truth = self.truth.pod(rules::uid(&pod));
                truth.name = rules::pod_name(&pod).to_owned();
                truth.versions.push(pod.clone());
                self.truth.disk.insert(path.to_owned(), pod)
            }
            None => self.truth.disk.remove(path),
        };
        if let Some(old) = old {
            let uid = rules::uid(&old).to_owned();
            if self.truth.wanted(&uid).is_none() {
                self.truth.pod(&uid).absent_in_life = true;
            }
        }
    }

    /// Somebody writes a manifest in two steps, and this was the first.
    pub fn half_written(&mut self, path: &Path) {
        if let Some(pod) = self.truth.disk.get(path) {
            let uid = rules::uid(pod).to_owned();
            self.truth.half_written.insert(path.to_owned(), uid);
        }
    }

    /// What the web server has from now on.
    pub fn served(&mut self, content: &[u8]) {
        self.truth.served = self.parse_document(content);
        for pod in self.truth.served.clone() {
            let truth = self.truth.pod(rules::uid(&pod));
            truth.name = rules::pod_name(&pod).to_owned();
            truth.versions.push(pod);
        }
    }

    /// Takes in what happened; violations are collected.
    pub fn observe(&mut self, facts: Vec<(Duration, Fact)>) {
        for (at, fact) in facts {
            self.observe_one(at, fact);
        }
    }

    #[must_use]
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn violate(&mut self, sentence: impl Into<String>) {
        self.violations.push(sentence.into());
    }

    fn observe_one(&mut self, at: Duration, fact: Fact) {
        match fact {
            Fact::Asked(ask) => self.asked(at, ask),
            Fact::SandboxReady { .. } => self.sandbox_ready(fact),
            Fact::SandboxStopped { id } => self.sandbox_stopped(&id),
            Fact::LeftOut { uid } => self.truth.pod(&uid).left_out_in_life = true,
            Fact::NetworkLost { id } => self.network_lost(&id),
            Fact::SandboxRemoved { id } => {
                self.truth.sandboxes.remove(&id);
            }
            Fact::Created { .. } => self.created(fact),
            Fact::Started { id, is_late } => self.started(at, &id, is_late),
            Fact::Signalled { .. } | Fact::RuntimeDown | Fact::RuntimeUp | Fact::RubeletCrashed => {}
            Fact::Ended { id, code, cause } => self.ended(at, &id, code, cause),
            Fact::Removed { id } => self.removed(&id),
            Fact::Probed { id, kind, is_good } => self.probed(&id, kind, is_good),
            Fact::HookEnded { id, kind, is_good } => self.hook_ended(&id, kind, is_good),
            Fact::CallFailed { subject } => self.call_failed(at, &subject),
            Fact::StateLost => self.state_lost(),
            Fact::PowerLost => {
                for pod in self.truth.pods.values_mut() {
                    pod.had_loss = true;
                }
                self.truth.cgroups.clear();
            }
            Fact::Listed { names } => self.listed(at, &names),
            Fact::ManifestRead { path, content } => self.manifest_read(at, &path, &content),
            Fact::Fetched { content } => self.fetched(at, &content),
            Fact::ApiApplied { pod } => self.api_applied(pod),
            Fact::ApiRemoved { uid, by_node } => self.api_removed(&uid, by_node),
            Fact::ApiTold { change } => self.api_told(at, change),
            Fact::CgroupMade { uid } => {
                self.truth.cgroups.insert(uid);
            }
            Fact::PodLimited { uid, memory, quota } => self.pod_limited(&uid, memory, quota),
            Fact::Resized {
                id,
                limits,
                is_update,
            } => self.resized(&id, limits, is_update),
            Fact::CgroupGone { uid } => self.cgroup_gone(&uid),
            Fact::TreeRemoved { path } => self.tree_removed(&path),
            Fact::VolumeStands { uid, volume } => {
                self.truth.pod(&uid).volumes.insert(volume);
            }
            Fact::VolumeGone { uid, volume } => self.volume_gone(&uid, &volume),
            Fact::Published { pods } => self.published(at, pods),
            Fact::Fatal { text } => self.violate(format!("rubelet cannot go on: {text}")),
            Fact::RubeletStarted => self.rubelet_started(),
            Fact::ClockMoved => self.truth.clock_moved = true,
        }
    }
}
