//! The node's lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use rubelet_ports::api::ApiErrorKind;
use serde_json::json;
use tokio::time::Instant;

use super::bed::Bed;

/// Waits until the lease is so.
async fn until(bed: &Bed, what: &str, is_so: impl Fn(&Lease) -> bool) -> Lease {
    let end = Instant::now() + Duration::from_mins(10);
    loop {
        let lease = bed.api.lease_object();
        match lease {
            Some(lease) if is_so(&lease) => return lease,
            lease => assert!(Instant::now() < end, "{what}: {lease:#?}\n{:#?}", bed.api.calls()),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn renewed(lease: &Lease) -> String {
    let value = serde_json::to_value(lease).unwrap();
    value["spec"]["renewTime"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn it_is_made_once_the_node_is_known_and_renewed() {
    let bed = Bed::well();
    bed.api.fail("create", ApiErrorKind::Unreachable, 3);
    let _running = bed.start();
    let lease = until(&bed, "made", |_| true).await;
    assert_eq!(bed.api.times("lease create"), [700]);
    let value = serde_json::to_value(&lease).unwrap();
    assert_eq!(
        value["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}])
    );
    assert_eq!(
        (&value["metadata"]["name"], &value["metadata"]["namespace"]),
        (&json!("n1"), &json!("kube-node-lease"))
    );
    assert_eq!(
        value["spec"],
        json!({"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": "1970-01-12T13:46:40.700000Z"})
    );
    bed.at(35).await;
    assert_eq!(bed.api.times("lease replace"), [10_700, 20_700, 30_700]);
    assert_eq!(bed.api.times("lease get").len(), 1, "the last answer is enough");
    let lease = bed.api.lease_object().unwrap();
    assert_eq!(renewed(&lease), "1970-01-12T13:47:10.700000Z");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_others_wrote_is_read_anew() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.touch_lease();
    bed.at(11).await;
    assert_eq!(bed.api.times("lease replace"), [10_000, 10_000]);
    assert_eq!(bed.api.times("lease get").len(), 2);
    assert_eq!(
        renewed(&bed.api.lease_object().unwrap()),
        "1970-01-12T13:46:50.000000Z"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_anew() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.delete_lease();
    bed.at(11).await;
    assert_eq!(bed.api.times("lease create"), [0, 10_000]);
    bed.at(21).await;
    assert_eq!(bed.api.times("lease replace"), [10_000, 20_000]);
}

#[tokio::test(start_paused = true)]
async fn an_existing_lease_is_taken_over() {
    let bed = Bed::well();
    drop({
        let running = bed.start();
        until(&bed, "made", |_| true).await;
        running
    });
    bed.at(100).await;
    let mut restarted = bed;
    restarted.settings.reporting.lease_duration_seconds = 20;
    let _running = restarted.start();
    let has_new_duration = |lease: &Lease| lease.spec.as_ref().unwrap().lease_duration_seconds == Some(20);
    until(&restarted, "taken over", has_new_duration).await;
    restarted.at(106).await;
    assert_eq!(restarted.api.times("lease create"), [0]);
    assert_eq!(restarted.api.times("lease replace"), [100_000, 105_000]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_out_with_growing_pauses() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.go_down();
    bed.at(45).await;
    // Five tries at once, then one look after the other.
    assert_eq!(bed.api.times("lease replace"), [10_000; 5]);
    let looks = &bed.api.times("lease get")[1..];
    assert_eq!(
        looks,
        [
            10_000, 10_200, 10_600, 11_400, 13_000, 16_200, 22_600, 29_600, 36_600, 43_600
        ]
    );
    assert!(!bed.api.times("reconnect").is_empty());
    bed.api.come_back();
    until(&bed, "renewed", |lease| {
        renewed(lease).as_str() > "1970-01-12T13:47:20"
    })
    .await;
    assert!(bed.api.times("lease create").len() == 1);
}

/// A lease of a Node that is gone would be collected with it.
#[tokio::test(start_paused = true)]
async fn the_owner_is_the_node_of_today() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.at(5).await;
    bed.api.delete_node();
    bed.at(15).await;
    bed.api
        .put_node(json!({"metadata": {"name": "n1", "uid": "second"}}));
    let is_of_second = |lease: &Lease| {
        let owners = lease.metadata.owner_references.as_ref().unwrap();
        owners.len() == 1 && owners[0].uid == "second"
    };
    until(&bed, "owner", is_of_second).await;
}
