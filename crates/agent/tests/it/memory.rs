//! What the agent knows of a pod when the runtime, the clock or a source does not help it.

use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::ContainerStatus;
use rubelet_ports::{PodView as _, RuntimeErrorKind};
use rubelet_sim::executor::Group;
use rubelet_sim::runtime::Faults;
use serde_json::json;

use crate::bed::{Bed, IMAGE, PodText, SOON};
use crate::cluster::{ApiPod, holds};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A pod of which `main` runs once and ends with success, and `other` stays.
fn run_once() -> PodText {
    PodText::new("web", &[])
        .spec("restartPolicy", json!("OnFailure"))
        .spec(
            "containers",
            json!([
                {
                    "name": "main", "image": IMAGE, "args": ["runs=500:0"], "restartPolicy": "Never",
                    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
                },
                {"name": "other", "image": IMAGE},
            ]),
        )
}

fn status_of(bed: &mut Bed, name: &str) -> ContainerStatus {
    let statuses = bed.status("web").container_statuses.unwrap_or_default();
    let found = statuses.into_iter().find(|status| status.name == name);
    found.unwrap_or_default()
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn running_id(status: &ContainerStatus) -> Option<String> {
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.clone()
}

/// The runtime loses everything; the pod's other container comes back, and its status with it.
fn lose_state(bed: &mut Bed) {
    let before = running_id(&status_of(bed, "other"));
    assert!(before.is_some(), "{}", bed.trace());
    bed.runtime.lose_state();
    bed.wait("the other container is told to run again", seconds(60), |bed| {
        let now = running_id(&status_of(bed, "other"));
        now.is_some() && now != before
    });
}

#[test]
fn a_container_that_ended_for_good_does_not_run_again_when_the_runtime_forgets_it() {
    let mut bed = Bed::started();
    bed.put(&run_once());
    bed.wait("the first container ended", SOON, |bed| {
        exit_code(&status_of(bed, "main")) == Some(0)
    });
    lose_state(&mut bed);
    assert_eq!(bed.line.sent_about("StartContainer", "web/main").len(), 1);
    assert_eq!(exit_code(&status_of(&mut bed, "main")), Some(0));
}

#[test]
fn a_start_that_failed_for_good_is_not_waited_for_when_the_runtime_forgets_it() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        start_fails: 10_000,
        ..Faults::calm()
    });
    bed.put(&run_once());
    bed.wait("the first container is started", SOON, |bed| {
        !bed.line.sent_about("StartContainer", "web/main").is_empty()
    });
    bed.runtime.set_faults(Faults::calm());
    bed.wait("the other container runs", seconds(60), |bed| {
        running_id(&status_of(bed, "other")).is_some()
    });
    assert_eq!(exit_code(&status_of(&mut bed, "main")), Some(128));
    lose_state(&mut bed);
    assert_eq!(exit_code(&status_of(&mut bed, "main")), Some(128));
}

/// A new sandbox begins with the init containers, whatever became of them in the old one.
#[test]
fn an_init_container_that_runs_again_in_a_new_sandbox_is_told_to_run() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &[])
        .spec("restartPolicy", json!("OnFailure"))
        .spec(
            "initContainers",
            json!([{"name": "setup", "image": IMAGE, "args": ["runs=500:0,forever"]}]),
        );
    bed.put_and_wait(&pod);
    bed.runtime.lose_state();
    bed.wait("the init container is told to run", seconds(60), |bed| {
        let statuses = bed.status("web").init_container_statuses.unwrap_or_default();
        statuses.iter().any(|status| running_id(status).is_some())
    });
}

/// Between the end of the old container and the start of the new one the image is pulled.
#[test]
fn a_new_image_is_no_end_of_a_container_that_never_restarts() {
    let mut bed = Bed::started();
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let old = PodText::new("web", &["term=50:0"])
        .container("restartPolicy", json!("Never"))
        .container("restartPolicyRules", rule);
    bed.put_and_wait(&old);
    bed.put(&old.container("image", json!("registry.test/app:2")));
    bed.wait("the new one starts", seconds(30), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 2
    });
    bed.wait("it is told", SOON, |bed| bed.is_ready("web"));
    bed.pass(seconds(30));
    assert!(bed.is_ready("web"), "{}", bed.trace());
    assert_eq!(bed.line.sent_about("StopContainer", "web/main").len(), 1);
}

