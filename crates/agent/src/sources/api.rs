//! The source of pods at the API server: those that are bound to this node.
//!
//! Owns the set as the API server has it, and which of its pods are mirrors: they show static pods and are never run. Every change
//! goes to the reporter too, which compares the statuses that it sent with the API server's. While the set cannot be followed it stays
//! as it was: no pod ends because the API server is away. A pod that cannot be decoded is delivered apart until it is deleted.
//!
//! ```text
//! the node is known ──► follow ──► All, Applied, Deleted ──► the whole set to the merger, mirrors apart
//!                          └─ Broken ► the set stays; All follows
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{MIRROR_ANNOTATION, annotation, is_mirror_pod, uid_text};
use rubelet_ports::api::{Change, Changes, PodReader};
use rubelet_ports::{Clock, PodReporter};
use tokio::sync::{mpsc, watch};

use super::{Source, SourcePorts, SourceSet, SourceSettings};
use rubelet_ports::LogThrottle;

/// Changes that are there at once go into one set, up to a limit, so that a stream without pauses holds up nothing else.
const CHANGES_PER_SET: usize = 256;

/// The mirror pods of this node.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    /// By the static pod that they show, and by their own UIDs. While a mirror is replaced there may be two.
    by_static: BTreeMap<PodUid, BTreeMap<String, Arc<Pod>>>,
    /// The static pods by their mirrors' UIDs.
    static_of: BTreeMap<String, PodUid>,
}

impl Mirrors {
    /// The API server has this version of a pod, which may be a mirror.
    fn put(&mut self, pod: &Arc<Pod>) {
        self.remove(uid_text(pod));
        // The value is the UID of the static pod.
        let Some(shown) = annotation(pod, MIRROR_ANNOTATION).map(PodUid::from) else {
            return;
        };
        let uid = uid_text(pod).to_owned();
        self.static_of.insert(uid.clone(), shown.clone());
        let of_pod = self.by_static.entry(shown).or_default();
        of_pod.insert(uid, Arc::clone(pod));
    }

    fn remove(&mut self, uid: &str) {
        let Some(shown) = self.static_of.remove(uid) else {
            return;
        };
        if let Some(of_pod) = self.by_static.get_mut(&shown) {
            of_pod.remove(uid);
            if of_pod.is_empty() {
                self.by_static.remove(&shown);
            }
        }
    }

    /// The mirror of a static pod.
    #[must_use]
    pub fn mirror_of(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.by_static.get(uid)?.values().next_back()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.static_of.len()
    }

    /// The static pod that is shown by the mirror with this UID.
    #[must_use]
    pub fn shown_by(&self, uid: &str) -> Option<&PodUid> {
        self.static_of.get(uid)
    }
}

pub(super) struct ApiActor {
    reader: Arc<dyn PodReader>,
    node: watch::Receiver<Option<Arc<Node>>>,
    node_name: String,
    clock: Arc<dyn Clock>,
    reporter: Arc<dyn PodReporter>,
    output: mpsc::Sender<SourceSet>,
    mirrors: watch::Sender<Arc<Mirrors>>,
    /// Everything that is bound to this node, by UID, as the API server gave it.
    pods: BTreeMap<String, Arc<Pod>>,
    /// Those of them that are run here, as they are delivered.
    own: BTreeMap<String, Arc<Pod>>,
    /// Those that must be left as they run.
    unreadable: BTreeMap<String, Arc<Pod>>,
    throttle: LogThrottle,
}

impl ApiActor {
    pub(super) fn new(
        reader: &Arc<dyn PodReader>,
        settings: &SourceSettings,
        ports: &SourcePorts,
        output: mpsc::Sender<SourceSet>,
        mirrors: watch::Sender<Arc<Mirrors>>,
    ) -> Self {
        Self {
            reader: Arc::clone(reader),
            node: ports.node.clone(),
            node_name: settings.node_name.clone(),
            clock: Arc::clone(&ports.clock),
            reporter: Arc::clone(&ports.reporter),
            output,
            mirrors,
            pods: BTreeMap::new(),
            own: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            throttle: LogThrottle::default(),
        }
    }

