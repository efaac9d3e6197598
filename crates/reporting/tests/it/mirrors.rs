//! Mirrors of static pods.

use std::time::Duration;

use rubelet_ports::PodReporter as _;
use rubelet_ports::api::ApiErrorKind;
use serde_json::{Value, json};

use crate::bed::{Bed, pod, restarts, running, static_pod, status};

const SECOND: Duration = Duration::from_secs(1);
const MIRROR: &str = "kubernetes.io/config.mirror";

fn hash_of(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][MIRROR].as_str()
}

/// A bed with a static pod that has its mirror.
fn mirrored() -> (Bed, Value) {
    let bed = Bed::new(5).with_node();
    let web = static_pod("web", "h1");
    bed.report(&web, &running(0));
    bed.until("mirrored", |bed| restarts(&bed.api.pod("web")) == Some(0));
    bed.pass(SECOND);
    (bed, web)
}

#[test]
fn a_static_pod_gets_its_mirror_and_the_mirror_its_status() {
    let (bed, _) = mirrored();
    assert_eq!(bed.api.calls(), ["create web", "patch web"]);
    let mirror = bed.api.pod("web");
    assert_eq!(hash_of(&mirror), Some("h1"));
    assert_eq!(
        mirror["metadata"]["uid"], "mirror-1",
        "the API server gives a UID of its own"
    );
    assert_eq!(mirror["metadata"]["labels"], json!({"app": "web"}));
    assert_eq!(
        mirror["metadata"]["annotations"]["kubernetes.io/config.source"],
        "file"
    );
    assert_eq!(
        mirror["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "node-uid", "controller": true}])
    );
    assert_eq!(mirror["status"], running(0));
}

#[test]
fn a_mirror_waits_for_its_node() {
    let bed = Bed::new(5);
    bed.report(&static_pod("web", "h1"), &running(0));
    let nodes = [
        None,
        Some(json!({"metadata": {"name": "node"}})),
        Some(json!({"metadata": {"name": "node", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}})),
    ];
    for node in nodes {
        bed.set_node(node);
        bed.pass(SECOND * 5);
        assert_eq!(bed.api.calls(), Vec::<String>::new());
    }
    let bed = bed.with_node();
    let took = bed.until("mirrored", |bed| restarts(&bed.api.pod("web")) == Some(0));
    assert!(took < SECOND, "{took:?}");
}

#[test]
fn a_mirror_that_is_deleted_comes_back_at_once() {
    let (bed, _) = mirrored();
    bed.api.user_removes("web");
    let took = bed.until("back", |bed| restarts(&bed.api.pod("web")) == Some(0));
    assert!(took < SECOND, "{took:?}");
    assert_eq!(bed.api.pod("web")["metadata"]["uid"], "mirror-2");
    // Gracefully: only the kubelet can finish the deletion.
    bed.api.user_deletes("web");
    let took = bed.until("back", |bed| bed.api.pod("web")["metadata"]["uid"] == "mirror-3");
    assert!(took < SECOND, "{took:?}");
    bed.until("with its status", |bed| restarts(&bed.api.pod("web")) == Some(0));
}

#[test]
fn a_changed_static_pod_gets_its_mirror_when_the_old_one_has_ended() {
    let (bed, old) = mirrored();
    bed.reporter.sources_are_ready();
    bed.api.calls();
    // The old one is still ending when the new one is known, and that one is changed twice more meanwhile.
    for hash in ["h2", "h3", "h4"] {
        bed.report(&static_pod("web", hash), &status("Pending", 0, false));
        bed.pass(SECOND * 5);
        if hash != "h4" {
            bed.forget(hash);
        }
    }
    bed.report(&old, &status("Running", 7, false));
    bed.until("delivered", |bed| restarts(&bed.api.pod("web")) == Some(7));
    let mirror = bed.api.pod("web");
    assert_eq!(
        (&mirror["metadata"]["uid"], hash_of(&mirror)),
        (&json!("mirror-1"), Some("h1"))
    );
    assert_eq!(
        bed.api.calls(),
        ["patch web"],
        "nobody touched the mirror of the pod that ends"
    );
    bed.report_as(&old, &status("Succeeded", 9, false), true);
    bed.until("its end is shown", |bed| {
        bed.api.pod("web")["status"]["phase"] == "Succeeded"
    });
    assert_eq!(hash_of(&bed.api.pod("web")), Some("h1"));
    bed.forget("h1");
    bed.until("replaced", |bed| {
        let pod = bed.api.pod("web");
        hash_of(&pod) == Some("h4") && pod["status"]["phase"] == "Pending"
    });
    bed.report(&static_pod("web", "h4"), &running(4));
    bed.until("delivered", |bed| restarts(&bed.api.pod("web")) == Some(4));
}

#[test]
fn the_mirror_of_a_pod_that_ends_comes_back_too() {
    let (bed, _) = mirrored();
    bed.report(&static_pod("web", "h2"), &status("Pending", 0, false));
    bed.api.user_removes("web");
    bed.until("back", |bed| hash_of(&bed.api.pod("web")) == Some("h1"));
    bed.forget("h1");
    bed.until("replaced", |bed| hash_of(&bed.api.pod("web")) == Some("h2"));
}

#[test]
fn somebody_who_changes_the_hash_gets_it_back() {
    let (bed, _) = mirrored();
    bed.api
        .user_changes("web", |pod| pod["metadata"]["annotations"][MIRROR] = "x".into());
    bed.until("right again", |bed| hash_of(&bed.api.pod("web")) == Some("h1"));
}

/// A user changes a mirror: it becomes what it was, at once.
fn check_is_undone(change: fn(&mut Value)) {
    let (bed, _) = mirrored();
    let before = bed.api.pod("web");
    bed.api.user_changes("web", change);
    let took = bed.until("right again", |bed| {
        let pod = bed.api.pod("web");
        pod["metadata"]["uid"] == "mirror-2" && restarts(&pod) == Some(0)
    });
    assert!(took < SECOND, "{took:?}");
    let after = bed.api.pod("web");
    let shown = |pod: &Value| {
        let metadata = &pod["metadata"];
        json!([metadata["labels"], metadata["annotations"], pod["spec"]])
    };
    assert_eq!(shown(&after), shown(&before));
}

#[test]
fn somebody_who_changes_a_mirror_gets_it_back() {
    check_is_undone(|pod| pod["metadata"]["labels"]["app"] = "other".into());
    check_is_undone(|pod| pod["metadata"]["labels"] = Value::Null);
    check_is_undone(|pod| pod["metadata"]["annotations"]["kubernetes.io/config.source"] = "api".into());
    check_is_undone(|pod| pod["spec"]["containers"][0]["image"] = "other".into());
}

#[test]
fn others_may_add_to_a_mirror() {
    let (bed, web) = mirrored();
    bed.api.calls();
    bed.api.user_changes("web", |pod| {
        pod["metadata"]["labels"]["team"] = "a".into();
        pod["metadata"]["annotations"]["network/ips"] = "10.0.0.1".into();
    });
    // As after a restart of ours: the mirror is older.
    let mut seen_again = web.clone();
    seen_again["metadata"]["annotations"]["kubernetes.io/config.seen"] = "2026-02-02T00:00:00Z".into();
    bed.report(&seen_again, &running(0));
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
}

#[test]
fn admission_has_the_last_word_about_a_mirror() {
    let bed = Bed::new(5).with_node();
    bed.api.with(|state| {
        state.admission = |pod| pod["spec"]["containers"][0]["image"] = "registry.local/image".into();
    });
    bed.report(&static_pod("web", "h1"), &running(0));
    bed.until("mirrored", |bed| restarts(&bed.api.pod("web")) == Some(0));
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.calls(), ["create web", "patch web"]);
    bed.api
        .user_changes("web", |pod| pod["spec"]["containers"][0]["image"] = "x".into());
    bed.until("right again", |bed| {
        bed.api.pod("web")["spec"]["containers"][0]["image"] == "registry.local/image"
    });
    bed.pass(SECOND * 60);
    let calls = bed.api.calls();
    assert_eq!(calls, ["delete web", "create web", "patch web"]);
}

