//! Rules for probes and lifecycle hooks: one handler each, and numbers that make sense.

use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, Lifecycle, PodOS, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rubelet_model::address::is_port;

use super::names::{is_header_name, is_port_name};
use super::volumes::OneSource;
use crate::fields::{list, text};
use crate::problem::{Findings, Path};

const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMAX",
];

struct Handler<'a> {
    exec: &'a Option<ExecAction>,
    http_get: &'a Option<HTTPGetAction>,
    tcp_socket: &'a Option<TCPSocketAction>,
    grpc: &'a Option<GRPCAction>,
    sleep: &'a Option<SleepAction>,
}

/// Which probe it is decides what else is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Readiness,
    LivenessOrStartup,
}

pub(super) fn probe(
    out: &mut Findings,
    path: &Path,
    probe: &Option<Probe>,
    purpose: Purpose,
    grace: Option<i64>,
) {
    let Some(probe) = probe else { return };
    let parts = Handler {
        exec: &probe.exec,
        http_get: &probe.http_get,
        tcp_socket: &probe.tcp_socket,
        grpc: &probe.grpc,
        sleep: &None,
    };
    handler(out, path, &parts, grace);
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        out.invalid_unless(
            value.unwrap_or_default() >= 0,
            &path.child(name),
            "must not be negative",
        );
    }
    let own_grace = path.child("terminationGracePeriodSeconds");
    let positive = probe
        .termination_grace_period_seconds
        .is_none_or(|seconds| seconds > 0);
    out.invalid_unless(positive, &own_grace, "must be positive");
    match purpose {
        Purpose::Readiness => {
            let unset = probe.termination_grace_period_seconds.is_none();
            out.invalid_unless(unset, &own_grace, "not for readiness probes");
        }
        Purpose::LivenessOrStartup => {
            let threshold = probe.success_threshold.unwrap_or_default();
            out.invalid_unless(threshold == 1, &path.child("successThreshold"), "must be 1");
        }
    }
}

pub(super) fn lifecycle(
    out: &mut Findings,
    path: &Path,
    lifecycle: &Lifecycle,
    grace: Option<i64>,
    os: Option<&PodOS>,
) {
    for (name, hook) in [
        ("postStart", &lifecycle.post_start),
        ("preStop", &lifecycle.pre_stop),
    ] {
        let Some(hook) = hook else { continue };
        let parts = Handler {
            exec: &hook.exec,
            http_get: &hook.http_get,
            tcp_socket: &hook.tcp_socket,
            grpc: &None,
            sleep: &hook.sleep,
        };
        handler(out, &path.child(name), &parts, grace);
    }
    if let Some(signal) = &lifecycle.stop_signal {
        let path = path.child("stopSignal");
        match os.map(|os| os.name.as_str()) {
            None => out.forbidden(&path, "needs spec.os.name"),
            Some("windows") => out.one_of(&path, signal, &["SIGKILL", "SIGTERM"]),
            Some("linux") if !is_real_time(signal) => out.one_of(&path, signal, SIGNALS),
            Some(_) => {}
        }
    }
}

/// `SIGRTMIN+1` to `SIGRTMIN+15`, `SIGRTMAX-14` to `SIGRTMAX-1`.
fn is_real_time(signal: &str) -> bool {
    let within = |number: &str, limit: u8| {
        !number.starts_with(['0', '+'])
            && number
                .parse()
                .is_ok_and(|number: u8| (1..=limit).contains(&number))
    };
    signal
        .strip_prefix("SIGRTMIN+")
        .is_some_and(|number| within(number, 15))
        || signal
            .strip_prefix("SIGRTMAX-")
            .is_some_and(|number| within(number, 14))
}

fn handler(out: &mut Findings, path: &Path, parts: &Handler<'_>, grace: Option<i64>) {
    let mut one = OneSource {
        out,
        path,
        seen: false,
    };
    one.check("exec", parts.exec, |out, path, action| {
        if list(&action.command).is_empty() {
            out.required(&path.child("command"), "");
        }
    });
    one.check("httpGet", parts.http_get, http_get);
    one.check("tcpSocket", parts.tcp_socket, |out, path, action| {
        port(out, &path.child("port"), &action.port);
    });
    one.check("grpc", parts.grpc, |out, path, action| {
        out.invalid_unless(
            is_port(action.port.into()),
            &path.child("port"),
            "must be between 1 and 65535",
        );
        if let Some(mode) = &action.mode {
            out.one_of(&path.child("mode"), mode, &["Plaintext", "TLS"]);
        }
    });
    one.check("sleep", parts.sleep, |out, path, action| {
        let fits = grace.is_none_or(|grace| (0..=grace).contains(&action.seconds));
        out.invalid_unless(fits, path, "longer than the pod's grace period");
    });
    if !one.seen {
        out.required(path, "needs a handler");
    }
}

fn http_get(out: &mut Findings, path: &Path, action: &HTTPGetAction) {
    out.required_text(&path.child("path"), text(&action.path));
    port(out, &path.child("port"), &action.port);
    let scheme = text(&action.scheme);
    out.one_of(&path.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    for header in list(&action.http_headers) {
        out.invalid_unless(
            is_header_name(&header.name),
            &path.child("httpHeaders"),
            "not a header's name",
        );
    }
    let Some(protocol) = &action.protocol else { return };
    match protocol.as_str() {
        "HTTP1" => {}
        "HTTP2" if scheme != "HTTP" => out.invalid(&path.child("protocol"), "HTTP2 is for scheme HTTP only"),
        "HTTP2" => out.invalid_unless(
            text(&action.host).is_empty(),
            &path.child("host"),
            "must be empty with HTTP2",
        ),
        _ => out.not_supported(&path.child("protocol"), &["HTTP1", "HTTP2"]),
    }
}

fn port(out: &mut Findings, path: &Path, port: &IntOrString) {
    let fits = match port {
        IntOrString::Int(number) => is_port((*number).into()),
        IntOrString::String(name) => is_port_name(name),
    };
    out.invalid_unless(fits, path, "neither a port number nor a port's name");
}
