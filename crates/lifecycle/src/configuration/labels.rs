//! Labels and annotations that the kubelet, crictl and log agents find pods and containers by.
//!
//! Owns the keys and their values. A container made by upstream's kubelet carries the same.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use rubelet_model::pod::{name_of, namespace_of, uid_text};
use serde_json::Value;

use crate::hooks::handler_text;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";

type Texts = BTreeMap<String, String>;

fn pod_identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME, name_of(pod)),
        (POD_NAMESPACE, namespace_of(pod)),
        (POD_UID, uid_text(pod)),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// The sandbox's labels: the pod's own, and the pod's identity.
pub fn sandbox_labels(pod: &Pod) -> Texts {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(pod_identity(pod));
    labels
}

/// The sandbox's annotations are the pod's.
pub fn sandbox_annotations(pod: &Pod) -> Texts {
    pod.metadata.annotations.clone().unwrap_or_default()
}

pub fn container_labels(pod: &Pod, container: &Container) -> Texts {
    let mut labels = Texts::from(pod_identity(pod));
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// The container's annotations; `extra` comes from device plugins and loses against ours.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    hash: u64,
    restart_count: u32,
    extra: &Texts,
) -> Texts {
    let mut annotations = extra.clone();
    let mut set = |key: &str, value: String| annotations.insert(key.to_owned(), value);
    set(HASH, format!("{hash:x}"));
    set(RESTART_COUNT, restart_count.to_string());
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    set(
        TERMINATION_MESSAGE_PATH,
        text(&container.termination_message_path),
    );
    set(
        TERMINATION_MESSAGE_POLICY,
        text(&container.termination_message_policy),
    );
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(DELETION_GRACE_PERIOD, seconds.to_string());
    }
    let spec = pod.spec.as_ref();
    if let Some(seconds) = spec.and_then(|spec| spec.termination_grace_period_seconds) {
        set(TERMINATION_GRACE_PERIOD, seconds.to_string());
    }
    let hooks = container.lifecycle.as_ref();
    if let Some(handler) = hooks.and_then(|hooks| hooks.pre_stop.as_ref()) {
        set(PRE_STOP_HANDLER, handler_text(handler));
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    if !ports.is_empty() {
        let ports: Vec<String> = ports.iter().map(port_text).collect();
        set(PORTS, format!("[{}]", ports.join(",")));
    }
    annotations
}

/// One port with its fields in upstream's order, empty ones left out.
fn port_text(port: &ContainerPort) -> String {
    let text = |value: &Option<String>| {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some(Value::from(value).to_string())
    };
    let fields = [
        ("name", text(&port.name)),
        (
            "hostPort",
            port.host_port
                .filter(|port| *port != 0)
                .map(|port| port.to_string()),
        ),
        ("containerPort", Some(port.container_port.to_string())),
        ("protocol", text(&port.protocol)),
        ("hostIP", text(&port.host_ip)),
    ];
    let fields: Vec<String> = fields
        .into_iter()
        .filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?)))
        .collect();
    format!("{{{}}}", fields.join(","))
}
