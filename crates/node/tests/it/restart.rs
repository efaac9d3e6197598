//! A node that starts again does not flip the conditions that it wrote before.

use rubelet_model::{Pressure, RuntimeContact, RuntimeReport};
use serde_json::json;

use super::bed::{Bed, condition, good_runtime, ready};

#[tokio::test(start_paused = true)]
async fn ready_and_pressure_stay_until_something_is_known() {
    let bed = Bed::well();
    bed.pressure.send_replace(Some(Pressure {
        memory: true,
        ..Pressure::default()
    }));
    let running = bed.start();
    bed.until_ready().await;
    bed.at(30).await;
    let before = bed.api.node_value().unwrap();
    drop(running);
    bed.edges.forget_events();
    // The new process knows nothing of the runtime for 20 s.
    bed.runtime.send_replace(RuntimeReport::default());
    bed.pressure.send_replace(None);
    let _running = bed.start();
    bed.at(50).await;
    let node = bed.api.node_value().unwrap();
    for type_ in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let of = |node| {
            let condition = condition(node, type_);
            (
                condition["status"].clone(),
                condition["lastTransitionTime"].clone(),
            )
        };
        assert_eq!(of(&node), of(&before), "{type_}");
    }
    bed.runtime.send_replace(good_runtime());
    bed.pressure.send_replace(Some(Pressure {
        memory: true,
        ..Pressure::default()
    }));
    bed.at(70).await;
    assert_eq!(bed.api.history(), ["True"]);
    let of_status = |event: &String| event.contains("Ready") || event.contains("Insufficient");
    assert!(
        !bed.edges.events().iter().any(of_status),
        "{:?}",
        bed.edges.events()
    );
    let last = bed.api.node_value().unwrap();
    assert_eq!(
        condition(&last, "Ready")["lastTransitionTime"],
        condition(&before, "Ready")["lastTransitionTime"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_never_answers_counts_after_the_grace() {
    let bed = Bed::well();
    drop({
        let running = bed.start();
        bed.until_ready().await;
        running
    });
    bed.at(10).await;
    bed.runtime.send_replace(RuntimeReport {
        contact: RuntimeContact::Silent {
            already: std::time::Duration::ZERO,
        },
        ..RuntimeReport::default()
    });
    let _running = bed.start();
    let at = bed.until("not ready", |node| ready(node) == "False").await;
    assert!((40_000..40_200).contains(&at), "{at}");
    let node = bed.api.node_value().unwrap();
    assert_eq!(
        condition(&node, "Ready")["message"],
        "[container runtime status check may not have completed yet, network state unknown]"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_told_once() {
    let mut bed = Bed::well();
    drop({
        let running = bed.start();
        bed.until_ready().await;
        running
    });
    bed.settings.machine.boot_id = "b2".to_owned();
    bed.edges.forget_events();
    let _running = bed.start();
    bed.until("new boot", |node| node["status"]["nodeInfo"]["bootID"] == "b2")
        .await;
    bed.at(60).await;
    let reboots = bed.edges.events();
    let reboots: Vec<&String> = reboots
        .iter()
        .filter(|event| event.contains("Rebooted"))
        .collect();
    assert_eq!(reboots, ["Warning Rebooted uid-1"]);
}

/// Device plugins of an earlier life are gone until they come back.
#[tokio::test(start_paused = true)]
async fn extended_resources_are_reset_where_no_device_was_handed_out() {
    let mut bed = Bed::well();
    let resources = json!({"cpu": "1", "example.com/gpu": "4", "hugepages-1Gi": "0"});
    let existing =
        json!({"metadata": {"name": "n1"}, "status": {"capacity": resources, "allocatable": resources}});
    bed.api.put_node(existing.clone());
    drop({
        let running = bed.start();
        bed.until_ready().await;
        running
    });
    let node = bed.api.node_value().unwrap();
    assert_eq!(
        node["status"]["capacity"],
        json!({"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "9Gi", "example.com/gpu": "4"})
    );
    bed.settings.registration.reset_extended_resources = true;
    bed.api.put_node(existing);
    let _running = bed.start();
    bed.until("reset", |node| {
        node["status"]["capacity"]["example.com/gpu"] == "0"
    })
    .await;
}
