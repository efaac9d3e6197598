use rubelet_lifecycle::plan::{
    ContainerRecovery, InFlightContainer, InFlightSandbox, SandboxRecovery, recover_container,
    recover_sandbox, reserved_for,
};
use rubelet_model::observation::{ContainerState, NetworkMode, SandboxState};

use crate::sample::{at, container, exited, in_sandbox, observed, running, sandbox, unknown};

#[test]
fn the_holder_of_a_name_is_read_from_the_message() {
    let check = |message: &str, expected: Option<&str>| assert_eq!(reserved_for(message), expected);
    check(
        r#"failed to reserve sandbox name "p_n_u_0": name "p_n_u_0" is reserved for "3f1c""#,
        Some("3f1c"),
    );
    check(r#"name "p" is reserved for """#, None);
    check(r#"name "p" is reserved for "3f"#, None);
    check("context deadline exceeded", None);
}

#[test]
fn sandboxes() {
    let check =
        |holder: Option<&str>, seen: Option<(u32, SandboxState)>, second: i64, expected: SandboxRecovery| {
            let asked = InFlightSandbox {
                attempt: 1,
                network_mode: NetworkMode::Pod,
                asked_at: at(100),
                holder: holder.map(Into::into),
            };
            let sandboxes = seen
                .map(|(attempt, state)| sandbox("s1", attempt, state))
                .into_iter()
                .collect();
            let answer = recover_sandbox(&asked, &observed(sandboxes, vec![]), at(second));
            assert_eq!(answer, expected, "{holder:?} {seen:?} {second}");
        };
    let adopt = || SandboxRecovery::Adopt { id: "s1".into() };
    let remove = || SandboxRecovery::Remove { id: "s1".into() };
    let wait = || SandboxRecovery::Wait { until: at(340) };
    check(Some("s1"), Some((1, SandboxState::Ready)), 101, adopt());
    check(None, Some((1, SandboxState::Ready)), 101, adopt());
    check(Some("s1"), Some((1, SandboxState::NotReady)), 101, remove());
    check(Some("s1"), Some((0, SandboxState::Ready)), 101, remove());
    check(Some("s1"), None, 101, wait());
    check(Some("s1"), None, 340, remove());
    check(Some("s1"), None, 5, remove());
    check(None, None, 101, wait());
    check(None, None, 340, SandboxRecovery::Retry);
    check(
        None,
        Some((0, SandboxState::NotReady)),
        340,
        SandboxRecovery::Retry,
    );
}

#[test]
fn containers() {
    let check = |holder: Option<&str>, state: Option<ContainerState>, hash: u64, second: i64, expected| {
        let found = container("a0", "a", running());
        let asked = InFlightContainer {
            name: "a".to_owned(),
            sandbox_id: "s0".into(),
            restart_count: 0,
            hash: found.hash + hash,
            asked_at: at(100),
            holder: holder.map(Into::into),
        };
        let containers = state
            .map(|state| container("a0", "a", state))
            .into_iter()
            .collect();
        assert_eq!(
            recover_container(&asked, &in_sandbox(containers), at(second)),
            expected
        );
    };
    let id = || "a0".into();
    check(
        None,
        Some(ContainerState::Created),
        0,
        101,
        ContainerRecovery::Start { id: id() },
    );
    check(
        Some("a0"),
        Some(running()),
        0,
        101,
        ContainerRecovery::Adopt { id: id() },
    );
    check(
        None,
        Some(exited(1)),
        0,
        101,
        ContainerRecovery::Adopt { id: id() },
    );
    check(
        None,
        Some(unknown()),
        0,
        101,
        ContainerRecovery::Remove { id: id() },
    );
    check(
        None,
        Some(running()),
        1,
        101,
        ContainerRecovery::Remove { id: id() },
    );
    check(
        Some("a0"),
        None,
        0,
        101,
        ContainerRecovery::Wait { until: at(340) },
    );
    check(Some("a0"), None, 0, 340, ContainerRecovery::Remove { id: id() });
    check(None, None, 0, 340, ContainerRecovery::Retry);
}
