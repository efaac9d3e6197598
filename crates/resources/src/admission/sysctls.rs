//! Kernel parameters that pods may set.
//!
//! Owns the safe list by kernel version, the administrator's additions, and which namespace of the host makes a parameter
//! forbidden. It sets nothing.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::names::{is_ipc_sysctl, normalize_sysctl};

use super::{AdmissionReason, Refusal};

const MAX_LENGTH: usize = 253;

/// Sysctls that affect no other pod, with the kernel from which each pod has its own value.
const SAFE: [(&str, KernelVersion); 14] = [
    ("kernel.shm_rmid_forced", KernelVersion(0, 0)),
    ("net.ipv4.ip_local_port_range", KernelVersion(0, 0)),
    ("net.ipv4.tcp_syncookies", KernelVersion(0, 0)),
    ("net.ipv4.ping_group_range", KernelVersion(0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", KernelVersion(0, 0)),
    ("net.ipv4.ip_local_reserved_ports", KernelVersion(3, 16)),
    ("net.ipv4.tcp_keepalive_time", KernelVersion(4, 5)),
    ("net.ipv4.tcp_fin_timeout", KernelVersion(4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", KernelVersion(4, 5)),
    ("net.ipv4.tcp_keepalive_probes", KernelVersion(4, 5)),
    ("net.ipv4.tcp_rmem", KernelVersion(4, 15)),
    ("net.ipv4.tcp_wmem", KernelVersion(4, 15)),
    ("net.ipv4.tcp_slow_start_after_idle", KernelVersion(4, 15)),
    ("net.ipv4.tcp_notsent_lowat", KernelVersion(4, 6)),
];

/// The first two numbers of a kernel's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// From text such as `6.1.0-28-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Self(next()?, next()?))
    }
}

/// What a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysctlNamespace {
    Ipc,
    Net,
    Uts,
    User,
}

impl fmt::Display for SysctlNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
            Self::Uts => "UTS",
            Self::User => "User",
        })
    }
}

fn namespace_of(name: &str) -> Option<SysctlNamespace> {
    match name {
        "kernel.domainname" => Some(SysctlNamespace::Uts),
        _ if is_ipc_sysctl(name) => Some(SysctlNamespace::Ipc),
        _ if name.starts_with("net.") => Some(SysctlNamespace::Net),
        _ if name.starts_with("user.") => Some(SysctlNamespace::User),
        _ => None,
    }
}

/// An entry of `allowedUnsafeSysctls` that cannot be used.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum BadSysctlPattern {
    #[error(
        "allowedUnsafeSysctls: {0:?} is neither the name of a sysctl nor a beginning of names that ends in *"
    )]
    NotAPattern(String),
    #[error("allowedUnsafeSysctls: the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// The parameters that pods of this node may set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysctlAllowlist {
    names: BTreeMap<String, SysctlNamespace>,
    prefixes: BTreeMap<String, SysctlNamespace>,
}

impl SysctlAllowlist {
    /// The safe ones of the kernel, `None` being an unknown one, and the administrator's.
    pub fn new(kernel: Option<KernelVersion>, unsafe_patterns: &[String]) -> Result<Self, BadSysctlPattern> {
        let kernel = kernel.unwrap_or(KernelVersion(0, 0));
        let safe = SAFE.iter().filter(|(_, since)| kernel >= *since);
        let mut list = Self::default();
        for pattern in safe
            .map(|(name, _)| *name)
            .chain(unsafe_patterns.iter().map(String::as_str))
        {
            list.allow(pattern)?;
        }
        Ok(list)
    }

    fn allow(&mut self, pattern: &str) -> Result<(), BadSysctlPattern> {
        if !is_pattern(pattern) {
            return Err(BadSysctlPattern::NotAPattern(pattern.to_owned()));
        }
        let name = normalize_sysctl(pattern);
        let (name, is_prefix) = match name.split_once('*') {
            Some((prefix, _)) => (prefix, true),
            None => (name.as_str(), false),
        };
        let namespace = namespace_of(name).ok_or_else(|| BadSysctlPattern::NotNamespaced(name.to_owned()))?;
        let list = if is_prefix {
            &mut self.prefixes
        } else {
            &mut self.names
        };
        list.insert(name.to_owned(), namespace);
        Ok(())
    }

    /// Whether all parameters of the pod may be set.
    pub fn check(&self, pod: &Pod) -> Option<Refusal> {
        let spec = pod.spec.as_ref()?;
        let sysctls = spec.security_context.as_ref()?.sysctls.as_ref()?;
        let is_hosts = |namespace: SysctlNamespace| match namespace {
            SysctlNamespace::Ipc => spec.host_ipc == Some(true),
            SysctlNamespace::Net => spec.host_network == Some(true),
            SysctlNamespace::User => spec.host_users != Some(false),
            SysctlNamespace::Uts => false,
        };
        let problem = sysctls.iter().find_map(|sysctl| {
            let name = normalize_sysctl(&sysctl.name);
            match self.namespace(&name) {
                None => Some(format!("{name:?} not allowlisted")),
                Some(namespace) => {
                    is_hosts(namespace).then(|| format!("{name:?} not allowed with host {namespace} enabled"))
                }
            }
        })?;
        Some(Refusal::for_good(
            AdmissionReason::SysctlForbidden,
            format!("forbidden sysctl: {problem}"),
        ))
    }

    fn namespace(&self, name: &str) -> Option<SysctlNamespace> {
        self.names.get(name).copied().or_else(|| {
            let mut prefixes = self.prefixes.iter();
            prefixes
                .find(|(prefix, _)| name.starts_with(prefix.as_str()))
                .map(|(_, namespace)| *namespace)
        })
    }
}

/// Segments of a sysctl's name, of which the last may end in `*`.
fn is_pattern(text: &str) -> bool {
    let is_edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: u8| is_edge(byte) || byte == b'-' || byte == b'_';
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if is_edge(*first) && is_edge(*last))
            && bytes.iter().all(|byte| is_inner(*byte))
    };
    let is_last_segment = |segment: &str| match segment.strip_suffix('*') {
        Some("") => true,
        Some(rest) => {
            rest.as_bytes().first().is_some_and(|first| is_edge(*first)) && rest.bytes().all(is_inner)
        }
        None => is_segment(segment),
    };
    let (inner, last) = text.rsplit_once(['.', '/']).unwrap_or(("", text));
    text.len() <= MAX_LENGTH
        && (inner.is_empty() && !text.starts_with(['.', '/']) || inner.split(['.', '/']).all(is_segment))
        && is_last_segment(last)
}
