//! The virtual node shows what this machine cannot: cgroup v2, systemd, a reboot, a power cut. One node for all of it, because
//! each boot costs half a minute of emulation.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test looks at real processes and real time"
)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use prometheus::Registry;
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_ports::{ImageReader, RuntimeReader};
use rubelet_testbed::Scope;
use rubelet_testbed::bare_pod::BarePod;
use rubelet_testbed::images::{self, ImageArchive};
use rubelet_testbed::virtual_node::{self, Options, SHARE_DIR, Shared, VirtualNode};
use rubelet_testbed::wait::wait_until;
use rubelet_wire::cri::v1;

const STATE_DEADLINE: Duration = Duration::from_secs(60);
const CONTAINER: &str = "main";
const MEMORY_LIMIT_BYTES: i64 = 48 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_on_a_virtual_node_and_reboots_leave_it_clean() {
    // The image is made once per machine.
    virtual_node::prepare().unwrap();
    let archives = [images::pause().unwrap(), images::busybox().unwrap()];
    let scope = Scope::new("virtual_node").unwrap();
    let dir = scope.dir().to_owned();
    let mut clock = Clock::start();

    let options = Options {
        swap_mib: 64,
        share: vec![Shared {
            source: "/bin/busybox".into(),
            name: "busybox".into(),
        }],
        ..Options::default()
    };
    let mut node = VirtualNode::start(&scope, options).unwrap();
    clock.lap("boot");
    check_system(&node).unwrap();
    check_isolation(&node).unwrap();
    let cri = connect(&node).await.unwrap();
    import(&node, &cri, &archives).await.unwrap();
    clock.lap("system seen, images imported");

    let pod = Pod::run(&cri, "first").await.unwrap();
    pod.check_running(&node).await.unwrap();
    assert!(
        check_nothing_runs(&node).is_err(),
        "the search for leftovers does not see a running pod"
    );
    clock.lap("pod run");
    pod.pod.remove().await.unwrap();
    check_no_trace(&node, &cri).await.unwrap();
    clock.lap("pod removed");

    let pod = Pod::run(&cri, "rebooted").await.unwrap();
    let boot_id = boot_id(&node).unwrap();
    node.reboot().unwrap();
    clock.lap("second pod run, reboot");
    assert_ne!(boot_id, self::boot_id(&node).unwrap());
    check_after_boot(&node, &cri, pod).await.unwrap();
    clock.lap("found clean");

    let pod = Pod::run(&cri, "cut-off").await.unwrap();
    node.put(b"kept", "/var/lib/marker", 0o600).unwrap();
    node.set_clock(-86_400).unwrap();
    cut_power(&mut node).unwrap();
    clock.lap("third pod run, power cut, boot");
    assert_eq!(node.get("/var/lib/marker").unwrap(), b"kept");
    check_clock(&node, -86_400).unwrap();
    check_after_boot(&node, &cri, pod).await.unwrap();
    clock.lap("found clean");

    let pid = node.pid().unwrap();
    drop(node);
    drop(scope);
    assert!(!process_dir(pid).exists(), "the emulator is still there");
    assert!(!dir.exists(), "{} is still there", dir.display());
    clock.lap("torn down");
    clock.tell();
}

/// One script for all of it: every command costs a second of emulation.
fn check_system(node: &VirtualNode) -> Result<()> {
    let questions = [
        ("stat --file-system --format=%T /sys/fs/cgroup", "cgroup2fs"),
        ("cat /proc/1/comm", "systemd"),
        ("systemctl is-system-running", "running"),
        ("systemctl is-active containerd.service", "active"),
        ("systemctl is-active systemd-logind.service", "active"),
        ("hostname", "virtual-node"),
        ("swapon --show=SIZE --noheadings --raw", "64M"),
        (&format!("{SHARE_DIR}/busybox echo shared"), "shared"),
    ];
    let script = questions
        .map(|(script, _)| format!("echo \"$({script} 2>&1)\"\n"))
        .concat();
    let answers = node.succeed(&script)?;
    let answers: Vec<&str> = answers.lines().collect();
    ensure!(
        answers == questions.map(|(_, expected)| expected),
        "the system is {answers:?}"
    );
    Ok(())
}

