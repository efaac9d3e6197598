//! No `Debug` output of a message shows a secret.

use std::collections::BTreeMap;
use std::fmt::Debug;

use rubelet_wire::cri::v1::{
    AttachResponse, AuthConfig, ContainerConfig, ContainerStatusResponse, CreateContainerRequest,
    ExecResponse, ExecSyncResponse, ImageSpec, ImageStatusResponse, KeyValue, PodSandboxStatusResponse,
    PortForwardResponse, PullImageRequest, StatusResponse, WindowsContainerConfig,
    WindowsContainerSecurityContext, WindowsSandboxSecurityContext,
};

const SECRET: &str = "hunter2";

fn secret() -> String {
    SECRET.to_owned()
}

fn check(message: &dyn Debug, shows: &str) {
    for text in [format!("{message:?}"), format!("{message:#?}")] {
        assert!(!text.contains(SECRET), "a secret shows in {text}");
        // The same secret as a list of byte values.
        assert!(
            !text.contains("104, 117, 110") && !text.contains("104,\n"),
            "a secret shows as bytes in {text}"
        );
        assert!(text.contains(shows), "{shows:?} is missing in {text}");
    }
}

fn auth() -> AuthConfig {
    AuthConfig {
        username: secret(),
        password: secret(),
        auth: secret(),
        server_address: "registry.example".to_owned(),
        identity_token: secret(),
        registry_token: secret(),
    }
}

#[test]
fn secrets_are_not_shown() {
    let info = || BTreeMap::from([("info".to_owned(), secret())]);
    check(&auth(), "registry.example");
    check(
        &PullImageRequest {
            image: Some(ImageSpec {
                image: "app:1".to_owned(),
                ..ImageSpec::default()
            }),
            auth: Some(auth()),
            sandbox_config: None,
        },
        "app:1",
    );
    let security = WindowsContainerSecurityContext {
        credential_spec: secret(),
        ..Default::default()
    };
    check(
        &CreateContainerRequest {
            config: Some(ContainerConfig {
                envs: vec![KeyValue {
                    key: "TOKEN".to_owned(),
                    value: SECRET.into(),
                }],
                windows: Some(WindowsContainerConfig {
                    security_context: Some(security),
                    resources: None,
                }),
                ..ContainerConfig::default()
            }),
            ..CreateContainerRequest::default()
        },
        "TOKEN",
    );
    check(
        &WindowsSandboxSecurityContext {
            credential_spec: secret(),
            ..Default::default()
        },
        "host_process",
    );
    check(&ExecResponse { url: secret() }, "[redacted]");
    check(&AttachResponse { url: secret() }, "[redacted]");
    check(&PortForwardResponse { url: secret() }, "[redacted]");
    check(
        &ExecSyncResponse {
            stdout: SECRET.into(),
            stderr: SECRET.into(),
            exit_code: 41,
        },
        "41",
    );
    check(
        &ContainerStatusResponse {
            info: info(),
            ..Default::default()
        },
        "info",
    );
    check(
        &PodSandboxStatusResponse {
            info: info(),
            timestamp: 43,
            ..Default::default()
        },
        "43",
    );
    check(
        &ImageStatusResponse {
            info: info(),
            ..Default::default()
        },
        "info",
    );
    check(
        &StatusResponse {
            info: info(),
            ..Default::default()
        },
        "info",
    );
}

#[test]
fn an_absent_secret_is_told_from_a_hidden_one() {
    let text = format!(
        "{:?}",
        AuthConfig {
            password: secret(),
            ..AuthConfig::default()
        }
    );
    assert!(text.contains("password: [redacted]"), "{text}");
    assert!(text.contains("auth: none"), "{text}");
}

/// Upstream marks its own secrets; each mark must be one of a message that we redact by hand.
#[test]
fn what_upstream_marks_is_redacted() {
    let marked: Vec<&str> = include_str!("../../../../testbed/goldens/cri-v1.txt")
        .lines()
        .filter(|line| line.ends_with(" debug_redact"))
        .filter_map(|line| line.strip_prefix("field ")?.split_whitespace().next())
        .collect();
    assert_eq!(
        marked,
        [
            "AuthConfig.auth",
            "AuthConfig.identity_token",
            "AuthConfig.password",
            "AuthConfig.registry_token"
        ]
    );
}
