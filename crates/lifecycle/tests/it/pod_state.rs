//! Tables of transitions, and what must hold for every sequence of events.

use proptest::prelude::*;
use rubelet_lifecycle::pod_state::{
    ActiveDeadline, Effect, EndCause, Event, Job, KillRequest, Outcome, PodFacts, PodState, Requeue, Retry,
    StaticNames, UpdateKind, active_deadline, effective_grace_seconds, kill_timeout, step,
};
use rubelet_model::observation::PodUid;
use serde_json::json;
use std::time::Duration;

use crate::sample::{at, pod};

const POD: PodFacts = PodFacts {
    is_static: false,
    is_deleted: false,
    is_terminal: false,
    deletion_grace_seconds: None,
    termination_grace_seconds: Some(30),
};
const STATIC: PodFacts = PodFacts {
    is_static: true,
    ..POD
};
const DELETED: PodFacts = PodFacts {
    is_deleted: true,
    deletion_grace_seconds: Some(20),
    ..POD
};
const TERMINAL: PodFacts = PodFacts {
    is_terminal: true,
    ..POD
};

fn update(kind: UpdateKind, pod: PodFacts) -> Event {
    Event::Update {
        kind,
        pod,
        is_idle: false,
    }
}

fn kill(grace_seconds: Option<i64>) -> Event {
    Event::Kill(KillRequest {
        cause: EndCause::Killed,
        grace_seconds,
    })
}

const SUCCESS: Event = Event::JobDone(Outcome::Success);
const CANCELLED: Event = Event::JobDone(Outcome::Cancelled);
const UNDESIRED: Event = Event::Housekeeping { is_desired: false };
const DESIRED: Event = Event::Housekeeping { is_desired: true };

/// Runs the events and compares the effects of the last one, and the name of the state.
fn check(events: &[Event], effects: &[Effect], name: &str) {
    let mut state = PodState::Absent;
    let mut last = Vec::new();
    for event in events {
        (state, last) = step(state, *event, at(1));
    }
    assert_eq!(last, effects, "{events:?}");
    assert!(
        format!("{state:?}").starts_with(name),
        "{events:?} led to {state:?}"
    );
}

fn terminate(grace_seconds: i64) -> Effect {
    Effect::Run(Job::Terminate { grace_seconds })
}

#[test]
fn syncing() {
    let create = update(UpdateKind::Create, POD);
    let sync = update(UpdateKind::Sync, POD);
    check(&[create], &[Effect::Run(Job::Sync)], "Syncing");
    check(&[create, SUCCESS], &[Effect::Requeue(Requeue::Resync)], "Syncing");
    check(&[create, SUCCESS, sync], &[Effect::Run(Job::Sync)], "Syncing");
    check(&[create, sync], &[], "Syncing");
    check(&[create, sync, SUCCESS], &[Effect::Run(Job::Sync)], "Syncing");
    check(
        &[create, sync, sync, SUCCESS, SUCCESS],
        &[Effect::Requeue(Requeue::Resync)],
        "Syncing",
    );
    let failed = Event::JobDone(Outcome::Failed(Retry::NetworkNotReady));
    check(
        &[create, failed],
        &[Effect::Requeue(Requeue::Retry(Retry::NetworkNotReady))],
        "Syncing",
    );
}

