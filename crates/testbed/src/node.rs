//! A node under test: a kubelet (rubelet's, or upstream's to check the tests themselves) on a private containerd, fed by a
//! folder of static pods, with directories and ports of the scope's.
//!
//! ```text
//!   manifests/ ──► kubelet ──► containerd
//!                    │             │
//!              pods() on the     RuntimeView: what is true,
//!              read-only port    whatever the kubelet says
//! ```
//!
//! Owns starting, killing and restarting the kubelet and what it may touch. It judges nothing: that is the test's business
//! (see the crate `scenarios` for what every kubelet must do on every containerd).

mod bed;
mod beside;
pub mod manifest;
mod pod_facts;
mod ports;
mod program;
mod runtime_view;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cgroup_tree::CgroupTree;
use crate::containerd::Containerd;
use crate::node_network::NodeNetwork;
use crate::process::{Process, spawn, tail};
use crate::scope::Scope;
use crate::wait::{wait_for, wait_until};
use crate::{http, peer};

pub use bed::{Bed, Scenario};
pub use pod_facts::PodFacts;
pub use program::Kubelet;
pub use runtime_view::{ContainerFact, RuntimeView, SandboxFact};

use ports::Ports;

/// How long a state may take unless a test says otherwise: generous, since other tests share the machine's two cores.
pub const DEADLINE: Duration = Duration::from_secs(90);
/// Lists of pods younger than this are shared, so that many waiting scenarios do not load what they watch.
const LIST_AGE: Duration = Duration::from_millis(40);
const TAIL_LINES: usize = 40;
/// Processes that a pod may have: room for every test but the one that asks for more.
pub const POD_PIDS_LIMIT: i64 = 300;
/// The file of the kubelet's configuration, in the node's directory.
const CONFIGURATION: &str = "kubelet.yaml";
/// The label of a scope's first node, which most scopes have alone.
const ONLY_NODE: &str = "node";

/// How a node differs from the plain one.
pub struct Options {
    pub kubelet: Kubelet,
    /// Fields of the KubeletConfiguration, on top of those of [`configuration`].
    pub configuration: Value,
    /// Added to the command line.
    pub arguments: Vec<String>,
    /// Tells the nodes of one scope apart: the first word of the name, and the directory below the scope's.
    pub label: String,
    /// Where the node is, with its runtime; in the machine's network without it.
    pub network: Option<NodeNetwork>,
}

impl Options {
    /// A plain node.
    pub fn new(kubelet: Kubelet) -> Self {
        Self {
            kubelet,
            configuration: json!({}),
            arguments: Vec::new(),
            label: ONLY_NODE.to_owned(),
            network: None,
        }
    }

    /// What the node is called.
    pub fn node_name(&self, scope: &Scope) -> String {
        format!("{}-{}", self.label, scope.id())
    }

    /// The same for one more node of the scope.
    #[must_use]
    pub fn labelled(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// The cgroup that everything of the node is below. One more node in a scope has one below the scope's.
    fn cgroup_root(&self, scope: &Scope) -> String {
        if self.label == ONLY_NODE {
            scope.cgroup_root()
        } else {
            format!("{}/{}", scope.cgroup_root(), self.label)
        }
    }

    fn log(&self, scope: &Scope) -> PathBuf {
        if self.label == ONLY_NODE {
            scope.path("logs/kubelet.log")
        } else {
            scope.path(&format!("logs/kubelet-{}.log", self.label))
        }
    }

    /// The same with one field of the configuration set.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.configuration[field] = value;
        self
    }
}

/// A kubelet on a private containerd. Dropping it kills the kubelet; its pods go on, and end with the scope.
pub struct Node {
    name: String,
    dir: PathBuf,
    log: PathBuf,
    kubelet: Kubelet,
    arguments: Vec<String>,
    network: Option<NodeNetwork>,
    /// Shown to the kubelet at the usual place too.
    containerd: Option<PathBuf>,
    read_only: String,
    healthz: String,
    process: Option<Process>,
    /// Killed, but perhaps not ended: a call of theirs hangs in the kernel.
    abandoned: Vec<Process>,
    list: Mutex<Option<(Instant, Vec<Pod>)>>,
}

