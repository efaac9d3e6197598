use std::time::Duration;

use rubelet_lifecycle::backoff::{BackoffKey, BackoffLimits, CrashBackoff};
use rubelet_model::observation::PodUid;
use serde_json::json;

use crate::sample::{at, pod};

fn key(image: &str) -> BackoffKey {
    let pod = pod(json!({"containers": [{"name": "a", "image": image}]}));
    BackoffKey::new(&pod, &pod.spec.as_ref().expect("a specification").containers[0])
}

#[test]
fn limits_follow_gates_and_configuration() {
    let check = |reduced: bool, max: Option<u64>, expected: (u64, u64)| {
        let limits = BackoffLimits::new(reduced, max.map(Duration::from_secs));
        assert_eq!((limits.initial.as_secs(), limits.max.as_secs()), expected);
    };
    check(false, None, (10, 300));
    check(true, None, (1, 60));
    check(false, Some(300), (10, 300));
    check(false, Some(5), (5, 5));
    check(true, Some(5), (1, 5));
}

#[test]
fn delays_double_up_to_the_limit() {
    let mut backoff = CrashBackoff::default();
    let key = key("image");
    let mut now = 1000;
    assert_eq!(
        backoff.wait(&key, at(now), at(now)),
        None,
        "the first restart is at once"
    );
    for expected in [10, 20, 40, 80, 160, 300, 300] {
        backoff.step(key.clone(), at(now), at(now));
        let wait = backoff.wait(&key, at(now), at(now)).expect("a delay");
        assert_eq!(wait.delay.as_secs(), expected);
        assert_eq!(wait.until, at(now + i64::try_from(expected).expect("small")));
        now += i64::try_from(expected).expect("small");
        assert_eq!(
            backoff.wait(&key, at(now - i64::try_from(expected).expect("small")), at(now)),
            None
        );
    }
}

#[test]
fn a_long_run_begins_anew() {
    let mut backoff = CrashBackoff::default();
    let key = key("image");
    backoff.step(key.clone(), at(0), at(0));
    backoff.step(key.clone(), at(10), at(10));
    assert_eq!(
        backoff
            .wait(&key, at(610), at(610))
            .map(|wait| wait.delay.as_secs()),
        Some(20)
    );
    assert_eq!(backoff.wait(&key, at(611), at(611)), None);
    backoff.step(key.clone(), at(611), at(611));
    assert_eq!(
        backoff
            .wait(&key, at(612), at(612))
            .map(|wait| wait.delay.as_secs()),
        Some(10)
    );
}

#[test]
fn another_image_has_its_own_delay() {
    let mut backoff = CrashBackoff::default();
    backoff.step(key("one"), at(0), at(0));
    assert!(backoff.wait(&key("one"), at(1), at(1)).is_some());
    assert!(backoff.wait(&key("two"), at(1), at(1)).is_none());
}

#[test]
fn an_exit_in_the_future_does_not_hold_a_container_back() {
    let mut backoff = CrashBackoff::default();
    backoff.step(key("image"), at(10_000), at(10_000));
    assert!(backoff.wait(&key("image"), at(10_001), at(10_001)).is_some());
    assert_eq!(backoff.wait(&key("image"), at(10_001), at(5)), None);
}

#[test]
fn old_entries_and_gone_pods_are_forgotten() {
    let mut backoff = CrashBackoff::default();
    backoff.step(key("image"), at(0), at(0));
    backoff.forget_old(at(600));
    assert_eq!(backoff.len(), 1);
    backoff.forget_old(at(601));
    assert!(backoff.is_empty());
    backoff.step(key("image"), at(0), at(0));
    backoff.forget_pod(&PodUid::from("other"));
    assert_eq!(backoff.len(), 1);
    backoff.forget_pod(&PodUid::from("uid"));
    assert!(backoff.is_empty());
}
