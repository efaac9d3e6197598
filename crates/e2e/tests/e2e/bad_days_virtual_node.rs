//! Power cuts and moved clocks, which need a machine of their own: the virtual node. One node for all of it, because each boot
//! costs half a minute of emulation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_ports::ImageReader;
use rubelet_testbed::images;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pause, pod};
use rubelet_testbed::node::{Kubelet, RuntimeView};
use rubelet_testbed::virtual_node::{self, Options, SHARE_DIR, Shared, VirtualNode};
use rubelet_testbed::wait::wait_until;
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use crate::{app_armor, cgroups_v2, statistics_v2};

const PODS: usize = 10;
/// Code runs about fifteen times slower there.
const DEADLINE: Duration = Duration::from_secs(480);
const HOURS: i64 = 5 * 3600;
const MANIFESTS: &str = "/etc/kubernetes/manifests";

fn configuration(driver: &str) -> Value {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": MANIFESTS,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "fileCheckFrequency": "1h",
        "makeIPTablesUtilChains": false,
        "evictionHard": { "memory.available": "1Mi" },
    });
    cgroups_v2::configure(&mut configuration, driver);
    configuration
}

const UNIT: &str = "[Unit]\nAfter=containerd.service node-share.service\nRequires=node-share.service\nWants=containerd.service\n\
    [Service]\nExecStart=/mnt/share/kubelet --config=/etc/kubelet.yaml --hostname-override=virtual-node\n\
    Restart=always\nRestartSec=1\n\
    [Install]\nWantedBy=multi-user.target\n";

/// A script that writes files, each whole or not at all, and safe against a power cut.
fn writing(files: &[(String, String)]) -> String {
    let mut script = format!("set -e; mkdir -p {MANIFESTS}\n");
    for (path, text) in files {
        script += &format!("cat >/root/part <<'END-OF-FILE'\n{text}\nEND-OF-FILE\nmv /root/part {path}\n");
    }
    script + "sync\n"
}

fn manifest(name: &str) -> (String, String) {
    let number = name.strip_prefix("pod-").and_then(|number| number.parse().ok());
    let with_resources = number.and_then(cgroups_v2::manifest);
    let manifest = with_resources.unwrap_or_else(|| pod(name).container(pause("main")).json());
    (path(name), manifest.to_string())
}

fn path(name: &str) -> String {
    format!("{MANIFESTS}/{name}.json")
}

struct Guest {
    node: VirtualNode,
    view: RuntimeView,
    lap: Instant,
}

impl Guest {
    fn lap(&mut self, what: &str) {
        eprintln!("bad days: {what}: {:.1} s", self.lap.elapsed().as_secs_f64());
        self.lap = Instant::now();
    }

    /// The containers that run, once there are as many as wanted and none twice.
    async fn wait_until_running(&self, count: usize) -> Result<BTreeMap<(String, String), String>> {
        wait_until(&format!("{count} pods run"), DEADLINE, async || {
            let running = self.view.running().await?;
            ensure!(running.len() == count, "{} run", running.len());
            let ready = self
                .view
                .sandboxes()
                .await?
                .iter()
                .filter(|sandbox| sandbox.ready)
                .count();
            ensure!(ready == count, "{ready} sandboxes are ready");
            Ok(running)
        })
        .await
    }

    /// After the clock has moved everything still runs, what comes new runs too, and what dies is replaced soon.
    async fn check_all_goes_on(&mut self, new: &str, victim: &str) -> Result<()> {
        let before = self.view.running().await?;
        self.node.succeed(&writing(&[manifest(new)]))?;
        self.wait_until_running(before.len() + 1).await?;
        let victim = (format!("{victim}-virtual-node"), "main".to_owned());
        let old = before.get(&victim).context("no victim")?.clone();
        self.view.kill_container(&old).await?;
        wait_until("the victim has a successor", DEADLINE, async || {
            let running = self.view.running().await?;
            ensure!(
                running.get(&victim).is_some_and(|id| *id != old),
                "not yet: {running:?}"
            );
            Ok(())
        })
        .await?;
        let after = self.view.running().await?;
        for (key, id) in &before {
            ensure!(
                *key == victim || after.get(key) == Some(id),
                "{key:?} was restarted because of the clock"
            );
        }
        Ok(())
    }

    fn journal(&self) -> String {
        let journal = self.node.run("journalctl --no-pager -b -u kubelet -n 60");
        journal.map(|output| output.stdout).unwrap_or_default()
    }
}

#[test]
fn power_cuts_and_moved_clocks() {
    // The image is made once per machine.
    in_scope("bad_days_virtual_node", async |scope| {
        virtual_node::prepare()?;
        let kubelet = Kubelet::chosen()?;
        let options = Options {
            share: vec![Shared {
                source: kubelet.path()?,
                name: "kubelet".into(),
            }],
            swap_mib: 64,
            forward_ports: vec![cgroups_v2::READ_ONLY_PORT],
            kernel_args: vec![cgroups_v2::HUGE_PAGES.into(), statistics_v2::STALLS.into()],
            ..Options::default()
        };
        let lap = Instant::now();
        let node = VirtualNode::start(scope, options)?;
        let view = RuntimeView::connect(node.runtime_socket()).await?;
        let mut guest = Guest { node, view, lap };
        guest.lap("boot");
        let outcome = days(&mut guest).await;
        outcome.map_err(|error| error.context(guest.journal()))
    });
}