/// The guest's address for the host's loopback must lead nowhere, and with it everything beyond.
fn check_isolation(node: &VirtualNode) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let attempt = node.run(&format!("timeout 3 bash -c 'exec 3<>/dev/tcp/10.0.2.2/{port}'"))?;
    ensure!(attempt.status != 0, "the node reached a server of the host");
    Ok(())
}

async fn connect(node: &VirtualNode) -> Result<CriClient> {
    let options = CriOptions::new(format!("unix://{}", node.runtime_socket().display()));
    Ok(CriClient::connect(&options, &CriMetrics::register(&Registry::new())?).await?)
}

async fn import(node: &VirtualNode, cri: &CriClient, archives: &[ImageArchive]) -> Result<()> {
    for archive in archives {
        node.import_image(archive)?;
        let image = v1::ImageSpec {
            image: archive.name().to_owned(),
            ..Default::default()
        };
        wait_until("CRI knows the image", STATE_DEADLINE, || async {
            let status = cri.image_status(image.clone(), false).await?;
            let id = status.image.context("no such image")?.id;
            ensure!(
                id == archive.id(),
                "{} has id {id} instead of {}",
                archive.name(),
                archive.id()
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A pod of one container, as the kubelet would ask for it with the systemd cgroup driver.
struct Pod {
    name: &'static str,
    container_id: String,
    pod: BarePod,
}

impl Pod {
    async fn run(cri: &CriClient, name: &'static str) -> Result<Self> {
        let pod = BarePod::run_as(cri, sandbox_config(name)).await?;
        let mut pod = Self {
            name,
            container_id: String::new(),
            pod,
        };
        pod.container_id = pod.pod.start_container_as(container_config()).await?;
        Ok(pod)
    }

    async fn check_running(&self, node: &VirtualNode) -> Result<()> {
        let status = self.pod.container_status(CONTAINER).await?;
        ensure!(
            status.observed_state() == v1::ContainerState::ContainerRunning,
            "{status:?}"
        );
        let address = self.pod.ip().await?;
        ensure!(address.starts_with("10.88."), "the pod's address is {address:?}");
        let cgroup = self.pod.exec(CONTAINER, &["cat", "/proc/self/cgroup"]).await?;
        ensure!(
            cgroup.exit_code == 0 && cgroup.stdout.trim() == "0::/",
            "in the container: {cgroup:?}"
        );
        self.check_cgroup(node)?;

        let expected = format!("stdout F started on {}\n", self.name);
        wait_until("the container's log", STATE_DEADLINE, async || {
            let log = node.get(&format!("{}/{CONTAINER}.log", log_directory(self.name)))?;
            let text = String::from_utf8_lossy(&log);
            ensure!(
                text.ends_with(&expected),
                "{text:?} does not end with {expected:?}"
            );
            Ok(())
        })
        .await
    }

    fn check_cgroup(&self, node: &VirtualNode) -> Result<()> {
        let scope = format!("cri-containerd-{}.scope", self.container_id);
        let path = format!("{}/{scope}", slice(self.name));
        let known = node.succeed(&format!("systemctl show --property=ControlGroup --value {scope}"))?;
        ensure!(known.trim() == path, "systemd says {known:?} instead of {path:?}");
        let limit = node.succeed(&format!("cat /sys/fs/cgroup{path}/memory.max"))?;
        ensure!(
            limit.trim() == MEMORY_LIMIT_BYTES.to_string(),
            "memory.max is {limit:?}"
        );
        Ok(())
    }
}

fn slice(pod: &str) -> String {
    // A dash in a slice's name is a level of the tree, which is why a pod's uid is written with underscores there.
    format!(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
        pod.replace('-', "_")
    )
}

fn log_directory(pod: &str) -> String {
    format!("/var/log/pods/{pod}")
}

fn sandbox_config(name: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: name.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: log_directory(name),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: slice(name),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container_config() -> v1::ContainerConfig {
    let script = "trap 'exit 0' TERM; echo started on $(hostname); while :; do sleep 1; done";
    let resources = v1::LinuxContainerResources {
        memory_limit_in_bytes: MEMORY_LIMIT_BYTES,
        ..Default::default()
    };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: CONTAINER.to_owned(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: images::BUSYBOX.to_owned(),
            ..Default::default()
        }),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: format!("{CONTAINER}.log"),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// No sandbox, container, scope, slice, shim, container mount, network namespace or address is left.
async fn check_no_trace(node: &VirtualNode, cri: &CriClient) -> Result<()> {
    let sandboxes = cri.list_pod_sandboxes(None).await?;
    ensure!(sandboxes.is_empty(), "{sandboxes:?}");
    let containers = cri.list_containers(None).await?;
    ensure!(containers.is_empty(), "{containers:?}");
    // Shims and scopes end in their own time.
    wait_until("nothing runs", STATE_DEADLINE, async || check_nothing_runs(node)).await
}

fn check_nothing_runs(node: &VirtualNode) -> Result<()> {
    let searches = [
        "systemctl list-units --plain --no-legend 'cri-containerd-*.scope'",
        "pgrep --list-full containerd-shim",
        "grep -E ' /(run/containerd|run/netns|var/lib/containerd)/' /proc/self/mountinfo",
        "ls /run/netns",
        "ls /run/cni/ipam/pods | grep '^10[.]'",
        "ls /sys/class/net | grep '^veth'",
    ];
    let found = node.run(&searches.map(|search| format!("{search}\n")).concat())?;
    ensure!(
        found.stdout.is_empty(),
        "something is left of a pod:\n{}",
        found.stdout
    );
    Ok(())
}

/// The runtime remembers the pod, but nothing of it runs; removing it leaves no trace, and the node is whole.
async fn check_after_boot(node: &VirtualNode, cri: &CriClient, pod: Pod) -> Result<()> {
    check_nothing_runs(node)?;
    let sandbox = cri
        .pod_sandbox_status(pod.pod.sandbox_id(), false)
        .await?
        .status
        .context("no status")?;
    ensure!(
        sandbox.observed_state() == v1::PodSandboxState::SandboxNotready,
        "{sandbox:?}"
    );
    let container = pod.pod.container_status(CONTAINER).await?;
    ensure!(
        container.observed_state() != v1::ContainerState::ContainerRunning,
        "{container:?}"
    );
    pod.pod.remove().await?;
    check_no_trace(node, cri).await?;
    check_system(node)
}

fn cut_power(node: &mut VirtualNode) -> Result<()> {
    let pid = node.pid().context("the node is off")?;
    node.power_off_hard()?;
    ensure!(!process_dir(pid).exists(), "the emulator outlived the power cut");
    ensure!(node.run("true").is_err(), "a node without power ran a command");
    node.start_again()
}

fn check_clock(node: &VirtualNode, offset_s: i64) -> Result<()> {
    let seconds = |text: &str| text.trim().parse::<i64>().context("date prints seconds");
    let guest = seconds(&node.succeed("date +%s")?)?;
    let host = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_secs();
    let difference = guest - i64::try_from(host)?;
    ensure!(
        (difference - offset_s).abs() < 60,
        "the node's clock is {difference} s off instead of {offset_s}"
    );
    Ok(())
}

fn boot_id(node: &VirtualNode) -> Result<String> {
    node.succeed("cat /proc/sys/kernel/random/boot_id")
}

fn process_dir(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Prints how long each part took, and fails the test that takes too long.
struct Clock {
    start: Instant,
    lap_start: Instant,
}

impl Clock {
    fn start() -> Self {
        Self {
            start: Instant::now(),
            lap_start: Instant::now(),
        }
    }

    fn lap(&mut self, what: &str) {
        eprintln!(
            "virtual node: {what}: {:.1} s",
            self.lap_start.elapsed().as_secs_f64()
        );
        self.lap_start = Instant::now();
    }

    /// Three boots and three pods: about 100 s on two idle cores.
    fn tell(&self) {
        eprintln!("virtual node: {:.1} s", self.start.elapsed().as_secs_f64());
    }
}
