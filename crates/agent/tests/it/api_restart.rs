//! Restarting the agent does no harm to the pods of a cluster.

use std::time::Duration;

use serde_json::json;

use crate::bed::{Bed, SOON};
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
