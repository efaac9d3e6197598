//! The definition of one probe, read once.
//!
//! Owns the translation of the API's fields into numbers and one call with everything resolved: the port's number, the address,
//! the command with its variables. Where that fails, it keeps the message that the probe's event will have.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use rubelet_lifecycle::configuration::expansion::expand;
use rubelet_lifecycle::plan::pod_text;
use rubelet_model::pod::uid_of;
use rubelet_ports::{GrpcCall, HttpCall, HttpPurpose, ProbeKind, TcpCall, container_port};

use crate::course::Thresholds;
use crate::schedule::Timing;

/// A command costs the node much more than a request.
const EARLY_GAP: Duration = Duration::from_millis(100);
const EARLY_COMMAND_GAP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeSpec {
    pub(crate) thresholds: Thresholds,
    pub(crate) timing: Timing,
    /// The error is the message why it cannot be run.
    pub(crate) action: Result<Action, String>,
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec { command: Vec<String>, timeout: Duration },
    Http(HttpCall),
    Tcp(TcpCall),
    Grpc(GrpcCall),
}

pub(crate) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}

impl ProbeSpec {
    /// `ip` is where the pod's containers are reached.
    pub(crate) fn read(pod: &Pod, container: &Container, probe: &Probe, ip: &str) -> Self {
        let seconds = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            Duration::from_secs(value.unwrap_or(default).into())
        };
        let count = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.filter(|value| *value > 0).unwrap_or(default)
        };
        // A pod that came through validation has all of these; the defaults are upstream's.
        let timeout = seconds(probe.timeout_seconds.filter(|seconds| *seconds > 0), 1);
        Self {
            thresholds: Thresholds {
                success: count(probe.success_threshold, 1),
                failure: count(probe.failure_threshold, 3),
            },
            timing: Timing {
                initial_delay: seconds(probe.initial_delay_seconds, 0),
                period: seconds(probe.period_seconds.filter(|seconds| *seconds > 0), 10),
                early_gap: if probe.exec.is_some() {
                    EARLY_COMMAND_GAP
                } else {
                    EARLY_GAP
                },
            },
            action: action(pod, container, probe, ip, timeout),
        }
    }
}

fn action(
    pod: &Pod,
    container: &Container,
    probe: &Probe,
    ip: &str,
    timeout: Duration,
) -> Result<Action, String> {
    if let Some(exec) = &probe.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        let command = expanded(command, container);
        return Ok(Action::Exec { command, timeout });
    }
    let uid = uid_of(pod);
    if let Some(get) = &probe.http_get {
        return HttpCall::of_action(uid, get, container, ip, HttpPurpose::Probe, Some(timeout))
            .map(Action::Http)
            .map_err(|error| error.to_string());
    }
    if let Some(socket) = &probe.tcp_socket {
        let host = socket.host.as_deref().filter(|host| !host.is_empty());
        return container_port(&socket.port, container)
            .map(|port| {
                Action::Tcp(TcpCall {
                    pod: uid,
                    host: host.unwrap_or(ip).to_owned(),
                    port,
                    timeout,
                })
            })
            .map_err(|error| error.to_string());
    }
    if let Some(grpc) = &probe.grpc {
        let port = u16::try_from(grpc.port).ok().filter(|port| *port > 0);
        return port
            .map(|port| {
                Action::Grpc(GrpcCall {
                    pod: uid,
                    host: ip.to_owned(),
                    port,
                    service: grpc.service.clone().unwrap_or_default(),
                    timeout,
                })
            })
            .ok_or_else(|| format!("invalid port number: {}", grpc.port));
    }
    Err(format!(
        "missing probe handler for {}:{}",
        pod_text(pod),
        container.name
    ))
}

/// Only variables with a value in the pod are known here; others stay as they are written.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let variables: BTreeMap<&str, &str> = container
        .env
        .iter()
        .flatten()
        .map(|variable| {
            (
                variable.name.as_str(),
                variable.value.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    command
        .iter()
        .map(|argument| expand(argument, |name| variables.get(name).copied()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(probe: serde_json::Value) -> ProbeSpec {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "ports": [{"name": "web", "containerPort": 8080}],
            "env": [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        }))
        .expect("a container");
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("n".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        let probe: Probe = serde_json::from_value(probe).expect("a probe");
        ProbeSpec::read(&pod, &container, &probe, "10.1.2.3")
    }

    #[test]
    fn actions_are_resolved() {
        let check = |probe: serde_json::Value, expected: &str| {
            let shown = match read(probe.clone()).action {
                Ok(Action::Exec { command, timeout }) => format!("{command:?} {timeout:?}"),
                Ok(Action::Http(call)) => format!("{} {:?}", call.url(), call.timeout),
                Ok(Action::Tcp(call)) => format!("{} {} {:?}", call.host, call.port, call.timeout),
                Ok(Action::Grpc(call)) => {
                    format!(
                        "{} {} {:?} {:?}",
                        call.host, call.port, call.service, call.timeout
                    )
                }
                Err(problem) => problem,
            };
            assert_eq!(shown, expected, "{probe}");
        };
        check(
            json!({"exec": {"command": ["a", "$(A)", "$(B)", "$(C)", "$$(A)"]}, "timeoutSeconds": 4}),
            r#"["a", "x", "", "$(C)", "$(A)"] 4s"#,
        );
        check(
            json!({"httpGet": {"port": "web", "path": "/x"}}),
            "http://10.1.2.3:8080/x Some(1s)",
        );
        check(json!({"httpGet": {"port": "no"}}), "port \"no\" not found");
        check(json!({"tcpSocket": {"port": 1}}), "10.1.2.3 1 1s");
        check(json!({"tcpSocket": {"port": 1, "host": "h"}}), "h 1 1s");
        check(
            json!({"tcpSocket": {"port": 70000}}),
            "invalid port number: 70000",
        );
        check(
            json!({"grpc": {"port": 5, "service": "s"}}),
            "10.1.2.3 5 \"s\" 1s",
        );
        check(json!({"grpc": {"port": 0}}), "invalid port number: 0");
        check(json!({}), "missing probe handler for p_n(u):c");
    }

    #[test]
    fn numbers_have_upstream_s_defaults() {
        let spec = read(json!({"tcpSocket": {"port": 1}}));
        assert_eq!(
            spec.thresholds,
            Thresholds {
                success: 1,
                failure: 3
            }
        );
        assert_eq!(spec.timing.initial_delay, Duration::ZERO);
        assert_eq!(spec.timing.period, Duration::from_secs(10));
        let spec = read(json!({"exec": {}, "successThreshold": 2, "failureThreshold": 4,
            "initialDelaySeconds": 5, "periodSeconds": 6}));
        assert_eq!(
            spec.thresholds,
            Thresholds {
                success: 2,
                failure: 4
            }
        );
        assert_eq!(spec.timing.initial_delay, Duration::from_secs(5));
        assert_eq!(spec.timing.period, Duration::from_secs(6));
        assert_eq!(spec.timing.early_gap, EARLY_COMMAND_GAP);
    }
}
