//! A real machine is switched off and rebooted, and its pods end with their hooks first: real systemd, real logind, the virtual
//! node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_ports::ImageReader;
use rubelet_testbed::images;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pod, shell, with};
use rubelet_testbed::node::{Kubelet, RuntimeView};
use rubelet_testbed::virtual_node::{self, Options, SHARE_DIR, Shared, VirtualNode};
use rubelet_testbed::wait::wait_until;
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

/// Code runs about fifteen times slower there.
const DEADLINE: Duration = Duration::from_secs(480);
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const MARKS: &str = "/var/lib/marks";
const STATE_FILE: &str = "/var/lib/kubelet/graceful_node_shutdown_state";
const CRITICAL: i32 = 2_000_001_000;

fn configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": MANIFESTS,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "evictionHard": { "memory.available": "1Mi" },
        "shutdownGracePeriod": "90s",
        "shutdownGracePeriodCriticalPods": "30s",
    })
}

const UNIT: &str = "[Unit]\nAfter=containerd.service node-share.service\nRequires=node-share.service\nWants=containerd.service\n\
    [Service]\nExecStart=/mnt/share/kubelet --config=/etc/kubelet.yaml --hostname-override=virtual-node\n\
    Restart=always\nRestartSec=1\n\
    [Install]\nWantedBy=multi-user.target\n";

/// A pod that writes down how it ends: its hook takes a moment, then its process hears SIGTERM.
fn marking(name: &str, priority: i32) -> Value {
    let mark = |what: &str| format!("echo {name} {what} >>/marks/log; sync");
    let script = format!(
        "trap '{}; exit 0' TERM; while :; do sleep 0.1; done",
        mark("term")
    );
    let hook = format!("sleep 2; {}", mark("hook"));
    let container = with(
        shell("main", &script),
        "lifecycle",
        json!({ "preStop": { "exec": { "command": ["sh", "-c", hook] } } }),
    );
    let container = with(
        container,
        "volumeMounts",
        json!([{ "name": "marks", "mountPath": "/marks" }]),
    );
    let volume = json!({ "name": "marks", "hostPath": { "path": MARKS, "type": "DirectoryOrCreate" } });
    pod(name)
        .container(container)
        .spec("volumes", json!([volume]))
        .spec("priority", json!(priority))
        .spec("terminationGracePeriodSeconds", json!(60))
        .json()
}

struct Guest {
    node: VirtualNode,
    view: RuntimeView,
    lap: Instant,
}

impl Guest {
    fn lap(&mut self, what: &str) {
        eprintln!("shutdown: {what}: {:.1} s", self.lap.elapsed().as_secs_f64());
        self.lap = Instant::now();
    }

    async fn wait_until_both_run(&self) -> Result<()> {
        wait_until("both pods run", DEADLINE, async || {
            let running = self.view.running().await?;
            ensure!(running.len() == 2, "{} run", running.len());
            Ok(())
        })
        .await
    }

    /// The lock is held, with upstream's words, and may last long enough.
    async fn wait_until_locked(&self) -> Result<()> {
        let script = "systemd-inhibit --list --no-legend --no-pager; busctl get-property org.freedesktop.login1 \
            /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec";
        wait_until("logind has the lock", DEADLINE, async || {
            let listed = self.node.succeed(script)?;
            let locks = listed.lines().filter(|line| line.starts_with("kubelet "));
            let locks: Vec<&str> = locks.collect();
            ensure!(locks.len() == 1, "{listed}");
            ensure!(
                locks[0].contains("shutdown Kubelet needs time to handle node shutdown delay"),
                "{listed}"
            );
            ensure!(listed.ends_with("t 90000000\n"), "{listed}");
            Ok(())
        })
        .await
    }