#[test]
fn a_restart_keeps_a_mirror_that_admission_changed() {
    let bed = Bed::new(5).with_node();
    let rewrite = |pod: &mut Value| pod["spec"]["containers"][0]["image"] = "registry.local/image".into();
    bed.api.with(|state| state.admission = rewrite);
    let web = static_pod("web", "h1");
    let mut mirror = web.clone();
    mirror["metadata"]["uid"] = "mirror-of-before".into();
    mirror["metadata"]["annotations"][MIRROR] = "h1".into();
    mirror["status"] = running(0);
    rewrite(&mut mirror);
    bed.api.user_creates(&mirror);
    bed.report(&web, &running(0));
    bed.reporter.sources_are_ready();
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    // What changes from here on is not admission's.
    bed.api
        .user_changes("web", |pod| pod["spec"]["containers"][0]["image"] = "x".into());
    bed.until("made anew", |bed| {
        let pod = bed.api.pod("web");
        pod["metadata"]["uid"] == "mirror-1" && restarts(&pod) == Some(0)
    });
}

#[test]
fn a_static_pod_that_is_edited_under_its_uid_gets_another_mirror() {
    let (bed, mut web) = mirrored();
    web["metadata"]["labels"]["app"] = "edited".into();
    bed.report(&web, &running(0));
    bed.until("made anew", |bed| {
        bed.api.pod("web")["metadata"]["labels"]["app"] == "edited"
    });
    bed.pass(SECOND * 60);
    let calls = bed.api.calls();
    assert_eq!(
        calls,
        ["create web", "patch web", "delete web", "create web", "patch web"]
    );
}

