//! The life of pods: who may start, who has to end, and in which order.

use std::time::Duration;

use rubelet_ports::RuntimeErrorKind;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::ApiPod;
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn touched(bed: &Bed, since: Duration) -> Vec<String> {
    let methods = [
        "StopContainer",
        "StopPodSandbox",
        "RemoveContainer",
        "RemovePodSandbox",
    ];
    let sent = methods.iter().flat_map(|method| bed.line.sent(method, since));
    sent.map(|sent| format!("{} {}", sent.method, sent.about))
        .collect()
}

#[test]
fn nothing_ends_before_every_source_has_delivered() {
    let mut bed = Bed::started();
    let (kept, removed) = (PodText::new("kept", &[]), PodText::new("removed", &[]));
    let ended = PodText::new("ended", &["runs=500:0"]).spec("restartPolicy", json!("Never"));
    for pod in [&kept, &removed, &ended] {
        bed.put_and_wait(pod);
    }
    bed.wait("one of them ended", seconds(20), |bed| {
        bed.phase("ended") == "Succeeded"
    });
    bed.kill();
    bed.remove(&removed);
    bed.remove(&ended);
    bed.add_http_source();
    bed.start();
    let restarted = bed.elapsed();
    bed.wait("what is wanted is adopted", SOON, |bed| bed.is_ready("kept"));
    // A pod that comes and goes meanwhile may still be wanted by the other source.
    let brief = PodText::new("brief", &[]);
    bed.put_and_wait(&brief);
    bed.remove(&brief);
    bed.pass(seconds(300));
    assert_eq!(touched(&bed, restarted), Vec::<String>::new());
    assert!(
        bed.files
            .content("/var/log/pods/default_ended-sim_uid-ended/main/0.log".as_ref())
            .is_some()
    );

    bed.http.serve(Some(
        json!({"apiVersion": "v1", "kind": "PodList", "items": []})
            .to_string()
            .into_bytes(),
    ));
    bed.wait("what nobody wants is gone", seconds(100), |bed| {
        ["removed", "ended", "brief"]
            .iter()
            .all(|name| !bed.line.sent_about("RemovePodSandbox", name).is_empty())
    });
    assert!(bed.is_ready("kept"));
    assert!(bed.line.sent_about("StopContainer", "kept/main").is_empty());
}

#[test]
fn what_another_source_wants_survives_its_absence() {
    let mut bed = Bed::started();
    let moved = PodText::new("moved", &[]);
    bed.put_and_wait(&moved);
    bed.kill();
    bed.remove(&moved);
    bed.add_http_source();
    bed.start();
    bed.pass(seconds(30));
    let items = [moved.document()];
    bed.http.serve(Some(
        json!({"apiVersion": "v1", "kind": "PodList", "items": items})
            .to_string()
            .into_bytes(),
    ));
    bed.wait("it is adopted", seconds(20), |bed| bed.is_ready("moved"));
    assert!(bed.line.sent_about("StopContainer", "moved/main").is_empty());
    assert_eq!(bed.line.sent_about("CreateContainer", "moved/main").len(), 1);
}

#[test]
fn static_pods_of_one_name_run_one_after_the_other() {
    let mut bed = Bed::started();
    let first = PodText::new("web", &["term=4000:0"]).spec("terminationGracePeriodSeconds", json!(30));
    let second = first.clone().uid("uid-second");
    let third = first.clone().uid("uid-third");
    bed.put_and_wait(&first);
    bed.put(&second);
    bed.pass(seconds(2));
    // The second one never gets its turn.
    bed.put(&third);
    bed.pass(seconds(1));
    assert!(bed.line.sent_about("RunPodSandbox", "third").is_empty());
    bed.wait("the third one runs", seconds(30), |bed| {
        !bed.line.sent_about("StartContainer", "third/main").is_empty()
    });
    assert!(bed.line.sent_about("RunPodSandbox", "second").is_empty());
    let stopped = bed.line.sent_about("StopPodSandbox", "web");
    let started = bed.line.sent_about("RunPodSandbox", "third");
    assert!(stopped[0].at < started[0].at);
    assert_eq!(started.len(), 1);
}

