//! What is true, put together from the history.
//!
//! Owns the mirror of runtime, disk and what the agent was told. It judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::handlers::Handled;
use super::resizes::PodLimits;
use super::rules;
use crate::history::{Cause, Limits};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Created,
    Running { since: Duration },
    Ended { code: i32, cause: Cause, at: Duration },
}

/// A stop that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopAsked {
    pub(super) life: u32,
    pub(super) at: Duration,
    pub(super) grace_seconds: i64,
    /// Its probes had failed as often as its pod allows.
    pub(super) for_probes: bool,
}

/// One instance of a container.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) sandbox: String,
    pub(super) image: String,
    pub(super) attempt: u32,
    pub(super) incarnation: u32,
    /// How often all containers of its pod had been restarted when it appeared.
    pub(super) resets: u32,
    /// The life of rubelet in which it appeared.
    pub(super) life: u32,
    /// It had a process once.
    pub(super) ran: bool,
    /// It came to life by a call that the agent had given up.
    pub(super) is_late: bool,
    /// The runtime has it no longer.
    pub(super) is_removed: bool,
    pub(super) state: State,
    pub(super) stops: Vec<StopAsked>,
    pub(super) call_failed: bool,
    pub(super) handled: Handled,
    /// What the runtime has given it.
    pub(super) limits: Limits,
}

impl Instance {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// When this life has begun to end it: with its hook, or with a stop.
    pub(super) fn ends_asked(&self, life: u32) -> impl Iterator<Item = Duration> {
        let stops = self.stops.iter().filter(move |stop| stop.life == life);
        stops.map(|stop| stop.at).chain(self.handled.pre_stop_asked)
    }
}

#[derive(Clone, Debug)]
pub(super) struct SandboxTruth {
    pub(super) uid: String,
    pub(super) is_ready: bool,
    /// It came by a call that this life of the agent does not know of, or had given up.
    pub(super) is_late: bool,
    /// It was asked for before its pod was removed, and added again; or by an earlier life, from what the runtime had lost.
    pub(super) is_leftover: bool,
    /// The runtime could not read its status, for a time at least.
    pub(super) is_unreadable: bool,
    /// When calls about it failed lately.
    pub(super) failures: Vec<Duration>,
}

/// A sandbox that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SandboxAsked {
    pub(super) incarnation: u32,
    pub(super) life: u32,
    /// Its number follows that of a sandbox which the runtime had lost by then.
    pub(super) follows_lost: bool,
}

/// A container that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreateAsked {
    pub(super) incarnation: u32,
    pub(super) life: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToldBy {
    File,
    Http,
    Api,
}

/// How the agent was told of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) at: Duration,
    pub(super) by: ToldBy,
    /// The number of the listing, document or change that it came with: what comes with one reaches the agent together.
    pub(super) look: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PodTruth {
    pub(super) name: String,
    /// It comes from the API server, where an identity is used once.
    pub(super) is_api: bool,
    /// Who told of it last, in any life.
    pub(super) source: Option<ToldBy>,
    /// Graces that its deletion was given.
    pub(super) deletion_graces: Vec<i64>,
    /// Every version that was ever on the disk or served.
    pub(super) versions: Vec<Arc<Pod>>,
    /// Grows when the agent learns that the pod is gone.
    pub(super) incarnation: u32,
    /// The disk lacked it at some time of this life of rubelet.
    pub(super) absent_in_life: bool,
    /// The agent was told of it in this life.
    pub(super) told_in_life: bool,
    /// The agent was told of it in this life without its spec, and knows neither its hooks nor its order.
    pub(super) undecoded_in_life: bool,
    /// A list of the runtime in this life lacked something of it.
    pub(super) left_out_in_life: bool,
    /// When it was told of first in this life, since its last removal.
    pub(super) told: Option<Told>,
    /// The API server's object as the agent was told of it, also when it is deleted: last, and before.
    pub(super) shown: [Option<Arc<Pod>>; 2],
    /// The agent said something about it in this life: what its source read has reached it.
    pub(super) published_in_life: bool,
    /// When the agent last said in this life that it is refused.
    pub(super) refused_at: Option<Duration>,
    /// When the agent could know that it is gone; `None` while it is wanted.
    pub(super) removal_learnt: Option<Duration>,
    /// The first of these since it was last started anew.
    pub(super) end_began: Option<Duration>,
    /// It was removed, and may begin a new life as if it had never been.
    pub(super) may_be_reborn: bool,
    /// How each sandbox was last asked for, by attempt.
    pub(super) sandboxes_asked: BTreeMap<u32, SandboxAsked>,
    /// The runtime lost its sandboxes, and has made none since.
    pub(super) lost_sandboxes: bool,
    /// The agent learnt of a removal, and acted on it.
    pub(super) is_ending: bool,
    pub(super) first_stop: Option<Duration>,
    pub(super) first_told: Option<Duration>,
    /// A container asked with its end for a restart of all, and none was made anew since.
    pub(super) is_resetting: bool,
    /// How often all containers were restarted.
    pub(super) resets: u32,
    /// How each instance was last asked for, by its name and number.
    pub(super) creates_asked: BTreeMap<(String, u32), CreateAsked>,
    /// The restarts that were said of each container.
    pub(super) restarts_said: BTreeMap<String, i32>,
    /// The runtime lost things of it.
    pub(super) had_loss: bool,
    /// Its terminal phase, and the life of rubelet that said so.
    pub(super) terminal: Option<(String, u32)>,
    /// Volumes that are ready to be used.
    pub(super) volumes: BTreeSet<String>,
    /// Containers whose startup probe has passed, in any instance.
    pub(super) passed_startup: BTreeSet<String>,
    /// Times of starts in this life, by container.
    pub(super) starts: BTreeMap<String, Vec<Duration>>,
    /// What its cgroup has.
    pub(super) limits: PodLimits,
}