impl Node {
    /// Makes the node's directories and starts its kubelet; returns once the kubelet answers.
    pub fn start(scope: &Scope, containerd: &Containerd, options: Options) -> Result<Self> {
        let mut node = Self::create(scope, &containerd.endpoint(), options)?;
        node.start_again()?;
        Ok(node)
    }

    /// The same without starting the kubelet.
    pub fn create(scope: &Scope, endpoint: &str, options: Options) -> Result<Self> {
        let dir = scope.path(&options.label);
        for directory in ["manifests", "root", "pki", "pod-logs", "volume-plugins"] {
            fs::create_dir_all(dir.join(directory)).with_context(|| format!("create {directory}"))?;
        }
        peer::share(&dir.join("root"))?;
        let ports = Ports::choose(scope, options.network.as_ref())?;
        let mut configuration = configuration(&dir, endpoint, &options.cgroup_root(scope));
        ports.configure(&mut configuration);
        for (field, value) in options.configuration.as_object().into_iter().flatten() {
            configuration[field] = value.clone();
        }
        if configuration["cgroupsPerQOS"] == true {
            CgroupTree::at(options.cgroup_root(scope)).make()?;
        }
        let file = dir.join(CONFIGURATION);
        write_configuration(&file, &configuration)?;
        let (name, log) = (options.node_name(scope), options.log(scope));
        let mut arguments = vec![
            format!("--config={}", file.display()),
            format!("--root-dir={}", dir.join("root").display()),
            format!("--cert-dir={}", dir.join("pki").display()),
            format!("--hostname-override={name}"),
        ];
        arguments.extend(options.arguments);
        Ok(Self {
            name,
            log,
            dir,
            kubelet: options.kubelet,
            arguments,
            network: options.network,
            containerd: None,
            read_only: format!("{}:{}", ports.host, ports.read_only),
            healthz: format!("{}:{}", ports.host, ports.healthz),
            process: None,
            abandoned: Vec::new(),
            list: Mutex::default(),
        })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A static pod's name once the kubelet has read it.
    pub fn pod_name(&self, name: &str) -> String {
        format!("{name}-{}", self.name)
    }

    /// The directory that holds everything of the node.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kubelet's root directory.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The folder of manifests.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// The network that the node has to itself.
    pub fn network(&self) -> Option<&NodeNetwork> {
        self.network.as_ref()
    }

    /// Where the pods' logs are.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The links to logs, which the kubelet has in a file system of its own as long as it runs.
    pub fn log_links(&self) -> Result<PathBuf> {
        let pid = self.pid().context("the kubelet does not run")?;
        Ok(format!("/proc/{pid}/root/var/log/containers").into())
    }

    /// Which kubelet this is.
    pub fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// Puts another kubelet in the place of the one that has ended.
    pub fn switch_to(&mut self, kubelet: Kubelet) -> Result<()> {
        ensure!(self.process.is_none(), "the other kubelet still runs");
        self.kubelet = kubelet;
        self.start_again()
    }

    /// The kubelet's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Starts the kubelet on what it left behind, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()?;
        let mut process = self.process.take().context("the kubelet does not run")?;
        let answered = wait_for("the kubelet answers", DEADLINE, || {
            process.check_running()?;
            self.fetch_pods()
        });
        let log = self.log_tail();
        self.process = Some(process);
        answered.map(|_| ()).context(log)
    }

    /// Starts the kubelet and waits for nothing.
    pub fn launch(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the kubelet runs already");
        let program = self.kubelet.path()?;
        let mut command = match &self.containerd {
            Some(containerd) => peer::confined_with(&program, containerd),
            None => peer::confined(&program),
        };
        command.args(&self.arguments);
        if let Some(network) = &self.network {
            command = network.enter(&command);
        }
        self.process = Some(spawn("kubelet", command, &self.log)?);
        Ok(())
    }

