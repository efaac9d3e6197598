//! When the Node's status is written, and what it says.

use std::time::Duration;

use rubelet_model::{Pressure, RuntimeContact, RuntimeLists, RuntimeReport};
use rubelet_ports::api::ApiErrorKind;
use serde_json::{Value, json};

use super::bed::{Bed, condition, good_runtime, ready};

#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_a_change_but_a_report_now_and_then() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(800).await;
    assert_eq!(bed.api.times("patch"), [0, 160_000, 460_000, 760_000]);
    let last = bed.api.patches().pop().unwrap();
    let fields: Vec<&String> = last["status"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["$setElementOrder/conditions", "conditions"]);
    assert_eq!(
        last["status"]["conditions"][3],
        json!({"type": "Ready", "lastHeartbeatTime": "1970-01-12T13:59:20Z"})
    );
    assert_eq!(bed.api.times("get"), [0; 0], "the watch tells");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_know_is_not_told_again_and_again() {
    let bed = Bed::well();
    bed.api.does_not_know("runtimeHandlers");
    let _running = bed.start();
    bed.at(95).await;
    assert_eq!(bed.api.times("patch"), [0]);
    // A real change is still one.
    bed.edges.set_addresses(&["10.0.0.2"]);
    bed.at(200).await;
    assert_eq!(bed.api.times("patch"), [0, 100_000]);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_moves_the_node_nowhere() {
    let bed = Bed::well();
    bed.edges.set_addresses(&["10.0.0.1", "10.0.0.2"]);
    bed.edges.set_name(Some(&["10.0.0.2"]));
    let is_at = |node: &Value, address: &str| {
        node["status"]["addresses"][0] == json!({"type": "InternalIP", "address": address})
    };
    {
        let _running = bed.start();
        bed.until("the name's address", |node| is_at(node, "10.0.0.2"))
            .await;
        bed.edges.set_name(None);
        bed.at(400).await;
        assert!(is_at(&bed.api.node_value().unwrap(), "10.0.0.2"));
    }
    // Nor after a restart, when only the Node knows the last answer.
    let _running = bed.start();
    bed.at(800).await;
    assert!(is_at(&bed.api.node_value().unwrap(), "10.0.0.2"));
    // A name that is gone is an answer.
    bed.edges.set_name(Some(&[]));
    bed.until("the default route's address", |node| is_at(node, "10.0.0.1"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_first_ready_comes_with_the_runtime() {
    let bed = Bed::new();
    let problem = "container runtime network not ready: NetworkReady=false reason:x message:y";
    bed.runtime.send_replace(RuntimeReport {
        network_problem: Some(problem.to_owned()),
        ..good_runtime()
    });
    let _running = bed.start();
    bed.until("not ready", |node| condition(node, "Ready")["message"] == problem)
        .await;
    bed.at(7).await;
    bed.edges.forget_events();
    bed.runtime.send_replace(good_runtime());
    let at = bed.until_ready().await;
    assert!(at < 7200, "{at}");
    assert_eq!(bed.edges.events(), ["Normal NodeReady uid-1"]);
    // From then on changes come at most once a second.
    let patches = bed.api.times("patch").len();
    for round in 0..50 {
        bed.runtime.send_replace(RuntimeReport {
            network_problem: Some(format!("round {round}")),
            ..good_runtime()
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let written = bed.api.times("patch").len() - patches;
    assert!((4..=6).contains(&written), "{written}");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_lists_fail_for_minutes_is_not_ready_until_one_succeeds() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.until_ready().await;
    bed.edges.forget_events();
    let already = Duration::from_secs(181);
    let lists = RuntimeLists::Overdue { already };
    bed.runtime.send_replace(RuntimeReport {
        lists,
        ..good_runtime()
    });
    bed.until("not ready", |node| condition(node, "Ready")["status"] == "False")
        .await;
    let node = bed.api.node_value().unwrap();
    let message = condition(&node, "Ready")["message"].as_str().unwrap();
    let expected = "PLEG is not healthy: pleg was last seen active 3m1";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(bed.edges.events(), ["Normal NodeNotReady uid-1"]);
    bed.runtime.send_replace(good_runtime());
    bed.until("ready again", |node| condition(node, "Ready")["status"] == "True")
        .await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_all_kinds_are_written() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.until_ready().await;
    bed.edges.forget_events();
    bed.pressure.send_replace(Some(Pressure {
        disk: true,
        ..Pressure::default()
    }));
    let is_pressed = |node: &Value| condition(node, "DiskPressure")["status"] == "True";
    let at = bed.until("pressure", is_pressed).await;
    assert!(at < 1200, "{at}");
    assert_eq!(bed.edges.events(), ["Normal NodeHasDiskPressure uid-1"]);
    bed.volumes.send_replace(Some(vec!["v".to_owned()]));
    bed.until("volumes", |node| node["status"]["volumesInUse"] == json!(["v"]))
        .await;
    bed.volumes.send_replace(Some(vec![]));
    bed.until("no volumes", |node| node["status"]["volumesInUse"].is_null())
        .await;
    bed.edges.set_addresses(&["10.0.0.2"]);
    bed.until("address", |node| {
        node["status"]["addresses"][0]["address"] == "10.0.0.2"
    })
    .await;
    let patch = bed.api.patches().pop().unwrap();
    assert_eq!(patch["status"]["addresses"][2], json!({"$patch": "replace"}));
    bed.edges.add_image("big", 9);
    bed.until("images", |node| node["status"]["images"][0]["sizeBytes"] == 9)
        .await;
    // A label that another client changed is restored.
    bed.api
        .edit_node(&json!({"metadata": {"labels": {"kubernetes.io/arch": "other"}}}));
    let is_right = |node: &Value| node["metadata"]["labels"]["kubernetes.io/arch"] == "amd64";
    bed.until("label", is_right).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_written_at_once_and_so_is_its_cancellation() {
    let bed = Bed::well();
    let _running = bed.start();
    let began = bed.until_ready().await;
    // The usual gap between two looks has just begun.
    bed.shutting_down.send_replace(true);
    let is_told = |node: &Value| {
        let ready = condition(node, "Ready");
        ready["status"] == "False" && ready["message"] == "node is shutting down"
    };
    let at = bed.until("not ready", is_told).await;
    assert!(at < began + 500, "{began} {at}");
    bed.shutting_down.send_replace(false);
    let again = bed.until_ready().await;
    assert!(again < at + 500, "{at} {again}");
}

#[tokio::test(start_paused = true)]
async fn cordons_are_told_at_once() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.edges.forget_events();
    for unschedulable in [true, true, false] {
        bed.api
            .edit_node(&json!({"spec": {"unschedulable": unschedulable}}));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        bed.edges.events(),
        ["Normal NodeNotSchedulable uid-1", "Normal NodeSchedulable uid-1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_tried_again_from_the_truth() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.edges.forget_events();
    bed.api.fail("patch", ApiErrorKind::ServerFailed, 2);
    bed.pressure.send_replace(Some(Pressure {
        pid: true,
        ..Pressure::default()
    }));
    let is_pressed = |node: &Value| condition(node, "PIDPressure")["status"] == "True";
    let at = bed.until("pressure", is_pressed).await;
    assert!(at < 6200, "{at}");
    assert_eq!(bed.api.times("get").len(), 2, "all tries but the first ask");
    assert_eq!(bed.api.times("reconnect").len(), 1, "after the second failure");
    assert_eq!(
        bed.edges.events(),
        ["Normal NodeHasInsufficientPID uid-1"],
        "told once"
    );
}

#[tokio::test(start_paused = true)]
async fn the_newest_state_is_delivered_after_an_outage() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.go_down();
    for disk in [true, false, true] {
        bed.pressure.send_replace(Some(Pressure {
            disk,
            ..Pressure::default()
        }));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert!(bed.api.times("reconnect").len() > 3);
    let patches = bed.api.patches().len();
    bed.api.come_back();
    let is_pressed = |node: &Value| condition(node, "DiskPressure")["status"] == "True";
    let at = bed.until("pressure", is_pressed).await;
    assert!(at <= 75_500, "{at}");
    assert_eq!(bed.api.patches().len(), patches + 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_given_up() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.hang("patch");
    bed.pressure.send_replace(Some(Pressure {
        memory: true,
        ..Pressure::default()
    }));
    bed.at(40).await;
    bed.api.come_back();
    let is_pressed = |node: &Value| condition(node, "MemoryPressure")["status"] == "True";
    bed.until("pressure", is_pressed).await;
    // The lease is another matter.
    assert_eq!(bed.api.times("lease replace")[..3], [10_000, 20_000, 30_000]);
}

#[tokio::test(start_paused = true)]
async fn the_range_of_pods_is_pushed_until_the_runtime_takes_it() {
    let bed = Bed::well();
    bed.edges.fail_pushes(2);
    let _running = bed.start();
    bed.at(5).await;
    assert_eq!(bed.edges.pod_cidrs(), [""; 0]);
    bed.api
        .edit_node(&json!({"spec": {"podCIDRs": ["10.1.0.0/24", "fd00::/64"]}}));
    bed.at(15).await;
    assert_eq!(bed.edges.pod_cidrs(), [""; 0]);
    bed.at(25).await;
    assert_eq!(bed.edges.pod_cidrs(), ["10.1.0.0/24,fd00::/64"]);
    bed.api.edit_node(&json!({"spec": {"podCIDRs": ["10.2.0.0/24"]}}));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(bed.edges.pod_cidrs()[1..], ["10.2.0.0/24"], "at once");
    bed.at(200).await;
    assert_eq!(bed.edges.pod_cidrs().len(), 2, "once each");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_may_be_silent_for_a_while() {
    let bed = Bed::well();
    let _running = bed.start();
    let silent = |already| RuntimeReport {
        contact: RuntimeContact::Silent { already },
        ..good_runtime()
    };
    bed.at(100).await;
    bed.runtime.send_replace(silent(Duration::from_secs(1)));
    bed.at(128).await;
    assert_eq!(bed.api.history(), ["True"]);
    bed.runtime.send_replace(good_runtime());
    bed.at(200).await;
    assert_eq!(bed.api.history(), ["True"]);
    bed.edges.forget_events();
    // The clock of the silence starts anew.
    bed.runtime.send_replace(silent(Duration::from_secs(1)));
    let at = bed.until("not ready", |node| ready(node) == "False").await;
    assert!((229_000..229_200).contains(&at), "{at}");
    let node = bed.api.node_value().unwrap();
    assert_eq!(condition(&node, "Ready")["message"], "container runtime is down");
    bed.runtime.send_replace(good_runtime());
    let at = bed.until_ready().await;
    assert!(at < 231_000, "{at}");
    assert_eq!(
        bed.edges.events(),
        ["Normal NodeNotReady uid-1", "Normal NodeReady uid-1"]
    );
}
