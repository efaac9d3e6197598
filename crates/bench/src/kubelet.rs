//! A kubelet under measurement, ours or upstream's: its folders and configuration, its process, what it says of its pods.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::Membership;
use super::runtime::DEADLINE;
use super::samples::Column;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::Containerd;
use rubelet_testbed::process::Process;
use rubelet_testbed::{Scope, http, peer};

/// What a node without a cluster is called.
const NODE: &str = "node";
/// As many as a bridge has ports for.
const MAX_PODS: usize = 1000;
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// Clock ticks of `/proc`, a constant of the kernel's interface on every machine that runs kubelets.
const TICKS_PER_SECOND: f64 = 100.0;
const POLL: Duration = Duration::from_millis(20);

/// Folders, ports and configuration, which outlive the kubelet's process.
pub(super) struct Place<'a> {
    scope: &'a Scope,
    column: Column,
    program: PathBuf,
    name: String,
    dir: PathBuf,
    config: PathBuf,
    address: String,
    membership: Option<Membership>,
    /// Shown to the kubelet at the usual place too.
    containerd: Option<PathBuf>,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        scope: &'a Scope,
        containerd: &Containerd,
        column: Column,
        program: &Path,
        number: usize,
    ) -> Result<Self> {
        let name = format!("{column}-{number}");
        let dir = scope.path(&name);
        for folder in ["manifests", "staged", "logs", "root", "pki"] {
            let folder = dir.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        peer::share(&dir.join("root"))?;
        let read_only_port = scope.port()?;
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": containerd.endpoint(),
            "staticPodPath": dir.join("manifests"),
            "podLogsDir": dir.join("logs"),
            "address": "127.0.0.1",
            "port": scope.port()?,
            "readOnlyPort": read_only_port,
            "healthzPort": 0,
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupRoot": scope.cgroup_root(),
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "maxPods": MAX_PODS,
            // A log that is measured must not be rotated meanwhile.
            "containerLogMaxSize": "1Gi",
            "volumePluginDir": dir.join("plugins"),
            // The rest of the machine is neither to be changed nor to be a reason for pods to go.
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
            "evictionHard": { "memory.available": "1Mi" },
            "imageGCHighThresholdPercent": 100,
        });
        let path = dir.join("config.json");
        fs::write(&path, serde_json::to_vec_pretty(&config)?).context("write the kubelet's configuration")?;
        Ok(Self {
            scope,
            column,
            program: program.to_owned(),
            name,
            config: path,
            dir,
            address: format!("127.0.0.1:{read_only_port}"),
            membership: None,
            containerd: None,
        })
    }

    /// The same with cgroups for pods and QoS classes, and with the containerd where upstream's cAdvisor looks for one: statistics
    /// are of these.
    pub(super) fn with_statistics(mut self, containerd: &Containerd) -> Result<Self> {
        let mut config: Value = serde_json::from_slice(&fs::read(&self.config)?)?;
        config["cgroupsPerQOS"] = json!(true);
        fs::write(&self.config, serde_json::to_vec_pretty(&config)?)
            .context("write the kubelet's configuration")?;
        CgroupTree::at(self.scope.cgroup_root()).make()?;
        self.containerd = Some(containerd.socket());
        Ok(self)
    }

    /// The same as a node of a cluster.
    pub(super) fn joined(mut self, membership: Membership) -> Self {
        self.membership = Some(membership);
        self
    }

    /// What the node is called.
    pub(super) fn node(&self) -> &str {
        self.membership
            .as_ref()
            .map_or(NODE, |membership| &membership.node)
    }

    pub(super) fn column(&self) -> Column {
        self.column
    }

    /// What tells it from all others.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where the kubelet keeps a volume of a pod; `plugin` is the kind of volume, as in `configmap`.
    pub(super) fn volume(&self, pod_uid: &str, plugin: &str, volume: &str) -> PathBuf {
        let volumes = format!("root/pods/{pod_uid}/volumes/kubernetes.io~{plugin}");
        self.dir.join(volumes).join(volume)
    }

    /// The end of what the kubelet wrote.
    pub(super) fn log_tail(&self, lines: usize) -> String {
        let log = self.scope.path(&format!("logs/{}.log", self.name));
        rubelet_testbed::process::tail(&log, lines)
    }

    /// Starts the kubelet and waits until it says that it is ready and answers; gives how long the first took.
    pub(super) fn start(&self) -> Result<(Kubelet, Duration)> {
        let notify = self.dir.join("notify");
        let _ = fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).context("make the socket that the kubelet tells")?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let begin = Instant::now();
        let kubelet = self.spawn()?;
        let mut message = [0; 256];
        loop {
            let length = socket
                .recv(&mut message)
                .context("it does not say that it is ready")?;
            if message[..length].starts_with(b"READY=1") {
                break;
            }
        }
        let ready = begin.elapsed();
        rubelet_testbed::wait::wait_for("the kubelet answers", DEADLINE, || kubelet.pods().map(|_| ()))?;
        Ok((kubelet, ready))
    }

    /// Starts the kubelet and waits for nothing.
    pub(super) fn spawn(&self) -> Result<Kubelet> {
        let mut command = match &self.containerd {
            Some(containerd) => peer::confined_with(&self.program, containerd),
            None => peer::confined(&self.program),
        };
        command
            .env("NOTIFY_SOCKET", self.dir.join("notify"))
            .arg("--config")
            .arg(&self.config)
            .arg("--root-dir")
            .arg(self.dir.join("root"))
            .arg("--cert-dir")
            .arg(self.dir.join("pki"))
            .arg(format!("--hostname-override={}", self.node()));
        if let Some(membership) = &self.membership {
            command
                .arg("--kubeconfig")
                .arg(&membership.kubeconfig)
                .arg("--tls-cert-file")
                .arg(&membership.serving.certificate)
                .arg("--tls-private-key-file")
                .arg(&membership.serving.key)
                .arg(format!("--node-ip={}", membership.address))
                // The API server calls the node at its address.
                .arg("--address=0.0.0.0");
        }
        Ok(Kubelet {
            node: self.node().to_owned(),
            column: self.column,
            dir: self.dir.clone(),
            address: self.address.clone(),
            process: self.scope.spawn(&self.name, command)?,
        })
    }
}

