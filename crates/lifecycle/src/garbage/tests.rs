//! Tests of the choice and order of removals: fates of pods, limits per container and in total, sandboxes.

use proptest::prelude::*;

use super::*;

const NOW: i64 = 10_000;

/// `pod/name#attempt` in a state; the attempt is also the second of its creation.
fn container(text: &str, state: FoundState) -> FoundContainer {
    let (pod, rest) = text.split_once('/').unwrap();
    let (name, attempt) = rest.split_once('#').unwrap();
    let attempt: u32 = attempt.parse().unwrap();
    FoundContainer {
        id: ContainerId::from(text),
        pod: PodUid::from(pod),
        name: name.to_owned(),
        sandbox_id: SandboxId::new(format!("{pod}-sandbox")),
        state,
        attempt,
        created_at: Timestamp::from_unix_seconds(i64::from(attempt)),
    }
}

/// Containers by their state: `-` exited, `+` running, `?` unknown, `*` created, before each.
fn containers(texts: &[&str]) -> Vec<FoundContainer> {
    let one = |text: &&str| {
        let (mark, text) = text.split_at(1);
        let state = match mark {
            "-" => FoundState::Exited,
            "+" => FoundState::Running,
            "?" => FoundState::Unknown,
            "*" => FoundState::Created,
            _ => panic!("{mark}"),
        };
        container(text, state)
    };
    texts.iter().map(one).collect()
}

fn fates(known: &[(&str, PodFate)], sources_ready: bool) -> PodFates {
    PodFates {
        known: known
            .iter()
            .map(|(pod, fate)| (PodUid::from(*pod), *fate))
            .collect(),
        sources_ready,
        also_of_ended_pods: false,
        unreadable_sandboxes: BTreeSet::new(),
    }
}

fn limits(max_per_container: Option<usize>, max_total: Option<usize>) -> GarbageLimits {
    GarbageLimits {
        max_per_container,
        max_total,
        ..GarbageLimits::default()
    }
}

fn check(found: &[&str], fates: &PodFates, limits: &GarbageLimits, expected: &[&str]) {
    let removals = containers_to_remove(
        &containers(found),
        fates,
        limits,
        Timestamp::from_unix_seconds(NOW),
    );
    let removals: Vec<String> = removals
        .iter()
        .map(|one| format!("{}{}", if one.stop_first { "stop " } else { "" }, one.id))
        .collect();
    assert_eq!(removals, expected, "{found:?} {fates:?} {limits:?}");
}

#[test]
fn one_dead_container_of_each_name_stays() {
    let active = fates(&[("p", PodFate::Lives), ("q", PodFate::Lives)], true);
    let usual = GarbageLimits::default();
    check(&[], &active, &usual, &[]);
    check(&["-p/a#0"], &active, &usual, &[]);
    check(&["+p/a#1", "-p/a#0"], &active, &usual, &[]);
    check(
        &["+p/a#4", "-p/a#3", "-p/a#1", "-p/a#2"],
        &active,
        &usual,
        &["p/a#1", "p/a#2"],
    );
    check(
        &["-p/a#2", "-p/a#1", "-p/b#1", "-q/a#1"],
        &active,
        &usual,
        &["p/a#1"],
    );
    check(&["-p/a#2", "?p/a#1"], &active, &usual, &["stop p/a#1"]);
    // One that is about to start is not dead.
    check(&["*p/a#2", "-p/a#1", "-p/a#0"], &active, &usual, &["p/a#0"]);
    check(&["-p/a#2", "*p/a#1"], &active, &usual, &["p/a#1"]);
    // Some runtimes show one that lost its successor's race as running: it stays, dead or not.
    check(&["-p/a#2", "+p/a#1", "-p/a#0"], &active, &usual, &["p/a#0"]);
}

#[test]
fn limits_hold_but_the_newest_of_a_name_stays() {
    let active = fates(&[("p", PodFate::Lives), ("q", PodFate::Lives)], true);
    let found = ["-p/a#3", "-p/a#2", "-p/a#1", "+q/a#9", "-q/a#8", "-q/a#7"];
    check(&found, &active, &limits(None, None), &[]);
    check(&found, &active, &limits(Some(2), None), &["p/a#1"]);
    check(
        &found,
        &active,
        &limits(Some(0), None),
        &["p/a#1", "p/a#2", "q/a#7", "q/a#8"],
    );
    // Two names, four may stay: two of each.
    check(&found, &active, &limits(None, Some(4)), &["p/a#1"]);
    // An odd one: the oldest of all that are left goes last.
    check(
        &found,
        &active,
        &limits(None, Some(3)),
        &["p/a#1", "p/a#2", "q/a#7"],
    );
    check(
        &found,
        &active,
        &limits(None, Some(0)),
        &["p/a#1", "p/a#2", "q/a#7", "q/a#8"],
    );
    check(&found, &active, &limits(None, Some(5)), &[]);
}

