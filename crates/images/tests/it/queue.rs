//! Several pods at once: the queue, shared pulls, limits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rubelet_images::ImagesSettings;
use rubelet_ports::{ImageRequest, RuntimeErrorKind};

use crate::fakes::{Bench, image, poll, request, runtime_error};

fn settings(serialize_pulls: bool, max_parallel_pulls: u32) -> ImagesSettings {
    ImagesSettings {
        serialize_pulls,
        max_parallel_pulls,
        registry_pull_qps: 0.0,
        ..ImagesSettings::default()
    }
}

fn bench(settings: ImagesSettings) -> Bench {
    let bench = Bench::slow(settings);
    for number in 0..9 {
        bench
            .service
            .add_to_registry(&format!("i{number}:1"), image(&format!("sha256:{number}"), 1));
    }
    bench.service.add_present("here:1", image("sha256:here", 1));
    bench
}

fn annotated(mut request: ImageRequest, key: &str, value: &str) -> ImageRequest {
    let annotations = [(key.to_owned(), value.to_owned())].into();
    Arc::make_mut(&mut request.pod).metadata.annotations = Some(annotations);
    request
}

#[test]
fn so_many_pull_at_a_time() {
    let check = |settings: ImagesSettings, most: usize| {
        let bench = bench(settings);
        let mut pods: Vec<_> = (0..6)
            .map(|number| bench.asking(request(&format!("u{number}"), &format!("i{number}:1"), "Always")))
            .collect();
        let mut answers = 0;
        // Each round lets one pull end; six rounds are enough for six pulls.
        for round in 0..=6 {
            pods.retain_mut(|pod| {
                poll(pod).is_none_or(|answer| {
                    answers += 1;
                    answer.unwrap();
                    false
                })
            });
            assert_eq!(answers, round, "one pull ends per round");
            // Those that got a place when another pull ended take it now.
            pods.iter_mut().for_each(|pod| assert_eq!(poll(pod), None));
            assert_eq!(bench.service.in_flight(), most.min(6 - round));
            bench.service.finish(1);
        }
        assert_eq!(bench.service.most_in_flight(), most);
        let order: Vec<String> = (0..6).map(|number| format!("i{number}:1")).collect();
        assert_eq!(bench.service.pulls(), order, "first come, first served");
    };
    check(settings(true, 0), 1);
    check(settings(true, 4), 1);
    check(settings(false, 0), 6);
    check(settings(false, 4), 4);
}

#[test]
fn what_needs_no_registry_does_not_queue() {
    let bench = bench(settings(true, 0));
    let mut slow = bench.asking(request("slow", "i0:1", "Always"));
    assert_eq!(poll(&mut slow), None);
    assert!(bench.ensure(request("a", "here:1", "IfNotPresent")).is_ok());
    assert_eq!(
        bench.ensure(request("b", "i1:1", "Never")).unwrap_err().reason,
        "ErrImageNeverPull"
    );
    assert_eq!(
        bench.ensure(request("c", "B", "Always")).unwrap_err().reason,
        "InvalidImageName"
    );
}

#[test]
fn pods_share_a_pull_and_each_is_told() {
    let bench = bench(settings(true, 0));
    let mut first = bench.asking(request("u", "i0:1", "IfNotPresent"));
    assert_eq!(poll(&mut first), None);
    bench.clock.advance(Duration::from_millis(1500));
    let mut second = bench.asking(request("v", "i0:1", "IfNotPresent"));
    assert_eq!(poll(&mut second), None);
    bench.clock.advance(Duration::from_millis(1000));
    bench.service.finish(1);
    assert_eq!(poll(&mut second).unwrap().unwrap().image_ref, "sha256:0");
    assert_eq!(poll(&mut first).unwrap().unwrap().image_ref, "sha256:0");
    assert_eq!(bench.service.pulls(), ["i0:1"]);
    assert_eq!(
        bench.events(),
        [
            "u/c Normal Pulling: Pulling image \"i0:1\"",
            "v/c Normal Pulling: Pulling image \"i0:1\"",
            "v/c Normal Pulled: Successfully pulled image \"i0:1\" in 1s (1s including waiting). Image size: 1 bytes.",
            "u/c Normal Pulled: Successfully pulled image \"i0:1\" in 2.5s (2.5s including waiting). Image size: 1 bytes.",
        ]
    );
}

#[test]
fn pods_share_a_failure_and_wait_apart() {
    let bench = bench(settings(false, 0));
    let mut first = bench.asking(request("u", "x", "IfNotPresent"));
    let mut second = bench.asking(request("v", "x", "IfNotPresent"));
    assert_eq!(poll(&mut first), None);
    assert_eq!(poll(&mut second), None);
    bench
        .service
        .fail_pull(Some(runtime_error(RuntimeErrorKind::Unknown, "no")));
    bench.service.finish(1);
    assert_eq!(poll(&mut first).unwrap().unwrap_err().reason, "ErrImagePull");
    assert_eq!(poll(&mut second).unwrap().unwrap_err().reason, "ErrImagePull");
    assert_eq!(bench.service.pulls().len(), 1);
    for pod in ["u", "v"] {
        let failure = bench.ensure(request(pod, "x", "IfNotPresent")).unwrap_err();
        assert_eq!(failure.message, "Back-off pulling image \"x\": ErrImagePull: no");
    }
}

