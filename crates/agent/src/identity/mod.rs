//! Static pods that keep the UID under which another kubelet runs them.
//!
//! Owns that UID (decision 0023). Upstream's recipe for the UID of a static pod cannot be computed here, so that after a switch
//! the same manifest makes another pod. Its mirror pod says what the running pod was made from: where it shows the same as the
//! manifest, the pod keeps its UID and with it its containers, and upstream's kubelet finds it again after a switch back.
//!
//! ```text
//! sources ─► first set of static pods ─► held until the runtime has listed its sandboxes and, where a sandbox that rubelet
//!    │                                   did not make has a static pod's name, the API source has delivered; 10 s each
//!    └─────► all other sets ─────────────► with the UIDs of the record ─► sync loop
//! ```

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_manifest::{is_recipe_uid, mirror_difference};
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{HASH_ANNOTATION, PodName, SOURCE_ANNOTATION, Source, annotation, uid_text};
use rubelet_ports::{Clock, LogThrottle, Moment, PodEvent, RuntimeReader};
use rubelet_wire::cri::v1;
use tokio::sync::{mpsc, watch};

use crate::settings::AgentPorts;
use crate::sources::{Mirrors, SourceSet, Stretch};
use crate::supervisor::Supervisor;
use record::Record;

const RECORD_NAME: &str = "rubelet-static-pods.json";
const BAD_RECORD_NAME: &str = "rubelet-static-pods.json.bad";
const RECORD_MODE: u32 = 0o600;
const RECORD_LIMIT_BYTES: u64 = 1 << 20;
const READ_TRIES: u32 = 5;
/// How long static pods wait for the runtime, and then for their mirror pods. The API server may be one of them.
const HOLD_LIMIT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The static pods that run when the agent starts.
#[derive(Debug, Default)]
struct RunningPods {
    uids: BTreeSet<String>,
    /// In the order in which the runtime lists them.
    by_name: BTreeMap<PodName, Vec<String>>,
}

impl RunningPods {
    fn add(&mut self, name: PodName, uid: String) {
        self.uids.insert(uid.clone());
        self.by_name.entry(name).or_default().push(uid);
    }
}

/// A static pod whose name a pod of another kubelet has.
struct Question {
    pod: Arc<Pod>,
    running_uid: String,
}

pub(crate) struct Identities {
    ports: AgentPorts,
    supervisor: Supervisor,
    input: mpsc::Receiver<SourceSet>,
    output: mpsc::Sender<SourceSet>,
    mirrors: watch::Receiver<Arc<Mirrors>>,
    /// What runs when the agent starts, once the runtime has said so.
    running: watch::Receiver<Option<Arc<RunningPods>>>,
    running_sender: Option<watch::Sender<Option<Arc<RunningPods>>>>,
    is_api_known: bool,
    /// The first set of each source of static pods, while it is held.
    held: BTreeMap<Source, SourceSet>,
    hold_until: Option<Moment>,
    begun: BTreeSet<Source>,
    record: Record,
    saved: watch::Sender<Record>,
    /// The static pods of each source by the UID of the recipe: as delivered, and with the UID that they keep.
    renamed: BTreeMap<String, (Arc<Pod>, Arc<Pod>)>,
    /// The newest set of each source, as delivered.
    sets: BTreeMap<Source, Vec<Arc<Pod>>>,
    /// The UIDs in it, and how many pods have each.
    own: BTreeMap<Source, BTreeMap<String, usize>>,
    /// UIDs of other kubelets that were decided about.
    decided: BTreeSet<String>,
}

impl Identities {
    /// Starts the task between the sources and the sync loop, which gets the sets from the receiver.
    pub(crate) fn start(
        supervisor: &Supervisor,
        ports: &AgentPorts,
        root_dir: &Path,
        input: mpsc::Receiver<SourceSet>,
        mirrors: watch::Receiver<Arc<Mirrors>>,
    ) -> mpsc::Receiver<SourceSet> {
        let (output, sets) = mpsc::channel(1);
        let (running_sender, running) = watch::channel(None);
        let (saved, to_save) = watch::channel(Record::default());
        let identities = Self {
            ports: ports.clone(),
            supervisor: supervisor.clone(),
            input,
            output,
            mirrors,
            running,
            running_sender: Some(running_sender),
            is_api_known: false,
            held: BTreeMap::new(),
            hold_until: None,
            begun: BTreeSet::new(),
            record: Record::default(),
            saved,
            renamed: BTreeMap::new(),
            sets: BTreeMap::new(),
            own: BTreeMap::new(),
            decided: BTreeSet::new(),
        };
        let path = root_dir.join(RECORD_NAME);
        supervisor.spawn(
            "record of static pods",
            save(ports.clone(), path.clone(), to_save),
        );
        supervisor.spawn("identities of static pods", identities.run(path));
        sets
    }

