//! Users of a pod's own: who gets which ids, also over restarts and broken records.

use std::path::PathBuf;
use std::time::Duration;

use rubelet_ports::{Clock, RuntimeErrorKind};
use rubelet_sim::node;
use serde_json::{Value, json};

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

fn own_users(name: &str) -> PodText {
    PodText::new(name, &[]).spec("hostUsers", json!(false))
}

fn record_path(name: &str, file: &str) -> PathBuf {
    PathBuf::from(node::ROOT).join(format!("pods/uid-{name}/{file}"))
}

/// The first id on the node, as the record has it.
fn recorded(bed: &Bed, name: &str) -> Option<u64> {
    let content = bed.files.content(&record_path(name, "userns"))?;
    let record: Value = serde_json::from_slice(&content).expect("a record");
    assert_eq!(record["uidMappings"], record["gidMappings"]);
    assert_eq!(record["uidMappings"][0]["length"], json!(65536));
    record["uidMappings"][0]["hostId"].as_u64()
}

/// The first id on the node, as the runtime was told.
fn told(bed: &Bed, name: &str) -> Vec<u32> {
    bed.runtime
        .user_ids_of(&format!("uid-{name}"))
        .expect("a sandbox in a user namespace")
}

#[test]
fn a_pod_keeps_its_ids_until_it_is_gone() {
    let mut bed = Bed::started();
    let (first, second, plain) = (
        own_users("first"),
        own_users("second"),
        PodText::new("plain", &[]),
    );
    for pod in [&first, &second, &plain] {
        bed.put_and_wait(pod);
    }
    let (a, b) = (
        recorded(&bed, "first").expect("ids"),
        recorded(&bed, "second").expect("ids"),
    );
    assert!(a != b && a % 65536 == 0 && a >= 65536, "{a} {b}");
    // The sandbox and its container have the same.
    let told = told(&bed, "first");
    assert!(
        told.len() == 2 && told.iter().all(|id| u64::from(*id) == a),
        "{told:?} {a}"
    );
    assert_eq!(recorded(&bed, "plain"), None);
    bed.kill();
    bed.start();
    bed.wait("they are adopted", SOON, |bed| {
        bed.is_ready("first") && bed.is_ready("second")
    });
    let third = own_users("third");
    bed.put_and_wait(&third);
    let c = recorded(&bed, "third").expect("ids");
    assert!(c != a && c != b, "{a} {b} {c}");
    bed.remove(&first);
    bed.wait("they are released", SOON, |bed| recorded(bed, "first").is_none());
    assert_eq!(recorded(&bed, "second"), Some(b));
}

#[test]
fn a_broken_record_is_set_aside_and_made_anew_from_what_runs() {
    let mut bed = Bed::started();
    bed.put_and_wait(&own_users("web"));
    let ids = recorded(&bed, "web").expect("ids");
    bed.kill();
    bed.files.place(&record_path("web", "userns"), b"{ broken");
    // A leftover of nobody, as bad.
    bed.files
        .make_directory(&PathBuf::from(node::ROOT).join("pods/uid-gone"));
    bed.files.place(&record_path("gone", "userns"), b"[]");
    bed.start();
    // The records are read when somebody needs them.
    bed.put_and_wait(&own_users("other"));
    assert_eq!(recorded(&bed, "web"), Some(ids));
    assert_ne!(recorded(&bed, "other"), Some(ids));
    assert_eq!(
        bed.files.content(&record_path("web", "userns.bad")).as_deref(),
        Some(&b"{ broken"[..])
    );
}

/// While it is not known which range the pod has, no other pod gets one: it could be the same.
#[test]
fn a_broken_record_frees_no_range_while_the_runtime_is_silent() {
    let mut bed = Bed::started();
    bed.put_and_wait(&own_users("web"));
    let ids = recorded(&bed, "web").expect("ids");
    bed.kill();
    bed.files.place(&record_path("web", "userns"), b"{ broken");
    let silence = Fault::Fail(RuntimeErrorKind::Unavailable);
    bed.line.fault("PodSandboxStatus", "web", silence, usize::MAX);
    bed.start();
    bed.put(&own_users("other"));
    bed.wait("the other pod is told why it waits", SOON, |bed| {
        let refused = bed.events("other", "FailedCreatePodSandBox");
        refused
            .iter()
            .any(|event| event.message.contains("the record of pod uid-web is broken"))
    });
    assert!(bed.files.content(&record_path("web", "userns")).is_some());
    assert_eq!(recorded(&bed, "other"), None);
    bed.line.heal();
    bed.wait("the other pod runs", Duration::from_secs(60), |bed| {
        bed.is_ready("other")
    });
    assert_eq!(recorded(&bed, "web"), Some(ids));
    assert_ne!(recorded(&bed, "other"), Some(ids));
}

#[test]
fn the_ids_of_pods_that_nobody_knows_are_free_again() {
    let mut bed = Bed::new();
    // Two ranges and no more.
    let range = rubelet_lifecycle::user_namespaces::IdRange {
        first: 65536,
        length: 2 * 65536,
    };
    bed.settings.user_namespaces =
        rubelet_lifecycle::user_namespaces::UserNamespaces::new(range, 65536, 2).expect("a good range");
    bed.start();
    let (first, second, third) = (own_users("first"), own_users("second"), own_users("third"));
    bed.put_and_wait(&first);
    bed.put_and_wait(&second);
    bed.put(&third);
    bed.wait("there is nothing for the third", SOON, |bed| {
        bed.events("third", "FailedCreatePodSandBox").iter().any(|event| {
            event.message
                == "Failed to create pod sandbox: create user namespace: could not find an empty slot to allocate a user namespace"
        })
    });
    // They go while nobody looks.
    bed.kill();
    bed.remove(&first);
    bed.remove(&second);
    bed.start();
    let restarted = bed.executor.moment();
    bed.wait("the third one runs", Duration::from_secs(400), |bed| {
        bed.is_ready("third")
    });
    let took = bed.executor.moment().since(restarted);
    assert!(took < Duration::from_secs(200), "{took:?}");
}
