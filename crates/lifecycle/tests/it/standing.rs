//! The standing of a pod, step by step.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::{
    Effect, EndCause, Event, Job, KillRequest, Outcome, PodFacts, PodState, UpdateKind,
};
use rubelet_lifecycle::standing::{Decision, NOT_SUPPORTED, Standing, StandingEffect, StandingEvent, step};
use rubelet_model::observation::PodUid;
use rubelet_resources::admission::Refusal;
use serde_json::json;

use crate::sample::{at, pod};

fn a_pod() -> Arc<Pod> {
    Arc::new(pod(json!({"terminationGracePeriodSeconds": 7})))
}

fn reject(reason: &str) -> StandingEvent {
    StandingEvent::Decided(Decision::Reject {
        pod: a_pod(),
        refusal: Refusal {
            reason: reason.to_owned(),
            message: "a message".to_owned(),
            is_for_now: reason != NOT_SUPPORTED,
            detail: None,
        },
    })
}

fn decided(decision: Decision) -> StandingEvent {
    StandingEvent::Decided(decision)
}

fn removed(is_listed: bool) -> StandingEvent {
    StandingEvent::Removed {
        pod: a_pod(),
        is_listed,
    }
}

fn created() -> StandingEvent {
    StandingEvent::Pod(Event::Update {
        kind: UpdateKind::Create,
        pod: PodFacts::of(&a_pod()),
        is_idle: true,
    })
}

const FOUND: StandingEvent = StandingEvent::Pod(Event::FoundInRuntime);
const SUCCESS: StandingEvent = StandingEvent::Pod(Event::JobDone(Outcome::Success));

fn kill() -> StandingEvent {
    StandingEvent::Pod(Event::Kill(KillRequest {
        cause: EndCause::Removed,
        grace_seconds: None,
    }))
}

fn preempt() -> StandingEvent {
    decided(Decision::Preempt {
        victims: vec![PodUid::from("victim")],
        scarce: "cpu".to_owned(),
    })
}

/// The standing after these events, one per second, with the effects of the last one.
fn after(events: &[StandingEvent]) -> (Standing, Vec<StandingEffect>) {
    let start = (Standing::default(), Vec::new());
    events
        .iter()
        .zip(1..)
        .fold(start, |(standing, _), (event, second)| {
            step(standing, event.clone(), at(second))
        })
}

fn name(standing: &Standing) -> String {
    let text = match standing {
        Standing::Managed(state) => format!("{state:?}"),
        Standing::Unclaimed(unclaimed) => format!("{unclaimed:?}"),
        Standing::Awaits { wait, .. } => format!("{wait:?}"),
        Standing::Rejected { leftovers, .. } if *leftovers != PodState::Absent => {
            format!("Rejected {leftovers:?}")
        }
        Standing::Rejected { .. } => "Rejected".to_owned(),
    };
    let is_word = |character: char| character.is_alphanumeric() || character == ' ';
    let end = text.find(|character| !is_word(character)).unwrap_or(text.len());
    text[..end].trim().to_owned()
}

fn check(events: &[StandingEvent], standing: &str, effects: &[StandingEffect]) {
    let (found, found_effects) = after(events);
    assert_eq!(name(&found), standing, "after {events:?}");
    assert_eq!(found_effects, effects, "after {events:?}");
}

#[test]
fn every_decision_leads_to_its_standing() {
    let release = StandingEffect::Release;
    let (record, report) = (StandingEffect::RecordRejection, StandingEffect::ReportRejection);
    let rejection = [release.clone(), record, report.clone()];
    let preemption = [StandingEffect::Preempt {
        victims: vec![PodUid::from("victim")],
        scarce: "cpu".to_owned(),
    }];
    let [runtime, refresh, room, admit] = [
        Decision::AwaitRuntime,
        Decision::AwaitNodeRefresh,
        Decision::AwaitRoom,
        Decision::Admit,
    ]
    .map(decided);
    check(std::slice::from_ref(&runtime), "Runtime", &[]);
    check(
        &[runtime.clone(), refresh.clone()],
        "NodeRefresh",
        std::slice::from_ref(&release),
    );
    check(
        &[runtime.clone(), refresh.clone(), runtime.clone()],
        "Runtime",
        &[],
    );
    // What is reserved stays reserved while the runtime is away.
    check(&[room.clone(), runtime.clone()], "Room", &[]);
    check(&[room.clone(), preempt()], "Preemption", &preemption);
    check(&[room, admit.clone()], "Absent", &[StandingEffect::Begin]);
    check(
        &[preempt(), admit.clone(), created()],
        "Syncing",
        &[StandingEffect::Pod(Effect::Run(Job::Sync))],
    );
    check(&[refresh.clone(), reject("NodeAffinity")], "Rejected", &rejection);
    // The same reason is recorded once, also when the pod was decided about again in between.
    let again = [release, report];
    check(
        &[reject("NodeAffinity"), reject("NodeAffinity")],
        "Rejected",
        &again,
    );
    check(
        &[reject("NodeAffinity"), refresh, reject("NodeAffinity")],
        "Rejected",
        &again,
    );
    check(
        &[reject("NodeAffinity"), runtime, reject("OutOfcpu")],
        "Rejected",
        &rejection,
    );
    // A managed pod is not decided about.
    check(&[admit.clone(), created(), admit], "Syncing", &[]);
    check(&[FOUND, reject("OutOfcpu")], "Terminating", &[]);
}