#[test]
fn after_a_restart_the_old_pod_of_the_name_ends_first() {
    let mut bed = Bed::started();
    let first = PodText::new("web", &["term=8000:0"]).spec("terminationGracePeriodSeconds", json!(30));
    bed.put_and_wait(&first);
    bed.kill();
    bed.put(&first.clone().uid("uid-second"));
    bed.start();
    bed.wait("the second one runs", seconds(60), |bed| {
        !bed.line.sent_about("StartContainer", "second/main").is_empty()
    });
    let stopped = bed.line.sent_about("StopPodSandbox", "web");
    let started = bed.line.sent_about("RunPodSandbox", "second");
    assert!(
        !stopped.is_empty() && stopped[0].at < started[0].at,
        "{}",
        bed.trace()
    );
}

/// The same, when the old one was still wanted at the start and is not by the time the runtime answers.
#[test]
fn a_pod_that_left_before_the_first_list_ends_before_its_name_is_free() {
    let check = |lacks_a_source: bool| {
        let mut bed = Bed::started();
        let first = PodText::new("web", &["term=8000:0"]).spec("terminationGracePeriodSeconds", json!(30));
        bed.put_and_wait(&first);
        bed.kill();
        bed.line.fault(
            "ListContainers",
            "",
            Fault::Fail(RuntimeErrorKind::Unknown),
            usize::MAX,
        );
        if lacks_a_source {
            // It never delivers, and the pods are not its own.
            bed.add_http_source();
        }
        bed.start();
        bed.pass(seconds(3));
        bed.put(&first.clone().uid("uid-second"));
        bed.pass(seconds(3));
        bed.line.heal();
        // The first look at it fails: that it lives is known from the list alone.
        let failure = Fault::Fail(RuntimeErrorKind::Unknown);
        bed.line.fault("PodSandboxStatus", "web", failure, 1);
        bed.wait("the second one runs", seconds(60), |bed| {
            !bed.line.sent_about("StartContainer", "second/main").is_empty()
        });
        let stopped = bed.line.sent_about("StopPodSandbox", "web");
        let started = bed.line.sent_about("RunPodSandbox", "second");
        assert!(
            !stopped.is_empty() && stopped[0].at < started[0].at,
            "{}",
            bed.trace()
        );
        assert_eq!(
            bed.line.sent_about("StopContainer", "web/main")[0].grace_seconds,
            30
        );
    };
    check(false);
    check(true);
}

/// The same, when the runtime does not show the old one in full and then loses it.
#[test]
fn a_name_is_free_again_when_its_unseen_holder_vanishes() {
    let mut bed = Bed::started();
    let first = PodText::new("web", &[]);
    bed.put_and_wait(&first);
    bed.kill();
    bed.put(&first.clone().uid("uid-second"));
    bed.line
        .fault("ContainerStatus", "web/main", Fault::Hang, usize::MAX);
    bed.start();
    bed.pass(seconds(30));
    assert!(
        bed.line.sent_about("RunPodSandbox", "second").is_empty(),
        "two pods of one name\n{}",
        bed.trace()
    );
    bed.runtime.lose_state();
    bed.wait("the second one runs", seconds(200), |bed| {
        !bed.line.sent_about("StartContainer", "second/main").is_empty()
    });
}

#[test]
fn a_pod_that_comes_back_with_its_uid_starts_anew() {
    let check = |policy: &str| {
        let mut bed = Bed::started();
        let pod = PodText::new("web", &["term=2000:0"])
            .spec("restartPolicy", json!(policy))
            .spec("terminationGracePeriodSeconds", json!(30));
        bed.put_and_wait(&pod);
        bed.remove(&pod);
        bed.wait("its end begins", SOON, |bed| {
            !bed.line.sent_about("StopContainer", "web/main").is_empty()
        });
        bed.put(&pod);
        bed.wait(&format!("{policy}: it runs again"), seconds(60), |bed| {
            bed.line.sent_about("StartContainer", "web/main").len() == 2 && bed.is_ready("web")
        });
        let stopped = bed.line.sent_about("StopPodSandbox", "web");
        let started = bed.line.sent_about("RunPodSandbox", "web");
        assert_eq!(started.len(), 2);
        assert!(stopped[0].at < started[1].at);
        assert_eq!(bed.line.sent_about("StopContainer", "web/main").len(), 1);
    };
    check("Always");
    check("Never");
}

