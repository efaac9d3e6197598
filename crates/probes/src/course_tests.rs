use ProbeKind::{Liveness, Readiness, Startup};
use ProbeResult as R;
use proptest::prelude::*;

use super::*;

const THRESHOLDS: Thresholds = Thresholds {
    success: 2,
    failure: 3,
};

fn sight(id: &str, state: SightState) -> Event {
    Event::Seen(Sight {
        id: ContainerId::from(id),
        state,
    })
}

fn running(id: &str) -> Event {
    sight(
        id,
        SightState::Running {
            is_inherited: false,
            seed_started: false,
        },
    )
}

fn inherited(id: &str, seed_started: bool) -> Event {
    sight(
        id,
        SightState::Running {
            is_inherited: true,
            seed_started,
        },
    )
}

fn probed(id: &str, verdict: Verdict) -> Event {
    Event::Probed {
        id: ContainerId::from(id),
        verdict,
        is_early: false,
    }
}

fn ok(id: &str) -> Event {
    probed(id, Verdict::Success)
}

fn bad(id: &str) -> Event {
    probed(id, Verdict::Failure)
}

fn early(id: &str, verdict: Verdict) -> Event {
    Event::Probed {
        id: ContainerId::from(id),
        verdict,
        is_early: true,
    }
}

fn after(kind: ProbeKind, events: &[Event]) -> Course {
    events.iter().fold(Course::new(kind), |course, event| {
        course.step(event.clone(), THRESHOLDS)
    })
}

#[test]
fn events_lead_to_results() {
    let check = |kind: ProbeKind, events: &[Event], expected: Option<(&str, R)>| {
        let course = after(kind, events);
        let found = course.result().map(|(id, result)| (id.as_str(), result));
        assert_eq!(found, expected, "{kind:?} {events:?}");
    };
    // Initial values.
    check(Startup, &[], None);
    check(Startup, &[running("a")], Some(("a", R::Unknown)));
    check(Readiness, &[running("a")], Some(("a", R::Failure)));
    check(Liveness, &[running("a")], Some(("a", R::Success)));
    check(
        Liveness,
        &[sight("a", SightState::Waiting)],
        Some(("a", R::Success)),
    );
    // A container that was created and then runs was not dead in between.
    check(
        Liveness,
        &[sight("a", SightState::Waiting), running("a")],
        Some(("a", R::Success)),
    );
    // A container that ran before the agent started keeps its earlier result.
    check(Readiness, &[inherited("a", false)], None);
    check(Liveness, &[inherited("a", false)], None);
    check(Startup, &[inherited("a", false)], None);
    check(Startup, &[inherited("a", true)], Some(("a", R::Success)));
    check(Readiness, &[inherited("a", true)], None);
    check(
        Readiness,
        &[inherited("a", false), bad("a"), bad("a"), bad("a")],
        Some(("a", R::Failure)),
    );
    // Thresholds.
    check(Readiness, &[running("a"), ok("a")], Some(("a", R::Failure)));
    check(
        Readiness,
        &[running("a"), ok("a"), ok("a")],
        Some(("a", R::Success)),
    );
    check(
        Readiness,
        &[running("a"), ok("a"), bad("a"), ok("a")],
        Some(("a", R::Failure)),
    );
    check(
        Readiness,
        &[running("a"), ok("a"), ok("a"), bad("a"), bad("a")],
        Some(("a", R::Success)),
    );
    check(
        Readiness,
        &[running("a"), ok("a"), ok("a"), bad("a"), bad("a"), bad("a")],
        Some(("a", R::Failure)),
    );
    // Early tries: only success counts.
    check(
        Liveness,
        &[
            running("a"),
            early("a", Verdict::Failure),
            early("a", Verdict::Failure),
            bad("a"),
        ],
        Some(("a", R::Success)),
    );
    check(
        Readiness,
        &[running("a"), early("a", Verdict::Success), ok("a")],
        Some(("a", R::Success)),
    );
    // A verdict on another instance, or on one that has ended, is ignored.
    check(
        Liveness,
        &[running("b"), bad("a"), bad("a"), bad("a")],
        Some(("b", R::Success)),
    );
    check(
        Readiness,
        &[running("a"), ok("a"), sight("a", SightState::Ended), ok("a")],
        Some(("a", R::Failure)),
    );
    // Counts do not outlive the instance.
    check(
        Liveness,
        &[running("a"), bad("a"), bad("a"), running("b"), bad("b")],
        Some(("b", R::Success)),
    );
    // An end is a failure.
    check(
        Liveness,
        &[running("a"), sight("a", SightState::Ended)],
        Some(("a", R::Failure)),
    );
    // The pod's end is none, and no start either.
    let failed = [running("a"), bad("a"), bad("a"), bad("a")];
    check(Liveness, &failed, Some(("a", R::Failure)));
    let ends = |mut events: Vec<Event>| {
        events.push(Event::PodEnds);
        events
    };
    check(Liveness, &ends(failed.to_vec()), Some(("a", R::Success)));
    check(Startup, &ends(vec![running("a")]), Some(("a", R::Unknown)));
    check(Readiness, &ends(vec![running("a")]), Some(("a", R::Failure)));
}

