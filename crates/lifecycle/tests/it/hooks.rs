//! Hooks: from a pod's definition, and from what is written onto a container.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use rubelet_lifecycle::hooks::{Hook, handler_text, post_start, pre_stop};
use rubelet_lifecycle::stop_signal::{name_of_signal, signal_by_name};
use rubelet_wire::cri::v1::Signal;
use serde_json::{Value, json};

use crate::sample::{container, pod, running};

fn with_hooks(hooks: &Value) -> Container {
    let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": 80}], "lifecycle": hooks});
    serde_json::from_value(container).expect("a container")
}

/// What a hook is, in short.
fn short(hook: Option<Hook>) -> String {
    match hook {
        None => "none".to_owned(),
        Some(Hook::Exec { command }) => format!("exec {command:?}"),
        Some(Hook::Http(http)) => format!("http {:?} of {} ports", http.action.port, http.ports.len()),
        Some(Hook::Sleep { seconds }) => format!("sleep {seconds}"),
        Some(Hook::Invalid { why }) => why,
    }
}

#[test]
fn handlers_are_read() {
    let check = |handler: Value, expected: &str| {
        let found = short(post_start(&with_hooks(&json!({"postStart": handler}))));
        assert_eq!(found, expected, "{handler}");
    };
    check(json!({"exec": {"command": ["a", "b"]}}), r#"exec ["a", "b"]"#);
    check(json!({"exec": {}}), "exec []");
    check(json!({"httpGet": {"port": 80}}), "http Int(80) of 1 ports");
    check(
        json!({"httpGet": {"port": "web"}}),
        r#"http String("web") of 1 ports"#,
    );
    check(json!({"sleep": {"seconds": 3}}), "sleep 3");
    // A command wins over the other handlers.
    check(
        json!({"sleep": {"seconds": 3}, "exec": {"command": ["x"]}}),
        r#"exec ["x"]"#,
    );
    check(json!({}), "invalid handler: {}");
    check(
        json!({"tcpSocket": {"port": 80}}),
        r#"invalid handler: {"tcpSocket":{"port":80}}"#,
    );
    assert_eq!(post_start(&with_hooks(&json!({}))), None);
}

#[test]
fn a_container_remembers_its_pre_stop_hook() {
    let check = |handler: Value, text: &str, expected: &str| {
        let defined: LifecycleHandler = serde_json::from_value(handler).expect("a handler");
        assert_eq!(handler_text(&defined), text);
        // What is written can be read again, also without the definition of the pod.
        let mut seen = container("1", "c", running());
        seen.recorded.pre_stop_handler = Some(text.to_owned());
        seen.recorded.ports = Some(r#"[{"name":"web","containerPort":80}]"#.to_owned());
        assert_eq!(short(pre_stop(None, &seen)), expected);
    };
    check(
        json!({"exec": {"command": ["sh", "-c", "echo \"x\""]}}),
        r#"{"exec":{"command":["sh","-c","echo \"x\""]}}"#,
        r#"exec ["sh", "-c", "echo \"x\""]"#,
    );
    check(
        json!({"httpGet": {"path": "/stop", "port": "web", "scheme": "HTTP", "host": "", "httpHeaders": [{"name": "A", "value": "b"}]}}),
        r#"{"httpGet":{"path":"/stop","port":"web","scheme":"HTTP","httpHeaders":[{"name":"A","value":"b"}]}}"#,
        r#"http String("web") of 1 ports"#,
    );
    check(
        json!({"sleep": {"seconds": 7}}),
        r#"{"sleep":{"seconds":7}}"#,
        "sleep 7",
    );
    let mut seen = container("1", "c", running());
    seen.recorded.pre_stop_handler = Some("{ broken".to_owned());
    assert_eq!(pre_stop(None, &seen), None);
    // The definition is what counts while there is one, also when it lost its hook.
    seen.recorded.pre_stop_handler = Some(r#"{"sleep":{"seconds":7}}"#.to_owned());
    assert_eq!(pre_stop(Some(&with_hooks(&json!({}))), &seen), None);
}

#[test]
fn failures_have_upstreams_words() {
    let pod = pod(json!({}));
    let check = |handler: Value, expected: &str| {
        let hook = post_start(&with_hooks(&json!({"postStart": handler}))).expect("a hook");
        assert_eq!(hook.failure(&pod, "c", "E", "out\n"), expected);
    };
    check(
        json!({"exec": {"command": ["a", "b"]}}),
        r#"Exec lifecycle hook ([a b]) for Container "c" in Pod "pod_ns(uid)" failed - error: E, message: "out\n""#,
    );
    check(
        json!({"httpGet": {"path": "/x", "port": 80}}),
        r#"HTTP lifecycle hook (/x) for Container "c" in Pod "pod_ns(uid)" failed - error: E"#,
    );
    check(
        json!({"sleep": {"seconds": 2}}),
        r#"Sleep lifecycle hook (2) for Container "c" in Pod "pod_ns(uid)" failed - error: E"#,
    );
    check(json!({}), "Cannot run handler: E");
}

#[test]
fn headers_are_not_shown() {
    let headers = json!({"postStart": {"httpGet": {"port": 80, "httpHeaders": [{"name": "Authorization", "value": "hush"}]}}});
    let shown = format!("{:?}", post_start(&with_hooks(&headers)));
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn signals_have_two_names() {
    let check = |name: &str, expected: Option<Signal>| {
        let signal = signal_by_name(name);
        assert_eq!(signal, expected, "{name}");
        if let Some(signal) = signal {
            assert_eq!(name_of_signal(signal).as_deref(), Some(name));
        }
    };
    check("SIGTERM", Some(Signal::Sigterm));
    check("SIGUSR1", Some(Signal::Sigusr1));
    check("SIGRTMIN", Some(Signal::Sigrtmin));
    check("SIGRTMIN+15", Some(Signal::Sigrtminplus15));
    check("SIGRTMAX-14", Some(Signal::Sigrtmaxminus14));
    check("SIGRTMAX", Some(Signal::Sigrtmax));
    check("RUNTIME_DEFAULT", None);
    check("TERM", None);
    check("", None);
    assert_eq!(name_of_signal(Signal::RuntimeDefault), None);
}