#[test]
fn a_pod_ends_by_its_active_deadline() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=100:0"]).spec("activeDeadlineSeconds", json!(40));
    bed.put_and_wait(&pod);
    let ready = bed.elapsed();
    bed.pass(seconds(38));
    assert_eq!(bed.phase("web"), "Running");
    bed.wait("it failed", seconds(6), |bed| bed.phase("web") == "Failed");
    assert!(bed.elapsed() - ready < seconds(43));
    let status = bed.status("web");
    let text = "Pod was active on the node longer than the specified deadline";
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(status.message.as_deref(), Some(text));
    let events = bed.events("web", "DeadlineExceeded");
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].event_type.as_str(), events[0].message.as_str()),
        ("Normal", text)
    );
    bed.pass(seconds(60));
    assert_eq!(
        bed.line.sent_about("StartContainer", "web/main").len(),
        1,
        "it started again"
    );
}

/// The grace period of an end under way gets shorter: the runtime has to know at once.
#[test]
fn a_shorter_grace_reaches_the_runtime_at_once() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=ignore"]).spec("terminationGracePeriodSeconds", json!(300));
    bed.put_and_wait(&pod);
    let mut deleted = pod.clone();
    deleted.metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleted.metadata["deletionGracePeriodSeconds"] = json!(200);
    bed.put(&deleted);
    bed.wait("its end begins", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    assert_eq!(
        bed.line.sent_about("StopContainer", "web/main")[0].grace_seconds,
        200
    );
    bed.pass(seconds(10));
    deleted.metadata["deletionGracePeriodSeconds"] = json!(7);
    bed.put(&deleted);
    let changed = bed.elapsed();
    bed.wait("the shorter grace is sent", SOON, |bed| {
        bed.line.sent_about("StopContainer", "web/main").len() == 2
    });
    let sent = &bed.line.sent_about("StopContainer", "web/main")[1];
    assert_eq!(sent.grace_seconds, 7);
    assert!(sent.at - changed < seconds(2));
    // It never grows again.
    deleted.metadata["deletionGracePeriodSeconds"] = json!(100);
    bed.put(&deleted);
    bed.wait("the sandbox is stopped", seconds(12), |bed| {
        !bed.line.sent_about("StopPodSandbox", "web").is_empty()
    });
    assert!(
        bed.line
            .sent_about("StopContainer", "web/main")
            .iter()
            .skip(1)
            .all(|sent| sent.grace_seconds <= 7)
    );
}

/// Starting stops when the pod has to go: nothing of it is started any more.
#[test]
fn a_removal_cancels_a_start_under_way() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.line.fault("CreateContainer", "web/main", Fault::Hang, 1);
    let pod = PodText::new("web", &[]);
    bed.put(&pod);
    bed.wait("the call hangs", SOON, |bed| {
        !bed.line.sent_about("CreateContainer", "web/main").is_empty()
    });
    bed.remove(&pod);
    let removed = bed.elapsed();
    bed.wait("the sandbox is stopped", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "web").is_empty()
    });
    assert!(bed.elapsed() - removed < seconds(8));
    assert!(bed.line.sent_about("StartContainer", "web/main").is_empty());
}

/// Calls that hang hold their permits for a while, and not until their deadlines.
#[test]
fn starts_that_hang_do_not_keep_others_from_starting() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    for number in 0..bed.settings.starts_in_flight + 2 {
        let name = format!("stuck{number}");
        let method = if number % 2 == 0 {
            "RunPodSandbox"
        } else {
            "CreateContainer"
        };
        let about = if number % 2 == 0 {
            name.clone()
        } else {
            format!("{name}/main")
        };
        bed.line.fault(method, &about, Fault::Hang, 1);
        bed.put(&PodText::new(&name, &[]));
    }
    bed.pass(seconds(3));
    bed.put(&PodText::new("web", &[]));
    bed.wait("the other pod starts", seconds(30), |bed| bed.is_ready("web"));
}

