use super::*;

fn sandbox(id: &str, second: i64, state: SandboxState, ip: &str) -> SandboxObservation {
    let mut sandbox = SandboxObservation::new(id, 0, state, Timestamp::from_unix_seconds(second));
    sandbox.ips = vec![ip.to_owned()];
    sandbox
}

fn container(id: &str, name: &str, sandbox: &str, second: i64, running: bool) -> ContainerObservation {
    let started_at = Timestamp::from_unix_seconds(second);
    let state = if running {
        ContainerState::Running { started_at }
    } else {
        ContainerState::Created
    };
    ContainerObservation::new(id, name, sandbox, state, started_at)
}

fn observation(sandboxes: Vec<SandboxObservation>, containers: Vec<ContainerObservation>) -> PodObservation {
    PodObservation::new(
        (PodUid::from("u"), "ns".to_owned(), "pod".to_owned()),
        sandboxes,
        containers,
        Timestamp::EPOCH,
    )
}

fn ids<'a>(containers: impl Iterator<Item = &'a ContainerObservation>) -> Vec<&'a str> {
    containers.map(|container| container.id.as_str()).collect()
}

#[test]
fn the_active_sandbox_is_the_newest_if_it_is_ready() {
    let check = |old: SandboxState, new: SandboxState, active: Option<&str>, ips: &[&str]| {
        let seen = observation(
            vec![
                sandbox("old", 1, old, "10.0.0.1"),
                sandbox("new", 2, new, "10.0.0.2"),
            ],
            Vec::new(),
        );
        assert_eq!(seen.newest_sandbox().map(|s| s.id.as_str()), Some("new"));
        assert_eq!(seen.active_sandbox().map(|s| s.id.as_str()), active);
        assert_eq!(seen.ips, ips);
    };
    check(
        SandboxState::NotReady,
        SandboxState::Ready,
        Some("new"),
        &["10.0.0.2"],
    );
    check(SandboxState::Ready, SandboxState::NotReady, None, &[]);
    check(SandboxState::NotReady, SandboxState::NotReady, None, &[]);
}

#[test]
fn containers_are_found_newest_first() {
    let seen = observation(
        vec![
            sandbox("new", 5, SandboxState::Ready, "10.0.0.2"),
            sandbox("old", 1, SandboxState::NotReady, "10.0.0.1"),
        ],
        vec![
            container("a0", "a", "old", 2, false),
            container("b1", "b", "old", 9, true),
            container("a2", "a", "new", 7, false),
            container("a1", "a", "new", 6, true),
        ],
    );
    assert_eq!(ids(seen.containers.iter()), ["a2", "a1", "a0", "b1"]);
    assert_eq!(ids(seen.active_containers()), ["a2", "a1"]);
    assert_eq!(ids(seen.running_containers()), ["a1", "b1"]);
    assert_eq!(ids(seen.newest_container("a").into_iter()), ["a2"]);
    assert_eq!(ids(seen.newest_active_container("b").into_iter()), [""; 0]);
    assert!(!seen.is_empty());
    assert!(PodObservation::empty("u", "ns", "pod", Timestamp::EPOCH).is_empty());
}

#[test]
fn without_a_sandbox_no_container_is_active() {
    let seen = observation(Vec::new(), vec![container("a0", "a", "", 2, true)]);
    assert_eq!(ids(seen.active_containers()), [""; 0]);
}

#[test]
fn counters_decide_before_times() {
    // The clock was set back between the two.
    let mut newer = container("a1", "a", "s", 2, false);
    newer.restart_count = 1;
    let older = container("a0", "a", "s", 5000, false);
    let seen = observation(Vec::new(), vec![older, newer]);
    assert_eq!(ids(seen.containers.iter()), ["a1", "a0"]);

    let mut newer = sandbox("new", 2, SandboxState::Ready, "10.0.0.2");
    newer.attempt = 1;
    let older = sandbox("old", 5000, SandboxState::NotReady, "10.0.0.1");
    let seen = observation(vec![older, newer], Vec::new());
    assert_eq!(seen.active_sandbox().map(|s| s.id.as_str()), Some("new"));
}

#[test]
fn probe_results_belong_to_an_instance() {
    let mut results = ProbeResults::default();
    let probes = ContainerProbes {
        liveness: Some(ProbeResult::Failure),
        ..ContainerProbes::default()
    };
    results.set(ContainerId::from("a0"), probes);
    assert_eq!(results.of(&ContainerId::from("a0")), probes);
    assert_eq!(results.of(&ContainerId::from("a1")), ContainerProbes::default());
}

#[test]
fn a_state_carries_only_its_own_facts() {
    let exit = ContainerExit {
        exit_code: 3,
        reason: "Error".to_owned(),
        message: String::new(),
        started_at: Timestamp::from_unix_seconds(1),
        finished_at: Timestamp::from_unix_seconds(2),
    };
    let check = |state: ContainerState, running: bool, started: Option<i64>, code: Option<i32>| {
        assert_eq!(state.is_running(), running);
        assert_eq!(state.started_at().map(Timestamp::unix_seconds), started);
        assert_eq!(state.exit().map(|exit| exit.exit_code), code);
    };
    let started_at = Timestamp::from_unix_seconds(1);
    check(ContainerState::Created, false, None, None);
    check(ContainerState::Running { started_at }, true, Some(1), None);
    check(ContainerState::Unknown { started_at }, false, Some(1), None);
    check(ContainerState::Exited(exit), false, Some(1), Some(3));
}
