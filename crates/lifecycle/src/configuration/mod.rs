//! The configuration of sandboxes and containers for the runtime, as CRI messages.
//!
//! Owns the translation of (pod, node, what is known of the image and the sandbox) into messages and file contents. It must not
//! touch files, images or the runtime: what comes from there is an argument. `unsupported` names every field that rubelet cannot
//! honour yet; none is dropped silently.

pub mod container;
pub mod dns;
pub mod downward;
pub mod env_file;
pub mod environment;
pub mod expansion;
pub mod hostname;
pub mod hosts_file;
pub mod labels;
pub mod log_paths;
pub mod namespaces;
mod node;
pub mod object_variables;
pub mod ports;
pub mod profiles;
pub mod resolv_conf;
pub mod sandbox;
pub mod security;
pub mod service_variables;
pub mod sysctls;
pub mod termination_message;
pub mod unsupported;
pub mod unsupported_volumes;

pub use container::{ContainerInputs, container_config};
pub use dns::{Dns, DnsWarning, pod_dns};
pub use node::{ConfigurationError, NodeConfiguration};
pub use resolv_conf::ResolvConf;
pub use sandbox::{Sandbox, SandboxInputs, sandbox_config};
pub use unsupported::{Provider, Unsupported, unprovided, unsupported};