    /// Runs until the sync loop ends.
    async fn run(mut self, path: PathBuf) {
        self.record = load(&self.ports, &path).await;
        let clock = Arc::clone(&self.ports.clock);
        loop {
            // Each arm may be dropped: channels keep what was not taken, the timer is made anew.
            let is_open = tokio::select! {
                biased;
                () = self.output.closed() => return,
                set = self.input.recv() => match set {
                    Some(set) => self.take(set).await,
                    None => return,
                },
                Ok(()) = self.running.changed() => {
                    // Mirror pods have their own time.
                    self.hold_until = None;
                    true
                }
                () = wait_until(clock.as_ref(), self.hold_until) => true,
            };
            if !is_open || !self.release().await {
                return;
            }
        }
    }

    /// False when the sync loop has ended.
    async fn take(&mut self, set: SourceSet) -> bool {
        self.is_api_known |= set.source == Source::Api;
        if set.source == Source::Api || self.begun.contains(&set.source) {
            return self.forward(set).await;
        }
        self.list_running();
        // Nothing of an older set has begun.
        self.held.insert(set.source, set);
        true
    }

    /// Lists what runs, once: with the first set, even one without pods, so that a source that delivers late finds the answer there.
    fn list_running(&mut self) {
        if let Some(sender) = self.running_sender.take() {
            let (runtime, clock) = (
                Arc::clone(&self.ports.runtime_reader),
                Arc::clone(&self.ports.clock),
            );
            self.supervisor
                .spawn("first list of static pods", list_running(runtime, clock, sender));
        }
    }

    /// Forwards held sets whose time has come. False when the sync loop has ended.
    async fn release(&mut self) -> bool {
        let sources: Vec<Source> = self.held.keys().copied().collect();
        for source in sources {
            if self.is_held(source) {
                continue;
            }
            if let Some(set) = self.held.remove(&source) {
                self.begun.insert(source);
                if !self.forward(set).await {
                    return false;
                }
            }
        }
        if self.held.is_empty() {
            self.hold_until = None;
        }
        true
    }

    fn is_held(&mut self, source: Source) -> bool {
        let Some(set) = self.held.get(&source) else {
            return false;
        };
        let has_recipe_uid = set.pods.iter().any(|pod| is_recipe_uid(uid_text(pod)));
        let is_missing = match &*self.running.borrow() {
            None => has_recipe_uid,
            Some(running) => {
                let waits_for_api = self.ports.api.pods.is_some() && !self.is_api_known;
                waits_for_api && !self.questions(source, &set.pods, running).is_empty()
            }
        };
        if !is_missing {
            return false;
        }
        let now = self.ports.clock.moment();
        now < *self.hold_until.get_or_insert(now.plus(HOLD_LIMIT))
    }

    /// The static pods that do not run under their own UID, but under one that rubelet did not give.
    fn questions(&self, source: Source, pods: &[Arc<Pod>], running: &RunningPods) -> Vec<Question> {
        let begun = self.own.get(&source);
        let of_pod = |pod: &Arc<Pod>| {
            let recipe_uid = uid_text(pod);
            let uid = self.record.identity(recipe_uid);
            let has_begun =
                begun.is_some_and(|begun| begun.contains_key(recipe_uid)) || running.uids.contains(uid);
            if !is_recipe_uid(recipe_uid) || has_begun {
                return None;
            }
            let is_foreign = |uid: &&String| !self.record.is_ours(uid) && !self.decided.contains(*uid);
            let foreign = running.by_name.get(&PodName::of(pod))?.iter().find(is_foreign)?;
            Some(Question {
                pod: Arc::clone(pod),
                running_uid: foreign.clone(),
            })
        };
        pods.iter().filter_map(of_pod).collect()
    }