    /// Runs until the receiver of the sets is gone.
    pub(super) async fn run(mut self) {
        let output = self.output.clone();
        // Dropping either side loses nothing: what is not delivered is listed again by the next life.
        tokio::select! {
            biased;
            () = output.closed() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        if self.node.wait_for(Option::is_some).await.is_err() {
            // Whoever could see the node is gone: the agent ends.
            return std::future::pending().await;
        }
        let mut changes = self.reader.follow_pods(&self.node_name);
        while let Some(change) = changes.next().await {
            let mut has_news = self.take(change);
            has_news |= self.take_ready(&mut changes);
            if has_news && !self.deliver().await {
                return;
            }
        }
        tracing::error!(
            "The API server's pods are not followed any more; new ones are not seen until rubelet starts again"
        );
        std::future::pending::<()>().await;
    }

    /// Takes what is there without waiting.
    fn take_ready(&mut self, changes: &mut Changes<Pod>) -> bool {
        let mut has_news = false;
        for _ in 1..CHANGES_PER_SET {
            let Some(Some(change)) = changes.next().now_or_never() else {
                break;
            };
            has_news |= self.take(change);
        }
        has_news
    }

    /// Whether the set may be another one now.
    fn take(&mut self, change: Change<Pod>) -> bool {
        self.reporter.api_pods(&change);
        match change {
            Change::All(pods) => {
                if self.throttle.end() {
                    tracing::info!(
                        pods = pods.len(),
                        "This node's pods are followed at the API server again"
                    );
                }
                let listed: BTreeSet<&str> = pods.iter().map(|pod| uid_text(pod)).collect();
                let gone = self.pods.keys().filter(|uid| !listed.contains(uid.as_str()));
                let gone: Vec<String> = gone.cloned().collect();
                for uid in gone {
                    self.remove(&uid);
                }
                for pod in pods {
                    let known = self.pods.get(uid_text(&pod));
                    // The same version is kept as it is, so that the merger need not compare it.
                    if !known.is_some_and(|known| is_same_version(known, &pod)) {
                        self.put(&pod);
                    }
                }
                true
            }
            Change::Applied(pod) => {
                self.put(&pod);
                true
            }
            Change::Deleted(pod) => self.remove(uid_text(&pod)),
            Change::Resumed => {
                if self.throttle.end() {
                    tracing::info!(
                        pods = self.pods.len(),
                        "This node's pods are followed at the API server again"
                    );
                }
                false
            }
            Change::Broken(error) => {
                if self.throttle.is_due(&error.to_string(), self.clock.moment()) {
                    tracing::warn!(
                        %error,
                        "This node's pods cannot be followed at the API server; those that are known stay as they are"
                    );
                }
                if is_on(Bug::OutageRemoves) {
                    self.pods.clear();
                    self.own.clear();
                }
                is_on(Bug::OutageRemoves)
            }
        }
    }

    fn put(&mut self, pod: &Arc<Pod>) {
        let uid = uid_text(pod).to_owned();
        self.own.remove(&uid);
        self.unreadable.remove(&uid);
        if is_unreadable(pod) && !is_mirror_pod(pod) {
            self.unreadable.insert(uid.clone(), Arc::clone(pod));
        } else if !is_mirror_pod(pod) {
            self.own.insert(uid.clone(), with_spec(Arc::clone(pod)));
        }
        let before = self.pods.insert(uid, Arc::clone(pod));
        if is_mirror_pod(pod) || before.is_some_and(|before| is_mirror_pod(&before)) {
            self.mirrors
                .send_modify(|mirrors| Arc::make_mut(mirrors).put(pod));
        }
    }

    /// Whether the pod was known.
    fn remove(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.remove(uid) else {
            return false;
        };
        self.own.remove(uid);
        self.unreadable.remove(uid);
        if is_mirror_pod(&pod) {
            self.mirrors
                .send_modify(|mirrors| Arc::make_mut(mirrors).remove(uid));
        }
        true
    }

    /// False when the receiver is gone.
    async fn deliver(&self) -> bool {
        let set = SourceSet {
            source: Source::Api,
            pods: self.own.values().cloned().collect(),
            is_complete: true,
            never_good: Vec::new(),
            unusable: Vec::new(),
            unreadable: self.unreadable.values().cloned().collect(),
        };
        self.output.send(set).await.is_ok()
    }
}

/// Whether the pod must be left as it runs. To end it, nothing but its metadata is needed.
fn is_unreadable(pod: &Pod) -> bool {
    pod.spec.is_none() && pod.metadata.deletion_timestamp.is_none()
}

/// A pod without spec is one that only the runtime knows, and is not reported.
fn with_spec(pod: Arc<Pod>) -> Arc<Pod> {
    if pod.spec.is_some() {
        return pod;
    }
    let mut pod = Pod::clone(&pod);
    pod.spec = Some(PodSpec::default());
    Arc::new(pod)
}

fn is_same_version(old: &Pod, new: &Pod) -> bool {
    let version = &new.metadata.resource_version;
    version.is_some() && old.metadata.resource_version == *version
}
