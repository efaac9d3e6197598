//! Lifecycle hooks: what waits for them, what they cost, and what becomes of their failures.

use std::time::Duration;

use rubelet_model::message::{MAX_MESSAGE_BYTES, MAX_WAIT_BYTES};
use rubelet_ports::RuntimeErrorKind;
use rubelet_sim::dialer::{PLAIN, REFUSED, SILENT};
use serde_json::{Value, json};

use crate::bed::{Bed, IMAGE, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn exec(words: &[&str]) -> Value {
    json!({"exec": {"command": words}})
}

fn with_hooks(name: &str, args: &[&str], hooks: Value) -> PodText {
    PodText::new(name, args).container("lifecycle", hooks)
}

#[test]
fn what_comes_after_a_post_start_hook_waits_for_it() {
    let mut bed = Bed::started();
    let mut pod = with_hooks("web", &[], json!({"postStart": exec(&["take", "3000"])}));
    let second = json!({"name": "second", "image": IMAGE});
    pod.spec["containers"]
        .as_array_mut()
        .expect("a list")
        .push(second);
    bed.put(&pod);
    bed.wait("the hook runs", SOON, |bed| {
        !bed.line.sent_about("ExecSync", "web/main").is_empty()
    });
    bed.pass(seconds(2));
    // Neither is the container shown as running, nor is the next one begun.
    assert!(
        bed.container("web")
            .state
            .and_then(|state| state.running)
            .is_none()
    );
    assert!(bed.line.sent_about("CreateContainer", "web/second").is_empty());
    assert!(
        bed.waits_for("web").contains("postStart"),
        "{}",
        bed.waits_for("web")
    );
    bed.wait("both run", SOON, |bed| bed.is_ready("web"));
    let (hook, second) = (
        bed.line.sent_about("ExecSync", "web/main")[0].at,
        bed.line.sent_about("CreateContainer", "web/second")[0].at,
    );
    assert!(second - hook >= seconds(3), "{hook:?} {second:?}");
    assert_eq!(bed.events("web", "FailedPostStartHook"), []);
}

#[test]
fn a_failed_post_start_hook_kills_the_container() {
    let mut bed = Bed::started();
    bed.put(&with_hooks(
        "web",
        &[],
        json!({"postStart": exec(&["exit", "3"])}),
    ));
    bed.wait("it is killed", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    let stop = &bed.line.sent_about("StopContainer", "web/main")[0];
    assert_eq!(stop.grace_seconds, 5);
    bed.wait("it says why", SOON, |bed| {
        let waiting = bed.container("web").state.and_then(|state| state.waiting);
        waiting.and_then(|waiting| waiting.reason).as_deref() == Some("PostStartHookError")
    });
    let message = bed
        .container("web")
        .state
        .and_then(|state| state.waiting?.message)
        .unwrap_or_default();
    assert!(
        message.contains("Exec lifecycle hook ([exit 3]) for Container \"main\"")
            && message.contains("command 'exit 3' exited with 3: "),
        "{message}"
    );
    let failed = bed.events("web", "FailedPostStartHook");
    assert_eq!(
        (failed[0].message.as_str(), failed[0].container.as_deref()),
        ("PostStartHook failed", Some("main"))
    );
    assert_eq!(bed.events("web", "Killing")[0].message, "FailedPostStartHook");
    // It is tried again, and backs off like any container that does not stay.
    bed.wait("it crash-loops", seconds(30), |bed| {
        let waiting = bed.container("web").state.and_then(|state| state.waiting);
        waiting.and_then(|waiting| waiting.reason).as_deref() == Some("CrashLoopBackOff")
    });
    assert!(bed.container("web").restart_count >= 1);
}

/// A command may print without end; what a status, an event or a wait keeps of it does not.
#[test]
fn the_output_of_a_failed_hook_is_cut() {
    let mut bed = Bed::started();
    // The costliest of texts: each of its characters is written as five when it is quoted.
    bed.line.print("begin\u{7f}é".repeat(2 << 20).into_bytes());
    let pod = with_hooks("web", &[], json!({"postStart": exec(&["exit", "3"])}));
    bed.put(&pod);
    bed.wait("it says why", SOON, |bed| {
        let waiting = bed.container("web").state.and_then(|state| state.waiting);
        waiting.and_then(|waiting| waiting.reason).as_deref() == Some("PostStartHookError")
    });
    let message = bed
        .container("web")
        .state
        .and_then(|state| state.waiting?.message)
        .unwrap_or_default();
    assert!(message.contains("exited with 3: begin"), "{message:.200}");
    assert!(message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
    let error = bed.last_error("web");
    assert!(error.contains("exited with 3: begin"), "{error:.200}");
    assert!(error.len() <= MAX_WAIT_BYTES, "{} bytes", error.len());
}

#[test]
fn a_post_start_hook_that_hangs_holds_up_nobody_else() {
    let mut bed = Bed::new();
    bed.settings.starts_in_flight = 1;
    bed.start();
    let stuck = [
        ("stuck", exec(&["hang"])),
        ("silent", json!({"httpGet": {"host": SILENT, "port": 80}})),
    ];
    for (name, hook) in &stuck {
        bed.put(&with_hooks(name, &[], json!({"postStart": hook})));
    }
    bed.pass(seconds(1));
    bed.put_and_wait(&PodText::new("other", &[]));
    bed.pass(seconds(600));
    for (name, hook) in stuck {
        assert!(
            bed.waits_for(name).contains("postStart"),
            "{}",
            bed.waits_for(name)
        );
        bed.remove(&with_hooks(name, &[], json!({"postStart": hook})));
        bed.wait("it goes as any pod", SOON, |bed| {
            !bed.line.sent_about("StopPodSandbox", name).is_empty()
        });
    }
    assert!(bed.is_ready("other"));
}

#[test]
fn a_container_that_ends_under_its_hook_is_started_again() {
    let mut bed = Bed::started();
    let hook = json!({"postStart": {"httpGet": {"host": SILENT, "port": 80}}});
    bed.put(&with_hooks("web", &["runs=2000:1,forever"], hook));
    bed.wait("the hook is given up", seconds(60), |bed| {
        !bed.events("web", "FailedPostStartHook").is_empty()
    });
    bed.wait("it runs again", seconds(60), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 2
    });
}

/// What is sent to the runtime after a preStop hook, and when.
fn stop_after(hook: &Value, grace: i64, expected: (u64, i64), failures: usize) {
    let mut bed = Bed::started();
    let pod =
        with_hooks("web", &[], json!({"preStop": hook})).spec("terminationGracePeriodSeconds", json!(grace));
    bed.put_and_wait(&pod);
    let removed = bed.elapsed();
    bed.remove(&pod);
    bed.wait("it is stopped", seconds(60), |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    let stop = &bed.line.sent_about("StopContainer", "web/main")[0];
    let after = (stop.at - removed).as_secs();
    assert_eq!((after, stop.grace_seconds), expected, "{hook}\n{}", bed.trace());
    assert_eq!(bed.events("web", "FailedPreStopHook").len(), failures, "{hook}");
    assert_eq!(bed.events("web", "Killing").len(), 1);
}

#[test]
fn a_pre_stop_hook_uses_up_the_grace_period() {
    stop_after(&exec(&["true"]), 10, (0, 10), 0);
    stop_after(&exec(&["take", "3500"]), 10, (3, 7), 0);
    stop_after(&json!({"sleep": {"seconds": 4}}), 10, (4, 6), 0);
    // Always a moment to end well.
    stop_after(&json!({"sleep": {"seconds": 9}}), 10, (9, 2), 0);
    stop_after(&exec(&["hang"]), 5, (5, 2), 0);
    stop_after(&json!({"sleep": {"seconds": 0}}), 10, (0, 10), 0);
}

#[test]
fn a_failed_pre_stop_hook_is_told_and_changes_nothing() {
    stop_after(&exec(&["exit", "1"]), 10, (0, 10), 1);
    stop_after(&json!({"httpGet": {"host": REFUSED, "port": 80}}), 10, (0, 10), 1);
    stop_after(&json!({"httpGet": {"port": "nowhere"}}), 10, (0, 10), 1);
    stop_after(&json!({"httpGet": {"port": 80}}), 10, (0, 10), 0);
}

#[test]
fn a_stop_that_begins_anew_runs_no_hook_twice() {
    let mut bed = Bed::started();
    let pod = with_hooks(
        "web",
        &["term=ignore"],
        json!({"preStop": exec(&["take", "1000"])}),
    )
    .spec("terminationGracePeriodSeconds", json!(300));
    bed.put_and_wait(&pod);
    let mut deleted = pod.clone();
    deleted.metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleted.metadata["deletionGracePeriodSeconds"] = json!(200);
    bed.put(&deleted);
    bed.wait("its end begins", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    deleted.metadata["deletionGracePeriodSeconds"] = json!(7);
    bed.put(&deleted);
    bed.wait("the shorter grace is sent", SOON, |bed| {
        bed.line.sent_about("StopContainer", "web/main").len() == 2
    });
    let stops = bed.line.sent_about("StopContainer", "web/main");
    let graces: Vec<i64> = stops.iter().map(|stop| stop.grace_seconds).collect();
    assert_eq!(graces, [199, 7]);
    assert_eq!(bed.line.sent_about("ExecSync", "web/main").len(), 1);
}

#[test]
fn a_pod_that_went_while_nobody_looked_has_its_hook_all_the_same() {
    let mut bed = Bed::started();
    let pod = with_hooks("web", &[], json!({"preStop": exec(&["true"])}));
    bed.put_and_wait(&pod);
    bed.kill();
    bed.remove(&pod);
    bed.start();
    bed.wait("it is stopped", seconds(30), |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    assert_eq!(bed.line.sent_about("ExecSync", "web/main").len(), 1);
}

#[test]
fn hooks_that_hang_take_no_turn_from_others() {
    let mut bed = Bed::new();
    bed.settings.stops_in_flight = 1;
    bed.start();
    let slow: Vec<PodText> = ["a", "b", "c"]
        .into_iter()
        .map(|name| with_hooks(name, &[], json!({"preStop": exec(&["hang"])})))
        .collect();
    let plain = PodText::new("plain", &[]);
    for pod in slow.iter().chain([&plain]) {
        bed.put_and_wait(pod);
    }
    for pod in slow.iter().chain([&plain]) {
        bed.remove(pod);
    }
    let removed = bed.elapsed();
    bed.wait("the plain one is gone", SOON, |bed| {
        !bed.line.sent_about("StopPodSandbox", "plain").is_empty()
    });
    let gone = bed.line.sent_about("StopPodSandbox", "plain")[0].at - removed;
    assert!(gone < seconds(3), "{gone:?}");
}

#[test]
fn a_server_without_tls_is_asked_without() {
    let mut bed = Bed::started();
    let get = json!({"httpGet": {"host": PLAIN, "port": 8443, "scheme": "HTTPS"}});
    bed.put_and_wait(&with_hooks("web", &[], json!({"postStart": get})));
    let told = bed.events("web", "LifecycleHTTPFallback");
    assert_eq!(
        told[0].message,
        "request to HTTPS lifecycle hook plain.test:8443 got HTTP response, retry with HTTP succeeded"
    );
}

#[test]
fn sidecars_have_their_hooks_at_once_and_their_stop_last() {
    let mut bed = Bed::started();
    let mut pod = PodText::new("web", &["term=4500:0"]).spec("terminationGracePeriodSeconds", json!(30));
    pod.spec["initContainers"] = json!([{"name": "side", "image": IMAGE, "restartPolicy": "Always",
        "lifecycle": {"preStop": exec(&["take", "1000"])}}]);
    bed.put_and_wait(&pod);
    let removed = bed.elapsed();
    bed.remove(&pod);
    bed.wait("the sidecar is stopped", seconds(40), |bed| {
        !bed.line.sent_about("StopContainer", "web/side").is_empty()
    });
    let hook = bed.line.sent_about("ExecSync", "web/side")[0].at - removed;
    let stop = &bed.line.sent_about("StopContainer", "web/side")[0];
    assert!(hook < seconds(1), "{hook:?}");
    assert!(stop.at - removed >= seconds(4), "{stop:?}");
    // One second of the hook, three and a half of waiting for the other container.
    assert_eq!(stop.grace_seconds, 26, "{stop:?}");
}

/// A pod with a sidecar, whose main container's stop fails this often.
fn stop_with_failures(grace_seconds: i64, failures: usize) -> (Bed, Duration) {
    let mut bed = Bed::started();
    let grace = json!(grace_seconds);
    let mut pod = PodText::new("web", &["term=100:0"]).spec("terminationGracePeriodSeconds", grace);
    pod.spec["initContainers"] = json!([{"name": "side", "image": IMAGE, "restartPolicy": "Always"}]);
    bed.put_and_wait(&pod);
    let failure = Fault::Fail(RuntimeErrorKind::Unknown);
    bed.line.fault("StopContainer", "web/main", failure, failures);
    let removed = bed.elapsed();
    bed.remove(&pod);
    (bed, removed)
}

#[test]
fn a_failed_stop_is_tried_again_before_sidecars_have_waited_for_it() {
    let (mut bed, _) = stop_with_failures(i64::MAX, 1);
    bed.wait("the sidecar is stopped", seconds(40), |bed| {
        !bed.line.sent_about("StopContainer", "web/side").is_empty()
    });
    assert_eq!(bed.line.sent_about("StopContainer", "web/main").len(), 2);
}

#[test]
fn sidecars_do_not_outlive_the_grace_period_for_a_container_that_cannot_be_stopped() {
    let (mut bed, removed) = stop_with_failures(20, usize::MAX);
    bed.wait("the sidecar is stopped", seconds(60), |bed| {
        !bed.line.sent_about("StopContainer", "web/side").is_empty()
    });
    let stop = &bed.line.sent_about("StopContainer", "web/side")[0];
    assert!(stop.at - removed >= seconds(20), "{stop:?}");
    assert!(bed.line.sent_about("StopContainer", "web/main").len() > 1);
}