#[test]
fn a_pod_that_is_gone_keeps_nothing_that_does_not_run() {
    let gone = fates(&[("p", PodFate::ContentMayGo)], true);
    let usual = GarbageLimits::default();
    let found = ["+p/b#0", "*p/a#2", "?p/a#1", "-p/a#0"];
    check(&found, &gone, &usual, &["p/a#0", "stop p/a#1", "p/a#2"]);
    // An unknown pod is gone, once every source has delivered.
    check(&["-x/a#0"], &fates(&[], true), &usual, &["x/a#0"]);
    check(&["-x/a#1", "-x/a#0"], &fates(&[], false), &usual, &[]);
    // Before that even a pod that may go is only tidied up.
    let early = fates(&[("p", PodFate::ContentMayGo)], false);
    check(&["-p/a#1", "-p/a#0"], &early, &usual, &["p/a#0"]);
}

#[test]
fn a_pod_that_ended_goes_only_when_room_is_needed() {
    let mut ended = fates(&[("p", PodFate::Ended), ("q", PodFate::Lives)], true);
    let found = ["-p/a#1", "-p/a#0", "-q/a#1", "-q/a#0"];
    check(&found, &ended, &GarbageLimits::default(), &["p/a#0", "q/a#0"]);
    ended.also_of_ended_pods = true;
    check(
        &found,
        &ended,
        &GarbageLimits::default(),
        &["p/a#0", "p/a#1", "q/a#0"],
    );
    assert!(!ended.may_content_go(&PodUid::from("p")), "its logs stay");
}

#[test]
fn young_ones_stay_whatever_the_pod() {
    let limits = GarbageLimits {
        min_age: Duration::from_secs(60),
        ..GarbageLimits::default()
    };
    let no_pods = fates(&[], true);
    check(&["-x/a#9940", "-x/b#9941"], &no_pods, &limits, &["x/a#9940"]);
    // Made "in the future", because the clock was set back.
    let usual = GarbageLimits::default();
    check(&["-x/a#20000"], &no_pods, &limits, &[]);
    check(&["-x/a#20000"], &no_pods, &usual, &["x/a#20000"]);
}

#[test]
fn the_attempt_tells_old_from_new() {
    let active = fates(&[("p", PodFate::Lives)], true);
    let mut found = containers(&["-p/a#1", "-p/a#2"]);
    found[1].created_at = Timestamp::EPOCH;
    let removals = containers_to_remove(&found, &active, &GarbageLimits::default(), Timestamp::EPOCH);
    assert_eq!(removals[0].id.as_str(), "p/a#1");
    assert_eq!(removals.len(), 1);
}

fn sandbox(id: &str, pod: &str, attempt: u32, is_ready: bool) -> FoundSandbox {
    FoundSandbox {
        id: SandboxId::from(id),
        pod: PodUid::from(pod),
        is_ready,
        attempt,
        created_at: Timestamp::from_unix_seconds(i64::from(attempt)),
    }
}

#[test]
fn sandboxes_go_when_nothing_needs_them() {
    let found = [
        sandbox("p2", "p", 2, false),
        sandbox("p0", "p", 0, false),
        sandbox("p1", "p", 1, false),
        sandbox("p3-ready", "p", 3, true),
    ];
    let check = |found: &[FoundSandbox], occupied: &[&str], fates: &PodFates, expected: &[&str]| {
        let containers: Vec<FoundContainer> = occupied
            .iter()
            .map(|id| FoundContainer {
                sandbox_id: SandboxId::from(*id),
                ..container("p/a#0", FoundState::Exited)
            })
            .collect();
        let removals = sandboxes_to_remove(found, &containers, fates);
        let removals: Vec<&str> = removals.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(removals, expected, "{occupied:?} {fates:?}");
    };
    let active = fates(&[("p", PodFate::Lives)], true);
    let gone = fates(&[("p", PodFate::ContentMayGo)], true);
    check(&found, &[], &active, &["p0", "p1", "p2"]);
    check(&found, &["p1"], &active, &["p0", "p2"]);
    check(&found[..3], &[], &active, &["p0", "p1"]);
    check(&found[..1], &[], &active, &[]);
    check(&found[..1], &[], &gone, &["p2"]);
    check(&found[..1], &["p2"], &gone, &[]);
    // One that is ready is removed when the pod is terminated.
    check(&found, &[], &gone, &["p0", "p1", "p2"]);
    let unreadable = PodFates {
        unreadable_sandboxes: [SandboxId::from("p3-ready")].into(),
        ..gone.clone()
    };
    check(&found, &[], &unreadable, &["p0", "p1", "p2", "p3-ready"]);
    check(&found, &[], &fates(&[], false), &[]);
    check(&found[..3], &[], &fates(&[], true), &["p0", "p1", "p2"]);
}

fn any_fate() -> impl Strategy<Value = Option<PodFate>> {
    prop_oneof![
        Just(None),
        Just(Some(PodFate::Lives)),
        Just(Some(PodFate::Ended)),
        Just(Some(PodFate::ContentMayGo)),
    ]
}

