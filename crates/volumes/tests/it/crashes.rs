//! The process may die at any step; the next one finds its way from what is on the machine.

use std::sync::Arc;

use rubelet_model::observation::PodUid;
use rubelet_ports::PodVolumes;

use crate::bed::{Bed, all_kinds, every_kind, pod, volume};

/// More than the work has.
const STEPS: usize = 120;

#[test]
fn a_crash_while_setting_up_is_healed_by_setting_up() {
    for steps in 0..STEPS {
        let mut bed = Bed::new();
        let new = Arc::new(pod("u1", every_kind()));
        let _asked = bed.ask(|actor| Box::pin(async move { actor.set_up(new).await }));
        for _ in 0..steps {
            bed.step();
        }
        bed.restart();
        bed.set_up(&pod("u1", every_kind())).unwrap();
        assert_eq!(bed.machine.leftovers().len(), 4, "after {steps} steps");
        let file = volume("u1", "kubernetes.io~downward-api", "info").join("revision");
        assert_eq!(bed.files.content(&file).unwrap(), b"1");
        let file = volume("u1", "kubernetes.io~configmap", "map").join("b");
        assert_eq!(bed.files.content(&file).unwrap(), b"2");
    }
}

#[test]
fn a_crash_while_setting_up_leaks_nothing() {
    for steps in 0..STEPS {
        let mut bed = Bed::new();
        let new = Arc::new(pod("u1", every_kind()));
        let _asked = bed.ask(|actor| Box::pin(async move { actor.set_up(new).await }));
        for _ in 0..steps {
            bed.step();
        }
        bed.restart();
        bed.tear_down("u1").unwrap();
        assert_eq!(bed.left(), [""; 0], "after {steps} steps");
    }
}

#[test]
fn a_crash_while_taking_down_leaks_nothing() {
    for steps in 0..STEPS {
        let mut bed = Bed::new();
        bed.set_up(&pod("u1", every_kind())).unwrap();
        let uid = PodUid::from("u1");
        let _asked = bed.ask(|actor| Box::pin(async move { actor.tear_down(&uid).await }));
        for _ in 0..steps {
            bed.step();
        }
        bed.restart();
        bed.tear_down("u1").unwrap();
        assert_eq!(bed.left(), [""; 0], "after {steps} steps");
    }
}

#[test]
fn what_stands_is_left_as_it_is_after_a_crash() {
    let mut bed = Bed::new();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    let data = volume("u1", "kubernetes.io~empty-dir", "memory").join("data");
    bed.files.place(&data, b"of a container");
    bed.restart();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    assert_eq!(bed.files.content(&data).unwrap(), b"of a container");
    assert_eq!(bed.machine.leftovers().len(), 2);
}
