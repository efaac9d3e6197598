//! The end of volumes.

use std::sync::Arc;
use std::time::Duration;

use rubelet_model::observation::PodUid;
use rubelet_ports::PodVolumes;
use rubelet_sim::volumes::VolumeFaults;

use crate::bed::{Bed, all_kinds, pod, volume};

#[test]
fn nothing_is_left() {
    let bed = Bed::new();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    assert_ne!(bed.left(), [""; 0]);
    bed.tear_down("u1").unwrap();
    assert_eq!(bed.left(), [""; 0]);
    assert!(
        bed.files.exists(std::path::Path::new("/srv/host")),
        "the node's own path stays"
    );
    bed.tear_down("u1").unwrap();
    bed.tear_down("never-there").unwrap();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    assert_eq!(
        bed.machine.leftovers().len(),
        2,
        "what stood before does not count any more"
    );
}

#[test]
fn it_waits_for_who_still_sets_up() {
    // However far the work is when the caller stops waiting for it.
    for steps in 0..60 {
        let bed = Bed::new();
        let new = Arc::new(pod("u1", all_kinds()));
        let asked = bed.ask(|actor| Box::pin(async move { actor.set_up(new).await }));
        for _ in 0..steps {
            bed.step();
        }
        drop(asked);
        bed.tear_down("u1").unwrap();
        assert_eq!(bed.left(), [""; 0], "after {steps} steps");
    }
}

#[test]
fn failures_wait_and_are_told_once() {
    let bed = Bed::new();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    bed.machine.set_faults(VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    });
    let failure = bed.tear_down("u1").unwrap_err();
    assert!(
        failure
            .message
            .contains("volume \"disk\": remove: input/output error"),
        "{failure}"
    );
    assert_eq!(failure.retry_at, Some(bed.now().plus(Duration::from_millis(500))));
    let _ = bed.batches();
    bed.tear_down("u1").unwrap_err();
    assert_eq!(bed.batches(), [], "its backoff is not over");
    bed.machine.set_faults(VolumeFaults::default());
    bed.pass(Duration::from_millis(500));
    bed.tear_down("u1").unwrap();
    assert_eq!(bed.left(), [""; 0]);
}

#[test]
fn volumes_that_nobody_knows_stay() {
    let bed = Bed::new();
    let foreign = volume("u1", "kubernetes.io~csi", "pv");
    bed.files.make_directory(&foreign);
    let failure = bed.tear_down("u1").unwrap_err();
    assert_eq!(
        failure.message,
        "rubelet has no plugin for the volume at /var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv: unmount it and remove the \
         directory, or let upstream's kubelet take it down"
    );
    assert!(bed.files.exists(&foreign));
}

#[test]
fn pods_are_forgotten() {
    let bed = Bed::new();
    for number in 0..5 {
        let uid = format!("u{number}");
        bed.set_up(&pod(&uid, all_kinds())).unwrap();
        let (first, second) = (PodUid::from(uid.as_str()), PodUid::from(uid.as_str()));
        let mut one = bed.ask(|actor| Box::pin(async move { actor.tear_down(&first).await }));
        let mut other = bed.ask(|actor| Box::pin(async move { actor.tear_down(&second).await }));
        bed.answer_within(&mut one, Duration::from_secs(5)).unwrap();
        bed.answer_within(&mut other, Duration::from_secs(5)).unwrap();
    }
    assert_eq!(bed.actor.known_pods(), 0);
}
