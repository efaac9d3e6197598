//! Every pod with probes, and what is known of each probe.
//!
//! Owns the state behind one lock, which is held for a few steps and never across an await. It runs nothing: the task of a
//! probe asks what to do next and brings back what it found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use rubelet_lifecycle::restart::is_sidecar;
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerId, ContainerObservation, ContainerProbes, ContainerState, PodObservation, PodUid, ProbeResult,
    ProbeResults,
};
use rubelet_model::pod::{name_of, namespace_of};
use rubelet_ports::{Moment, ProbeFigures, ProbeKind, ProbeReading, ProbedPod, Randomness};
use tokio::sync::Notify;

use crate::attempt::Finding;
use crate::course::{Course, Event, Sight, SightState, Verdict};
use crate::figures::Tally;
use crate::schedule::{Due, Schedule};
use crate::spec::{ProbeSpec, probe_of};

const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

/// Containers that were started longer than this before the agent keep their earlier results.
const RESTART_MARGIN: Duration = Duration::from_secs(10);

/// Facts that do not change while the process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) started_at: Timestamp,
    pub(crate) started: Moment,
    /// `ChangeContainerStatusOnKubeletRestart`
    pub(crate) change_status_on_restart: bool,
}

/// The present, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) now: Timestamp,
    pub(crate) moment: Moment,
}

/// Identifies one probe; a later probe in its place has another key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) uid: PodUid,
    pub(crate) container: String,
    pub(crate) kind: ProbeKind,
    number: u64,
}

/// A probe that needs a task.
pub(crate) struct Begun {
    pub(crate) key: Key,
    pub(crate) wake: Arc<Notify>,
}

/// What the task of a probe does next.
pub(crate) enum Step {
    Over,
    /// Until something changes.
    Idle,
    At(Moment),
    Run(Run),
}

/// One run of a probe.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) id: ContainerId,
    pub(crate) spec: Arc<ProbeSpec>,
    due: Due,
}

/// A run that is over.
pub(crate) struct Finished<'a> {
    pub(crate) run: &'a Run,
    pub(crate) finding: &'a Finding,
    pub(crate) took: Duration,
}

/// What follows from a run.
pub(crate) struct Outcome {
    pub(crate) pod: Arc<Pod>,
    /// Whether a failure becomes an event.
    pub(crate) is_event: bool,
    /// Whether the result that the agent reads has changed.
    pub(crate) changed: bool,
}

struct PodEntry {
    pod: Arc<Pod>,
    ip: String,
    is_ending: bool,
    containers: BTreeMap<String, ContainerEntry>,
}

#[derive(Default)]
struct ContainerEntry {
    /// The running instance, and since when.
    running: Option<(ContainerId, Timestamp)>,
    /// The last status shows that this instance has started.
    was_started: bool,
    /// It was looked at before: an instance that appears now was started during this run of the agent, whatever the clock shows.
    was_looked_at: bool,
    probes: BTreeMap<ProbeKind, ProbeEntry>,
}

struct ProbeEntry {
    number: u64,
    spec: Arc<ProbeSpec>,
    course: Course,
    /// For the instance that is probed.
    schedule: Option<(ContainerId, Schedule)>,
    tally: Tally,
    wake: Arc<Notify>,
}

pub(crate) struct ProbeTable {
    facts: Facts,
    pods: BTreeMap<PodUid, PodEntry>,
    next_number: u64,
}

