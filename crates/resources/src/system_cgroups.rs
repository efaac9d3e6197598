//! The cgroups of the node's own programs: `kubeletCgroups`, `systemCgroups` and `--runtime-cgroups`.
//!
//! Owns the reading of their names, as upstream does it: each is a path from the root of every hierarchy, with or without a slash
//! first. It must not look at the machine.

use thiserror::Error;

const ROOT: &str = "/";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SystemCgroupError {
    #[error(
        "systemCgroups: {0:?} is the root cgroup; the system's processes need a cgroup of their own below it"
    )]
    SystemIsRoot(String),
}

/// Where the node's own programs run, as paths that begin with a slash. `None` where no setting names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemCgroups {
    /// Of rubelet, which moves itself there.
    pub kubelet: Option<String>,
    /// Of the processes that are in the root cgroup, which rubelet moves there.
    pub system: Option<String>,
    /// Of the container runtime. It is only shown: no process is moved.
    pub runtime: Option<String>,
}

impl SystemCgroups {
    /// # Errors
    /// When the system's cgroup is the root, where its processes are already.
    pub fn read(
        kubelet_cgroups: &str,
        system_cgroups: &str,
        runtime_cgroups: &str,
    ) -> Result<Self, SystemCgroupError> {
        let system = path(system_cgroups);
        if system.as_deref() == Some(ROOT) {
            return Err(SystemCgroupError::SystemIsRoot(system_cgroups.to_owned()));
        }
        Ok(Self {
            kubelet: path(kubelet_cgroups),
            system,
            runtime: path(runtime_cgroups),
        })
    }
}

/// The path without empty parts and dots; none leads above the root.
fn path(name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(format!("{ROOT}{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_from_the_root() {
        let check =
            |name: &str, expected: Option<&str>| assert_eq!(path(name).as_deref(), expected, "{name}");
        check("", None);
        check("/kubelet", Some("/kubelet"));
        check("kubelet.slice", Some("/kubelet.slice"));
        check("//a/./b/", Some("/a/b"));
        check("/a/../../b", Some("/b"));
        check("/", Some("/"));
    }

    #[test]
    fn the_system_has_a_cgroup_below_the_root() {
        let read = SystemCgroups::read("k", "/s", "");
        let expected = SystemCgroups {
            kubelet: Some("/k".to_owned()),
            system: Some("/s".to_owned()),
            runtime: None,
        };
        assert_eq!(read, Ok(expected));
        for root in ["/", "//", "/a/.."] {
            let error = SystemCgroups::read("", root, "").unwrap_err();
            assert!(error.to_string().starts_with("systemCgroups: "), "{error}");
        }
        // Rubelet itself may stay in the root.
        assert!(SystemCgroups::read("/", "", "/").is_ok());
    }
}
