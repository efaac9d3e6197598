//! Restarting the agent does no harm to the pods of a cluster.

use std::time::Duration;

use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::{ApiPod, holds};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn nobody_becomes_unready() {
    let mut bed = Bed::in_cluster();
    let probe = json!({"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 5});
    let probed = ApiPod::new("probed", &[])
        .container("readinessProbe", probe.clone())
        .container("startupProbe", probe);
    bed.create(&ApiPod::new("plain", &[]));
    bed.create(&probed);
    for uid in ["uid-plain", "uid-probed"] {
        bed.wait("it is ready", seconds(20), |bed| {
            holds(&bed.api_status(uid), "Ready")
        });
    }
    bed.pass(seconds(60));
    let before: Vec<_> = ["uid-plain", "uid-probed"].map(|uid| bed.api_status(uid)).into();
    bed.kill();
    bed.pass(seconds(10));
    bed.start();
    let since = bed.elapsed();
    bed.pass(seconds(120));
    let written = bed.api().written();
    for written in written.iter().filter(|written| written.at >= since) {
        assert!(holds(&written.status, "Ready"), "{written:?}");
    }
    let after: Vec<_> = ["uid-plain", "uid-probed"].map(|uid| bed.api_status(uid)).into();
    assert_eq!(before, after);
    for method in ["StopContainer", "CreateContainer", "RunPodSandbox"] {
        assert!(bed.line.sent(method, since).is_empty(), "{method}");
    }
}

#[test]
fn what_was_deleted_meanwhile_ends() {
    let mut bed = Bed::in_cluster();
    for name in ["graceful", "forced", "kept"] {
        bed.create_and_wait(&ApiPod::new(name, &[]));
    }
    bed.kill();
    bed.api().delete("uid-graceful", None);
    bed.api().delete("uid-forced", Some(0));
    bed.create(&ApiPod::new("bound", &[]));
    bed.start();
    bed.wait_gone("uid-graceful", seconds(20));
    bed.wait("the forced one is stopped", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "forced").is_empty()
    });
    bed.wait("the new one runs", SOON, |bed| {
        holds(&bed.api_status("uid-bound"), "Ready")
    });
    assert!(bed.line.sent_about("StopContainer", "kept/main").is_empty());
    assert!(holds(&bed.api_status("uid-kept"), "Ready"));
}

#[test]
fn a_pod_that_cannot_be_decoded_is_left_as_it_runs() {
    let mut bed = Bed::in_cluster();
    for name in ["readable", "healed", "deleted", "forced"] {
        bed.create_and_wait(&ApiPod::new(name, &[]));
    }
    bed.kill();
    let unreadable = ["uid-healed", "uid-deleted", "uid-forced"];
    for uid in unreadable {
        bed.api().set_undecodable(uid, true);
    }
    bed.start();
    bed.wait("the agent runs the pods that it can decode", SOON, |bed| {
        bed.pods().len() == 1
    });
    // Longer than housekeeping and the garbage collector wait.
    bed.pass(seconds(150));
    for name in ["healed", "deleted", "forced"] {
        assert!(
            bed.line
                .sent_about("StopContainer", &format!("{name}/main"))
                .is_empty()
        );
        assert!(bed.line.sent_about("StopPodSandbox", name).is_empty());
        assert!(holds(&bed.api_status(&format!("uid-{name}")), "Ready"));
    }

    bed.api().set_undecodable("uid-healed", false);
    bed.api().delete("uid-deleted", Some(7));
    bed.api().delete("uid-forced", Some(0));
    bed.wait_gone("uid-deleted", seconds(20));
    assert_eq!(
        bed.line.sent_about("StopContainer", "deleted/main")[0].grace_seconds,
        7
    );
    bed.wait("what runs of the removed pod is stopped", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "forced").is_empty()
    });
    bed.wait("the decodable pod is taken over", SOON, |bed| {
        bed.pods().len() == 2
    });
    bed.pass(seconds(30));
    assert!(bed.line.sent_about("StopContainer", "healed/main").is_empty());
    assert!(holds(&bed.api_status("uid-healed"), "Ready"));
}