/// Neither does a pod that waits for something else than the runtime: the API server may be among those that want to start.
#[test]
fn objects_that_hang_do_not_keep_others_from_starting() {
    let mut bed = Bed::in_cluster();
    bed.pass(seconds(2));
    bed.cluster().objects.hang("stuck");
    for number in 0..2 * bed.settings.starts_in_flight {
        let pod = ApiPod::new(&format!("stuck{number}"), &[]);
        let env_from = json!([{"configMapRef": {"name": "stuck"}}]);
        bed.create(&if number % 2 == 0 {
            pod.container("envFrom", env_from)
        } else {
            pod.spec("runtimeClassName", json!("stuck"))
        });
    }
    bed.wait("all of them wait", SOON, |bed| {
        let explained = bed.explanations();
        let waits = explained.iter().filter_map(|one| one.waits_for.as_ref());
        let stuck = waits.filter(|wait| wait.what.contains("ConfigMaps") || wait.what.contains("class"));
        stuck.count() == 2 * bed.settings.starts_in_flight
    });
    bed.put(&PodText::new("web", &[]));
    bed.wait("the other pod starts", seconds(1), |bed| bed.is_ready("web"));
}

/// Whoever has its turn to stop comes to its end before the next one begins.
#[test]
fn a_sandbox_does_not_stand_in_line_behind_the_containers_of_other_pods() {
    let mut bed = Bed::started();
    let names: Vec<String> = (0..3 * bed.settings.stops_in_flight)
        .map(|number| format!("web{number}"))
        .collect();
    let pods: Vec<PodText> = names.iter().map(|name| PodText::new(name, &[])).collect();
    for pod in &pods {
        bed.put_and_wait(pod);
    }
    let begun = bed.elapsed();
    for pod in &pods {
        bed.remove(pod);
    }
    bed.wait("every sandbox is stopped", seconds(60), |bed| {
        bed.line.sent("StopPodSandbox", begun).len() >= names.len()
    });
    let first_sandbox = bed.line.sent("StopPodSandbox", begun)[0].at;
    let last_container = bed.line.sent("StopContainer", begun).last().map(|sent| sent.at);
    assert!(
        Some(first_sandbox) < last_container,
        "{first_sandbox:?} {last_container:?}"
    );
}

#[test]
fn a_version_that_is_not_supported_does_not_start_later() {
    let mut bed = Bed::started();
    let good = PodText::new("web", &["term=3000:0"]).spec("terminationGracePeriodSeconds", json!(30));
    let bad = good.clone().spec("runtimeClassName", json!("kata"));
    bed.put_and_wait(&good);
    bed.put(&bad);
    bed.wait("it is refused", SOON, |bed| {
        bed.events("web", "NotSupported").len() == 1
    });
    bed.pass(seconds(30));
    assert!(bed.is_ready("web"), "the last good version is gone");

    // Both ways to come back while the old one ends.
    let check = |bed: &mut Bed, comes_back_good: bool| {
        let starts = bed.line.sent_about("StartContainer", "web/main").len();
        let stops = bed.line.sent_about("StopContainer", "web/main").len();
        bed.remove(&good);
        bed.wait("its end begins", SOON, |bed| {
            bed.line.sent_about("StopContainer", "web/main").len() > stops
        });
        if comes_back_good {
            bed.put(&good);
            bed.pass(seconds(1));
        }
        bed.put(&bad);
        bed.wait("the refusal is what is left", seconds(30), |bed| {
            bed.waits_for("web") == "a manifest without what is not supported yet"
        });
        assert_eq!(bed.line.sent_about("StartContainer", "web/main").len(), starts);
        assert_eq!(bed.phase("web"), "Failed");
        bed.put_and_wait(&good);
    };
    check(&mut bed, true);
    check(&mut bed, false);
}

