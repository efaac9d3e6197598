//! ConfigMaps and Secrets that are followed.

use std::time::Duration;

use k8s_openapi::ByteString;
use rubelet_ports::PodObjects as _;
use rubelet_ports::api::ApiErrorKind;
use serde_json::json;

use crate::api::Mood;
use crate::bed::{Bed, config_map, immutable, not_found, pod, unavailable, with_variables, with_volume};

const LONG: Duration = Duration::from_secs(30);
const UNREACHABLE: Mood = Mood::Fails(ApiErrorKind::Unreachable);

#[tokio::test(start_paused = true)]
async fn two_pods_share_one_watch_until_the_last_has_gone() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    bed.register("q", with_variables("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    assert_eq!(bed.api.config_maps.follows(), (1, 1));
    assert_eq!(bed.api.config_maps.gets(), 0);
    bed.nobody_told(LONG).await;

    bed.api.config_maps.put(config_map("a", "2"));
    bed.told(&["p", "q"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");

    bed.unregister("p");
    bed.api.config_maps.put(config_map("a", "3"));
    bed.told(&["q"]).await;
    bed.unregister("q");
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (1, 0));
    let refused = bed.config_map("a").await;
    assert_eq!(refused, Err(unavailable("object \"n\"/\"a\" not registered")));
    bed.nobody_told(LONG).await;
}

#[tokio::test(start_paused = true)]
async fn what_no_pod_refers_to_is_refused() {
    let bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("b"));
    let refused = bed.config_map("a").await;
    assert_eq!(refused, Err(unavailable("object \"n\"/\"a\" not registered")));
    // A Secret of that name is another object.
    assert!(bed.objects.secret("n", "b").await.is_err());
    assert_eq!(bed.api.secrets.follows(), (0, 0));
    assert_eq!(bed.api.config_maps.gets() + bed.api.secrets.gets(), 0);
}

#[tokio::test(start_paused = true)]
async fn objects_are_read_ahead_and_telling_a_pod_again_costs_nothing() {
    let bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    let pod = bed.register("p", with_volume("a"));
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (1, 1));
    for _ in 0..3 {
        bed.objects.register(&pod);
        bed.register("p", with_volume("a"));
    }
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (1, 1));
    assert_eq!(bed.api.services.follows(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changes_lets_go_of_what_it_had() {
    let bed = Bed::new();
    bed.register("p", with_volume("a"));
    bed.settle().await;
    bed.register("p", with_volume("b"));
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (2, 1));
    assert_eq!(
        bed.config_map("b").await,
        Err(not_found("configmap \"b\" not found"))
    );
    assert!(!bed.config_map("a").await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn a_pod_hears_of_an_object_that_comes_goes_and_comes_again() {
    let mut bed = Bed::new();
    bed.register("p", with_volume("a"));
    assert_eq!(
        bed.config_map("a").await,
        Err(not_found("configmap \"a\" not found"))
    );
    bed.api.config_maps.put(config_map("a", "1"));
    bed.told(&["p"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.delete("n", "a");
    bed.told(&["p"]).await;
    assert!(bed.config_map("a").await.unwrap_err().is_not_found());
    bed.api.config_maps.put(config_map("a", "2"));
    bed.told(&["p"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
}

#[tokio::test(start_paused = true)]
async fn immutable_objects_are_not_followed_and_a_new_pod_gets_the_present_one() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(immutable("a", "1"));
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (1, 0));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    assert_eq!(bed.api.config_maps.follows(), (1, 0));

    // It was replaced while it was not followed.
    bed.api.config_maps.delete("n", "a");
    bed.api.config_maps.put(immutable("a", "2"));
    bed.nobody_told(LONG).await;
    bed.register("q", with_volume("a"));
    bed.told(&["p", "q"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_becomes_immutable_is_let_go() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.put(immutable("a", "1"));
    bed.told(&["p"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    assert_eq!(bed.api.config_maps.follows(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_bridged_and_what_happened_in_it_is_told_after_it() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.api.config_maps.put(config_map("b", "1"));
    bed.register("p", with_volume("a"));
    bed.register("q", with_volume("b"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.set(UNREACHABLE, UNREACHABLE);
    bed.settle().await;
    bed.api.config_maps.put(config_map("a", "2"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    // A pod that comes in the outage has to wait for the end of it.
    bed.register("r", with_volume("c"));
    assert_eq!(bed.config_map("c").await, Err(unavailable("call: Unreachable")));
    bed.nobody_told(LONG).await;

    bed.api.config_maps.put(config_map("c", "1"));
    bed.api.config_maps.set(Mood::Well, Mood::Well);
    bed.told(&["p", "r"]).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    assert_eq!(bed.config_map("c").await.unwrap(), "1");
    bed.nobody_told(LONG).await;
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_directly_when_following_is_late_or_fails() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.api.config_maps.set(Mood::Hangs, Mood::Well);
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    assert_eq!(bed.elapsed(), Duration::from_secs(1));
    assert_eq!(bed.api.config_maps.gets(), 1);

    // Not yet allowed: it is asked for at once.
    bed.api
        .config_maps
        .set(Mood::Fails(ApiErrorKind::Forbidden), Mood::Well);
    bed.settle().await;
    let before = bed.elapsed();
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    assert_eq!(bed.elapsed(), before);

    // Nothing is new for the pod when following begins at last, and everything when it is not what was answered.
    bed.api.config_maps.set(Mood::Well, Mood::Well);
    bed.nobody_told(LONG).await;
    assert_eq!(bed.api.config_maps.follows(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn all_who_ask_directly_at_a_time_share_one_question() {
    for mood in [Mood::Well, Mood::Fails(ApiErrorKind::Forbidden)] {
        let bed = Bed::new();
        bed.api.config_maps.put(config_map("a", "1"));
        bed.api.config_maps.set(Mood::Hangs, mood);
        bed.register("p", with_volume("a"));
        let asked = futures_util::future::join_all((0..20).map(|_| bed.config_map("a"))).await;
        assert!(asked.iter().all(|answer| *answer == asked[0]), "{asked:?}");
        assert_eq!(bed.api.config_maps.gets(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_at_all_ends_in_an_error() {
    let bed = Bed::new();
    bed.api.config_maps.set(Mood::Hangs, Mood::Hangs);
    bed.register("p", with_volume("a"));
    let failure = bed.config_map("a").await.unwrap_err();
    assert_eq!(failure, unavailable("get configmap n/a: no result within 100 s"));
    assert_eq!(bed.elapsed(), Duration::from_secs(101));
}

#[tokio::test(start_paused = true)]
async fn what_is_only_in_variables_is_not_followed_for_ever() {
    let mut bed = Bed::new();
    bed.api.config_maps.put(config_map("a", "1"));
    bed.api.config_maps.put(config_map("b", "1"));
    bed.register("p", with_variables("a"));
    bed.register("q", with_volume("b"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.nobody_told(Duration::from_secs(299)).await;
    assert_eq!(bed.api.config_maps.follows(), (2, 2));
    bed.nobody_told(Duration::from_secs(62)).await;
    assert_eq!(bed.api.config_maps.follows(), (2, 1));

    bed.api.config_maps.put(config_map("a", "2"));
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    assert_eq!(bed.api.config_maps.follows(), (3, 2));

    // In an outage the last state is better than none.
    bed.told(&["p"]).await;
    bed.nobody_told(Duration::from_secs(362)).await;
    assert_eq!(bed.api.config_maps.follows(), (3, 1));
    bed.api.config_maps.set(UNREACHABLE, UNREACHABLE);
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    // An answer is not.
    bed.api
        .config_maps
        .set(UNREACHABLE, Mood::Fails(ApiErrorKind::Forbidden));
    assert_eq!(bed.config_map("a").await, Err(unavailable("call: Forbidden")));
}

#[tokio::test(start_paused = true)]
async fn secrets_are_bytes_and_those_of_pulls_are_read_on_demand() {
    let bed = Bed::new();
    let secret = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "n"},
            "data": {"k": "/w=="}})
    };
    bed.api.secrets.put(secret("pull"));
    bed.api.secrets.put(secret("file"));
    bed.register(
        "p",
        json!({
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "v", "secret": {"secretName": "file"}}],
        }),
    );
    bed.settle().await;
    assert_eq!(bed.api.secrets.follows(), (1, 1));
    for name in ["file", "pull"] {
        let secret = bed.objects.secret("n", name).await.unwrap();
        assert_eq!(secret.data.as_ref().unwrap()["k"], ByteString(vec![0xff]));
    }
    assert_eq!(bed.api.secrets.follows(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn many_pods_and_questions_at_once() {
    let mut bed = Bed::new();
    for number in 0..20 {
        bed.api.config_maps.put(config_map(&format!("m{number}"), "1"));
    }
    let uids: Vec<String> = (100..300).map(|number| format!("u{number}")).collect();
    for (number, uid) in uids.iter().enumerate() {
        bed.register(uid, with_volume(&format!("m{}", number % 20)));
    }
    let asked = (0..1000).map(|number| {
        let objects = bed.objects.clone();
        tokio::spawn(async move { objects.config_map("n", &format!("m{}", number % 20)).await })
    });
    for one in asked.collect::<Vec<_>>() {
        one.await.unwrap().unwrap();
    }
    assert_eq!(bed.api.config_maps.follows(), (20, 20));
    for number in 0..20 {
        bed.api.config_maps.put(config_map(&format!("m{number}"), "2"));
    }
    let expected: Vec<&str> = uids.iter().map(String::as_str).collect();
    bed.told(&expected).await;
    for uid in &uids {
        bed.unregister(uid);
    }
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows(), (20, 0));
    // A pod that comes back begins anew.
    bed.objects.register(&pod("u100", with_volume("m0")));
    assert_eq!(bed.config_map("m0").await.unwrap(), "2");
    assert_eq!(bed.api.config_maps.follows(), (21, 1));
}
