//! Sandboxes whose status the runtime cannot read, because their network namespace was taken away.

use std::time::Duration;

use rubelet_ports::RuntimeErrorKind;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn condition(bed: &mut Bed, pod: &str, name: &str) -> String {
    let conditions = bed.status(pod).conditions.unwrap_or_default();
    let found = conditions.into_iter().find(|one| one.type_ == name);
    found.map(|one| one.status).unwrap_or_default()
}

/// A ready pod `web` whose network is taken away while the agent is not there to see it.
fn bed_without_network() -> Bed {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.kill();
    assert!(bed.runtime.lose_network(0));
    bed
}

#[test]
fn running_containers_are_left_alone() {
    let mut bed = bed_without_network();
    bed.start();
    bed.wait("the sandbox is not ready", seconds(30), |bed| {
        condition(bed, "web", "PodReadyToStartContainers") == "False"
    });
    bed.pass(seconds(300));
    assert!(bed.is_ready("web"), "{}", bed.trace());
    assert_eq!(bed.line.sent("StopContainer", Duration::ZERO).len(), 0);
    assert_eq!(bed.line.sent("StopPodSandbox", Duration::ZERO).len(), 0);

    bed.runtime.mend_networks();
    bed.wait("the sandbox is ready again", seconds(30), |bed| {
        condition(bed, "web", "PodReadyToStartContainers") == "True"
    });
}

#[test]
fn a_container_that_ended_is_shown_and_gets_a_new_sandbox() {
    let mut bed = bed_without_network();
    assert!(bed.runtime.crash_container(0, 7));
    bed.start();
    bed.wait("the end of the container is shown", seconds(30), |bed| {
        let status = bed.container("web");
        let ends = [status.state, status.last_state].map(|state| state?.terminated);
        ends.iter().flatten().any(|end| end.exit_code == 7)
    });
    bed.wait("the pod runs in another sandbox", seconds(120), |bed| {
        bed.is_ready("web")
    });
    assert_eq!(bed.line.sent_about("RunPodSandbox", "web").len(), 2);
    assert_eq!(bed.container("web").restart_count, 1);
    let events = bed.events("web", "FailedKillPod");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].message.contains("network namespace"), "{events:?}");
}

#[test]
fn its_pod_can_be_deleted_and_the_garbage_collector_goes_on() {
    let mut bed = Bed::started();
    let web = PodText::new("web", &[]);
    bed.put_and_wait(&web);
    assert!(bed.runtime.lose_network(0));
    bed.remove(&web);
    bed.wait("only the sandbox is left", seconds(120), |bed| {
        bed.waits_for("web").contains("remove sandbox")
    });
    assert_eq!(bed.events("web", "FailedKillPod").len(), 1, "{}", bed.trace());
    assert!(bed.runtime.has_anything());

    // The sandbox is still tried, less and less often, and `rubelet why` names it.
    let gone = bed.elapsed();
    bed.pass(seconds(1800));
    let tries = bed.line.sent("StopPodSandbox", gone);
    let gaps: Vec<u64> = tries
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).as_secs())
        .collect();
    assert!(gaps.len() > 4 && gaps[0] < gaps[1], "{gaps:?}");
    assert!(gaps[2..].iter().all(|gap| (300..420).contains(gap)), "{gaps:?}");
    assert!(bed.last_error("web").contains("network namespace"));

    bed.runtime.mend_networks();
    bed.wait("nothing is left", seconds(600), |bed| !bed.runtime.has_anything());
    bed.wait("nothing is explained", seconds(120), |bed| {
        bed.explanations().is_empty()
    });
}

#[test]
fn an_orphan_with_such_a_sandbox_goes() {
    let mut bed = bed_without_network();
    bed.remove(&PodText::new("web", &[]));
    assert!(bed.runtime.crash_container(0, 1));
    bed.start();
    bed.pass(seconds(300));
    assert!(
        !bed.line.sent("StopPodSandbox", Duration::ZERO).is_empty(),
        "{}",
        bed.trace()
    );
    bed.runtime.mend_networks();
    bed.wait("nothing is left", seconds(600), |bed| !bed.runtime.has_anything());
}

#[test]
fn a_status_that_fails_a_few_times_changes_nothing() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.kill();
    assert!(bed.runtime.crash_container(0, 1));
    let fault = Fault::Fail(RuntimeErrorKind::Unknown);
    bed.line.fault("PodSandboxStatus", "web", fault, 3);
    bed.start();
    bed.wait("the container runs again", SOON * 2, |bed| {
        bed.container("web").restart_count == 1 && bed.is_ready("web")
    });
    assert_eq!(bed.line.sent_about("RunPodSandbox", "web").len(), 1);
}