/// What the kubelet says of a pod.
pub(super) struct PodStatus {
    pub(super) name: String,
    phase: String,
    ready: bool,
}

impl PodStatus {
    /// Running and Ready.
    pub(super) fn is_ready(&self) -> bool {
        self.ready && self.phase == "Running"
    }
}

/// Memory of a process.
pub(super) struct Memory {
    pub(super) resident_mib: f64,
    pub(super) anonymous_mib: f64,
}

/// A running kubelet. Dropping it kills it.
pub(super) struct Kubelet {
    column: Column,
    node: String,
    dir: PathBuf,
    address: String,
    process: Process,
}

impl Kubelet {
    pub(super) fn column(&self) -> Column {
        self.column
    }

    /// What its node is called.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// What the kubelet calls the pod of a manifest.
    pub(super) fn pod_name(&self, name: &str) -> String {
        format!("{name}-{}", self.node)
    }

    /// Writes a manifest beside the folder, from where it is put in by a rename.
    pub(super) fn stage(&self, name: &str, manifest: &str) -> Result<()> {
        fs::write(self.staged(name), manifest).with_context(|| format!("write the manifest of {name}"))
    }

    /// Puts a staged manifest into the folder.
    pub(super) fn put(&self, name: &str) -> Result<()> {
        fs::rename(self.staged(name), self.manifest(name))
            .with_context(|| format!("put the manifest of {name}"))
    }

    /// Removes a manifest.
    pub(super) fn take(&self, name: &str) -> Result<()> {
        fs::remove_file(self.manifest(name)).with_context(|| format!("remove the manifest of {name}"))
    }

    fn staged(&self, name: &str) -> PathBuf {
        self.dir.join("staged").join(format!("{name}.json"))
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.dir.join("manifests").join(format!("{name}.json"))
    }