    /// Forwards a set with the UIDs that its pods keep. False when the sync loop has ended.
    async fn forward(&mut self, mut set: SourceSet) -> bool {
        if set.source == Source::Api {
            return self.output.send(set).await.is_ok();
        }
        let before = self.sets.remove(&set.source).unwrap_or_default();
        let delivered = set.pods.clone();
        let stretch = Stretch::of(&before, &delivered);
        let mut is_news = self.decide(set.source, stretch.new);
        self.note_set(set.source, &stretch);
        if set.is_complete && set.never_good.is_empty() {
            let own = self.own.get(&set.source);
            let is_there = |uid: &str| own.is_some_and(|own| own.contains_key(uid));
            is_news |= self.record.retain(set.source, is_there);
        }
        if !self.record.is_plain() {
            for pod in &mut set.pods {
                *pod = self.with_identity(pod);
            }
        }
        let record = &self.record;
        self.renamed
            .retain(|recipe_uid, _| record.identity(recipe_uid) != recipe_uid);
        if !stretch.is_empty() {
            is_news |= self.note_own(stretch.new);
        }
        if is_news {
            self.saved.send_replace(self.record.clone());
        }
        self.sets.insert(set.source, delivered);
        self.output.send(set).await.is_ok()
    }

    fn note_set(&mut self, source: Source, stretch: &Stretch<'_>) {
        let own = self.own.entry(source).or_default();
        for pod in stretch.new {
            *own.entry(uid_text(pod).to_owned()).or_default() += 1;
        }
        for pod in stretch.old {
            if let Some(count) = own.get_mut(uid_text(pod)) {
                *count -= 1;
                if *count == 0 {
                    own.remove(uid_text(pod));
                }
            }
        }
    }

    /// Whether the record has changed.
    fn note_own(&mut self, new: &[Arc<Pod>]) -> bool {
        let uids = new
            .iter()
            .map(|pod| uid_text(pod))
            .filter(|uid| is_recipe_uid(uid));
        let all = self.own.values().flat_map(BTreeMap::keys);
        let current = all.filter(|uid| is_recipe_uid(uid)).count();
        let is_current = |uid: &str| self.own.values().any(|own| own.contains_key(uid));
        self.record.note_own(uids, is_current, current)
    }

    /// The pod with the UID that it has on this node.
    fn with_identity(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let recipe_uid = uid_text(pod);
        let uid = self.record.identity(recipe_uid);
        if uid == recipe_uid {
            return Arc::clone(pod);
        }
        if let Some((delivered, renamed)) = self.renamed.get(recipe_uid)
            && Arc::ptr_eq(delivered, pod)
        {
            return Arc::clone(renamed);
        }
        let mut renamed = Pod::clone(pod);
        renamed.metadata.uid = Some(uid.to_owned());
        let annotations = renamed.metadata.annotations.get_or_insert_default();
        annotations.insert(HASH_ANNOTATION.to_owned(), uid.to_owned());
        let renamed = Arc::new(renamed);
        let pair = (Arc::clone(pod), Arc::clone(&renamed));
        self.renamed.insert(recipe_uid.to_owned(), pair);
        renamed
    }

    /// Whether the record has changed.
    fn decide(&mut self, source: Source, pods: &[Arc<Pod>]) -> bool {
        let mut is_news = false;
        let running = self.running.borrow().clone().unwrap_or_default();
        for Question { pod, running_uid } in self.questions(source, pods, &running) {
            self.decided.insert(running_uid.clone());
            let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
            match self.obstacle(&pod, &running_uid) {
                None => {
                    tracing::info!(
                        namespace,
                        pod = name,
                        uid = running_uid,
                        "Another kubelet made this static pod, and its mirror pod shows the same as the manifest; it keeps its UID and runs on"
                    );
                    self.record.take_over(uid_text(&pod), &running_uid, source);
                    is_news = true;
                }
                Some(obstacle) => {
                    let message = format!(
                        "Another kubelet made this static pod under UID {running_uid}; it starts anew: {obstacle}"
                    );
                    tracing::info!(namespace, pod = name, "{message}");
                    let event = PodEvent::normal("StaticPodReplaced", message);
                    self.ports.events.record(&pod, event);
                }
            }
        }
        is_news
    }