/// The first list of the runtime's pods never comes to its end.
#[test]
fn a_pod_that_left_before_the_last_source_came_ends_without_the_first_list() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("old", &[]));
    bed.kill();
    bed.add_http_source();
    bed.line
        .fault("ContainerStatus", "old/main", Fault::Hang, usize::MAX);
    let failure = Fault::Fail(RuntimeErrorKind::Unknown);
    bed.line.fault("RunPodSandbox", "brief", failure, usize::MAX);
    bed.start();
    let brief = PodText::new("brief", &[]);
    bed.put(&brief);
    bed.wait("it is tried", seconds(30), |bed| {
        !bed.line.sent_about("RunPodSandbox", "brief").is_empty()
    });
    bed.remove(&brief);
    bed.pass(seconds(2));
    let list =
        json!({"apiVersion": "v1", "kind": "PodList", "items": [PodText::new("late", &[]).document()]});
    bed.http.serve(Some(list.to_string().into_bytes()));
    bed.wait("the last source is heard", seconds(60), |bed| {
        !bed.line.sent_about("RunPodSandbox", "late").is_empty()
    });
    let since = bed.elapsed();
    bed.pass(seconds(60));
    let sent = bed.line.sent("RunPodSandbox", since);
    let late: Vec<&str> = sent.iter().map(|sent| sent.about.as_str()).collect();
    assert!(!late.iter().any(|about| about.contains("brief")), "{late:?}");
}

/// How long a name is reserved is no matter of the clock on the wall.
#[test]
fn a_sandbox_on_its_way_is_waited_for_when_the_clock_is_set_back() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.runtime.set_faults(Faults {
        sandbox_ms: (20_000, 20_000),
        ..Faults::calm()
    });
    bed.put(&PodText::new("web", &[]));
    bed.wait("it is asked for", SOON, |bed| {
        !bed.line.sent_about("RunPodSandbox", "web").is_empty()
    });
    bed.pass(seconds(1));
    bed.kill();
    bed.start();
    bed.wait("its name is taken", SOON, |bed| {
        !bed.events("web", "FailedCreatePodSandBox").is_empty()
    });
    bed.executor.move_wall(-60);
    bed.wait("it is adopted", seconds(60), |bed| bed.is_ready("web"));
    assert!(bed.line.sent_about("StopPodSandbox", "web").is_empty());
}

/// A start without an answer may have its effect at any later time.
#[test]
fn a_container_whose_start_got_no_answer_is_removed_before_an_edit_replaces_it() {
    let mut bed = Bed::started();
    let failure = Fault::Fail(RuntimeErrorKind::DeadlineExceeded);
    bed.line.fault("StartContainer", "web/main", failure, usize::MAX);
    let old = PodText::new("web", &[]);
    bed.put(&old);
    bed.wait("its start is asked for", SOON, |bed| {
        !bed.line.sent_about("StartContainer", "web/main").is_empty()
    });
    bed.put(&old.container("image", json!("registry.test/app:2")));
    bed.wait("the new one is made", seconds(60), |bed| {
        bed.line.sent_about("CreateContainer", "web/main").len() == 2
    });
    let (made, removed) = (
        bed.line.sent_about("CreateContainer", "web/main")[1].at,
        bed.line.sent_about("RemoveContainer", "web/main"),
    );
    assert!(
        removed.first().is_some_and(|sent| sent.at <= made),
        "{}",
        bed.trace()
    );
}

/// The agent's memory is that of the pods it has, however many there were.
#[test]
fn pods_that_came_and_went_leave_nothing_in_memory() {
    let mut bed = Bed::in_cluster();
    bed.pass(seconds(2));
    let idle = bed.executor.tasks(Group::Rubelet);
    for round in 0..6 {
        let uids: Vec<String> = (0..10).map(|number| format!("uid-p{round}-{number}")).collect();
        for uid in &uids {
            let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 5});
            let name = uid.trim_start_matches("uid-");
            bed.create(&ApiPod::new(name, &[]).container("readinessProbe", probe));
        }
        bed.wait("all are ready", seconds(60), |bed| {
            uids.iter().all(|uid| holds(&bed.api_status(uid), "Ready"))
        });
        for uid in &uids {
            bed.api().delete(uid, None);
        }
        bed.wait("all are gone", seconds(60), |bed| bed.api().pods().is_empty());
        bed.wait("nothing is left of them", seconds(200), |bed| {
            bed.runtime.leftovers().is_empty() && bed.executor.tasks(Group::Rubelet) <= idle
        });
    }
    let census = bed.ask(|handle| async move { handle.take_census().await }.boxed());
    census.expect("the agent answers");
    for family in bed.registry.gather() {
        let sum: f64 = family
            .get_metric()
            .iter()
            .map(|one| one.get_gauge().get_value())
            .sum();
        let is_count = [
            "kubelet_desired_pods",
            "kubelet_working_pods",
            "kubelet_running_pods",
        ];
        assert!(!is_count.contains(&family.name()) || sum == 0.0, "{family:?}");
    }
    let explained = bed.ask(|handle| async move { handle.explanations().await }.boxed());
    assert_eq!(explained.expect("the agent answers").len(), 0);
}