impl PodTruth {
    /// It is another pod from now on, though its identity is the same.
    pub(super) fn begin_again(&mut self) {
        self.incarnation += 1;
        self.may_be_reborn = true;
        self.restarts_said.clear();
    }

    /// What is asked for now is of this incarnation: until the pod is told of again, of the one that was removed.
    pub(super) fn asking_incarnation(&self) -> u32 {
        let is_removed = self.removal_learnt.is_some() && !self.is_api;
        self.incarnation.saturating_sub(u32::from(is_removed))
    }
}

#[derive(Default)]
pub(super) struct Truth {
    /// Pods that have a cgroup.
    pub(super) cgroups: BTreeSet<String>,
    pub(super) instances: BTreeMap<String, Instance>,
    /// Instances of (uid, name), by order of creation.
    pub(super) by_age: BTreeMap<(String, String), Vec<String>>,
    pub(super) sandboxes: BTreeMap<String, SandboxTruth>,
    pub(super) pods: BTreeMap<String, PodTruth>,
    /// What is on the disk.
    pub(super) disk: BTreeMap<PathBuf, Arc<Pod>>,
    /// What the web server has.
    pub(super) served: Vec<Arc<Pod>>,
    /// What the agent was told in this life, by path.
    pub(super) told: BTreeMap<PathBuf, Arc<Pod>>,
    pub(super) told_by_http: Vec<Arc<Pod>>,
    /// What the API server has, by UID; mirrors are left out.
    pub(super) api: BTreeMap<String, Arc<Pod>>,
    /// The objects of static pods at the API server, by their own UID.
    pub(super) mirrors: BTreeMap<String, Arc<Pod>>,
    /// What the agent was told of it in this life, less what is deleted.
    pub(super) told_by_api: BTreeMap<String, Arc<Pod>>,
    pub(super) api_listed_in_life: bool,
    pub(super) has_api: bool,
    /// Manifests that an editor is in the middle of, with the pod of before.
    pub(super) half_written: BTreeMap<PathBuf, String>,
    pub(super) life: u32,
    /// Listings of the folder, documents that were fetched, and changes that the API server told, in all lives.
    pub(super) listings: u32,
    pub(super) documents: u32,
    pub(super) api_changes: u32,
    pub(super) listed_in_life: bool,
    pub(super) fetched_in_life: bool,
    pub(super) has_http: bool,
    /// When the last source of this life delivered.
    pub(super) complete_since: Option<Duration>,
    pub(super) clock_moved: bool,
    /// Times of calls in the last minute, by what they are for.
    pub(super) asks: BTreeMap<String, Vec<Duration>>,
    /// What the runtime had something of when the agent started.
    pub(super) lived_at_start: BTreeSet<String>,
    pub(super) published: Vec<Arc<Pod>>,
}

impl Truth {
    pub(super) fn pod(&mut self, uid: &str) -> &mut PodTruth {
        self.pods.entry(uid.to_owned()).or_default()
    }

    /// The version that is wanted now, if the pod is.
    pub(super) fn wanted(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.all_wanted().find(|pod| rules::uid(pod) == uid)
    }

