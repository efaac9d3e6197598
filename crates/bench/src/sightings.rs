//! What the API server says of the pods, and when: a watch, so that nobody has to ask while others are measured.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// A pod as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) uid: String,
    pub(super) is_running: bool,
    /// Running and Ready.
    pub(super) is_ready: bool,
    /// The runtime's ids of its containers.
    pub(super) container_ids: Vec<String>,
}

/// Pods by name.
pub(super) type Pods = BTreeMap<String, Sighting>;

struct Change {
    at: Instant,
    name: String,
    /// Nothing when it is gone.
    pod: Option<Sighting>,
}

/// The pods as they were last seen. Dropping it ends the watch.
pub(super) struct Sightings {
    changes: UnboundedReceiver<Result<Change>>,
    pods: Pods,
    watching: JoinHandle<()>,
}

impl Sightings {
    /// Begins with the pods that are there.
    pub(super) async fn start(api: Api<Pod>) -> Result<Self> {
        let list = api.list(&ListParams::default()).await.context("list pods")?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        let pods = list.items.iter().map(|pod| (pod.name_any(), sighting(pod)));
        let pods = pods.collect();
        let (sender, changes) = unbounded_channel();
        let watching = tokio::spawn(async move {
            if let Err(error) = watch(&api, version, &sender).await {
                let _ = sender.send(Err(error));
            }
        });
        Ok(Self {
            changes,
            pods,
            watching,
        })
    }

    /// The pods as they were last seen.
    pub(super) fn pods(&self) -> &Pods {
        &self.pods
    }

    /// Waits until the pods are as wanted; gives when that was seen.
    pub(super) async fn wait(
        &mut self,
        what: &str,
        deadline: Duration,
        is_so: impl Fn(&Pods) -> bool,
    ) -> Result<Instant> {
        let end = tokio::time::Instant::now() + deadline;
        let mut at = Instant::now();
        while !is_so(&self.pods) {
            let Ok(next) = tokio::time::timeout_at(end, self.changes.recv()).await else {
                let ready = self.pods.values().filter(|pod| pod.is_ready).count();
                bail!(
                    "{what}: not so after {deadline:?}; {ready} of {} pods are Ready",
                    self.pods.len()
                );
            };
            let change = next.context("the watch ended")??;
            at = change.at;
            match change.pod {
                Some(pod) => self.pods.insert(change.name, pod),
                None => self.pods.remove(&change.name),
            };
        }
        Ok(at)
    }
}

impl Drop for Sightings {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn watch(api: &Api<Pod>, mut version: String, sender: &UnboundedSender<Result<Change>>) -> Result<()> {
    // The API server ends every watch after a while; the next one goes on where it was.
    loop {
        let stream = api.watch(&WatchParams::default(), &version).await;
        let mut stream = std::pin::pin!(stream.context("watch pods")?.into_stream());
        while let Some(event) = stream.next().await {
            let at = Instant::now();
            let (pod, is_gone) = match event.context("the watch of pods")? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                WatchEvent::Deleted(pod) => (pod, true),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => bail!("the watch of pods: {}", status.message),
            };
            version = pod.resource_version().unwrap_or_default();
            let change = Change {
                at,
                name: pod.name_any(),
                pod: (!is_gone).then(|| sighting(&pod)),
            };
            if sender.send(Ok(change)).is_err() {
                return Ok(());
            }
        }
    }
}

fn sighting(pod: &Pod) -> Sighting {
    let status = pod.status.clone().unwrap_or_default();
    let is_running = status.phase.as_deref() == Some("Running");
    let conditions = status.conditions.unwrap_or_default();
    let says_ready = conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let ids = status.container_statuses.unwrap_or_default().into_iter();
    let ids = ids.filter_map(|container| container.container_id);
    Sighting {
        uid: pod.uid().unwrap_or_default(),
        is_ready: is_running && says_ready,
        is_running,
        container_ids: ids
            .map(|id| id.split_once("://").map_or(id.clone(), |(_, id)| id.to_owned()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_read() {
        let check = |status: serde_json::Value, is_ready: bool, is_running: bool, ids: &[&str]| {
            let pod = serde_json::from_value(
                json!({ "metadata": { "name": "a", "uid": "1-2" }, "status": status }),
            )
            .unwrap();
            let expected = Sighting {
                uid: "1-2".to_owned(),
                is_ready,
                is_running,
                container_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            };
            assert_eq!(sighting(&pod), expected, "{status}");
        };
        let ready = |status: &str| json!([{ "type": "Ready", "status": status }]);
        let containers = json!([{
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "containerID": "containerd://abc",
        }]);
        check(json!({}), false, false, &[]);
        check(
            json!({ "phase": "Pending", "conditions": ready("True") }),
            false,
            false,
            &[],
        );
        check(
            json!({ "phase": "Running", "conditions": ready("False") }),
            false,
            true,
            &[],
        );
        check(
            json!({ "phase": "Running", "conditions": ready("True"), "containerStatuses": containers }),
            true,
            true,
            &["abc"],
        );
    }
}