    /// Why the pod cannot keep the UID under which it runs.
    fn obstacle(&self, pod: &Pod, running_uid: &str) -> Option<String> {
        if self.ports.api.pods.is_none() {
            return Some("a node without API server has no mirror pod to compare with".to_owned());
        }
        if !self.is_api_known {
            return Some(format!(
                "the API server has not shown its mirror pod within {} s",
                HOLD_LIMIT.as_secs()
            ));
        }
        let mirrors = self.mirrors.borrow().clone();
        let Some(mirror) = mirrors.mirror_of(&PodUid::from(running_uid)) else {
            return Some("the API server has no mirror pod of that UID".to_owned());
        };
        if PodName::of(mirror) != PodName::of(pod) || annotation(mirror, HASH_ANNOTATION) != Some(running_uid)
        {
            return Some("the mirror pod of that UID shows another static pod".to_owned());
        }
        let difference = mirror_difference(pod, mirror);
        difference.map(|field| format!("its mirror pod differs from the manifest in {field}"))
    }
}

/// Lists the sandboxes of static pods until the runtime answers.
async fn list_running(
    runtime: Arc<dyn RuntimeReader>,
    clock: Arc<dyn Clock>,
    sender: watch::Sender<Option<Arc<RunningPods>>>,
) {
    loop {
        if let Ok(sandboxes) = runtime.list_pod_sandboxes(None).await {
            let mut running = RunningPods::default();
            for (name, uid) in sandboxes.iter().filter_map(running_static_pod) {
                running.add(name, uid);
            }
            sender.send_replace(Some(Arc::new(running)));
            return;
        }
        // The observer reports a runtime that does not answer.
        clock.sleep(RETRY_PAUSE).await;
    }
}

fn running_static_pod(sandbox: &v1::PodSandbox) -> Option<(PodName, String)> {
    let source = Source::parse(sandbox.annotations.get(SOURCE_ANNOTATION)?)?;
    let is_ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
    let metadata = sandbox.metadata.as_ref().filter(|_| is_ready)?;
    match source {
        Source::File | Source::Http => Some((
            PodName {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
            },
            metadata.uid.clone(),
        )),
        Source::Api => None,
    }
}

/// The record of an earlier run. One that makes no sense is set aside.
async fn load(ports: &AgentPorts, path: &Path) -> Record {
    for _ in 0..READ_TRIES {
        let error = match ports.file_reader.read(path, RECORD_LIMIT_BYTES).await {
            Ok(content) => match Record::read(&content) {
                Ok(record) => return record,
                Err(problem) => {
                    let aside = path.with_file_name(BAD_RECORD_NAME);
                    tracing::warn!(path = %path.display(), problem, "The record of static pods makes no sense and is set aside");
                    if let Err(error) = ports.file_writer.write(&aside, &content, RECORD_MODE).await {
                        tracing::warn!(%error, "The record of static pods cannot be set aside");
                    }
                    return Record::default();
                }
            },
            Err(error) if error.is_not_found() => return Record::default(),
            Err(error) => error,
        };
        tracing::warn!(%error, "The record of static pods cannot be read");
        ports.clock.sleep(RETRY_PAUSE).await;
    }
    Record::default()
}

/// Writes the newest record whenever it changes, until the task that changes it ends.
async fn save(ports: AgentPorts, path: PathBuf, mut records: watch::Receiver<Record>) {
    let mut written = None;
    let mut throttle = LogThrottle::default();
    while records.changed().await.is_ok() {
        loop {
            let record = records.borrow_and_update().clone();
            if written.as_ref() == Some(&record) {
                break;
            }
            let text = record.text();
            match ports.file_writer.write(&path, text.as_bytes(), RECORD_MODE).await {
                Ok(()) => {
                    throttle.end();
                    written = Some(record);
                }
                Err(error) => {
                    if throttle.is_due(&error.to_string(), ports.clock.moment()) {
                        tracing::warn!(%error, "The record of static pods cannot be written; after a switch of kubelets they may start anew");
                    }
                    // Without the record rubelet takes its own pods for another kubelet's after a restart.
                    ports.clock.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

async fn wait_until(clock: &dyn Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep(at.since(clock.moment())).await,
        None => std::future::pending().await,
    }
}