async fn days(guest: &mut Guest) -> Result<()> {
    install(guest).await?;
    let before = guest.wait_until_running(PODS).await?;
    guest.lap("ten pods run");
    cgroups_v2::check(&guest.node, &guest.view, "systemd").await?;
    guest.lap("their slices are as they should be");
    check_statistics(guest, "systemd", PODS).await?;
    orphans_and_an_eater(guest).await?;
    confined_containers(guest).await?;

    // The runtime's network library does not sync what it remembers of a pod, and a sandbox whose memory is an empty file can never
    // be stopped again, whoever asks.
    // The file of a pod that has just ended may go meanwhile.
    guest
        .node
        .succeed("for file in /var/lib/cni/results/*; do sync $file || [ ! -e $file ] || exit 1; done")?;
    guest.node.power_off_hard()?;
    guest.node.start_again()?;
    guest.lap("power cut, boot");
    let after = guest.wait_until_running(PODS).await?;
    let names = |running: &BTreeMap<(String, String), String>| running.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&before) == names(&after), "{before:?} became {after:?}");
    ensure!(
        before.values().all(|id| !after.values().any(|other| other == id)),
        "a container outlived the power cut"
    );
    guest.lap("ten pods run again");

    guest.node.set_clock(HOURS)?;
    guest
        .check_all_goes_on("later", "pod-3")
        .await
        .context("with the clock ahead")?;
    guest.lap("the clock went ahead");
    guest.node.set_clock(-HOURS)?;
    guest
        .check_all_goes_on("earlier", "pod-4")
        .await
        .context("with the clock back")?;
    guest.lap("the clock went back");
    change_driver(guest).await
}

/// A pod with work and memory comes beside the others, is measured, and goes.
async fn check_statistics(guest: &mut Guest, driver: &str, others: usize) -> Result<()> {
    let measured = path(statistics_v2::MEASURED);
    let manifest = statistics_v2::manifest().to_string();
    guest.node.succeed(&writing(&[(measured.clone(), manifest)]))?;
    statistics_v2::check(&guest.node, &guest.view, driver).await?;
    guest.node.succeed(&format!("rm {measured}"))?;
    guest.wait_until_running(others).await?;
    guest.lap("statistics are as the kernel's");
    Ok(())
}

/// A killed kubelet's orphans go, and so does a container that eats its memory; nothing else does.
async fn orphans_and_an_eater(guest: &mut Guest) -> Result<()> {
    let before = guest.view.identities().await?;
    cgroups_v2::leave_orphans(&guest.node)?;
    let eater = path(cgroups_v2::EATER);
    guest
        .node
        .succeed(&writing(&[(eater.clone(), cgroups_v2::eater().to_string())]))?;
    cgroups_v2::check_eater(&guest.node, &guest.view, &before).await?;
    guest.lap("a memory eater was killed");
    cgroups_v2::check_orphans_gone(&guest.node).await?;
    guest.node.succeed(&format!("rm {eater}"))?;
    guest.wait_until_running(PODS).await?;
    let after = guest.view.identities().await?;
    ensure!(before == after, "containers changed: {before:?} became {after:?}");
    guest.lap("a killed kubelet's orphans are gone");
    Ok(())
}

/// A pod under AppArmor profiles comes and goes.
async fn confined_containers(guest: &mut Guest) -> Result<()> {
    app_armor::load_profile(&guest.node)?;
    let confined = path(app_armor::CONFINED);
    let manifest = app_armor::confined().to_string();
    guest.node.succeed(&writing(&[(confined.clone(), manifest)]))?;
    app_armor::check(&guest.node).await?;
    guest.node.succeed(&format!("rm {confined}"))?;
    guest.wait_until_running(PODS).await?;
    guest.lap("containers run under AppArmor profiles");
    Ok(())
}

/// The same with the other cgroup driver: nothing of the first is left, and pods get the same.
async fn change_driver(guest: &mut Guest) -> Result<()> {
    remove_all(guest, "systemd").await?;
    guest.lap("all pods removed, with their slices and a process in one");
    let files = [
        (
            "/etc/kubelet.yaml".to_owned(),
            configuration("cgroupfs").to_string(),
        ),
        manifest("pod-0"),
        manifest("pod-1"),
    ];
    guest.node.succeed(&format!(
        "systemctl stop kubelet && sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml \
         && systemctl restart containerd\n{}systemctl start kubelet",
        writing(&files)
    ))?;
    guest.wait_until_running(2).await?;
    cgroups_v2::check(&guest.node, &guest.view, "cgroupfs").await?;
    check_statistics(guest, "cgroupfs", 2).await?;
    remove_all(guest, "cgroupfs").await?;
    guest.lap("the other cgroup driver");
    Ok(())
}

/// Every pod goes with its cgroup, also the one in which a process is that nobody knows of.
async fn remove_all(guest: &Guest, driver: &str) -> Result<()> {
    cgroups_v2::leave_process(&guest.node, driver)?;
    guest.node.succeed(&format!("rm {MANIFESTS}/*"))?;
    guest.wait_until_running(0).await?;
    cgroups_v2::check_gone(&guest.node).await?;
    cgroups_v2::check_process_gone(&guest.node).await
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
    let mut files: Vec<(String, String)> = (0..PODS)
        .map(|number| manifest(&format!("pod-{number}")))
        .collect();
    files.push((
        "/etc/kubelet.yaml".to_owned(),
        configuration("systemd").to_string(),
    ));
    files.push(("/etc/systemd/system/kubelet.service".to_owned(), UNIT.to_owned()));
    guest.node.succeed(&writing(&files))?;
    ensure!(SHARE_DIR == "/mnt/share", "the unit names another directory");
    guest
        .node
        .succeed("systemctl daemon-reload && systemctl enable --now kubelet.service && sync")
        .map(|_| ())
}
