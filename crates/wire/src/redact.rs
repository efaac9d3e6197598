//! `Debug` of the messages that carry secrets, or text that may hold some.
//!
//! Owns what a log line may show of them. Every message is taken apart field by field, so that a field added to the wire
//! does not compile until it is decided whether it may be shown.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter, Result};

use crate::cri::v1::{
    AttachResponse, AuthConfig, ContainerStatusResponse, ExecResponse, ExecSyncResponse, ImageStatusResponse,
    KeyValue, PodSandboxStatusResponse, PortForwardResponse, StatusResponse, WindowsContainerSecurityContext,
    WindowsSandboxSecurityContext,
};

/// A secret: whether there is one may be seen, neither its content nor its length.
struct Secret<'a>(&'a str);

impl Debug for Secret<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(if self.0.is_empty() { "none" } else { "[redacted]" })
    }
}

/// Bytes that a container or a user made: only their number is shown.
struct Size<'a>(&'a [u8]);

impl Debug for Size<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}

/// A runtime's verbose dump, which repeats the whole container configuration with its environment: keys only.
struct Keys<'a>(&'a BTreeMap<String, String>);

impl Debug for Keys<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Debug for AuthConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            username,
            password,
            auth,
            server_address,
            identity_token,
            registry_token,
        } = self;
        f.debug_struct("AuthConfig")
            .field("username", &Secret(username))
            .field("password", &Secret(password))
            .field("auth", &Secret(auth))
            .field("server_address", server_address)
            .field("identity_token", &Secret(identity_token))
            .field("registry_token", &Secret(registry_token))
            .finish()
    }
}

impl Debug for KeyValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { key, value } = self;
        f.debug_struct("KeyValue")
            .field("key", key)
            .field("value", &Size(value))
            .finish()
    }
}

/// The address of an exec, attach or port-forward session ends in a token, and the token alone opens the session.
fn session(name: &str, url: &str, f: &mut Formatter<'_>) -> Result {
    f.debug_struct(name).field("url", &Secret(url)).finish()
}

impl Debug for ExecResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { url } = self;
        session("ExecResponse", url, f)
    }
}

impl Debug for AttachResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { url } = self;
        session("AttachResponse", url, f)
    }
}

impl Debug for PortForwardResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { url } = self;
        session("PortForwardResponse", url, f)
    }
}

impl Debug for ExecSyncResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            stdout,
            stderr,
            exit_code,
        } = self;
        f.debug_struct("ExecSyncResponse")
            .field("stdout", &Size(stdout))
            .field("stderr", &Size(stderr))
            .field("exit_code", exit_code)
            .finish()
    }
}

impl Debug for ContainerStatusResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { status, info } = self;
        f.debug_struct("ContainerStatusResponse")
            .field("status", status)
            .field("info", &Keys(info))
            .finish()
    }
}

impl Debug for PodSandboxStatusResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            status,
            info,
            containers_statuses,
            timestamp,
        } = self;
        f.debug_struct("PodSandboxStatusResponse")
            .field("status", status)
            .field("info", &Keys(info))
            .field("containers_statuses", containers_statuses)
            .field("timestamp", timestamp)
            .finish()
    }
}

impl Debug for ImageStatusResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { image, info } = self;
        f.debug_struct("ImageStatusResponse")
            .field("image", image)
            .field("info", &Keys(info))
            .finish()
    }
}

impl Debug for StatusResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            status,
            info,
            runtime_handlers,
            features,
        } = self;
        f.debug_struct("StatusResponse")
            .field("status", status)
            .field("info", &Keys(info))
            .field("runtime_handlers", runtime_handlers)
            .field("features", features)
            .finish()
    }
}

impl Debug for WindowsContainerSecurityContext {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            run_as_username,
            credential_spec,
            host_process,
        } = self;
        f.debug_struct("WindowsContainerSecurityContext")
            .field("run_as_username", run_as_username)
            .field("credential_spec", &Secret(credential_spec))
            .field("host_process", host_process)
            .finish()
    }
}

impl Debug for WindowsSandboxSecurityContext {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            run_as_username,
            credential_spec,
            host_process,
            namespace_options,
        } = self;
        f.debug_struct("WindowsSandboxSecurityContext")
            .field("run_as_username", run_as_username)
            .field("credential_spec", &Secret(credential_spec))
            .field("host_process", host_process)
            .field("namespace_options", namespace_options)
            .finish()
    }
}