#[test]
fn ways_to_the_end() {
    let create = update(UpdateKind::Create, POD);
    check(
        &[create, SUCCESS, update(UpdateKind::Update, DELETED)],
        &[terminate(20)],
        "Terminating",
    );
    check(
        &[create, SUCCESS, update(UpdateKind::Update, TERMINAL)],
        &[terminate(30)],
        "Terminating",
    );
    check(&[create, SUCCESS, kill(Some(5))], &[terminate(5)], "Terminating");
    check(&[create, SUCCESS, kill(Some(0))], &[terminate(1)], "Terminating");
    check(&[create, SUCCESS, UNDESIRED], &[terminate(30)], "Terminating");
    check(
        &[create, SUCCESS, Event::FoundInRuntime],
        &[terminate(30)],
        "Terminating",
    );
    check(
        &[create, SUCCESS, Event::DeadlinePassed],
        &[Effect::FailByDeadline, terminate(30)],
        "Terminating",
    );
    check(
        &[create, Event::JobDone(Outcome::Terminal)],
        &[terminate(30)],
        "Terminating",
    );
    // A running sync is cancelled first; the stop begins when it is over, however it ends.
    check(&[create, kill(None)], &[Effect::Cancel], "Terminating");
    check(&[create, kill(None), SUCCESS], &[terminate(30)], "Terminating");
    check(&[create, kill(None), CANCELLED], &[terminate(30)], "Terminating");
    // First sight of a pod that is at its end.
    check(
        &[update(UpdateKind::Create, DELETED)],
        &[terminate(20)],
        "Terminating",
    );
    check(
        &[update(UpdateKind::Create, TERMINAL)],
        &[terminate(30)],
        "Terminating",
    );
    let idle = Event::Update {
        kind: UpdateKind::Create,
        pod: TERMINAL,
        is_idle: true,
    };
    check(&[idle], &[Effect::Run(Job::CleanUp)], "Terminated");
    check(&[idle, SUCCESS], &[Effect::ReleaseName], "Finished");
}

#[test]
fn grace_shrinks_while_a_stop_is_under_way() {
    let create = update(UpdateKind::Create, POD);
    let stop = [create, SUCCESS, kill(Some(20))];
    let then = |event: Event| [stop.as_slice(), &[event]].concat();
    check(&then(kill(Some(50))), &[], "Terminating");
    check(&then(kill(Some(5))), &[Effect::Cancel], "Terminating");
    check(
        &[then(kill(Some(5))), vec![CANCELLED]].concat(),
        &[terminate(5)],
        "Terminating",
    );
    check(
        &[
            then(kill(Some(50))),
            vec![Event::JobDone(Outcome::Failed(Retry::Later))],
        ]
        .concat(),
        &[terminate(20)],
        "Terminating",
    );
    let failed = then(Event::JobDone(Outcome::Failed(Retry::Later)));
    check(
        &failed,
        &[Effect::Requeue(Requeue::Retry(Retry::Later))],
        "Terminating",
    );
    check(
        &[failed, vec![update(UpdateKind::Sync, POD)]].concat(),
        &[terminate(20)],
        "Terminating",
    );
}

#[test]
fn after_the_stop() {
    let stopped = [update(UpdateKind::Create, POD), SUCCESS, kill(None), SUCCESS];
    let then = |events: &[Event]| [stopped.as_slice(), events].concat();
    check(
        &stopped,
        &[Effect::AnswerKills, Effect::Run(Job::CleanUp)],
        "Terminated",
    );
    check(&then(&[SUCCESS]), &[Effect::ReleaseName], "Finished");
    check(
        &then(&[Event::JobDone(Outcome::Failed(Retry::Later))]),
        &[Effect::Requeue(Requeue::Retry(Retry::Later))],
        "Terminated",
    );
    check(
        &then(&[SUCCESS, update(UpdateKind::Update, POD)]),
        &[],
        "Finished",
    );
    check(&then(&[SUCCESS, DESIRED]), &[], "Finished");
    check(
        &then(&[SUCCESS, UNDESIRED]),
        &[Effect::Forget { add_again: false }],
        "Absent",
    );
    check(&then(&[SUCCESS, kill(None)]), &[Effect::AnswerKills], "Finished");
    // Added again while it ends: it starts anew after housekeeping.
    let again = update(UpdateKind::Create, POD);
    check(
        &then(&[again, SUCCESS, DESIRED]),
        &[Effect::Forget { add_again: true }],
        "Absent",
    );
    check(
        &then(&[SUCCESS, again, DESIRED]),
        &[Effect::Forget { add_again: true }],
        "Absent",
    );
    check(
        &then(&[again, SUCCESS, DESIRED, again]),
        &[Effect::Run(Job::Sync)],
        "Syncing",
    );
}

#[test]
fn static_pods_wait_for_their_name() {
    let create = update(UpdateKind::Create, STATIC);
    check(&[create], &[Effect::QueueByName], "Waiting");
    check(
        &[create, Event::StartAllowed],
        &[Effect::Run(Job::Sync)],
        "Syncing",
    );
    check(
        &[create, kill(None)],
        &[Effect::ReleaseName, Effect::AnswerKills],
        "Finished",
    );
    check(
        &[create, UNDESIRED],
        &[Effect::ReleaseName, Effect::Forget { add_again: false }],
        "Absent",
    );
}

