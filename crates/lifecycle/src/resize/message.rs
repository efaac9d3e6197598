//! The texts of the events of a resize.
//!
//! Owns upstream's words and the summary of the pod's resources that follows them as JSON.

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_model::go_json;

use crate::allocation::checkpoint::requirements_text;

/// `Normal`: the resources are allocated, and the resize begins.
pub const STARTED_EVENT: &str = "ResizeStarted";
/// `Normal`
pub const COMPLETED_EVENT: &str = "ResizeCompleted";
/// `Warning`
pub const ERROR_EVENT: &str = "ResizeError";
/// `Warning`
pub const DEFERRED_EVENT: &str = "ResizeDeferred";
/// `Warning`
pub const INFEASIBLE_EVENT: &str = "ResizeInfeasible";

#[must_use]
pub fn started(pod: &Pod, generation: Option<i64>) -> String {
    text("started", pod, generation, "")
}

#[must_use]
pub fn completed(pod: &Pod, generation: Option<i64>) -> String {
    text("completed", pod, generation, "")
}

#[must_use]
pub fn failed(pod: &Pod, generation: Option<i64>, error: &str) -> String {
    text("error", pod, generation, error)
}

/// `reason` is `Deferred` or `Infeasible`.
#[must_use]
pub fn pending(pod: &Pod, reason: &str, message: &str) -> String {
    text(reason, pod, pod.metadata.generation, message)
}

fn text(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref());
    let regular = spec.map(|spec| spec.containers.as_slice());
    let mut parts = Vec::new();
    for (name, containers) in [("initContainers", init), ("containers", regular)] {
        let all: Vec<String> = containers.unwrap_or_default().iter().map(summary).collect();
        if !all.is_empty() {
            parts.push(format!("\"{name}\":[{}]", all.join(",")));
        }
    }
    parts.push(format!("\"generation\":{}", generation.unwrap_or_default()));
    if !error.is_empty() {
        parts.push(format!("\"error\":{}", go_json(error)));
    }
    format!("Pod resize {what}: {{{}}}", parts.join(","))
}

fn summary(container: &Container) -> String {
    let resources = container.resources.clone().unwrap_or_default();
    format!(
        "{{\"name\":{},\"resources\":{}}}",
        go_json(&container.name),
        requirements_text(&resources)
    )
}