impl ProbeTable {
    pub(crate) fn new(facts: Facts) -> Self {
        Self {
            facts,
            pods: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Takes in what is seen of a pod that has probes.
    pub(crate) fn show(
        &mut self,
        seen: ProbedPod<'_>,
        present: Present,
        randomness: &dyn Randomness,
    ) -> (ProbeReading, Vec<Begun>) {
        let uid = &seen.observation.uid;
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| PodEntry {
            pod: Arc::clone(seen.pod),
            ip: seen.ip.to_owned(),
            is_ending: false,
            containers: BTreeMap::new(),
        });
        let is_changed = !Arc::ptr_eq(&entry.pod, seen.pod) || entry.ip != seen.ip;
        if is_changed {
            entry.pod = Arc::clone(seen.pod);
            seen.ip.clone_into(&mut entry.ip);
        }
        let mut begun = Vec::new();
        for container in probed_containers(seen.pod) {
            let known = entry.containers.entry(container.name.clone()).or_default();
            for kind in KINDS {
                let Some(probe) = probe_of(container, kind) else {
                    if let Some(old) = known.probes.remove(&kind) {
                        old.wake.notify_one();
                    }
                    continue;
                };
                if known.probes.contains_key(&kind) && !is_changed {
                    continue;
                }
                let spec = Arc::new(ProbeSpec::read(seen.pod, container, probe, seen.ip));
                if let Some(old) = known.probes.get_mut(&kind) {
                    old.spec = spec;
                    continue;
                }
                let number = self.next_number;
                self.next_number += 1;
                let wake = Arc::new(Notify::new());
                begun.push(Begun {
                    key: Key {
                        uid: uid.clone(),
                        container: container.name.clone(),
                        kind,
                        number,
                    },
                    wake: Arc::clone(&wake),
                });
                known
                    .probes
                    .insert(kind, ProbeEntry::new(kind, number, spec, wake));
            }
            let is_sidecar = is_sidecar(container);
            known.look(
                &self.facts,
                seen.observation,
                seen.last_status,
                container,
                is_sidecar,
            );
            if entry.is_ending {
                known.end();
            }
            known.arrange(&self.facts, present, randomness);
        }
        entry.containers.retain(|name, known| {
            let is_kept = probed_containers(seen.pod).any(|container| container.name == *name);
            if !is_kept {
                known.wake_all();
            }
            is_kept
        });
        (entry.reading(), begun)
    }

    pub(crate) fn read(&self, uid: &PodUid) -> ProbeReading {
        self.pods.get(uid).map(PodEntry::reading).unwrap_or_default()
    }

    /// Readiness probes that are run sooner than planned.
    pub(crate) fn probe_now(&mut self, uid: &PodUid, containers: &[String], now: Moment) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        for name in containers {
            let probe = entry
                .containers
                .get_mut(name)
                .and_then(|container| container.probes.get_mut(&ProbeKind::Readiness));
            if let Some(probe) = probe
                && let Some((_, schedule)) = &mut probe.schedule
                && schedule.hurry(now)
            {
                probe.wake.notify_one();
            }
        }
    }

    pub(crate) fn end(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        entry.is_ending = true;
        for container in entry.containers.values_mut() {
            container.end();
            container.wake_all();
        }
    }

    pub(crate) fn forget(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.remove(uid) {
            entry.containers.values().for_each(ContainerEntry::wake_all);
        }
    }

    pub(crate) fn next(&mut self, key: &Key, now: Moment) -> Step {
        let Some(container) = self.container(key) else {
            return Step::Over;
        };
        let has_started = container.has_started();
        let Some(probe) = container.probe(key).filter(|probe| !probe.course.is_over()) else {
            return Step::Over;
        };
        let target = probe.course.target(has_started).cloned();
        match (&mut probe.schedule, target) {
            (Some((of, schedule)), Some(id)) if *of == id => {
                let due = schedule.next();
                if due.at > now {
                    return Step::At(due.at);
                }
                schedule.began(now);
                Step::Run(Run {
                    id,
                    spec: Arc::clone(&probe.spec),
                    due,
                })
            }
            (_, _) => Step::Idle,
        }
    }

    /// Whether the instance that is being probed still needs this run.
    pub(crate) fn is_current(&mut self, key: &Key, run: &Run) -> bool {
        let Some(container) = self.container(key) else {
            return false;
        };
        let has_started = container.has_started();
        let probe = container.probe(key);
        probe.is_some_and(|probe| probe.course.target(has_started) == Some(&run.id))
    }

