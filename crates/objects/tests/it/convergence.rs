//! Whatever happens, in the end every pod sees what the API server has, and only objects that a pod needs are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rubelet_ports::api::ApiErrorKind;
use serde_json::json;

use crate::api::Mood;
use crate::bed::{Bed, config_map, immutable};

const PODS: usize = 4;
const MAPS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A pod comes, or changes what it refers to.
    Register(usize, BTreeSet<usize>),
    Unregister(usize),
    Put(usize, u8),
    PutImmutable(usize),
    Delete(usize),
    Outage(bool),
    Ask(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..PODS, prop::collection::btree_set(0..MAPS, 0..3)).prop_map(|(pod, maps)| Step::Register(pod, maps)),
        2 => (0..PODS).prop_map(Step::Unregister),
        3 => (0..MAPS, any::<u8>()).prop_map(|(map, value)| Step::Put(map, value)),
        1 => (0..MAPS).prop_map(Step::PutImmutable),
        2 => (0..MAPS).prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Outage),
        3 => (0..MAPS).prop_map(Step::Ask),
        2 => (1..400_u64).prop_map(Step::Pass),
    ]
}

fn name(map: usize) -> String {
    format!("m{map}")
}

/// Half of the names are in files, the others in variables.
fn spec(maps: &BTreeSet<usize>) -> serde_json::Value {
    let volumes = maps.iter().filter(|map| *map % 2 == 0);
    let volumes: Vec<_> = volumes
        .map(|map| json!({"name": name(*map), "configMap": {"name": name(*map)}}))
        .collect();
    let sources = maps.iter().filter(|map| *map % 2 == 1);
    let sources: Vec<_> = sources
        .map(|map| json!({"configMapRef": {"name": name(*map)}}))
        .collect();
    json!({"volumes": volumes, "containers": [{"name": "c", "envFrom": sources}]})
}

async fn apply(bed: &Bed, step: &Step, pods: &mut BTreeMap<usize, BTreeSet<usize>>) {
    let maps = &bed.api.config_maps;
    match step {
        Step::Register(pod, refers) => {
            bed.register(&format!("u{pod}"), spec(refers));
            pods.insert(*pod, refers.clone());
        }
        Step::Unregister(pod) => {
            bed.unregister(&format!("u{pod}"));
            pods.remove(pod);
        }
        // An immutable one can only be deleted.
        Step::Put(map, _) | Step::PutImmutable(map)
            if maps
                .find("n", &name(*map))
                .is_some_and(|map| map.immutable == Some(true)) => {}
        Step::Put(map, value) => maps.put(config_map(&name(*map), &value.to_string())),
        Step::PutImmutable(map) => maps.put(immutable(&name(*map), "fixed")),
        Step::Delete(map) => {
            if maps.find("n", &name(*map)).is_some() {
                maps.delete("n", &name(*map));
            }
        }
        Step::Outage(true) => {
            let down = Mood::Fails(ApiErrorKind::Unreachable);
            maps.set(down, down);
        }
        Step::Outage(false) => maps.set(Mood::Well, Mood::Well),
        Step::Ask(map) => {
            let is_referred = pods.values().any(|refers| refers.contains(map));
            let answer = bed.config_map(&name(*map)).await;
            let is_refused = answer.is_err_and(|failure| failure.to_string().ends_with("not registered"));
            assert_eq!(is_refused, !is_referred, "{step:?}");
        }
        Step::Pass(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
    }
}

async fn run(steps: Vec<Step>) {
    let bed = Bed::new();
    let mut pods = BTreeMap::new();
    for step in &steps {
        apply(&bed, step, &mut pods).await;
    }
    bed.api.config_maps.set(Mood::Well, Mood::Well);
    // What has happened is seen first: an object that became immutable and was deleted at one stroke is not followed to its end.
    bed.settle().await;
    // A new pod refers to everything that is needed, so that what is immutable is looked at once more.
    let referred: BTreeSet<usize> = pods.values().flatten().copied().collect();
    bed.register("last", spec(&referred));
    bed.settle().await;
    let mut followed = 0;
    for map in &referred {
        let there = bed.api.config_maps.find("n", &name(*map));
        let expected = there.as_ref().map(|map| map.data.as_ref().unwrap()["k"].clone());
        assert_eq!(bed.config_map(&name(*map)).await.ok(), expected, "{map}");
        let is_immutable = there.is_some_and(|map| map.immutable == Some(true));
        followed += usize::from(!is_immutable);
    }
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows().1, followed);
    for pod in pods.keys() {
        bed.unregister(&format!("u{pod}"));
    }
    bed.unregister("last");
    bed.settle().await;
    assert_eq!(bed.api.config_maps.follows().1, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn everybody_knows_in_the_end(steps in prop::collection::vec(step(), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(steps));
    }
}
