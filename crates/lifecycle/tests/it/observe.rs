use rubelet_lifecycle::observe::{
    observe_container, observe_pod, observe_sandbox, observe_unreadable_sandbox, pod_uid_of,
};
use rubelet_model::observation::{ContainerState, NetworkMode, PodUid, SandboxId, SandboxState};
use rubelet_wire::cri::v1;

use crate::sample::at;

fn network(ip: &str, additional: &[&str]) -> v1::PodSandboxNetworkStatus {
    v1::PodSandboxNetworkStatus {
        ip: ip.to_owned(),
        additional_ips: additional
            .iter()
            .map(|ip| v1::PodIp { ip: (*ip).to_owned() })
            .collect(),
    }
}

#[test]
fn addresses() {
    let check = |status: Option<v1::PodSandboxNetworkStatus>, primary: Option<&str>, ips: &[&str]| {
        let sandbox = observe_sandbox(&v1::PodSandboxStatus {
            network: status,
            ..Default::default()
        });
        assert_eq!(sandbox.primary_ip.as_deref(), primary);
        assert_eq!(sandbox.ips, ips);
    };
    check(None, None, &[]);
    check(Some(network("", &[])), Some(""), &[]);
    check(
        Some(network("10.0.0.1", &["fd00::1"])),
        Some("10.0.0.1"),
        &["10.0.0.1", "fd00::1"],
    );
    check(Some(network("10.0.0.1", &["nonsense"])), Some("10.0.0.1"), &[]);
}

#[test]
fn sandbox_states_and_network_modes() {
    let check = |state: i32, mode: Option<i32>, expected: (SandboxState, NetworkMode)| {
        let linux = mode.map(|network| v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace {
                options: Some(v1::NamespaceOption {
                    network,
                    ..Default::default()
                }),
            }),
        });
        let sandbox = observe_sandbox(&v1::PodSandboxStatus {
            state,
            linux,
            ..Default::default()
        });
        assert_eq!((sandbox.state, sandbox.network_mode), expected);
    };
    check(0, None, (SandboxState::Ready, NetworkMode::Pod));
    check(1, Some(0), (SandboxState::NotReady, NetworkMode::Pod));
    check(9, Some(2), (SandboxState::NotReady, NetworkMode::Node));
    check(0, Some(1), (SandboxState::Ready, NetworkMode::Other));
    check(0, Some(77), (SandboxState::Ready, NetworkMode::Other));
}

fn status() -> v1::ContainerStatus {
    let annotations = [
        ("io.kubernetes.container.hash", "11a6d6d6"),
        ("io.kubernetes.container.restartCount", "4"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
    ];
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    v1::ContainerStatus {
        id: "c".to_owned(),
        state: v1::ContainerState::ContainerExited as i32,
        created_at: 1_000_000_000,
        started_at: 2_000_000_000,
        finished_at: 3_000_000_000,
        exit_code: 7,
        reason: "Error".to_owned(),
        image_ref: "ref".to_owned(),
        labels: [("io.kubernetes.container.name", "a")].map(owned).into(),
        annotations: annotations.map(owned).into(),
        ..Default::default()
    }
}

#[test]
fn containers() {
    let seen = observe_container(&SandboxId::from("s"), &status());
    assert_eq!(
        (seen.name.as_str(), seen.hash, seen.restart_count),
        ("a", 0x11a6_d6d6, 4)
    );
    assert_eq!(seen.image_id, "ref", "older runtimes give the reference only");
    assert_eq!(seen.recorded.termination_grace_period_seconds, Some(30));
    assert_eq!(seen.recorded.deletion_grace_period_seconds, None);
    let exit = seen.state.exit().expect("an exit");
    assert_eq!(
        (exit.exit_code, exit.started_at, exit.finished_at),
        (7, at(2), at(3))
    );

    let with_state = |state: i32| {
        observe_container(&SandboxId::from("s"), &v1::ContainerStatus { state, ..status() }).state
    };
    assert_eq!(with_state(0), ContainerState::Created);
    assert_eq!(with_state(1), ContainerState::Running { started_at: at(2) });
    assert_eq!(with_state(42), ContainerState::Unknown { started_at: at(2) });
}

#[test]
fn malformed_annotations_count_as_missing() {
    let mut status = status();
    for value in status.annotations.values_mut() {
        *value = "nonsense".to_owned();
    }
    let seen = observe_container(&SandboxId::from("s"), &status);
    assert_eq!((seen.hash, seen.restart_count), (0, 0));
    assert_eq!(seen.recorded.termination_grace_period_seconds, None);
}

#[test]
fn resources() {
    let check = |quota: i64,
                 period: i64,
                 shares: i64,
                 memory: i64,
                 expected: Option<(Option<i64>, Option<i64>, Option<i64>)>| {
        let linux = v1::LinuxContainerResources {
            cpu_quota: quota,
            cpu_period: period,
            cpu_shares: shares,
            memory_limit_in_bytes: memory,
            ..Default::default()
        };
        let resources = Some(v1::ContainerResources {
            linux: Some(linux),
            ..Default::default()
        });
        let seen = observe_container(
            &SandboxId::from("s"),
            &v1::ContainerStatus {
                resources,
                ..status()
            },
        );
        let found = seen
            .resources
            .map(|r| (r.cpu_limit_millis, r.cpu_request_millis, r.memory_limit_bytes));
        assert_eq!(found, expected);
    };
    check(0, 0, 0, 0, None);
    check(-1, 100_000, 1, -1, None);
    check(
        50_000,
        100_000,
        102,
        1024,
        Some((Some(500), Some(100), Some(1024))),
    );
    check(0, 100_000, 2, 0, Some((None, Some(2), None)));
}

#[test]
fn a_pod_is_put_together() {
    let sandbox = v1::PodSandboxStatus {
        id: "s".to_owned(),
        network: Some(network("10.0.0.1", &[])),
        ..Default::default()
    };
    let identity = (PodUid::from("uid"), "ns".to_owned(), "pod".to_owned());
    let pod = observe_pod(identity, &[sandbox], &[("s".into(), status())], at(5));
    assert_eq!(pod.ips, ["10.0.0.1"]);
    assert_eq!(pod.active_containers().count(), 1);
    let labels = [("io.kubernetes.pod.uid".to_owned(), "uid".to_owned())].into();
    assert_eq!(pod_uid_of(&labels), Some(PodUid::from("uid")));
    assert_eq!(pod_uid_of(&Default::default()), None);
}

#[test]
fn an_unreadable_sandbox_is_what_the_list_shows() {
    let check = |state: v1::PodSandboxState, expected: SandboxState| {
        let sandbox = observe_unreadable_sandbox(&v1::PodSandbox {
            id: "s0".to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                attempt: 3,
                ..Default::default()
            }),
            state: state.into(),
            created_at: 5,
            ..Default::default()
        });
        assert_eq!((sandbox.state, sandbox.attempt), (expected, 3));
        assert_eq!((sandbox.id.as_str(), sandbox.created_at.unix_nanos()), ("s0", 5));
        assert!(!sandbox.is_ready() && sandbox.primary_ip.is_none());
    };
    check(v1::PodSandboxState::SandboxReady, SandboxState::Unreadable);
    check(v1::PodSandboxState::SandboxNotready, SandboxState::NotReady);
}
