//! Containers that run while their pod's cgroup is gone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::cgroup::{PodCgroupPart, PodCgroupReading};
use rubelet_model::observation::PodUid;
use rubelet_ports::{CgroupError, CgroupErrorKind, PodCgroups};
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};

/// The cgroups that there are, and how often somebody looked for one.
#[derive(Default)]
struct Tree {
    pods: Mutex<BTreeSet<PodUid>>,
    looks: Mutex<usize>,
    is_hidden: Mutex<bool>,
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::new(pod.metadata.uid.clone().unwrap_or_default())
}

#[async_trait]
impl PodCgroups for Tree {
    fn hold(&self, _pod: &Arc<Pod>) {}

    fn release(&self, _uid: &PodUid) {}

    async fn create(&self, pod: &Pod) -> Result<(), CgroupError> {
        self.pods.lock().unwrap().insert(uid_of(pod));
        Ok(())
    }

    async fn exists(&self, pod: &Pod) -> Result<bool, CgroupError> {
        *self.looks.lock().unwrap() += 1;
        if *self.is_hidden.lock().unwrap() {
            return Err(CgroupError::new("/pod", CgroupErrorKind::TimedOut, "no answer"));
        }
        Ok(self.pods.lock().unwrap().contains(&uid_of(pod)))
    }

    async fn read(&self, _pod: &Pod) -> Result<Option<PodCgroupReading>, CgroupError> {
        Ok(None)
    }

    async fn update(&self, _pod: &Pod, _part: PodCgroupPart) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        self.pods.lock().unwrap().remove(uid);
        Ok(())
    }

    async fn pods(&self) -> Result<BTreeSet<PodUid>, CgroupError> {
        Ok(self.pods.lock().unwrap().clone())
    }
}

/// A node with these pods, whose agent is about to start again.
fn killed(pods: &[&PodText]) -> (Bed, Arc<Tree>) {
    let tree = Arc::new(Tree::default());
    let mut bed = Bed::new();
    bed.cgroups = tree.clone();
    bed.start();
    for pod in pods {
        bed.put_and_wait(pod);
    }
    bed.kill();
    assert_eq!(*tree.looks.lock().unwrap(), 0, "nobody looks while pods start");
    (bed, tree)
}

fn calls(bed: &Bed, method: &str, about: &str) -> usize {
    bed.line.sent_about(method, about).len()
}

#[test]
fn a_pod_whose_cgroup_is_gone_starts_again_under_a_new_one() {
    let once = PodText::new("once", &[]).spec("restartPolicy", json!("Never"));
    let (mut bed, tree) = killed(&[&PodText::new("web", &[]), &once]);
    tree.pods.lock().unwrap().clear();
    bed.start();
    bed.wait("it runs again", Duration::from_secs(30), |bed| {
        calls(bed, "StartContainer", "web/main") == 2 && bed.is_ready("web")
    });
    assert_eq!(calls(&bed, "StopContainer", "web/main"), 1);
    assert_eq!(calls(&bed, "RunPodSandbox", "web"), 2);
    assert!(tree.pods.lock().unwrap().contains(&PodUid::from("uid-web")));
    bed.wait("what runs once has ended", SOON, |bed| {
        ["Failed", "Succeeded"].contains(&bed.phase("once").as_str())
    });
    assert_eq!(calls(&bed, "StartContainer", "once/main"), 1);
    assert_eq!(*tree.looks.lock().unwrap(), 2, "once for each of them");
}

#[test]
fn nobody_is_stopped_whose_cgroup_is_there_or_cannot_be_seen() {
    for is_hidden in [false, true] {
        let (mut bed, tree) = killed(&[&PodText::new("web", &[])]);
        if is_hidden {
            tree.pods.lock().unwrap().clear();
            *tree.is_hidden.lock().unwrap() = true;
        }
        bed.start();
        bed.wait("it is adopted", SOON, |bed| bed.is_ready("web"));
        bed.pass(Duration::from_secs(200));
        assert_eq!(calls(&bed, "StopContainer", "web/main"), 0, "{}", bed.trace());
        assert_eq!(*tree.looks.lock().unwrap(), 1);
    }
}
