//! The Go programs of the test bed: each is built from the module proxy on first need, pinned by `testbed/go.mod`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::cache::made_once;
use crate::workspace_root;

/// A program built from Go modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Containerd,
    ContainerdShim,
    Ctr,
    Runc,
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    KubeProxy,
    Kubectl,
    Kubeadm,
    Kubelet,
    /// With the plugins that kubeadm configures, and no others.
    CoreDns,
    MetricsServer,
    /// Without the plugins that find targets in clouds.
    Prometheus,
    /// The same.
    Promtool,
    Agnhost,
    Ginkgo,
    /// Upstream's node e2e suite.
    NodeE2e,
}

struct Recipe {
    name: &'static str,
    module: &'static str,
    package: &'static str,
    kind: Kind,
}

enum Kind {
    Static,
    /// The main package is one of the test bed's own module, in the directory of the program's name.
    OwnMain,
    /// Links libseccomp, statically, so that the program runs in the virtual node too.
    Seccomp,
    /// Of Prometheus' module: the clouds' libraries would cost minutes to build, and no test needs them.
    WithoutClouds,
    TestBinary,
}

pub(crate) const KUBERNETES: &str = "k8s.io/kubernetes";
const CONTAINERD: &str = "github.com/containerd/containerd/v2";
pub(crate) const COREDNS: &str = "github.com/coredns/coredns";
const PROMETHEUS: &str = "github.com/prometheus/prometheus";

impl Program {
    /// Every program, in the order in which a cold machine needs them.
    pub const ALL: [Self; 19] = [
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::Runc,
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubelet,
        Self::Agnhost,
        Self::Ginkgo,
        Self::NodeE2e,
        Self::KubeScheduler,
        Self::Kubectl,
        Self::Kubeadm,
        Self::KubeProxy,
        Self::CoreDns,
        Self::MetricsServer,
        Self::Prometheus,
        Self::Promtool,
    ];

    fn recipe(self) -> Recipe {
        let (name, module, package, kind) = match self {
            Self::Containerd => ("containerd", CONTAINERD, "/cmd/containerd", Kind::Static),
            Self::ContainerdShim => (
                "containerd-shim-runc-v2",
                CONTAINERD,
                "/cmd/containerd-shim-runc-v2",
                Kind::Static,
            ),
            Self::Ctr => ("ctr", CONTAINERD, "/cmd/ctr", Kind::Static),
            Self::Runc => ("runc", "github.com/opencontainers/runc", "", Kind::Seccomp),
            Self::Etcd => ("etcd", "go.etcd.io/etcd/server/v3", "", Kind::Static),
            Self::KubeApiserver => ("kube-apiserver", KUBERNETES, "/cmd/kube-apiserver", Kind::Static),
            Self::KubeControllerManager => (
                "kube-controller-manager",
                KUBERNETES,
                "/cmd/kube-controller-manager",
                Kind::Static,
            ),
            Self::KubeScheduler => ("kube-scheduler", KUBERNETES, "/cmd/kube-scheduler", Kind::Static),
            Self::KubeProxy => ("kube-proxy", KUBERNETES, "/cmd/kube-proxy", Kind::Static),
            Self::CoreDns => ("coredns", COREDNS, "", Kind::OwnMain),
            Self::MetricsServer => (
                "metrics-server",
                "sigs.k8s.io/metrics-server",
                "/cmd/metrics-server",
                Kind::Static,
            ),
            Self::Prometheus => ("prometheus", PROMETHEUS, "/cmd/prometheus", Kind::WithoutClouds),
            Self::Promtool => ("promtool", PROMETHEUS, "/cmd/promtool", Kind::WithoutClouds),
            Self::Kubectl => ("kubectl", KUBERNETES, "/cmd/kubectl", Kind::Static),
            Self::Kubeadm => ("kubeadm", KUBERNETES, "/cmd/kubeadm", Kind::Static),
            Self::Kubelet => ("kubelet", KUBERNETES, "/cmd/kubelet", Kind::Static),
            Self::Agnhost => ("agnhost", KUBERNETES, "/test/images/agnhost", Kind::Static),
            Self::Ginkgo => ("ginkgo", "github.com/onsi/ginkgo/v2", "/ginkgo", Kind::Static),
            Self::NodeE2e => ("e2e_node.test", KUBERNETES, "/test/e2e_node", Kind::TestBinary),
        };
        Recipe {
            name,
            module,
            package,
            kind,
        }
    }

    /// Programs that only `make conformance` runs.
    pub fn is_for_conformance_only(self) -> bool {
        matches!(self, Self::Agnhost | Self::Ginkgo | Self::NodeE2e)
    }