    fn marks(&self) -> Result<Vec<String>> {
        let text = self
            .node
            .succeed(&format!("cat {MARKS}/log 2>/dev/null || true"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn journal(&self) -> String {
        let journal = self.node.run("journalctl --no-pager -u kubelet -n 80");
        journal.map(|output| output.stdout).unwrap_or_default()
    }
}

#[test]
fn pods_end_with_their_hooks_before_the_machine_goes_off() {
    in_scope("virtual_node_shutdown", async |scope| {
        // The image is made once per machine.
        virtual_node::prepare()?;
        let kubelet = Kubelet::chosen()?;
        let options = Options {
            share: vec![Shared {
                source: kubelet.path()?,
                name: "kubelet".into(),
            }],
            ..Options::default()
        };
        let lap = Instant::now();
        let node = VirtualNode::start(scope, options)?;
        let view = RuntimeView::connect(node.runtime_socket()).await?;
        let mut guest = Guest { node, view, lap };
        guest.lap("boot");
        let outcome = shutdowns(&mut guest).await;
        outcome.map_err(|error| error.context(guest.journal()))
    });
}

async fn shutdowns(guest: &mut Guest) -> Result<()> {
    install(guest).await?;
    guest.wait_until_both_run().await?;
    guest.wait_until_locked().await?;
    let settings = guest.node.get("/etc/systemd/logind.conf.d/99-kubelet.conf")?;
    let expected = "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=90\n";
    ensure!(settings == expected.as_bytes(), "{settings:?}");
    guest.lap("two pods run and the lock is held");

    // Neither a signal of another program nor a new logind ends anything, and the new one gets a lock.
    guest.node.succeed(
        "busctl emit /org/freedesktop/login1 org.freedesktop.login1.Manager PrepareForShutdown b true \
         && systemctl restart systemd-logind.service",
    )?;
    guest.wait_until_locked().await?;
    guest.wait_until_both_run().await?;
    ensure!(guest.marks()?.is_empty(), "{:?}", guest.marks()?);
    guest.lap("logind restarted");

    let ends = ["usual hook", "usual term", "critical hook", "critical term"];
    guest.node.power_off()?;
    guest.node.start_again()?;
    guest.lap("switched off, boot");
    let marks = guest.marks()?;
    ensure!(marks == ends, "{marks:?}");
    guest.wait_until_both_run().await?;
    guest.wait_until_locked().await?;
    let times: Value = serde_json::from_slice(&guest.node.get(STATE_FILE)?)?;
    for time in ["startTime", "endTime"] {
        let time = times[time].as_str().context("no time")?;
        ensure!(time.ends_with('Z') && !time.starts_with("0001"), "{times}");
    }
    guest.lap("both pods run again");

    guest.node.reboot()?;
    guest.lap("reboot");
    let marks = guest.marks()?;
    ensure!(marks == [ends, ends].concat(), "{marks:?}");
    guest.wait_until_both_run().await?;
    guest.lap("both pods run again");
    Ok(())
}

async fn install(guest: &mut Guest) -> Result<()> {
    for archive in [images::pause()?, images::busybox()?] {
        guest.node.import_image(&archive)?;
        let image = v1::ImageSpec {
            image: archive.name().to_owned(),
            ..Default::default()
        };
        wait_until("CRI knows the image", DEADLINE, async || {
            let status = guest.view.client().image_status(image.clone(), false).await?;
            status.image.context("no such image").map(|_| ())
        })
        .await?;
    }
    guest.node.succeed(&format!("mkdir -p {MANIFESTS}"))?;
    let files = [
        (format!("{MANIFESTS}/usual.json"), marking("usual", 0).to_string()),
        (
            format!("{MANIFESTS}/critical.json"),
            marking("critical", CRITICAL).to_string(),
        ),
        ("/etc/kubelet.yaml".to_owned(), configuration().to_string()),
        ("/etc/systemd/system/kubelet.service".to_owned(), UNIT.to_owned()),
    ];
    for (path, text) in files {
        guest.node.put(text.as_bytes(), &path, 0o644)?;
    }
    ensure!(SHARE_DIR == "/mnt/share", "the unit names another directory");
    guest
        .node
        .succeed("systemctl daemon-reload && systemctl enable --now kubelet.service && sync")
        .map(|_| ())
}
