//! Objects that are not followed.

use std::time::Duration;

use rubelet_objects::ChangeDetection;
use rubelet_ports::api::ApiErrorKind;
use serde_json::json;

use crate::api::Mood;
use crate::bed::{Bed, config_map, not_found, unavailable, with_variables, with_volume};

const UNREACHABLE: Mood = Mood::Fails(ApiErrorKind::Unreachable);

fn node(ttl: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node", "annotations": {"node.alpha.kubernetes.io/ttl": ttl}}})
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_kept_object_is_good_for_as_long_as_the_node_says() {
    let bed = Bed::with(ChangeDetection::Cache, 0);
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.put(config_map("a", "2"));
    pass(59).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    pass(1).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    assert_eq!(bed.api.config_maps.gets(), 2);

    bed.api.nodes.put(node("300"));
    bed.settle().await;
    bed.api.config_maps.put(config_map("a", "3"));
    pass(299).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    bed.api.nodes.put(node("0"));
    bed.settle().await;
    assert_eq!(bed.config_map("a").await.unwrap(), "3");
    assert_eq!(bed.config_map("a").await.unwrap(), "3");
    assert_eq!(bed.api.config_maps.gets(), 4);
    assert_eq!(bed.api.config_maps.follows(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_gets_the_present_object() {
    let bed = Bed::with(ChangeDetection::Cache, 0);
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.put(config_map("a", "2"));
    bed.register("q", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    assert_eq!(
        bed.config_map("b").await,
        Err(unavailable("object \"n\"/\"b\" not registered"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_kept_object_outlives_an_outage_but_not_its_deletion() {
    let bed = Bed::with(ChangeDetection::Cache, 0);
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.set(Mood::Well, UNREACHABLE);
    pass(3600).await;
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.set(Mood::Well, Mood::Well);
    bed.api.config_maps.delete("n", "a");
    assert_eq!(
        bed.config_map("a").await,
        Err(not_found("configmap \"a\" not found"))
    );
    bed.api.config_maps.set(Mood::Well, UNREACHABLE);
    assert_eq!(bed.config_map("a").await, Err(unavailable("call: Unreachable")));
    bed.api.config_maps.set(Mood::Well, Mood::Well);
    bed.api.config_maps.put(config_map("a", "2"));
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
}

#[tokio::test(start_paused = true)]
async fn questions_at_once_make_one_call() {
    let bed = Bed::with(ChangeDetection::Cache, 0);
    bed.api.config_maps.put(config_map("a", "1"));
    bed.register("p", with_volume("a"));
    let (one, other) = tokio::join!(bed.config_map("a"), bed.config_map("a"));
    assert_eq!((one.unwrap(), other.unwrap()), ("1".to_owned(), "1".to_owned()));
    assert_eq!(bed.api.config_maps.gets(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_following_files_are_looked_at_again_and_again() {
    for detection in [ChangeDetection::Cache, ChangeDetection::Get] {
        let mut bed = Bed::with(detection, 0);
        bed.register("p", with_volume("a"));
        bed.register("q", with_variables("a"));
        bed.told(&["p"]).await;
        assert_eq!(bed.elapsed(), Duration::from_secs(60), "{detection:?}");
        bed.told(&["p"]).await;
        assert_eq!(bed.elapsed(), Duration::from_secs(120), "{detection:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn to_get_is_to_ask_each_time() {
    let bed = Bed::with(ChangeDetection::Get, 0);
    assert_eq!(
        bed.config_map("a").await,
        Err(not_found("configmap \"a\" not found"))
    );
    bed.api.config_maps.put(config_map("a", "1"));
    assert_eq!(bed.config_map("a").await.unwrap(), "1");
    bed.api.config_maps.put(config_map("a", "2"));
    assert_eq!(bed.config_map("a").await.unwrap(), "2");
    assert_eq!(bed.api.config_maps.gets(), 3);
}

#[test]
fn strategies_have_their_words() {
    let check = |word: &str, expected: Option<ChangeDetection>| {
        assert_eq!(ChangeDetection::by_name(word), expected, "{word}");
    };
    check("Watch", Some(ChangeDetection::Watch));
    check("Cache", Some(ChangeDetection::Cache));
    check("Get", Some(ChangeDetection::Get));
    check("watch", None);
    check("", None);
}
