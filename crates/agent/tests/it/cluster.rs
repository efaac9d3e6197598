//! Pods of a cluster, as its users make them and see them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use rubelet_ports::PodEvent;
use rubelet_sim::node;
use serde_json::{Value, json};

use crate::bed::{Bed, IMAGE, SOON};

/// A pod as the API server has it, bound to the node.
#[derive(Clone, Debug)]
pub(crate) struct ApiPod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) spec: Value,
}

impl ApiPod {
    /// `args` is the script of the container's process, such as `runs=500:1,forever`.
    pub(crate) fn new(name: &str, args: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            spec: json!({
                "nodeName": node::NODE_NAME, "restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true, "securityContext": {},
                "containers": [{
                    "name": "main", "image": IMAGE, "args": args, "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {},
                }],
            }),
        }
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.uid);
        self
    }

    pub(crate) fn spec(mut self, key: &str, value: Value) -> Self {
        self.spec[key] = value;
        self
    }

    pub(crate) fn container(mut self, key: &str, value: Value) -> Self {
        self.spec["containers"][0][key] = value;
        self
    }

    pub(crate) fn object(&self) -> Pod {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": self.spec,
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid},
        });
        serde_json::from_value(object).expect("a pod")
    }
}

pub(crate) fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == type_)
}

pub(crate) fn holds(status: &PodStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|condition| condition.status == "True")
}

impl Bed {
    pub(crate) fn create(&mut self, pod: &ApiPod) {
        self.api().create(pod.object());
    }

    pub(crate) fn create_and_wait(&mut self, pod: &ApiPod) {
        self.create(pod);
        let uid = pod.uid.clone();
        self.wait(&format!("{uid} is ready at the API server"), SOON, |bed| {
            holds(&bed.api_status(&uid), "Ready")
        });
    }

    /// What the API server says of the pod; empty when it has none.
    pub(crate) fn api_status(&self, uid: &str) -> PodStatus {
        let pod = self.api().pod_of(uid);
        pod.and_then(|pod| pod.status.clone()).unwrap_or_default()
    }

    pub(crate) fn api_phase(&self, uid: &str) -> String {
        self.api_status(uid).phase.unwrap_or_default()
    }

    /// The status of the pod's first container at the API server.
    pub(crate) fn api_container(&self, uid: &str) -> ContainerStatus {
        let statuses = self.api_status(uid).container_statuses.unwrap_or_default();
        statuses.into_iter().next().unwrap_or_default()
    }

    pub(crate) fn waiting_reason(&self, uid: &str) -> (String, String) {
        let state = self.api_container(uid).state.unwrap_or_default();
        let waiting = state.waiting.unwrap_or_default();
        (
            waiting.reason.unwrap_or_default(),
            waiting.message.unwrap_or_default(),
        )
    }

    /// The mirror of a static pod.
    pub(crate) fn mirror_uid(&self, name: &str) -> Option<String> {
        let name = format!("{name}-{}", node::NODE_NAME);
        let pods = self.api().pods();
        let mirror = pods
            .iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(&name));
        mirror.and_then(|pod| pod.metadata.uid.clone())
    }

    pub(crate) fn wait_gone(&mut self, uid: &str, limit: Duration) {
        self.wait(&format!("{uid} is gone from the API server"), limit, |bed| {
            bed.api().pod_of(uid).is_none()
        });
    }

    /// The events of a pod of the cluster with this reason.
    pub(crate) fn api_events(&self, name: &str, reason: &str) -> Vec<PodEvent> {
        self.events_of(name, reason)
    }
}