#[test]
fn orphans_are_stopped_and_forgotten() {
    let stop = Effect::Run(Job::TerminateOrphan { grace_seconds: 1 });
    check(&[Event::FoundInRuntime], &[stop], "Terminating");
    check(
        &[Event::FoundInRuntime, SUCCESS],
        &[
            Effect::ReleaseName,
            Effect::AnswerKills,
            Effect::Forget { add_again: false },
        ],
        "Absent",
    );
}

#[test]
fn names_are_held_in_order_of_arrival() {
    let (a, b, c) = (PodUid::from("a"), PodUid::from("b"), PodUid::from("c"));
    let mut names = StaticNames::default();
    assert!(names.queue("p", &a));
    assert!(!names.queue("p", &b));
    assert!(!names.queue("p", &c));
    assert!(!names.queue("p", &b), "asking again keeps the place");
    assert!(names.queue("p", &a));
    assert!(names.queue("q", &b), "another name is free");
    assert_eq!(names.release("p", &b), None, "who waits can leave");
    assert_eq!(names.release("p", &a), Some(c.clone()));
    assert_eq!(names.holder("p"), Some(&c));
    assert_eq!(names.release("p", &c), None);
    assert_eq!(names.release("q", &b), None);
    assert!(names.is_empty());
}

#[test]
fn times() {
    let facts = |deletion, of_pod| PodFacts {
        deletion_grace_seconds: deletion,
        termination_grace_seconds: of_pod,
        ..POD
    };
    let check = |previous, deletion, of_pod, requested, expected| {
        assert_eq!(
            effective_grace_seconds(previous, &facts(deletion, of_pod), requested),
            expected
        );
    };
    check(None, None, None, None, 1);
    check(None, None, Some(30), None, 30);
    check(None, Some(60), Some(30), None, 60);
    check(None, Some(60), Some(30), Some(10), 10);
    check(Some(5), Some(60), Some(30), Some(10), 5);
    check(None, Some(0), Some(30), Some(10), 1);
    assert_eq!(kill_timeout(2), Duration::from_secs(10));
    assert_eq!(kill_timeout(30), Duration::from_secs(45));
    assert_eq!(kill_timeout(-1), Duration::from_secs(10));

    let minute = Duration::from_secs(60);
    let delay = |requeue: Requeue| requeue.delay(at(100), minute).as_secs();
    assert_eq!(delay(Requeue::Resync), 60);
    assert_eq!(delay(Requeue::Retry(Retry::NetworkNotReady)), 1);
    assert_eq!(delay(Requeue::Retry(Retry::Later)), 10);
    assert_eq!(delay(Requeue::Retry(Retry::At(at(103)))), 3);
    assert_eq!(delay(Requeue::Retry(Retry::At(at(5)))), 0);
    assert_eq!(delay(Requeue::Retry(Retry::At(at(900)))), 60);
}

#[test]
fn the_active_deadline() {
    let check = |allowed: Option<i64>, started: Option<i64>, expected| {
        let pod = pod(json!({"activeDeadlineSeconds": allowed}));
        assert_eq!(active_deadline(&pod, started.map(at), at(100)), expected);
    };
    check(None, Some(1), ActiveDeadline::None);
    check(Some(10), None, ActiveDeadline::None);
    check(Some(10), Some(95), ActiveDeadline::At(at(105)));
    check(Some(10), Some(90), ActiveDeadline::Passed);
}

#[test]
fn facts_come_from_the_pod() {
    let read = |metadata, status| {
        PodFacts::of(
            &serde_json::from_value(json!({"metadata": metadata, "status": status,
            "spec": {"containers": [], "terminationGracePeriodSeconds": 30}}))
            .expect("a pod"),
        )
    };
    assert_eq!(read(json!({}), json!({"phase": "Running"})), POD);
    assert_eq!(
        read(
            json!({"annotations": {"kubernetes.io/config.source": "api"}}),
            json!({})
        ),
        POD
    );
    assert_eq!(
        read(
            json!({"annotations": {"kubernetes.io/config.source": "file"}}),
            json!({})
        ),
        STATIC
    );
    assert_eq!(read(json!({}), json!({"phase": "Failed"})), TERMINAL);
    assert_eq!(
        read(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 20}),
            json!({})
        ),
        DELETED
    );
}

