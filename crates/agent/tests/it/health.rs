//! The runtime's own health: who waits for it, and who does not.

use std::time::Duration;

use rubelet_model::RuntimeLists;
use rubelet_ports::{PodView, RuntimeErrorKind};
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_job_waits_for_the_runtime_by_name_and_goes_on_at_once() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.line.fault(
        "Status",
        "",
        Fault::Fail(RuntimeErrorKind::Unavailable),
        usize::MAX,
    );
    bed.pass(seconds(60));
    bed.put(&PodText::new("web", &[]));
    bed.wait("the pod waits for the runtime", SOON, |bed| {
        bed.waits_for("web") == "the container runtime to be ready"
    });
    let wait = bed.explain("web").waits_for.expect("a wait");
    assert!(
        wait.last_error
            .unwrap_or_default()
            .contains("the runtime cannot be reached")
    );
    bed.pass(seconds(30));
    assert_eq!(bed.explain("web").waits_for.expect("a wait").age_seconds, 30);
    assert!(bed.line.sent_about("RunPodSandbox", "web").is_empty());
    assert_eq!(bed.phase("web"), "Pending");

    bed.line.heal();
    let healed = bed.elapsed();
    bed.wait("the pod starts", seconds(10), |bed| bed.is_ready("web"));
    let took = bed.elapsed() - healed;
    assert!(
        took < seconds(2),
        "the runtime was back for {took:?} before the pod was ready"
    );
}

#[test]
fn a_runtime_that_does_not_answer_counts_as_down_after_a_while() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.line.fault("Status", "", Fault::Hang, usize::MAX);
    bed.wait("the runtime counts as down", seconds(60), |bed| {
        bed.ask(|handle| Box::pin(async move { handle.runtime_health().borrow().runtime_problem.is_some() }))
    });
    bed.put(&PodText::new("web", &[]));
    bed.pass(seconds(5));
    assert_eq!(bed.waits_for("web"), "the container runtime to be ready");
    let waits = bed.node_explanation().waits_for;
    let waits: Vec<&str> = waits.iter().map(|wait| wait.what.as_str()).collect();
    assert_eq!(waits, ["the container runtime to be ready"]);
}

#[test]
fn a_runtime_that_is_away_for_a_while_loses_and_doubles_nothing() {
    let mut bed = Bed::started();
    for number in 0..5 {
        bed.put_and_wait(&PodText::new(&format!("web{number}"), &[]));
    }
    bed.runtime.restart(seconds(20));
    bed.put(&PodText::new("late", &[]));
    bed.pass(seconds(19));
    assert!(!bed.is_ready("late"));
    bed.wait("the late pod starts", seconds(10), |bed| bed.is_ready("late"));
    for number in 0..5 {
        let name = format!("web{number}");
        assert!(bed.is_ready(&name));
        assert_eq!(
            bed.line
                .sent_about("CreateContainer", &format!("{name}/main"))
                .len(),
            1
        );
    }
}

#[test]
fn without_the_pods_network_only_pods_on_the_nodes_network_start() {
    let mut bed = Bed::new();
    bed.runtime.set_network_ready(false);
    bed.start();
    bed.put(&PodText::new("own", &[]));
    bed.put_and_wait(&PodText::new("host", &[]).spec("hostNetwork", json!(true)));
    bed.pass(seconds(10));
    assert!(!bed.is_ready("own"));
    assert!(bed.line.sent_about("RunPodSandbox", "own").is_empty());
    let events = bed.events("own", "NetworkNotReady");
    let message = &events.first().expect("an event").message;
    assert_eq!(
        message,
        "network is not ready: container runtime network not ready: NetworkReady=false reason:Simulated message:"
    );
    assert_eq!(&bed.last_error("own"), message);
    let waits = bed.node_explanation().waits_for;
    let words = "the runtime's network to be ready (pods on the host's network start without it)";
    assert_eq!(waits.first().map(|wait| wait.what.as_str()), Some(words));

    bed.runtime.set_network_ready(true);
    let healed = bed.elapsed();
    bed.wait("the other one starts", seconds(10), |bed| bed.is_ready("own"));
    let took = bed.elapsed() - healed;
    assert!(took < seconds(3), "{took:?}");
}

#[test]
fn a_network_that_breaks_later_leaves_running_pods_alone() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.runtime.set_network_ready(false);
    bed.pass(seconds(10));
    assert!(bed.is_ready("web"));
    assert!(bed.events("web", "NetworkNotReady").is_empty());
    bed.runtime.crash_container(0, 1);
    bed.wait("its restart waits for the network", SOON, |bed| {
        !bed.events("web", "NetworkNotReady").is_empty()
    });
    bed.runtime.set_network_ready(true);
    bed.wait("it starts again", seconds(10), |bed| {
        bed.container("web").restart_count == 1
    });
}

/// Questions have their own deadline: whoever asks may hold a connection.
#[test]
fn a_question_has_an_answer_when_the_runtime_has_none() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.line.fault("ListContainers", "", Fault::Hang, usize::MAX);
    let asked = bed.elapsed();
    let answer = bed.ask(|handle| Box::pin(async move { handle.runtime_pods().await }));
    assert_eq!(
        answer.map_err(|error| error.kind()),
        Err(RuntimeErrorKind::DeadlineExceeded)
    );
    assert!(bed.elapsed() - asked < seconds(15));
    assert_eq!(bed.pods(), []);
}

/// Lists of everything fail while the runtime says that it is well.
#[test]
fn a_runtime_that_lists_nothing_is_unhealthy_after_three_minutes() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(20));
    let lists =
        |bed: &mut Bed| bed.ask(|handle| Box::pin(async move { handle.runtime_health().borrow().lists }));
    let last_seen = |bed: &Bed| {
        let family = bed.registry.gather();
        let family = family
            .iter()
            .find(|one| one.name() == "kubelet_pleg_last_seen_seconds");
        family.map_or(0.0, |family| family.get_metric()[0].get_gauge().get_value())
    };
    // The line names the filter of a list: the garbage collector's and those of single pods go on.
    bed.line.hang_whole_lists(true);
    let hung = bed.elapsed();
    let seen = last_seen(&bed);
    assert!(seen > 0.0);
    bed.pass(seconds(160));
    assert_eq!(lists(&mut bed), RuntimeLists::Fresh);
    bed.wait("the lists are overdue", seconds(40), |bed| {
        matches!(lists(bed), RuntimeLists::Overdue { .. })
    });
    assert!(bed.elapsed() - hung > seconds(170));
    assert_eq!(last_seen(&bed), seen, "a list that did not come counts as seen");
    // Jobs go on: a look at one pod still works.
    bed.put_and_wait(&PodText::new("late", &[]));

    bed.line.hang_whole_lists(false);
    bed.wait("the lists are fresh", seconds(60), |bed| {
        lists(bed) == RuntimeLists::Fresh
    });
    assert!(last_seen(&bed) > seen);
}

/// One pod whose look hangs degrades itself alone.
#[test]
fn one_hanging_pod_leaves_the_lists_fresh() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("stuck", &[]));
    bed.line
        .fault("ContainerStatus", "stuck/main", Fault::Hang, usize::MAX);
    bed.line.fault("ListContainers", "stuck", Fault::Hang, usize::MAX);
    bed.runtime.crash_container(0, 1);
    bed.pass(seconds(400));
    let lists = bed.ask(|handle| Box::pin(async move { handle.runtime_health().borrow().lists }));
    assert_eq!(lists, RuntimeLists::Fresh);
}