#[test]
fn a_pod_that_ended_while_it_could_not_be_decoded_goes_once_it_can_be() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("broken", &[]));
    bed.kill();
    bed.api().set_undecodable("uid-broken", true);
    bed.api().delete("uid-broken", Some(2));
    bed.start();
    bed.wait("the removed pod is stopped", seconds(20), |bed| {
        !bed.line.sent_about("StopContainer", "broken/main").is_empty()
    });
    bed.api().set_up(false);
    bed.wait("it has ended", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "broken").is_empty()
    });
    bed.pass(seconds(5));
    assert_eq!(bed.api_phase("uid-broken"), "Running", "nothing is made up");

    bed.api().set_undecodable("uid-broken", false);
    bed.api().set_up(true);
    bed.wait_gone("uid-broken", seconds(60));
}

#[test]
fn restarts_are_counted_on() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &["runs=1000:1,forever"]));
    bed.wait("it was started again", seconds(60), |bed| {
        bed.api_container("uid-web").restart_count == 1 && holds(&bed.api_status("uid-web"), "Ready")
    });
    let started = bed.api_status("uid-web").start_time;
    bed.kill();
    bed.runtime.lose_state();
    bed.start();
    bed.wait("it runs again", seconds(60), |bed| {
        let container = bed.api_container("uid-web");
        container.restart_count == 2 && container.ready
    });
    assert_eq!(bed.api_status("uid-web").start_time, started);
}

#[test]
fn the_end_of_an_earlier_life_keeps_no_static_pod_from_running() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&PodText::new("static", &[]).spec("restartPolicy", json!("Never")));
    let mirror = bed.until("its mirror is ready", SOON, |bed| {
        let uid = bed.mirror_uid("static")?;
        holds(&bed.api_status(&uid), "Ready").then_some(uid)
    });
    bed.kill();
    // As when it was removed and added again while the agent was killed.
    bed.runtime.lose_state();
    bed.api().change(&mirror, |pod| {
        let status = pod.status.get_or_insert_default();
        status.phase = Some("Failed".to_owned());
        for container in status.container_statuses.iter_mut().flatten() {
            let end = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
            container.state = serde_json::from_value(end).ok();
        }
    });
    bed.start();
    let since = bed.elapsed();
    bed.wait("it runs", seconds(60), |bed| {
        let uid = bed.mirror_uid("static");
        uid.is_some_and(|uid| holds(&bed.api_status(&uid), "Ready"))
    });
    bed.pass(seconds(60));
    assert_eq!(bed.line.sent("RunPodSandbox", since).len(), 1);
    assert!(bed.line.sent("StopPodSandbox", since).is_empty());
}

#[test]
fn a_restart_of_all_containers_is_not_done_twice() {
    let mut bed = Bed::in_cluster();
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let pod = ApiPod::new("web", &["runs=1000:42,forever"])
        .container("restartPolicy", json!("Never"))
        .container("restartPolicyRules", rules);
    bed.create(&pod);
    bed.wait("the restart is told", seconds(60), |bed| {
        holds(&bed.api_status("uid-web"), "AllContainersRestarting")
    });
    // Nobody hears that it is over.
    bed.api().set_up(false);
    bed.wait("it was started again", seconds(60), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 2
    });
    bed.pass(seconds(10));
    bed.kill();
    bed.api().set_up(true);
    bed.start();
    bed.wait("its end is told", seconds(60), |bed| {
        let status = bed.api_status("uid-web");
        holds(&status, "Ready") && !holds(&status, "AllContainersRestarting")
    });
    assert!(bed.line.sent_about("StopContainer", "web/main").is_empty());
    assert_eq!(bed.line.sent_about("StartContainer", "web/main").len(), 2);
}

#[test]
fn a_live_pod_is_not_judged_again() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    bed.kill();
    // By now this node would not take it.
    let api = bed.api();
    api.change("uid-web", |pod| {
        let spec = pod.spec.get_or_insert_default();
        spec.node_selector = Some([("disk".to_owned(), "fast".to_owned())].into());
    });
    let cpu = json!({"requests": {"cpu": "3900m"}});
    bed.start();
    bed.wait("it is adopted", SOON, |bed| bed.pods().len() == 1);
    bed.create_and_wait(&ApiPod::new("big", &[]).container("resources", cpu));
    bed.pass(seconds(30));
    assert!(holds(&bed.api_status("uid-web"), "Ready"));
    assert!(bed.line.sent_about("StopContainer", "web/main").is_empty());
}