    /// Sets a field of the configuration, for the kubelet's next start.
    pub fn reconfigure(&self, field: &str, value: Value) -> Result<()> {
        let file = self.dir.join(CONFIGURATION);
        let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let mut configuration: Value = serde_json::from_slice(&text).context("read the configuration")?;
        configuration[field] = value;
        write_configuration(&file, &configuration)
    }

    /// Ends the kubelet with SIGKILL; pods go on running.
    pub fn kill_nine(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the kubelet does not run")?;
        process.signal(Signal::KILL)?;
        process.wait(DEADLINE).map(|_| ())
    }

    /// Waits until the kubelet has ended by itself.
    pub fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        let mut process = self.process.take().context("the kubelet does not run")?;
        process.wait(DEADLINE)
    }

    /// Kills the kubelet and does not wait for its end, which does not come as long as a call of it hangs in the kernel.
    pub fn abandon(&mut self) -> Result<()> {
        let process = self.process.take().context("the kubelet does not run")?;
        process.signal(Signal::KILL)?;
        // The others close what it listens on.
        wait_for("only threads whose call hangs are left", DEADLINE, || {
            let states = thread_states(process.pid());
            ensure!(states.chars().all(|state| "ZXD".contains(state)), "{states}");
            // A busy disk holds others up for a moment too.
            let socket = self.root_dir().join("rubelet.sock");
            ensure!(UnixStream::connect(&socket).is_err(), "it still listens");
            Ok(())
        })?;
        self.abandoned.push(process);
        Ok(())
    }

    /// Ends the kubelet with SIGTERM; pods go on running.
    pub fn terminate(&mut self) -> Result<()> {
        let process = self.process.take().context("the kubelet does not run")?;
        process.terminate(DEADLINE).map(|_| ())
    }

    /// Ends the kubelet with SIGTERM and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.terminate()?;
        self.start_again()
    }

    /// Puts a manifest into the folder, whole, as a careful user does: it appears under its name by a rename.
    pub fn write(&self, name: &str, manifest: &Value) -> Result<()> {
        self.write_bytes(&format!("{name}.json"), &serde_json::to_vec_pretty(manifest)?)
    }

    /// The same for any file.
    pub fn write_bytes(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let part = self.dir.join(format!("{file}.part"));
        fs::write(&part, bytes).with_context(|| format!("write {}", part.display()))?;
        fs::rename(&part, self.manifests().join(file)).with_context(|| format!("put {file} into the folder"))
    }

    /// Takes a manifest out of the folder.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_file(&format!("{name}.json"))
    }

    /// The same for any file.
    pub fn remove_file(&self, file: &str) -> Result<()> {
        fs::remove_file(self.manifests().join(file)).with_context(|| format!("remove {file}"))
    }

    /// What the kubelet says of its pods.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, pods)) = &*list
            && read.elapsed() < LIST_AGE
        {
            return Ok(pods.clone());
        }
        let pods = self.fetch_pods()?;
        *list = Some((Instant::now(), pods.clone()));
        Ok(pods)
    }

    fn fetch_pods(&self) -> Result<Vec<Pod>> {
        let answer = http::get(&self.read_only, "/pods")?;
        ensure!(
            answer.status == 200,
            "/pods answered {}: {}",
            answer.status,
            answer.text()
        );
        let mut list: Value = serde_json::from_slice(&answer.body).context("/pods is no JSON")?;
        match list["items"].take() {
            Value::Null => Ok(Vec::new()),
            items => serde_json::from_value(items).context("/pods holds no pods"),
        }
    }

    /// One pod as the kubelet tells it; the name is the manifest's.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        let full = self.pod_name(name);
        let mut found = self
            .pods()?
            .into_iter()
            .filter(|pod| pod.metadata.name.as_ref() == Some(&full));
        let pod = found
            .next()
            .with_context(|| format!("the kubelet has no pod {full}"))?;
        ensure!(found.next().is_none(), "the kubelet has pod {full} twice");
        Ok(pod)
    }

    /// Waits until the pod is as `state` wants it; what `state` says is wrong is told when time is up.
    pub async fn wait_for_pod<T>(
        &self,
        name: &str,
        what: &str,
        mut state: impl FnMut(&Pod) -> Result<T>,
    ) -> Result<T> {
        wait_until(&format!("pod {name}: {what}"), DEADLINE, || {
            let looked = self.pod(name).and_then(|pod| {
                state(&pod).with_context(|| serde_json::to_string(&pod.status).unwrap_or_default())
            });
            async move { looked }
        })
        .await
    }

    /// Waits until all the kubelet's pods are as `state` wants them.
    pub async fn wait_for_pods<T>(
        &self,
        what: &str,
        deadline: Duration,
        mut state: impl FnMut(&[Pod]) -> Result<T>,
    ) -> Result<T> {
        wait_until(what, deadline, || {
            let looked = self.pods().and_then(|pods| state(&pods));
            async move { looked }
        })
        .await
    }

    /// Waits until the pod is Running and Ready.
    pub async fn wait_until_ready(&self, name: &str) -> Result<Pod> {
        self.wait_for_pod(name, "is ready", |pod| {
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await
    }

    /// Waits until the kubelet no longer has the pod.
    pub async fn wait_until_gone(&self, name: &str) -> Result<()> {
        let full = self.pod_name(name);
        self.wait_for_pods(&format!("pod {name} is gone"), DEADLINE, |pods| {
            let there = pods.iter().any(|pod| pod.metadata.name.as_ref() == Some(&full));
            ensure!(!there, "the kubelet still has it");
            Ok(())
        })
        .await
    }

    /// The answer of `/healthz` on the port for it.
    pub fn healthz(&self) -> Result<http::Response> {
        http::get(&self.healthz, "/healthz")
    }

    /// Any page of the read-only port.
    pub fn get(&self, path: &str) -> Result<http::Response> {
        http::get(&self.read_only, path)
    }

    /// All that the kubelet has logged, over restarts.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(&self.log).with_context(|| format!("read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The lines of the log that hold all these words.
    pub fn log_lines(&self, words: &[&str]) -> Result<Vec<String>> {
        let log = self.log()?;
        let lines = log
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        Ok(lines.map(str::to_owned).collect())
    }

    /// Waits for a line of the log that holds all these words.
    pub async fn wait_for_log(&self, words: &[&str]) -> Result<String> {
        wait_until(
            &format!("the log has a line with {words:?}"),
            DEADLINE,
            async || {
                let mut lines = self.log_lines(words)?;
                match lines.pop() {
                    Some(line) => Ok(line),
                    None => bail!("no such line"),
                }
            },
        )
        .await
    }

    /// The end of the kubelet's log, for a failure's report.
    pub fn log_tail(&self) -> String {
        format!("the kubelet's last words:\n{}", tail(&self.log, TAIL_LINES))
    }
}

/// Every JSON document is a YAML document.
fn write_configuration(file: &Path, configuration: &Value) -> Result<()> {
    fs::write(file, serde_json::to_vec_pretty(configuration)?).context("write the configuration")
}

/// What keeps a kubelet inside its directories and its cgroup, and off the machine's packet filter.
fn configuration(dir: &Path, endpoint: &str, cgroup_root: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": endpoint,
        "staticPodPath": dir.join("manifests"),
        "podLogsDir": dir.join("pod-logs"),
        "volumePluginDir": dir.join("volume-plugins"),
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        // Changes are seen by being told of them, not by looking again and again.
        "fileCheckFrequency": "1h",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": true,
        "cgroupRoot": cgroup_root,
        "podPidsLimit": POD_PIDS_LIMIT,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "failSwapOn": false,
        "maxPods": 500,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.test",
        // A disk that is nearly full is no reason for these pods to go, nor for images that a test needs later.
        "evictionHard": { "memory.available": "1Mi" },
        "imageGCHighThresholdPercent": 100,
    })
}

/// One letter for each thread of a process, as the kernel tells it; none once it is gone.
fn thread_states(pid: u32) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let states = threads.into_iter().flatten().flatten().filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        // The name before it may hold anything.
        stat.rsplit_once(") ")?.1.chars().next()
    });
    states.collect()
}
