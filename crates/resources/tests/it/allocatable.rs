//! What is left for pods.

use std::collections::BTreeMap;

use rubelet_resources::allocatable::{Capacity, PodCount, allocatable};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::node_cgroup::Reservation;

fn texts(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    list.iter().map(owned).collect()
}

fn capacity() -> Capacity {
    Capacity {
        processors: 4,
        memory_bytes: 8 << 30,
        ephemeral_storage_bytes: Some(100 << 30),
        huge_pages: vec![(2 << 20, 10), (1 << 30, 1)],
    }
}

fn check(kube: &[(&str, &str)], eviction: &[(&str, &str)], expected: Result<&[(&str, i64)], &str>) {
    let count = PodCount {
        max: 110,
        per_core: 0,
    };
    let reservation = Reservation::read(&BTreeMap::new(), &texts(kube)).expect("good amounts");
    let left = allocatable(&capacity().amounts(count), &reservation, &texts(eviction));
    match (left, expected) {
        (Ok(left), Ok(expected)) => {
            for (name, value) in expected {
                assert_eq!(left.value(name), *value, "{name}");
            }
        }
        (Err(problem), Err(text)) => assert_eq!(problem.to_string(), text),
        (left, expected) => panic!("{left:?}, not {expected:?}"),
    }
}

#[test]
fn reservations_and_thresholds_are_taken_off() {
    let pages = (20 << 20) + (1 << 30);
    check(
        &[],
        &[],
        Ok(&[
            ("cpu", 4),
            ("memory", (8 << 30) - pages),
            ("pods", 110),
            ("hugepages-2Mi", 20 << 20),
            ("hugepages-1Gi", 1 << 30),
            ("ephemeral-storage", 100 << 30),
        ]),
    );
    check(
        &[
            ("cpu", "1"),
            ("memory", "1Gi"),
            ("ephemeral-storage", "1Gi"),
            ("pid", "100"),
        ],
        &[
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.available", "15%"),
        ],
        Ok(&[
            ("cpu", 3),
            ("memory", (7 << 30) - (100 << 20) - pages),
            // Single precision: a tenth is a little more than a tenth.
            ("ephemeral-storage", (99 << 30) - 10_737_418_400),
            ("pid", 0),
        ]),
    );
    check(
        &[],
        &[("memory.available", "100%"), ("nodefs.available", "0%")],
        Ok(&[("memory", (8 << 30) - pages)]),
    );
    check(&[("memory", "8Gi")], &[], Ok(&[("memory", 0)]));
    check(
        &[("memory", "8Gi")],
        &[("memory.available", "1")],
        Err("memory: 8589934593 are kept from pods, but the node has only 8Gi"),
    );
    check(
        &[],
        &[("memory.available", "-5%")],
        Err(
            "evictionHard: memory.available \"-5%\" is neither a positive quantity nor a percentage up to 100%",
        ),
    );
}

#[test]
fn the_number_of_pods_has_two_limits() {
    let pods = |max, per_core| capacity().amounts(PodCount { max, per_core }).value("pods");
    assert_eq!(
        [pods(110, 0), pods(110, 10), pods(10, 10), pods(5, 2)],
        [110, 40, 10, 5]
    );
    assert_eq!(Amounts::default().value("pods"), 0);
}