#[test]
fn a_mirror_is_made_soon_after_its_namespace() {
    let bed = Bed::new(5).with_node();
    bed.pass(SECOND);
    bed.api
        .with(|state| state.answers.extend([ApiErrorKind::NotFound; 1000]));
    bed.report(&static_pod("web", "h1"), &running(0));
    bed.pass(SECOND * 3600);
    let tries = bed.api.calls().len();
    assert!(tries >= 60, "{tries} tries in an hour: at least one a minute");
    bed.api.with(|state| state.answers.clear());
    let took = bed.until("mirrored", |bed| hash_of(&bed.api.pod("web")) == Some("h1"));
    assert!(took <= SECOND * 60, "{took:?}");
}

#[test]
fn an_orphan_goes_when_all_sources_are_known() {
    let bed = Bed::new(5).with_node();
    let mut left = static_pod("left", "h9");
    left["metadata"]["uid"] = "mirror-of-before".into();
    left["metadata"]["annotations"][MIRROR] = "h9".into();
    bed.api.user_creates(&left);
    bed.api.user_creates(&pod("other"));
    let web = static_pod("web", "h1");
    bed.report(&web, &running(0));
    bed.pass(SECOND * 30);
    assert!(!bed.api.pod("left").is_null(), "its source may still deliver it");
    bed.reporter.sources_are_ready();
    bed.until("gone", |bed| bed.api.pod("left").is_null());
    bed.forget("h1");
    bed.until("gone", |bed| bed.api.pod("web").is_null());
    bed.pass(SECOND * 30);
    assert!(!bed.api.pod("other").is_null(), "it is nobody's mirror");
    assert_eq!(bed.reporter.known_pods(), 0);
}

#[test]
fn a_mirror_stays_as_long_as_its_pod_ends() {
    let (bed, web) = mirrored();
    bed.reporter.sources_are_ready();
    bed.report(&web, &status("Running", 0, false));
    bed.pass(SECOND * 20);
    bed.report_as(&web, &status("Failed", 0, false), true);
    bed.until("delivered", |bed| {
        bed.api.pod("web")["status"]["phase"] == "Failed"
    });
    bed.pass(SECOND * 20);
    assert!(!bed.api.pod("web").is_null(), "it is still reported");
    bed.forget("h1");
    bed.until("gone", |bed| bed.api.pod("web").is_null());
}

#[test]
fn a_pod_of_somebody_else_keeps_its_name() {
    let bed = Bed::new(5).with_node();
    bed.api.user_creates(&pod("web"));
    bed.pass(SECOND);
    bed.report(&static_pod("web", "h1"), &running(0));
    bed.reporter.sources_are_ready();
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.api.user_removes("web");
    bed.until("mirrored", |bed| hash_of(&bed.api.pod("web")) == Some("h1"));
}

#[test]
fn refused_mirrors_are_tried_with_growing_gaps() {
    let bed = Bed::new(5).with_node();
    bed.pass(SECOND);
    bed.api
        .with(|state| state.answers.extend([ApiErrorKind::Forbidden; 100]));
    bed.report(&static_pod("web", "h1"), &running(0));
    bed.pass(SECOND * 120);
    let tries = bed.api.calls().len();
    assert!((5..12).contains(&tries), "{tries}");
    assert_eq!(
        bed.reporter.figures().mirror_failures,
        u64::try_from(tries).unwrap()
    );
}

#[test]
fn somebody_who_never_stops_deleting_is_no_reason_to_hurry() {
    let (bed, _) = mirrored();
    bed.api.calls();
    for _ in 0..600 {
        bed.api.user_removes("web");
        bed.pass(Duration::from_millis(100));
    }
    let creations = bed
        .api
        .calls()
        .iter()
        .filter(|call| *call == "create web")
        .count();
    assert!((4..=12).contains(&creations), "{creations} in a minute");
    bed.until("the last word is ours", |bed| {
        hash_of(&bed.api.pod("web")) == Some("h1")
    });
}

#[test]
fn a_pod_that_is_only_made_known_keeps_what_its_mirror_shows() {
    let bed = Bed::new(5).with_node();
    let web = static_pod("web", "h1");
    let mut mirror = web.clone();
    mirror["metadata"]["uid"] = "mirror-of-before".into();
    mirror["metadata"]["annotations"][MIRROR] = "h1".into();
    mirror["status"] = running(3);
    bed.api.user_creates(&mirror);
    bed.pass(SECOND);
    // As after a restart: the pod is desired, and was not synced yet.
    bed.report(&web, &json!({}));
    bed.reporter.sources_are_ready();
    bed.pass(SECOND * 30);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    assert_eq!(bed.reporter.undelivered(), 0);
    bed.report(&web, &running(4));
    bed.until("delivered", |bed| restarts(&bed.api.pod("web")) == Some(4));
    bed.report(&web, &json!({}));
    bed.pass(SECOND * 30);
    assert_eq!(restarts(&bed.api.pod("web")), Some(4));
}