    fn all_wanted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let of_api = self.api.values().filter(move |pod| !is_deleted(pod));
        self.disk.values().chain(&self.served).chain(of_api)
    }

    pub(super) fn wanted_uids(&self) -> BTreeSet<String> {
        self.all_wanted().map(|pod| rules::uid(pod).to_owned()).collect()
    }

    /// The newest version that the agent knows in this life.
    pub(super) fn told_version(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.told
            .values()
            .chain(&self.told_by_http)
            .chain(self.told_by_api.values())
            .find(|pod| rules::uid(pod) == uid)
    }

    /// The version to judge by: what is wanted, or the last one there was.
    pub(super) fn version(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.wanted(uid)
            .or_else(|| self.told_version(uid))
            .or_else(|| self.pods.get(uid)?.versions.last())
    }

    /// Whether the container was ever created, also by a call that was given up.
    pub(super) fn was_made(&self, uid: &str, name: &str) -> bool {
        let ids = self.by_age.get(&(uid.to_owned(), name.to_owned()));
        ids.is_some_and(|ids| !ids.is_empty())
    }

    /// One that came by a call which was given up, and was never started, replaces nobody.
    pub(super) fn newest_instance(&self, uid: &str, name: &str) -> Option<&Instance> {
        let ids = self.by_age.get(&(uid.to_owned(), name.to_owned()))?;
        let instances = ids.iter().rev().filter_map(|id| self.instances.get(id));
        let mut known = instances.filter(|one| !(one.is_late && one.state == State::Created));
        known.next()
    }

    pub(super) fn running<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances
            .values()
            .filter(move |instance| instance.uid == uid && instance.is_running())
    }

    pub(super) fn running_in<'a>(&'a self, sandbox: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances
            .values()
            .filter(move |instance| instance.sandbox == sandbox && instance.is_running())
    }

    pub(super) fn ready_sandboxes(&self, uid: &str) -> usize {
        let of_pod = self.sandboxes.values().filter(|sandbox| sandbox.uid == uid);
        of_pod.filter(|sandbox| sandbox.is_ready).count()
    }

    /// Whether anything of the pod lives that the agent knows. What a call has made that was given up it may not have seen.
    pub(super) fn lives(&self, uid: &str) -> bool {
        let mut sandboxes = self.sandboxes.values().filter(|sandbox| sandbox.uid == uid);
        self.running(uid).next().is_some() || sandboxes.any(|sandbox| sandbox.is_ready && !sandbox.is_late)
    }

    /// Whether its end asks for a restart of all containers of its pod.
    pub(super) fn asks_for_all(&self, instance: &Instance) -> bool {
        let State::Ended { code, .. } = instance.state else {
            return false;
        };
        let pod = self.pods.get(&instance.uid);
        let mut versions = pod.into_iter().flat_map(|pod| &pod.versions);
        versions.any(|pod| rules::asks_for_all(pod, &instance.name, code))
    }

    /// A restart of all containers is over when whoever asked for it is gone, and another container is made.
    pub(super) fn note_reset(&mut self, uid: &str) {
        let is_asked = self
            .instances
            .values()
            .any(|one| one.uid == uid && !one.is_removed && self.asks_for_all(one));
        let pod = self.pod(uid);
        if pod.is_resetting && !is_asked {
            pod.is_resetting = false;
            pod.resets += 1;
        }
    }

    /// Whoever ended for a restart of all while it was being stopped may be replaced at once, and then nobody asks any more.
    pub(super) fn note_replaced(&mut self, uid: &str, name: &str) {
        let (replaced, others): (Vec<_>, Vec<_>) = self
            .instances
            .values()
            .filter(|one| one.uid == uid && !one.is_removed && self.asks_for_all(one))
            .partition(|one| one.name == name && !one.stops.is_empty());
        if !replaced.is_empty() && others.is_empty() {
            self.pod(uid).is_resetting = false;
        }
    }

    pub(super) fn has_all_sources(&self) -> bool {
        self.listed_in_life
            && (!self.has_http || self.fetched_in_life)
            && (!self.has_api || self.api_listed_in_life)
    }

    /// Whether the pod may end before every source has delivered: its own source has, without it, and the agent was told of another
    /// static pod of its name, which may be gone again while the end goes on.
    pub(super) fn is_replaced(&self, uid: &str) -> bool {
        let Some(pod) = self.pods.get(uid) else {
            return false;
        };
        let has_delivered = match pod.source {
            Some(ToldBy::File) => self.listed_in_life,
            Some(ToldBy::Http) => !self.has_http || self.fetched_in_life,
            Some(ToldBy::Api) | None => false,
        };
        let mut others = self.pods.iter().filter(|(other, _)| *other != uid);
        let has_successor =
            others.any(|(_, other)| other.told_in_life && !other.is_api && other.name == pod.name);
        has_delivered && self.told_version(uid).is_none() && has_successor
    }

    /// How the container ended for good, if it did. An instance that was made after that, as for a changed image, is no life of
    /// its own before it starts: until then the phase is that of the end before it.
    pub(super) fn ended_for_good(&self, pod: &Pod, name: &str) -> Option<i32> {
        let ids = self.by_age.get(&(rules::uid(pod).to_owned(), name.to_owned()))?;
        let incarnation = self.pods.get(rules::uid(pod)).map_or(0, |pod| pod.incarnation);
        let instances = ids.iter().rev().filter_map(|id| self.instances.get(id));
        // What is left of the pod before this one counts, what is gone of it does not.
        let newest = instances
            .filter(|one| !one.is_removed || one.incarnation >= incarnation)
            .map(|instance| instance.state)
            .find(|state| *state != State::Created);
        match newest? {
            State::Ended { code, .. } if !rules::restarts(pod, name, code) => Some(code),
            State::Ended { .. } | State::Created | State::Running { .. } => None,
        }
    }

    /// Whether nothing of the pod can run again: all regular containers ended for good, or an init container failed.
    pub(super) fn is_complete(&self, pod: &Pod) -> bool {
        let all_ended = rules::regular_containers(pod)
            .iter()
            .all(|container| self.ended_for_good(pod, &container.name).is_some());
        all_ended || self.init_failed(pod)
    }

    pub(super) fn init_failed(&self, pod: &Pod) -> bool {
        rules::init_containers(pod).iter().any(|container| {
            self.ended_for_good(pod, &container.name)
                .is_some_and(|code| code != 0)
        })
    }
}