    /// The program's path; builds it if this machine has not built this version yet.
    pub fn path(self) -> Result<PathBuf> {
        let recipe = self.recipe();
        let version = module_version(recipe.module)?;
        let mut key = format!("{}-{version}", family(recipe.module));
        if matches!(recipe.kind, Kind::OwnMain) {
            key = format!("{key}-{}", sources_digest(&go_module_dir().join(recipe.name))?);
        }
        made_once(&key, recipe.name, |out| build(&recipe, &version, out))
    }
}

/// The last telling part of a module's path: `go.etcd.io/etcd/server/v3` is `etcd`.
fn family(module: &str) -> &str {
    let families = [
        "kubernetes",
        "containerd",
        "runc",
        "etcd",
        "ginkgo",
        "coredns",
        "metrics-server",
        "prometheus",
    ];
    families
        .into_iter()
        .find(|name| module.split('/').any(|part| part == *name))
        .unwrap_or("other")
}

/// The version that `testbed/go.mod` requires of a module.
pub fn module_version(module: &str) -> Result<String> {
    let go_mod = go_module_dir().join("go.mod");
    let text = fs::read_to_string(&go_mod).with_context(|| format!("read {}", go_mod.display()))?;
    let required = text.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        let found = words.next() == Some(module);
        words
            .next()
            .filter(|version| found && version.starts_with('v'))
            .map(str::to_owned)
    });
    required.with_context(|| format!("{} does not require {module}", go_mod.display()))
}

/// The directory of the test bed's Go module.
pub fn go_module_dir() -> PathBuf {
    workspace_root().join("testbed")
}

fn build(recipe: &Recipe, version: &str, out: &Path) -> Result<()> {
    let mut stamps = format!("-s -w -X {CONTAINERD}/version.Version={version}");
    if recipe.module == KUBERNETES {
        let minor = version.split('.').nth(1).unwrap_or_default();
        stamps = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
            .iter()
            .map(|place| {
                format!(" -X {place}.gitVersion={version} -X {place}.gitMajor=1 -X {place}.gitMinor={minor}")
            })
            .fold("-s -w".to_owned(), |all, stamp| all + &stamp);
    }
    let mut arguments: Vec<&str> = match recipe.kind {
        Kind::Static | Kind::OwnMain | Kind::Seccomp | Kind::WithoutClouds => vec!["build"],
        Kind::TestBinary => vec!["test", "-c"],
    };
    arguments.extend(["-mod=mod", "-trimpath"]);
    if matches!(recipe.kind, Kind::Seccomp) {
        stamps.push_str(" -extldflags -static");
        arguments.extend(["-tags", "seccomp netgo osusergo"]);
    }
    if matches!(recipe.kind, Kind::WithoutClouds) {
        arguments.extend(["-tags", "remove_all_sd"]);
    }
    let cgo = if matches!(recipe.kind, Kind::Seccomp) {
        "1"
    } else {
        "0"
    };
    let package = match recipe.kind {
        Kind::OwnMain => format!("./{}", recipe.name),
        Kind::Static | Kind::Seccomp | Kind::TestBinary | Kind::WithoutClouds => {
            format!("{}{}", recipe.module, recipe.package)
        }
    };
    go(Command::new("go")
        .env("CGO_ENABLED", cgo)
        .args(arguments)
        .args(["-ldflags", &stamps])
        .arg("-o")
        .arg(out)
        .arg(package))
}

/// Runs a Go command in the test bed's module.
pub fn go(command: &mut Command) -> Result<()> {
    let output = command
        .current_dir(go_module_dir())
        .output()
        .context("run go; the test bed needs Go 1.26 or later on the PATH")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let end: Vec<&str> = words.lines().rev().take(20).collect();
        bail!(
            "go failed: {}",
            end.into_iter().rev().collect::<Vec<_>>().join("\n")
        );
    }
    Ok(())
}

/// A short digest of every source file's name and content.
pub(crate) fn sources_digest(dir: &Path) -> Result<String> {
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "go") {
            sources.insert(
                path.clone(),
                fs::read(&path).with_context(|| format!("read {}", path.display()))?,
            );
        }
    }
    ensure!(!sources.is_empty(), "{} has no Go sources", dir.display());
    let mut digest = Sha256::new();
    for (path, content) in &sources {
        digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update(content.len().to_le_bytes());
        digest.update(content);
    }
    Ok(digest
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_go_module() {
        assert_eq!(module_version(KUBERNETES).unwrap(), "v1.37.1");
        assert_eq!(module_version(CONTAINERD).unwrap(), "v2.4.2");
        assert!(module_version("example.com/nothing").is_err());
    }

    #[test]
    fn every_program_has_a_pinned_module() {
        for program in Program::ALL {
            let recipe = program.recipe();
            assert!(module_version(recipe.module).is_ok(), "{}", recipe.name);
            assert_ne!(family(recipe.module), "other", "{}", recipe.name);
        }
    }
}