    /// Takes in the result of a run; `None` when the probe is gone.
    pub(crate) fn finish(
        &mut self,
        key: &Key,
        finished: &Finished<'_>,
        present: Present,
        randomness: &dyn Randomness,
    ) -> Option<Outcome> {
        let facts = self.facts;
        let entry = self.pods.get_mut(&key.uid)?;
        let container = entry.containers.get_mut(&key.container)?;
        let probe = container.probe(key)?;
        let (run, verdict) = (finished.run, finished.finding.verdict());
        if let Some((of, schedule)) = &mut probe.schedule
            && *of == run.id
        {
            schedule.finished(run.due, present.moment, verdict == Some(Verdict::Success));
        }
        let before = probe.course.result().map(|(_, result)| result);
        if let Some(verdict) = verdict {
            probe.tally.count(verdict, finished.took);
            let event = Event::Probed {
                id: run.id.clone(),
                verdict,
                is_early: run.due.is_early,
            };
            probe.step(event);
        }
        let changed = before != probe.course.result().map(|(_, result)| result);
        if changed {
            // Other probes may have waited for the startup probe.
            container.arrange(&facts, present, randomness);
        }
        Some(Outcome {
            pod: Arc::clone(&entry.pod),
            is_event: !run.due.is_early,
            changed,
        })
    }

    pub(crate) fn figures(&self) -> Vec<ProbeFigures> {
        let mut figures = Vec::new();
        for (uid, entry) in &self.pods {
            for (container, known) in &entry.containers {
                figures.extend(known.probes.iter().map(|(kind, probe)| ProbeFigures {
                    kind: *kind,
                    container: container.clone(),
                    pod: name_of(&entry.pod).to_owned(),
                    namespace: namespace_of(&entry.pod).to_owned(),
                    pod_uid: uid.clone(),
                    successful: probe.tally.successful,
                    failed: probe.tally.failed,
                    within: probe.tally.within,
                    took: probe.tally.took,
                }));
            }
        }
        figures
    }

    fn container(&mut self, key: &Key) -> Option<&mut ContainerEntry> {
        self.pods.get_mut(&key.uid)?.containers.get_mut(&key.container)
    }
}

impl PodEntry {
    fn reading(&self) -> ProbeReading {
        let mut reading = ProbeReading::default();
        let mut results = BTreeMap::new();
        for (name, container) in &self.containers {
            for (kind, probe) in &container.probes {
                match kind {
                    ProbeKind::Startup => reading.startup.insert(name.clone()),
                    ProbeKind::Readiness => reading.readiness.insert(name.clone()),
                    ProbeKind::Liveness => false,
                };
                let Some((id, result)) = probe.course.result() else {
                    continue;
                };
                let of: &mut ContainerProbes = results.entry(id.clone()).or_default();
                match kind {
                    ProbeKind::Startup => of.startup = Some(result),
                    ProbeKind::Readiness => of.readiness = Some(result),
                    ProbeKind::Liveness => of.liveness = Some(result),
                }
            }
        }
        reading.results = results.into_iter().collect::<ProbeResults>();
        reading
    }
}

impl ContainerEntry {
    fn probe(&mut self, key: &Key) -> Option<&mut ProbeEntry> {
        self.probes
            .get_mut(&key.kind)
            .filter(|probe| probe.number == key.number)
    }

    fn wake_all(&self) {
        for probe in self.probes.values() {
            probe.wake.notify_one();
        }
    }

    fn end(&mut self) {
        for probe in self.probes.values_mut() {
            probe.step(Event::PodEnds);
        }
    }

    /// The startup probe has passed, or there is none.
    fn has_started(&self) -> bool {
        let Some(startup) = self.probes.get(&ProbeKind::Startup) else {
            return true;
        };
        match startup.course.result() {
            Some((_, result)) => result == ProbeResult::Success,
            None => self.was_started,
        }
    }

