//! What the node is told of itself.

use std::time::Duration;

use rubelet_ports::{EventType, RuntimeErrorKind};
use rubelet_sim::node;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_resolver_file_that_is_too_much_is_told_once() {
    let domains: Vec<String> = (0..40).map(|number| format!("d{number}.test")).collect();
    let check = |content: Option<&str>, words: Option<&str>| {
        let mut bed = Bed::new();
        match content {
            Some(content) => bed.files.place(node::RESOLVER_FILE.as_ref(), content.as_bytes()),
            None => bed.files.take_away(node::RESOLVER_FILE.as_ref()),
        }
        bed.start();
        bed.pass(seconds(120));
        let told = bed.node_events("CheckLimitsForResolvConf");
        assert_eq!(told.len(), usize::from(words.is_some()), "{content:?}: {told:?}");
        for event in &told {
            assert_eq!(event.event_type, EventType::Warning);
            assert!(event.message.contains(words.unwrap_or_default()), "{event:?}");
            assert!(event.message.contains(node::RESOLVER_FILE), "{event:?}");
        }
    };
    let search = format!("nameserver 192.0.2.53\nsearch {}\n", domains.join(" "));
    check(Some(&search), Some("40 search domains"));
    check(Some("nameserver\n"), Some("line 1"));
    check(None, Some(""));
    check(Some("nameserver 192.0.2.53\nsearch d.test\n"), None);
}

#[test]
fn a_failed_search_for_garbage_is_told_with_the_nodes_uid() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&PodText::new("web", &[]));
    let fault = Fault::Fail(RuntimeErrorKind::Internal);
    bed.line.fault("ListContainers", "garbage", fault, usize::MAX);
    bed.wait("it is told", seconds(200), |bed| {
        !bed.node_events("ContainerGCFailed").is_empty()
    });
    bed.pass(seconds(200));
    let told = bed.node_events("ContainerGCFailed");
    assert_eq!(told.len(), 1, "once until it goes well again: {told:?}");
    assert_eq!(told[0].node_uid.as_deref(), Some("uid-of-node"));
    assert!(told[0].message.contains("injected by the test"), "{told:?}");
    bed.line.heal();
    bed.pass(seconds(70));
    bed.line.fault("ListContainers", "garbage", fault, usize::MAX);
    bed.wait("it is told again", seconds(200), |bed| {
        bed.node_events("ContainerGCFailed").len() == 2
    });
    assert!(bed.is_ready("web"));
}

#[test]
fn a_pod_that_does_not_make_room_in_time_is_told_of() {
    let mut bed = Bed::new();
    bed.settings.admission.allocatable.resources.milli_cpu = 1000;
    bed.start();
    let ranked = |name: &str, priority: i32| {
        let requests = serde_json::json!({"requests": {"cpu": "700m"}});
        PodText::new(name, &[])
            .container("resources", requests)
            .spec("priority", serde_json::json!(priority))
    };
    bed.put_and_wait(&ranked("lesser", 1));
    bed.line
        .fault("StopContainer", "lesser/main", Fault::Hang, usize::MAX);
    bed.put(&ranked("greater", 2));
    bed.wait("its end takes too long", seconds(60), |bed| {
        !bed.events("lesser", "ExceededGracePeriod").is_empty()
    });
    assert_eq!(
        bed.events("lesser", "ExceededGracePeriod")[0].message,
        "Container runtime did not kill the pod within specified grace period."
    );
    // The critical pod waits no longer than that, as upstream's.
    bed.wait("the critical pod runs", SOON, |bed| bed.is_ready("greater"));
    bed.pass(seconds(60));
    assert_eq!(bed.events("lesser", "ExceededGracePeriod").len(), 1);
    assert!(bed.line.sent_about("StopPodSandbox", "lesser").is_empty());
    bed.line.heal();
    bed.wait("the preempted pod ends after all", seconds(200), |bed| {
        bed.phase("lesser") == "Failed"
    });
    assert!(bed.events("greater", "ExceededGracePeriod").is_empty() && bed.is_ready("greater"));
}
