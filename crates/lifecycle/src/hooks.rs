//! Lifecycle hooks: what one does, its form in a container's annotation, and the messages of its failures.
//!
//! Owns the reading of handlers and the messages. The executor of a start or a stop runs the hook.

use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ExecAction, HTTPGetAction, LifecycleHandler, Pod, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rubelet_model::message::bounded;
use rubelet_model::observation::ContainerObservation;
use serde_json::Value;

use crate::configuration::downward::quoted;
use crate::plan::pod_text;

/// The reason that a container waits with after its postStart hook failed.
pub const POST_START_ERROR: &str = "PostStartHookError";
/// The reason of the event, and of the container's kill.
pub const FAILED_POST_START: &str = "FailedPostStartHook";
pub const FAILED_PRE_STOP: &str = "FailedPreStopHook";
/// The event of a hook whose HTTPS request met a plain HTTP server and succeeded when it was repeated over HTTP.
pub const HTTP_FALLBACK: &str = "LifecycleHTTPFallback";

/// What a hook does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    Exec {
        command: Vec<String>,
    },
    Http(HttpHook),
    Sleep {
        seconds: i64,
    },
    /// The handler has no valid action; running it fails.
    Invalid {
        why: String,
    },
}

/// A request to make; only that it is answered counts. Header values may be secret.
#[derive(Clone, PartialEq)]
pub struct HttpHook {
    pub action: HTTPGetAction,
    /// The container's, for ports by name.
    pub ports: Vec<ContainerPort>,
}

/// The fields hold texts and whole numbers only, but the API's types do not implement `Eq`.
impl Eq for HttpHook {}

impl fmt::Debug for HttpHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHook")
            .field("scheme", &self.action.scheme)
            .field("host", &self.action.host)
            .field("port", &self.action.port)
            .field("path", &self.action.path)
            .finish_non_exhaustive()
    }
}

impl Hook {
    fn read(handler: &LifecycleHandler, ports: &[ContainerPort]) -> Self {
        if let Some(ExecAction { command }) = &handler.exec {
            let command = command.clone().unwrap_or_default();
            return Self::Exec { command };
        }
        if let Some(action) = &handler.http_get {
            return Self::Http(HttpHook {
                action: action.clone(),
                ports: ports.to_vec(),
            });
        }
        match &handler.sleep {
            Some(sleep) => Self::Sleep {
                seconds: sleep.seconds,
            },
            None => Self::Invalid {
                why: format!("invalid handler: {}", handler_text(handler)),
            },
        }
    }

    /// The message in the container's status when the hook failed, cut to the limit of messages.
    #[must_use]
    pub fn failure(&self, pod: &Pod, container: &str, error: &str, output: &str) -> String {
        let place = format!("for Container {container:?} in Pod {:?}", pod_text(pod));
        bounded(match self {
            Self::Exec { command } => format!(
                "Exec lifecycle hook ([{}]) {place} failed - error: {error}, message: {}",
                command.join(" "),
                quoted(output)
            ),
            Self::Http(HttpHook { action, .. }) => {
                let path = action.path.as_deref().unwrap_or_default();
                format!("HTTP lifecycle hook ({path}) {place} failed - error: {error}")
            }
            Self::Sleep { seconds } => {
                format!("Sleep lifecycle hook ({seconds}) {place} failed - error: {error}")
            }
            Self::Invalid { .. } => format!("Cannot run handler: {error}"),
        })
    }
}

/// The hook that runs right after the container was started.
#[must_use]
pub fn post_start(container: &Container) -> Option<Hook> {
    let handler = container.lifecycle.as_ref()?.post_start.as_ref()?;
    Some(Hook::read(
        handler,
        container.ports.as_deref().unwrap_or_default(),
    ))
}

/// The hook that runs before the container is stopped: from the pod's definition, else from the annotation that the container got
/// when it was created.
#[must_use]
pub fn pre_stop(definition: Option<&Container>, seen: &ContainerObservation) -> Option<Hook> {
    if let Some(container) = definition {
        let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
        return Some(Hook::read(
            handler,
            container.ports.as_deref().unwrap_or_default(),
        ));
    }
    // An annotation that cannot be read counts as no hook.
    let handler: LifecycleHandler = serde_json::from_str(seen.recorded.pre_stop_handler.as_ref()?).ok()?;
    let ports: Vec<ContainerPort> = seen
        .recorded
        .ports
        .as_ref()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    Some(Hook::read(&handler, &ports))
}

/// A handler as a container's annotation has it, with its fields in upstream's order and empty ones left out.
#[must_use]
pub fn handler_text(handler: &LifecycleHandler) -> String {
    let json = |text: &str| Value::from(text).to_string();
    let exec = handler.exec.as_ref().map(|exec| {
        let command: Vec<String> = exec.command.iter().flatten().map(|word| json(word)).collect();
        if command.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{\"command\":[{}]}}", command.join(","))
        }
    });
    let http = handler.http_get.as_ref().map(http_text);
    let tcp = handler.tcp_socket.as_ref().map(|TCPSocketAction { host, port }| {
        let fields = [
            ("port", Some(port_text(port))),
            ("host", set(host.as_ref()).map(json)),
        ];
        object(fields)
    });
    let sleep = handler
        .sleep
        .as_ref()
        .map(|sleep| format!("{{\"seconds\":{}}}", sleep.seconds));
    object([
        ("exec", exec),
        ("httpGet", http),
        ("tcpSocket", tcp),
        ("sleep", sleep),
    ])
}

fn set(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

fn port_text(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => Value::from(name.as_str()).to_string(),
    }
}

fn http_text(get: &HTTPGetAction) -> String {
    let json = |text: &str| Value::from(text).to_string();
    let headers: Vec<String> = get
        .http_headers
        .iter()
        .flatten()
        .map(|header| {
            let (name, value) = (json(&header.name), json(&header.value));
            format!("{{\"name\":{name},\"value\":{value}}}")
        })
        .collect();
    object([
        ("path", set(get.path.as_ref()).map(json)),
        ("port", Some(port_text(&get.port))),
        ("host", set(get.host.as_ref()).map(json)),
        ("scheme", set(get.scheme.as_ref()).map(json)),
        (
            "httpHeaders",
            (!headers.is_empty()).then(|| format!("[{}]", headers.join(","))),
        ),
    ])
}

fn object<const N: usize>(fields: [(&str, Option<String>); N]) -> String {
    let mut text = String::from("{");
    for (name, value) in fields {
        if let Some(value) = value {
            let comma = if text.len() > 1 { "," } else { "" };
            // Writing into a text cannot fail.
            let _ = write!(text, "{comma}\"{name}\":{value}");
        }
    }
    text.push('}');
    text
}
