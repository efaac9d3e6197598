//! What follows from what the runtime shows, and housekeeping.

use std::sync::Arc;
use std::time::Duration;

use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::pod_state::{EndCause, Event, PodState};
use rubelet_lifecycle::standing::{Standing, StandingEvent, Unclaimed};
use rubelet_model::observation::{PodObservation, PodUid};

use super::waiting;
use crate::observer::Sighting;
use crate::pods::admission::NodeRead;
use crate::pods::pod_workers::PodWorkers;
use crate::pods::static_names::is_replaced;
use crate::pods::worker::{full_name, is_waiting};
use crate::sources::Merger;

pub(super) fn runtime_event(event: Sighting, pods: &mut PodWorkers, merger: &Merger) {
    match event {
        Sighting::Pod(observation) => observed(&observation, pods, merger),
        Sighting::Living { living, listed } => {
            pods.list(&living, listed);
            waiting::decide(pods);
        }
        Sighting::FirstListDone => {
            pods.inspected();
            keep_house(pods, merger);
        }
    }
}

fn observed(observation: &Arc<PodObservation>, pods: &mut PodWorkers, merger: &Merger) {
    let uid = &observation.uid;
    let is_orphan = pods.observed(observation);
    if is_orphan {
        stop_orphan(uid, pods, merger);
    }
    pods.prune(uid);
}

/// Ends a pod that the runtime has and no source, once every source has delivered or a newer version needs its name.
fn stop_orphan(uid: &PodUid, pods: &mut PodWorkers, merger: &Merger) {
    let Some(record) = pods.records().get(uid) else {
        return;
    };
    let may_stop = pods.startup().are_sources_ready()
        || is_replaced(uid, pods.records(), merger)
        || is_on(Bug::DeleteBeforeSources);
    // What runs of a rejected pod is stopped; the pod is decided about again after that.
    let may_stay = record.desired().is_some() && !record.standing().is_shut_out();
    if !may_stop || may_stay || record.standing().is_undecodable() {
        return;
    }
    if pods.manifests().keep(record, pods.records()) {
        return pods.log_kept(uid);
    }
    let Some(seen) = record.seen().filter(|_| record.is_seen_alive()) else {
        return;
    };
    let name = full_name(&seen.name, &seen.namespace);
    let why = if pods.records().has_static_name(&name) {
        "Another kubelet, or another version of its manifest, made this static pod under another UID; it is replaced"
    } else {
        "This pod has no place here; it is stopped"
    };
    tracing::info!(namespace = seen.namespace, pod = seen.name, %uid, "{why}");
    pods.context().ports.metrics.jobs.orphans.inc();
    pods.apply(uid, StandingEvent::Pod(Event::FoundInRuntime));
}

pub(super) fn end_replaced_pods(pods: &mut PodWorkers, merger: &Merger) {
    if pods.startup().are_sources_ready() || !pods.startup().are_names_known() {
        return;
    }
    for uid in pods.names().replaced(pods.records(), merger) {
        if pods.records().worker(&uid).is_none() {
            stop_orphan(&uid, pods, merger);
            continue;
        }
        tracing::info!(pod = %uid, "A newer version of this static pod waits for its name; the old one ends");
        unwanted(&uid, pods);
    }
}

/// The safety net, in upstream's order: managed pods first, then what is desired and undecided, then what the runtime has and no
/// source wants, then garbage. Until every source has delivered, only static pods may replace their older versions.
pub(super) fn keep_house(pods: &mut PodWorkers, merger: &Merger) {
    end_replaced_pods(pods, merger);
    if !pods.startup().is_complete() {
        return;
    }
    let begun = pods.moment();
    let now = pods.now();
    for uid in pods.records().select(|record| record.needs_housekeeping(now)) {
        keep_managed(&uid, pods);
    }
    let undecided = pods.records().select(|record| {
        let standing = record.standing();
        record.desired().is_some() && !standing.is_managed() && !standing.is_unadmitted()
    });
    for uid in undecided {
        pods.admit(&uid, NodeRead::Watched);
    }
    pods.give_up_overdue();
    let unwanted = pods
        .records()
        .select(|record| record.worker().is_none() && record.seen().is_some());
    for uid in unwanted {
        stop_orphan(&uid, pods, merger);
    }
    forget_start(pods);
    pods.collect_garbage();
    let took = pods.moment().since(begun);
    if took > Duration::from_secs(1) {
        tracing::error!(took_ms = took.as_millis() as u64, "Housekeeping took too long");
    }
}

fn keep_managed(uid: &PodUid, pods: &mut PodWorkers) {
    let Some(record) = pods.records().get(uid) else {
        return;
    };
    let (state, is_desired) = (record.standing().life(), record.desired().is_some());
    if matches!(state, PodState::Finished { .. }) {
        pods.stop_late_containers(uid);
        if pods
            .records()
            .worker(uid)
            .is_some_and(|worker| worker.job.is_some())
        {
            return;
        }
    }
    if is_waiting(&state) && !is_desired {
        // What it has in the runtime ends before its name is free.
        unwanted(uid, pods);
    } else {
        pods.apply(uid, StandingEvent::Pod(Event::Housekeeping { is_desired }));
    }
    pods.check_deadline(uid);
}

/// Every source has delivered and the runtime was inspected: what was found at the start is decided about.
fn forget_start(pods: &mut PodWorkers) {
    let mut settled = pods.records().select(|record| {
        let is_removed = matches!(record.standing(), Standing::Unclaimed(Unclaimed::Removed(_)));
        is_removed && record.seen().is_none() && !record.may_live()
    });
    if pods.manifests().is_empty() {
        settled.extend(
            pods.records()
                .select(|record| *record.standing() == Standing::FOUND_AT_START),
        );
    }
    for uid in settled {
        pods.apply(&uid, StandingEvent::NothingRuns);
        pods.apply(&uid, StandingEvent::NoUnreadableManifest);
    }
    pods.forget_first_list();
}

/// No source has the pod any more.
pub(super) fn unwanted(uid: &PodUid, pods: &mut PodWorkers) {
    let Some(record) = pods.records().get(uid) else {
        return;
    };
    let is_waiting = is_waiting(&record.standing().life());
    if is_waiting && record.may_live() {
        // It ran before rubelet started and ends as its definition says.
        pods.apply(uid, StandingEvent::Pod(Event::FoundInRuntime));
    } else if !is_waiting || pods.startup().is_inspected() {
        pods.kill(uid, EndCause::Removed, None);
    }
}