fn any_event() -> impl Strategy<Value = Event> {
    let pod = (
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::option::of(-1..40i64),
        prop::option::of(0..40i64),
    )
        .prop_map(
            |(is_static, is_deleted, is_terminal, deletion_grace_seconds, termination_grace_seconds)| {
                PodFacts {
                    is_static,
                    is_deleted,
                    is_terminal,
                    deletion_grace_seconds,
                    termination_grace_seconds,
                }
            },
        );
    let kind = prop_oneof![
        Just(UpdateKind::Create),
        Just(UpdateKind::Update),
        Just(UpdateKind::Sync)
    ];
    let cause = prop_oneof![
        Just(EndCause::Removed),
        Just(EndCause::Evicted),
        Just(EndCause::Killed)
    ];
    let outcome = prop_oneof![
        4 => Just(Outcome::Success),
        1 => Just(Outcome::Terminal),
        1 => Just(Outcome::Cancelled),
        2 => Just(Outcome::Failed(Retry::Later)),
    ];
    prop_oneof![
        4 => (kind, pod, any::<bool>()).prop_map(|(kind, pod, is_idle)| Event::Update { kind, pod, is_idle }),
        2 => (cause, prop::option::of(-1..40i64)).prop_map(|(cause, grace_seconds)| Event::Kill(KillRequest { cause, grace_seconds })),
        1 => Just(Event::FoundInRuntime),
        2 => Just(Event::StartAllowed),
        1 => Just(Event::DeadlinePassed),
        6 => outcome.prop_map(Event::JobDone),
        2 => any::<bool>().prop_map(|is_desired| Event::Housekeeping { is_desired }),
    ]
}

/// How far a pod is; it only goes back through Absent.
fn rank(state: &PodState) -> u8 {
    match state {
        PodState::Absent => 0,
        PodState::Waiting { .. } => 1,
        PodState::Syncing { .. } => 2,
        PodState::Terminating { .. } => 3,
        PodState::Terminated { .. } => 4,
        PodState::Finished { .. } => 5,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_life_keeps_the_promises(events in prop::collection::vec(any_event(), 1..40)) {
        let mut state = PodState::Absent;
        let mut is_running = false;
        let mut created_since_end = false;
        for event in events {
            // Jobs end only if they run.
            if matches!(event, Event::JobDone(_)) && !is_running {
                continue;
            }
            let before = state;
            let (after, effects) = step(before, event, at(1));
            if matches!(event, Event::JobDone(_)) {
                is_running = false;
            }
            for effect in &effects {
                if let Effect::Run(job) = effect {
                    prop_assert!(!is_running, "two jobs at once: {before:?} {event:?}");
                    is_running = true;
                    if before.ending().is_some() {
                        prop_assert!(*job != Job::Sync, "a start after the end: {before:?} {event:?}");
                    }
                }
                if *effect == Effect::Cancel {
                    prop_assert!(is_running, "nothing to cancel: {before:?} {event:?}");
                }
            }
            if let (Some(old), Some(new)) = (before.ending(), after.ending()) {
                prop_assert!(new.grace_seconds <= old.grace_seconds, "grace grew: {before:?} {event:?}");
                prop_assert!(new.cause == old.cause && new.since == old.since);
            }
            if let Some(ending) = after.ending() {
                prop_assert!(ending.grace_seconds >= 1);
            }
            prop_assert!(rank(&after) >= rank(&before) || after == PodState::Absent, "{before:?} {event:?} {after:?}");
            if before.ending().is_some() && matches!(event, Event::Update { kind: UpdateKind::Create, .. }) {
                created_since_end = true;
            }
            if matches!(before, PodState::Finished { .. }) && after == PodState::Absent {
                prop_assert!(created_since_end || event == UNDESIRED, "forgotten too early: {before:?} {event:?}");
            }
            if before.ending().is_none() {
                created_since_end = false;
            }
            if matches!(after, PodState::Terminated { .. } | PodState::Finished { .. }) {
                prop_assert!(!after.may_run());
            }
            state = after;
        }
    }
}