#[test]
fn a_panic_concerns_one_pod_and_is_tried_again() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("other", &[]));
    bed.line.fault("CreateContainer", "web/main", Fault::Panic, 1);
    bed.put(&PodText::new("web", &[]));
    bed.wait("the panic is told", SOON, |bed| {
        bed.last_error("web").contains("injected by the test")
    });
    bed.put_and_wait(&PodText::new("third", &[]));
    bed.wait("it is tried again", seconds(20), |bed| bed.is_ready("web"));
    assert!(bed.is_ready("other"));
    assert_eq!(bed.line.sent_about("RunPodSandbox", "web").len(), 1);
    assert_eq!(bed.line.sent_about("CreateContainer", "other/main").len(), 1);
}

/// What a job knew before it panicked is still so: the pod that had the UID before is another one.
#[test]
fn a_panic_does_not_make_the_end_of_a_predecessor_the_pods_own() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=2000:0"])
        .spec("restartPolicy", json!("Never"))
        .spec("terminationGracePeriodSeconds", json!(30));
    bed.put_and_wait(&pod);
    bed.remove(&pod);
    bed.wait("its end begins", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    bed.line.fault("RemoveContainer", "web/main", Fault::Panic, 1);
    bed.put(&pod);
    bed.wait("the panic is told", seconds(10), |bed| {
        bed.last_error("web").contains("injected by the test")
    });
    bed.wait("it runs again", seconds(60), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 2 && bed.is_ready("web")
    });
}

/// A job that panicked watches its pod no more: the observer has to.
#[test]
fn a_pod_is_watched_after_a_panic() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &[]).spec(
        "containers",
        json!([
            {"name": "main", "image": crate::bed::IMAGE},
            {"name": "side", "image": crate::bed::IMAGE},
        ]),
    );
    bed.line.fault("CreateContainer", "web/side", Fault::Panic, 1);
    bed.put(&pod);
    bed.wait("the panic happened", SOON, |bed| {
        !bed.line.sent_about("CreateContainer", "web/side").is_empty()
    });
    bed.pass(seconds(1));
    let crashed = bed.elapsed();
    bed.runtime.crash_container(0, 1);
    bed.wait("the crash is seen", seconds(30), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 2
    });
    let took = bed.elapsed() - crashed;
    assert!(took < seconds(2), "{took:?}");
}

/// It may start nothing again, and would be stopped again and again.
#[test]
fn a_pod_that_lost_its_sandbox_for_good_has_failed() {
    let mut bed = Bed::started();
    let pod = PodText::new("job", &[])
        .spec("restartPolicy", json!("Never"))
        .spec(
            "initContainers",
            json!([{"name": "first", "image": crate::bed::IMAGE, "args": ["runs=10:0"]}]),
        )
        .container("image", json!("registry.test/missing:1"));
    bed.put(&pod);
    bed.wait("it waits for its image", seconds(30), |bed| {
        bed.waits_for("job").contains("ImagePullBackOff")
    });
    bed.kill();
    bed.runtime.lose_power();
    bed.pass(seconds(5));
    bed.start();
    bed.wait("it has failed", seconds(60), |bed| bed.phase("job") == "Failed");
    assert_eq!(bed.status("job").reason.as_deref(), Some("SandboxLost"));
    let since = bed.elapsed();
    bed.pass(seconds(120));
    assert!(bed.line.sent("StopPodSandbox", since).is_empty());
}

/// What the collector could not remove in time is no past of a pod that comes with the same identity.
#[test]
fn a_pod_that_comes_back_under_the_collector_starts_anew() {
    let mut bed = Bed::started();
    let pod = PodText::new("job", &["runs=100:0"]).spec("restartPolicy", json!("OnFailure"));
    bed.put(&pod);
    bed.wait("it has succeeded", seconds(30), |bed| {
        bed.phase("job") == "Succeeded"
    });
    bed.kill();
    bed.remove(&pod);
    bed.line.fault(
        "RemoveContainer",
        "job/main",
        Fault::Fail(RuntimeErrorKind::Unknown),
        1,
    );
    bed.start();
    bed.wait("it is garbage", seconds(120), |bed| {
        !bed.line.sent_about("RemoveContainer", "job/main").is_empty()
    });
    bed.put(&pod);
    bed.wait("it ran again", seconds(60), |bed| {
        bed.line.sent_about("StartContainer", "job/main").len() == 2
    });
}