#[test]
fn probes_take_their_turns() {
    let check = |kind: ProbeKind, events: &[Event], has_started: bool, expected: Option<&str>| {
        let course = after(kind, events);
        let found = course.target(has_started).map(ContainerId::as_str);
        assert_eq!(found, expected, "{kind:?} {events:?} {has_started}");
    };
    check(Startup, &[running("a")], false, Some("a"));
    check(Startup, &[running("a")], true, None);
    check(Liveness, &[running("a")], false, None);
    check(Liveness, &[running("a")], true, Some("a"));
    check(Readiness, &[running("a")], false, None);
    check(Readiness, &[running("a")], true, Some("a"));
    check(Readiness, &[sight("a", SightState::Waiting)], true, None);
    check(
        Readiness,
        &[running("a"), sight("a", SightState::Ended)],
        true,
        None,
    );
    // On hold until another instance comes.
    let failed = [running("a"), bad("a"), bad("a"), bad("a")];
    check(Liveness, &failed, true, None);
    check(Readiness, &failed, true, Some("a"));
    check(Startup, &failed, false, None);
    check(Startup, &[running("a"), ok("a"), ok("a")], false, None);
    let mut replaced = failed.to_vec();
    replaced.push(running("b"));
    check(Liveness, &replaced, true, Some("b"));
    check(Startup, &replaced, false, Some("b"));
    // Only readiness goes on while the pod ends.
    let ends = [running("a"), Event::PodEnds];
    check(Liveness, &ends, true, None);
    check(Startup, &ends, false, None);
    check(Readiness, &ends, true, Some("a"));
    check(Liveness, &[Event::PodEnds, running("b")], true, None);
}

fn any_event() -> impl Strategy<Value = Event> {
    let id = prop_oneof![Just("a"), Just("b"), Just("c")];
    let state = prop_oneof![
        Just(SightState::Waiting),
        Just(SightState::Ended),
        (any::<bool>(), any::<bool>()).prop_map(|(is_inherited, seed_started)| SightState::Running {
            is_inherited,
            seed_started
        }),
    ];
    prop_oneof![
        4 => (id.clone(), state).prop_map(|(id, state)| sight(id, state)),
        8 => (id, any::<bool>(), any::<bool>()).prop_map(|(id, good, is_early)| Event::Probed {
            id: ContainerId::from(id),
            verdict: if good { Verdict::Success } else { Verdict::Failure },
            is_early,
        }),
        1 => Just(Event::PodEnds),
    ]
}

proptest! {
    /// Whatever comes in whatever order: results are about the last instance seen, a hold ends only with a new instance,
    /// and a result changes only for a reason.
    #[test]
    fn the_course_holds(
        kind in prop_oneof![Just(Startup), Just(Readiness), Just(Liveness)],
        events in proptest::collection::vec(any_event(), 0..60),
    ) {
        let mut course = Course::new(kind);
        let mut last_seen = None;
        for event in events {
            let before = course.clone();
            course = course.step(event.clone(), THRESHOLDS);
            if before.is_over() {
                prop_assert_eq!(&course, &before);
                continue;
            }
            match &event {
                Event::Seen(sight) => {
                    let is_new = last_seen.as_ref() != Some(&sight.id);
                    last_seen = Some(sight.id.clone());
                    if is_new {
                        prop_assert!(!course.is_on_hold);
                        prop_assert_eq!(course.run, 0);
                    } else if sight.state != SightState::Ended {
                        prop_assert_eq!(course.result, before.result);
                    }
                }
                Event::Probed { id, verdict, is_early } => {
                    let counts = Some(id) == last_seen.as_ref() && !(*is_early && *verdict == Verdict::Failure);
                    if course.result != before.result {
                        prop_assert!(counts && !before.is_on_hold);
                        prop_assert_eq!(course.result, Some(R::from(*verdict)));
                    }
                }
                Event::PodEnds => {}
            }
            prop_assert_eq!(course.instance().cloned(), last_seen.clone());
            for has_started in [false, true] {
                if course.is_on_hold || course.is_over() {
                    prop_assert_eq!(course.target(has_started), None);
                }
            }
        }
    }

    /// Never sooner, never later than the threshold.
    #[test]
    fn thresholds_are_exact(failure in 1_u32..10, success in 1_u32..10, tries in 0_u32..12) {
        let thresholds = Thresholds { success, failure };
        let mut course = Course::new(Readiness).step(running("a"), thresholds);
        for _ in 0..tries {
            course = course.step(ok("a"), thresholds);
        }
        let is_ready = course.result() == Some((&ContainerId::from("a"), R::Success));
        prop_assert_eq!(is_ready, tries >= success);
        let mut course = Course::new(Liveness).step(running("a"), thresholds);
        for _ in 0..tries {
            course = course.step(bad("a"), thresholds);
        }
        let is_dead = course.result() == Some((&ContainerId::from("a"), R::Failure));
        prop_assert_eq!(is_dead, tries >= failure);
    }
}
