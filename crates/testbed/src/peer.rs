//! Upstream's own kubelet as a peer to compare with, kept away from the rest of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use crate::Program;

/// Whatever `--root-dir` says, upstream's kubelet takes over the device plugin socket below `/var/lib/kubelet` and writes to
/// `/var/log`: each gets file systems of its own there, which nobody else sees.
const OWN_DIRECTORIES: &str = r#"for dir in /var/lib /var/log; do
    mount --make-private "$(findmnt --noheadings --output TARGET --target "$dir" | tail -n 1)" || exit 1
    mount -t tmpfs tmpfs "$dir" || exit 1
done
"#;
const RUN: &str = r#"exec "$@""#;

/// A command that runs upstream's kubelet; arguments can be added.
pub fn kubelet() -> Result<Command> {
    Ok(confined(&Program::Kubelet.path()?))
}

/// A command that runs any kubelet the same way. Its process id is the kubelet's.
pub fn confined(kubelet: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "unchanged"])
        .args(["sh", "-c", &format!("{OWN_DIRECTORIES}{RUN}"), "kubelet"])
        .arg(kubelet);
    command
}

/// Upstream's cAdvisor asks the containerd at its usual socket which container a cgroup is of, whatever runtime the kubelet has.
const USUAL_CONTAINERD: &str = r#"mkdir -p /run/containerd || exit 1
mount --make-private "$(findmnt --noheadings --output TARGET --target /run/containerd | tail -n 1)" || exit 1
mount -t tmpfs tmpfs /run/containerd && ln -s "$1" /run/containerd/containerd.sock || exit 1
shift
"#;

/// The same with a containerd's socket also where a system's containerd has it, in its own mount namespace only.
pub fn confined_with(kubelet: &Path, containerd: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "unchanged"])
        .args([
            "sh",
            "-c",
            &format!("{OWN_DIRECTORIES}{USUAL_CONTAINERD}{RUN}"),
            "kubelet",
        ])
        .arg(containerd)
        .arg(kubelet);
    command
}

/// Makes a kubelet's root directory one whose mounts the runtime sees too, although the kubelet has a mount namespace of its own.
pub fn share(root: &Path) -> Result<()> {
    mount_bind(root, root).with_context(|| format!("bind {} to itself", root.display()))?;
    mount_change(root, MountPropagationFlags::SHARED).with_context(|| format!("share {}", root.display()))
}
