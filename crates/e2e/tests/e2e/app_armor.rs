//! AppArmor profiles, as a part of a virtual node's day: its kernel enforces them.

use std::time::Duration;

use anyhow::{Result, ensure};
use rubelet_testbed::node::PodFacts;
use rubelet_testbed::node::manifest::{pod, shell, with};
use rubelet_testbed::virtual_node::VirtualNode;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::cgroups_v2::pod_as_told;

const DEADLINE: Duration = Duration::from_secs(480);
pub(crate) const CONFINED: &str = "confined";
/// Lets a container do everything but write to one directory.
const PROFILE: &str = "profile no-notes flags=(attach_disconnected,mediate_deleted) {\n\
    file,\n capability,\n network,\n signal,\n deny /tmp/** w,\n}";
/// What a container says of itself at its end.
const TELL: &str = "cat /proc/self/attr/current >/dev/termination-log\n\
    if echo note >/tmp/note; then echo wrote; else echo refused; fi >>/dev/termination-log";

/// Teaches the kernel the profile that a node's administrator would.
pub(crate) fn load_profile(node: &VirtualNode) -> Result<()> {
    let script =
        format!("cat >/root/profile <<'END'\n{PROFILE}\nEND\napparmor_parser --replace /root/profile");
    node.succeed(&script).map(|_| ())
}

/// A pod whose containers run under profiles of every kind: its own, others, none, and one that the kernel does not know.
pub(crate) fn confined() -> Value {
    let under = |name: &str, profile: Value| {
        let context = json!({ "appArmorProfile": profile });
        with(shell(name, TELL), "securityContext", context)
    };
    let named = |profile: &str| json!({ "type": "Localhost", "localhostProfile": profile });
    pod(CONFINED)
        .container(shell("as-the-pod", TELL))
        .container(under("by-default", json!({ "type": "RuntimeDefault" })))
        .container(under("free", json!({ "type": "Unconfined" })))
        .container(under("under-none", named("no-such-profile")))
        .spec("securityContext", json!({ "appArmorProfile": named("no-notes") }))
        .spec("restartPolicy", json!("Never"))
        .json()
}

/// That each container ran under its profile, and that the one without has been told why it does not run.
pub(crate) async fn check(node: &VirtualNode) -> Result<()> {
    wait_until("every container has told its profile", DEADLINE, async || {
        let pod = pod_as_told(node, CONFINED)?;
        let expected = [
            ("as-the-pod", "no-notes (enforce)\nrefused\n"),
            ("by-default", "cri-containerd.apparmor.d (enforce)\nwrote\n"),
            ("free", "unconfined\nwrote\n"),
        ];
        for (name, message) in expected {
            let ended = pod.terminated(name)?;
            let told = ended.message.as_deref().unwrap_or_default();
            ensure!(told == message, "{name} says {told:?}");
        }
        let (reason, message) = pod.waiting("under-none")?;
        ensure!(
            reason.ends_with("Error") && message.contains("no-such-profile"),
            "under-none waits for {reason}: {message}"
        );
        Ok(())
    })
    .await
}