    /// Its pods, as it serves them.
    pub(super) fn pods(&self) -> Result<Vec<PodStatus>> {
        let answer = http::get(&self.address, "/pods")?;
        ensure!(answer.status == 200, "/pods answered {}", answer.status);
        read_pods(&answer.body)
    }

    /// Where its pages are.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until the kubelet serves no pod of this manifest any more.
    pub(super) async fn wait_until_gone(&self, name: &str) -> Result<()> {
        let pod = self.pod_name(name);
        let end = Instant::now() + DEADLINE;
        while self.pods()?.iter().any(|status| status.name == pod) {
            ensure!(Instant::now() < end, "{pod} is served after {DEADLINE:?}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Leaves it alone for a while; it must still run afterwards.
    pub(super) async fn settle(&mut self, time: Duration) -> Result<()> {
        tokio::time::sleep(time).await;
        self.process.check_running()
    }

    /// Processor time that it has used since it was started.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid()))?;
        cpu_ticks(&stat)
            .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
            .context("/proc/…/stat is not as it should be")
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let mib = |key: &str| memory_kib(&status, key).map(|kib| kib as f64 / 1024.0);
        Ok(Memory {
            resident_mib: mib("VmRSS:").context("no VmRSS")?,
            anonymous_mib: mib("RssAnon:").context("no RssAnon")?,
        })
    }

    /// Ends it with a signal and waits for its end.
    pub(super) fn kill(mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)?;
        self.process.wait(STOP_DEADLINE).map(|_| ())
    }

    /// Ends it as an administrator would; its pods go on.
    pub(super) fn stop(self) -> Result<()> {
        self.process.terminate(STOP_DEADLINE).map(|_| ())
    }
}

fn read_pods(body: &[u8]) -> Result<Vec<PodStatus>> {
    #[derive(Deserialize)]
    struct List {
        // Go writes an empty list as null.
        items: Option<Vec<Pod>>,
    }
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
        status: Status,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        phase: String,
        conditions: Vec<Condition>,
    }
    #[derive(Deserialize)]
    struct Condition {
        r#type: String,
        status: String,
    }
    let list: List = serde_json::from_slice(body).context("/pods is no list of pods")?;
    let pods = list.items.unwrap_or_default().into_iter();
    Ok(pods
        .map(|pod| PodStatus {
            name: pod.metadata.name,
            phase: pod.status.phase,
            ready: pod
                .status
                .conditions
                .iter()
                .any(|condition| condition.r#type == "Ready" && condition.status == "True"),
        })
        .collect())
}

/// User and system time from `/proc/<pid>/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // Behind the command, which may itself hold blanks and parentheses, the third field of the line is first.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn memory_kib(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 900 0 3 0 17 25 0 0 20 0 9 0 1234 1 2";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn memory_is_read() {
        let status = "Name:\tx\nVmRSS:\t   2048 kB\nRssAnon:\t 512 kB\n";
        assert_eq!(memory_kib(status, "VmRSS:"), Some(2048));
        assert_eq!(memory_kib(status, "RssAnon:"), Some(512));
        assert_eq!(memory_kib(status, "RssFile:"), None);
    }

    #[test]
    fn readiness_is_read() {
        let check = |status: Value, expected: bool| {
            let body = json!({ "items": [{ "metadata": { "name": "a" }, "status": status }] });
            let pods = read_pods(body.to_string().as_bytes()).unwrap();
            assert_eq!((pods.len(), pods[0].is_ready()), (1, expected), "{body}");
        };
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
        check(
            json!({ "phase": "Running", "conditions": [condition("Ready", "True")] }),
            true,
        );
        check(
            json!({ "phase": "Running", "conditions": [condition("Ready", "False")] }),
            false,
        );
        check(
            json!({ "phase": "Running", "conditions": [condition("Initialized", "True")] }),
            false,
        );
        check(
            json!({ "phase": "Pending", "conditions": [condition("Ready", "True")] }),
            false,
        );
        check(json!({}), false);
        assert!(read_pods(br#"{"items":null}"#).unwrap().is_empty());
        assert!(read_pods(b"no").is_err());
    }
}