fn any_containers() -> impl Strategy<Value = Vec<FoundContainer>> {
    let state = prop_oneof![
        Just(FoundState::Created),
        Just(FoundState::Running),
        Just(FoundState::Exited),
        Just(FoundState::Unknown)
    ];
    let one = (0_u8..4, 0_u8..2, 0_u32..6, state, 0_u8..3);
    proptest::collection::vec(one, 0..30).prop_map(|list| {
        let mut found: Vec<FoundContainer> = list
            .into_iter()
            .map(|(pod, name, attempt, state, sandbox)| FoundContainer {
                sandbox_id: SandboxId::new(format!("p{pod}s{sandbox}")),
                ..container(&format!("p{pod}/c{name}#{attempt}"), state)
            })
            .collect();
        found.sort_by(|left, right| left.id.cmp(&right.id));
        found.dedup_by(|left, right| left.id == right.id);
        found
    })
}

fn any_fates() -> impl Strategy<Value = PodFates> {
    (
        proptest::collection::vec(any_fate(), 4),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(known, sources_ready, also_of_ended_pods)| PodFates {
            known: known
                .into_iter()
                .enumerate()
                .filter_map(|(number, fate)| Some((PodUid::new(format!("p{number}")), fate?)))
                .collect(),
            sources_ready,
            also_of_ended_pods,
            unreadable_sandboxes: BTreeSet::new(),
        })
}

fn any_limits() -> impl Strategy<Value = GarbageLimits> {
    (
        prop_oneof![Just(0_u64), Just(9_996)],
        proptest::option::of(0_usize..4),
        proptest::option::of(0_usize..10),
    )
        .prop_map(|(min_age_seconds, max_per_container, max_total)| GarbageLimits {
            min_age: Duration::from_secs(min_age_seconds),
            max_per_container,
            max_total,
        })
}

proptest! {
    #[test]
    fn what_is_needed_never_goes(found in any_containers(), fates in any_fates(), limits in any_limits()) {
        let removals = containers_to_remove(&found, &fates, &limits, Timestamp::from_unix_seconds(NOW));
        let goes = |container: &FoundContainer| removals.iter().any(|one| one.id == container.id);
        for container in &found {
            let siblings = || found.iter().filter(|one| one.pod == container.pod && one.name == container.name);
            let is_newest = siblings().all(|one| one.attempt <= container.attempt);
            let is_newest_dead = container.state == FoundState::Exited
                && siblings().all(|one| one.attempt <= container.attempt || one.state != FoundState::Exited);
            match fates.claim(&container.pod) {
                Claim::Nothing => prop_assert!(!goes(container)),
                Claim::BeyondLimits => {
                    prop_assert!(!(is_newest && goes(container)), "the newest of a name: {container:?}");
                    let is_kept = limits.max_per_container != Some(0) && limits.max_total.is_none()
                        && siblings().all(|one| one.state != FoundState::Unknown && one.state != FoundState::Created);
                    prop_assert!(!(is_kept && is_newest_dead && goes(container)), "the newest dead: {container:?}");
                }
                Claim::Everything => {
                    let must_go = container.state != FoundState::Running && limits.min_age.is_zero();
                    prop_assert!(!must_go || goes(container));
                }
            }
            prop_assert!(!(container.state == FoundState::Running && goes(container)));
        }
        let mut ids: Vec<&ContainerId> = removals.iter().map(|one| &one.id).collect();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), removals.len(), "nothing goes twice");
    }

    #[test]
    fn a_second_look_finds_nothing_more(found in any_containers(), fates in any_fates(), limits in any_limits()) {
        let now = Timestamp::from_unix_seconds(NOW);
        let removals = containers_to_remove(&found, &fates, &limits, now);
        let left: Vec<FoundContainer> = found
            .iter()
            .filter(|container| removals.iter().all(|one| one.id != container.id))
            .cloned()
            .collect();
        prop_assert_eq!(containers_to_remove(&left, &fates, &limits, now), []);

        let mut sandboxes: Vec<FoundSandbox> = found
            .iter()
            .map(|container| sandbox(container.sandbox_id.as_str(), container.pod.as_str(), container.attempt, false))
            .collect();
        sandboxes.sort_by(|left, right| left.id.cmp(&right.id));
        sandboxes.dedup_by(|left, right| left.id == right.id);
        let gone = sandboxes_to_remove(&sandboxes, &left, &fates);
        for one in &gone {
            prop_assert!(left.iter().all(|container| container.sandbox_id != one.id));
        }
        sandboxes.retain(|sandbox| gone.iter().all(|one| one.id != sandbox.id));
        prop_assert_eq!(sandboxes_to_remove(&sandboxes, &left, &fates), []);
    }

    #[test]
    fn the_limits_are_reached(found in any_containers(), limits in any_limits()) {
        let fates = fates(&[0, 1, 2, 3].map(|n| (["p0", "p1", "p2", "p3"][n], PodFate::Lives)), true);
        let removals = containers_to_remove(&found, &fates, &limits, Timestamp::from_unix_seconds(NOW));
        let left = found.iter().filter(|container| {
            container.state == FoundState::Exited && removals.iter().all(|one| one.id != container.id)
        });
        if let Some(max) = limits.max_total && limits.min_age.is_zero() {
            // Each of the eight names may keep its newest.
            prop_assert!(left.count() <= max.max(8));
        }
    }
}
