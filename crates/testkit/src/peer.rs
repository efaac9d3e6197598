//! Upstream's own kubelet as a peer to compare with, kept away from the rest of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::Program;

/// Whatever `--root-dir` says, upstream's kubelet takes over the device plugin socket below `/var/lib/kubelet` and writes to
/// `/var/log`: each gets file systems of its own there.
const OWN_DIRECTORIES: &str =
    r#"mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/log && exec "$@""#;

/// A command that runs upstream's kubelet; arguments can be added.
pub fn kubelet() -> Result<Command> {
    Ok(confined(&Program::Kubelet.path()?))
}

/// A command that runs any kubelet the same way. Its process id is the kubelet's.
pub fn confined(kubelet: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", OWN_DIRECTORIES, "kubelet"])
        .arg(kubelet);
    command
}