#[test]
fn a_rejection_keeps_its_time_and_a_wait_its_begin() {
    let since = |standing: &Standing| match standing {
        Standing::Rejected { rejection, .. } => rejection.since,
        Standing::Awaits { since, .. } => *since,
        standing => panic!("{standing:?} has no time"),
    };
    let check = |events: &[StandingEvent], second: i64| {
        assert_eq!(since(&after(events).0), at(second), "{events:?}");
    };
    let [runtime, refresh, room] = [
        Decision::AwaitRuntime,
        Decision::AwaitNodeRefresh,
        Decision::AwaitRoom,
    ]
    .map(decided);
    check(&[reject("NodePorts"), refresh.clone(), reject("OutOfcpu")], 1);
    check(&[runtime.clone(), runtime], 1);
    check(&[refresh.clone(), refresh], 1);
    check(&[room.clone(), room.clone()], 1);
    check(&[room, preempt()], 2);
}

#[test]
fn a_removed_pod_leaves_nothing_reserved() {
    let admit = || decided(Decision::Admit);
    check(
        &[decided(Decision::AwaitRoom), removed(true)],
        "Undecided",
        &[StandingEffect::Release],
    );
    check(
        &[preempt(), removed(true)],
        "Undecided",
        &[StandingEffect::Release],
    );
    check(
        &[decided(Decision::AwaitNodeRefresh), removed(true)],
        "Undecided",
        &[],
    );
    check(&[reject("OutOfcpu"), removed(true)], "Undecided", &[]);
    // Before the first list, what the runtime has of it is not known.
    check(&[decided(Decision::AwaitRuntime), removed(false)], "Removed", &[]);
    check(&[reject(NOT_SUPPORTED), removed(false)], "Removed", &[]);
    check(
        &[
            decided(Decision::AwaitRuntime),
            removed(false),
            StandingEvent::NothingRuns,
        ],
        "Undecided",
        &[],
    );
    check(&[admit(), created(), removed(true)], "Syncing", &[]);
}

#[test]
fn orphans_end_and_kept_pods_stay() {
    let run = |grace_seconds| {
        [StandingEffect::Pod(Effect::Run(Job::TerminateOrphan {
            grace_seconds,
        }))]
    };
    check(&[FOUND], "Terminating", &run(1));
    check(&[StandingEvent::Listed, FOUND], "Terminating", &run(1));
    // Whose definition is known ends as that says.
    let terminate = Job::Terminate { grace_seconds: 7 };
    check(
        &[decided(Decision::AwaitRuntime), removed(false), FOUND],
        "Terminating",
        &[StandingEffect::Pod(Effect::Run(terminate))],
    );
    let undecodable = || StandingEvent::Undecodable(a_pod());
    check(&[undecodable(), FOUND], "Undecodable", &[]);
    check(
        &[undecodable(), StandingEvent::Decodable, FOUND],
        "Terminating",
        &run(1),
    );
    check(&[StandingEvent::Listed, undecodable()], "Undecodable", &[]);
    check(&[undecodable(), StandingEvent::Listed], "Undecodable", &[]);
    check(&[StandingEvent::Listed], "FoundAtStart", &[]);
    check(
        &[StandingEvent::Listed, StandingEvent::NoUnreadableManifest],
        "Undecided",
        &[],
    );
    check(
        &[decided(Decision::AwaitRuntime), StandingEvent::Listed],
        "Runtime",
        &[],
    );
    // Only what was admitted or found begins.
    for event in [created(), kill(), SUCCESS] {
        check(std::slice::from_ref(&event), "Undecided", &[]);
        check(&[decided(Decision::AwaitRoom), event], "Room", &[]);
    }
}

#[test]
fn leftovers_of_a_rejected_pod_are_stopped_while_it_stays_rejected() {
    check(
        &[reject("OutOfcpu"), FOUND],
        "Rejected Terminating",
        &[StandingEffect::Pod(Effect::Run(Job::TerminateOrphan {
            grace_seconds: 1,
        }))],
    );
    let (standing, effects) = after(&[reject("OutOfcpu"), FOUND, SUCCESS]);
    assert_eq!(name(&standing), "Rejected");
    assert!(standing.is_shut_out() && !standing.is_managed());
    assert!(
        effects.contains(&StandingEffect::Pod(Effect::AnswerKills)),
        "{effects:?}"
    );
    check(&[reject("OutOfcpu"), FOUND, removed(true)], "Terminating", &[]);
    assert!(!after(&[reject(NOT_SUPPORTED)]).0.is_shut_out());
    assert!(
        after(&[reject("OutOfcpu"), decided(Decision::AwaitNodeRefresh)])
            .0
            .is_shut_out()
    );
    check(
        &[reject("OutOfcpu"), decided(Decision::AwaitNodeRefresh), FOUND],
        "Rejected Terminating",
        &[StandingEffect::Pod(Effect::Run(Job::TerminateOrphan {
            grace_seconds: 1,
        }))],
    );
}