    fn look(
        &mut self,
        facts: &Facts,
        observation: &PodObservation,
        last_status: Option<&PodStatus>,
        container: &Container,
        is_sidecar: bool,
    ) {
        let was_looked_at = std::mem::replace(&mut self.was_looked_at, true);
        let Some(seen) = observation.newest_container(&container.name) else {
            return;
        };
        let known = last_status.and_then(|status| status_of(status, seen));
        self.was_started =
            !facts.change_status_on_restart && known.is_some_and(|known| known.started == Some(true));
        let state = match seen.state {
            ContainerState::Created | ContainerState::Unknown { .. } => SightState::Waiting,
            ContainerState::Exited(_) => SightState::Ended,
            ContainerState::Running { started_at } => {
                // An earlier run of the agent has probed it: it is older, or the last status shows this very id as ready.
                let was_judged = started_at < facts.started_at.minus(RESTART_MARGIN)
                    || known.is_some_and(|known| known.ready);
                let is_inherited = !facts.change_status_on_restart && was_judged && !was_looked_at;
                SightState::Running {
                    is_inherited,
                    seed_started: is_inherited && is_sidecar && self.was_started,
                }
            }
        };
        self.running = match seen.state {
            ContainerState::Running { started_at } => Some((seen.id.clone(), started_at)),
            ContainerState::Created | ContainerState::Unknown { .. } | ContainerState::Exited(_) => None,
        };
        for probe in self.probes.values_mut() {
            let sight = Sight {
                id: seen.id.clone(),
                state,
            };
            probe.step(Event::Seen(sight));
        }
    }

    /// Gives every probe that can run now its schedule, and wakes its task.
    fn arrange(&mut self, facts: &Facts, present: Present, randomness: &dyn Randomness) {
        let has_started = self.has_started();
        for (kind, probe) in &mut self.probes {
            let target = probe.course.target(has_started).cloned();
            let planned = probe.schedule.as_ref().map(|(id, _)| id);
            if planned == target.as_ref() {
                continue;
            }
            probe.schedule = match (target, &self.running) {
                (Some(id), Some((running, started_at))) if id == *running => {
                    let age = present.now.since(*started_at);
                    let timing = probe.spec.timing;
                    let is_older = *started_at < facts.started_at;
                    let is_young_agent = present.moment.since(facts.started) < timing.period;
                    let spread = (is_older && is_young_agent).then(|| randomness.part_of(timing.period));
                    let schedule = Schedule::new(*kind, timing, present.moment, age, spread);
                    Some((id, schedule))
                }
                (_, _) => None,
            };
            probe.wake.notify_one();
        }
    }
}

impl ProbeEntry {
    fn new(kind: ProbeKind, number: u64, spec: Arc<ProbeSpec>, wake: Arc<Notify>) -> Self {
        Self {
            number,
            spec,
            course: Course::new(kind),
            schedule: None,
            tally: Tally::default(),
            wake,
        }
    }

    fn step(&mut self, event: Event) {
        self.course = self.course.clone().step(event, self.spec.thresholds);
    }
}

/// Regular containers, and init containers that run beside them.
fn probed_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| {
        let sidecars = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|one| is_sidecar(one));
        spec.containers
            .iter()
            .chain(sidecars)
            .filter(|container| KINDS.into_iter().any(|kind| probe_of(container, kind).is_some()))
    })
}

pub(crate) fn has_probes(pod: &Pod) -> bool {
    probed_containers(pod).next().is_some()
}

/// The container status of this very instance.
fn status_of<'a>(status: &'a PodStatus, seen: &ContainerObservation) -> Option<&'a ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|one| {
        let id = one.container_id.as_deref().unwrap_or_default();
        id.rsplit_once("://").map_or(id, |(_, id)| id) == seen.id.as_str()
    })
}