#[test]
fn always_means_an_answer_that_is_not_older_than_the_question() {
    let bench = bench(settings(true, 0));
    let mut running = bench.asking(request("u", "i0:1", "Always"));
    assert_eq!(poll(&mut running), None);
    // These two come after the registry may have been asked, so they need a pull of their own, which they share.
    let mut later = bench.asking(request("v", "i0:1", "Always"));
    let mut too = bench.asking(request("w", "i0:1", "Always"));
    assert_eq!(poll(&mut later), None);
    assert_eq!(poll(&mut too), None);
    bench.service.finish(1);
    assert!(poll(&mut running).unwrap().is_ok());
    bench.service.add_to_registry("i0:1", image("sha256:moved", 1));
    assert_eq!(poll(&mut later), None);
    bench.service.finish(1);
    assert_eq!(poll(&mut too).unwrap().unwrap().image_ref, "sha256:moved");
    assert_eq!(poll(&mut later).unwrap().unwrap().image_ref, "sha256:moved");
    assert_eq!(bench.service.pulls().len(), 2);
}

#[test]
fn what_came_while_a_pull_queued_is_not_pulled_again() {
    let check = |policies: [&str; 3], pulls: usize| {
        let bench = bench(settings(true, 0));
        let mut pods: Vec<_> = policies
            .iter()
            .enumerate()
            .map(|(number, policy)| {
                // The last two ask for the same.
                let value = number.min(1).to_string();
                let asking = request(&format!("u{number}"), "i0:1", policy);
                bench.asking(annotated(asking, "vendor.example/key", &value))
            })
            .collect();
        for pod in &mut pods {
            assert_eq!(poll(pod), None);
        }
        bench.service.finish(3);
        for pod in &mut pods {
            assert_eq!(poll(pod).unwrap().unwrap().image_ref, "sha256:0", "{policies:?}");
        }
        assert_eq!(bench.service.pulls().len(), pulls, "{policies:?}");
        bench.events()
    };
    let told = check(["IfNotPresent", "IfNotPresent", "IfNotPresent"], 1);
    assert_eq!(
        told.last().unwrap(),
        "u2/c Normal Pulled: Container image \"i0:1\" already present on machine and can be accessed by the pod"
    );
    check(["Always", "IfNotPresent", "IfNotPresent"], 1);
    // Whoever needs the newest takes the others with him.
    check(["IfNotPresent", "IfNotPresent", "Always"], 2);
    check(["IfNotPresent", "Always", "IfNotPresent"], 2);
}

#[test]
fn pulls_that_may_differ_are_not_shared() {
    let check = |key: &str, shared: bool| {
        let bench = bench(settings(false, 0));
        let mut first = bench.asking(annotated(request("u", "i0:1", "IfNotPresent"), key, "1"));
        let mut second = bench.asking(annotated(request("v", "i0:1", "IfNotPresent"), key, "2"));
        assert_eq!(poll(&mut first), None);
        assert_eq!(poll(&mut second), None);
        assert_eq!(bench.service.in_flight(), if shared { 1 } else { 2 }, "{key}");
    };
    check("io.containerd.cri.runtime-handler", false);
    // Every static pod has its own.
    check("kubernetes.io/config.hash", true);
}

#[test]
fn who_leaves_does_not_take_the_pull_along() {
    let bench = bench(settings(true, 0));
    let mut first = bench.asking(request("u", "i0:1", "IfNotPresent"));
    let mut second = bench.asking(request("v", "i0:1", "IfNotPresent"));
    let mut other = bench.asking(request("w", "i1:1", "IfNotPresent"));
    assert_eq!(poll(&mut first), None);
    assert_eq!(poll(&mut second), None);
    assert_eq!(poll(&mut other), None);
    drop(first);
    assert_eq!(bench.service.in_flight(), 1);
    // The last one cancels the call and makes place.
    drop(second);
    assert_eq!(bench.service.in_flight(), 0);
    assert_eq!(poll(&mut other), None);
    bench.service.finish(1);
    assert_eq!(poll(&mut other).unwrap().unwrap().image_ref, "sha256:1");
    assert_eq!(bench.service.pulls(), ["i0:1", "i1:1"]);
    // A cancelled pull is no failure.
    bench.service.finish(1);
    assert!(bench.ensure(request("u", "i0:1", "IfNotPresent")).is_ok());
}

#[test]
fn too_many_pulls_are_refused_and_backed_off() {
    let limits = ImagesSettings {
        serialize_pulls: false,
        registry_pull_qps: 1.0,
        registry_burst: 2,
        ..ImagesSettings::default()
    };
    let bench = bench(limits);
    bench.service.finish(9);
    let ask = |number: usize| bench.ensure(request("u", &format!("i{number}:1"), "Always"));
    assert!(ask(0).is_ok());
    assert!(ask(1).is_ok());
    bench.events();
    let failure = ask(2).unwrap_err();
    assert_eq!(
        (failure.reason, failure.message.as_str()),
        ("ErrImagePull", "pull QPS exceeded")
    );
    assert_eq!(
        bench.events(),
        [
            "u/c Normal Pulling: Pulling image \"i2:1\"",
            "u/c Warning Failed: Failed to pull image \"i2:1\": pull QPS exceeded",
            "u/c Warning Failed: Error: ErrImagePull",
        ]
    );
    // What is there needs no permission.
    assert!(bench.ensure(request("u", "here:1", "IfNotPresent")).is_ok());
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(ask(2).unwrap_err().reason, "ImagePullBackOff");
    assert!(ask(3).is_ok());
    bench.clock.advance(Duration::from_secs(9));
    assert!(ask(2).is_ok());
    assert_eq!(bench.service.pulls(), ["i0:1", "i1:1", "i3:1", "i2:1"]);
    let sleeping = bench.asking(request("u", "i4:1", "Always")).now_or_never();
    assert!(sleeping.is_some(), "nobody waits for a permission");
}
