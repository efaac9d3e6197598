//! Statistics of real pods: what metrics-server and dashboards read.

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options};
use rubelet_testbed::wait::wait_for;
use serde_json::{Value, json};

fn resources(node: &Node) -> Result<MetricsText> {
    let answer = node.get("/metrics/resource")?;
    ensure!(answer.status == 200, "{}", answer.text());
    MetricsText::parse(&answer.text()).context("the page of resources")
}

/// A family's series of the pod, which must be there with a time.
fn value(page: &MetricsText, family: &str, labels: &[(&str, &str)]) -> Result<f64> {
    let samples = page.family(family).map(|family| family.samples.as_slice());
    let mut matching = samples.unwrap_or_default().iter().filter(|sample| {
        let has = |(name, value): &(&str, &str)| sample.labels.get(*name).is_some_and(|found| found == value);
        labels.iter().all(has)
    });
    let sample = matching
        .next()
        .with_context(|| format!("no {family} {labels:?}"))?;
    ensure!(matching.next().is_none(), "two series: {family} {labels:?}");
    ensure!(
        sample.time_ms.is_some_and(|time| time > 1_500_000_000_000),
        "{sample:?}"
    );
    Ok(sample.value)
}

fn containers(node: &Node) -> Result<MetricsText> {
    let answer = node.get("/metrics/cadvisor")?;
    ensure!(answer.status == 200, "{}", answer.text());
    MetricsText::parse(&answer.text()).context("the page of containers")
}

/// The rows of the pod, its sandbox and its container, and the machine's.
fn check_containers(page: &MetricsText, pod: &str) -> Result<()> {
    let family = page.family("container_last_seen").context("no rows")?;
    let of_pod: Vec<_> = family
        .samples
        .iter()
        .filter(|sample| sample.labels.get("pod").is_some_and(|name| name == pod))
        .map(|sample| {
            let has = |label: &str| sample.labels.get(label).is_some_and(|value| !value.is_empty());
            (has("container"), has("image"), has("name"))
        })
        .collect();
    for row in [(false, false, false), (false, true, true), (true, true, true)] {
        let count = of_pod.iter().filter(|found| **found == row).count();
        ensure!(count == 1, "{count} rows {row:?} among {of_pod:?}");
    }
    let main = [("container", "main"), ("pod", pod), ("namespace", "default")];
    for (family, least) in [
        ("container_cpu_usage_seconds_total", 0.001),
        ("container_memory_usage_bytes", 50_000.0),
        ("container_memory_failures_total", 10.0),
        ("container_processes", 1.0),
        ("container_file_descriptors", 1.0),
        ("container_threads", 1.0),
        ("container_ulimits_soft", 1.0),
    ] {
        let found = sum_of(page, family, &main)?;
        ensure!(found >= least, "{family}: {found}");
    }
    // A pod without requests.
    ensure!(sum_of(page, "container_spec_cpu_shares", &main)? <= 2.0);
    ensure!(page.sum("container_oom_events_total", &main) == Some(0.0));
    for family in [
        "machine_cpu_cores",
        "machine_cpu_physical_cores",
        "machine_memory_bytes",
        "cadvisor_version_info",
    ] {
        ensure!(sum_of(page, family, &[])? >= 1.0, "{family}");
    }
    let of_root = [("id", "/")];
    for family in [
        "container_fs_limit_bytes",
        "container_network_receive_bytes_total",
    ] {
        ensure!(sum_of(page, family, &of_root)? > 0.0, "{family}");
    }
    for family in ["container_scrape_error", "machine_scrape_error"] {
        ensure!(page.sum(family, &[]) == Some(0.0), "{family}");
    }
    let has_tier = family.samples.iter().any(|sample| {
        let id = sample.labels.get("id");
        id.is_some_and(|id| id.ends_with("kubepods") || id.ends_with("kubepods.slice"))
    });
    ensure!(has_tier, "no row of all pods");
    Ok(())
}

fn sum_of(page: &MetricsText, family: &str, labels: &[(&str, &str)]) -> Result<f64> {
    page.sum(family, labels)
        .with_context(|| format!("no {family} {labels:?}"))
}

fn summary(node: &Node, query: &str) -> Result<Value> {
    let answer = node.get(&format!("/stats/summary{query}"))?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(serde_json::from_str(&answer.text())?)
}

fn positive(summary: &Value, pointer: &str) -> Result<()> {
    let found = summary.pointer(pointer);
    let number = found.and_then(Value::as_u64).unwrap_or(0);
    ensure!(number > 0, "{pointer} is {found:?} in {summary:#}");
    Ok(())
}

fn check_summary(summary: &Value, node: &Node) -> Result<()> {
    let pods = summary["pods"].as_array().context("no pods")?;
    ensure!(pods.len() == 1, "{} pods", pods.len());
    let expected =
        json!({ "name": node.pod_name("web"), "namespace": "default", "uid": pods[0]["podRef"]["uid"] });
    ensure!(pods[0]["podRef"] == expected, "{}", pods[0]["podRef"]);
    ensure!(pods[0]["containers"][0]["name"] == "main", "{}", pods[0]);
    for pointer in [
        "/node/cpu/usageNanoCores",
        "/node/memory/availableBytes",
        "/node/fs/capacityBytes",
        "/node/fs/inodesUsed",
        "/node/runtime/imageFs/usedBytes",
        "/node/runtime/containerFs/capacityBytes",
        "/node/rlimit/maxpid",
        "/pods/0/cpu/usageCoreNanoSeconds",
        "/pods/0/memory/workingSetBytes",
        "/pods/0/process_stats/process_count",
        "/pods/0/containers/0/cpu/usageCoreNanoSeconds",
        "/pods/0/containers/0/memory/rssBytes",
        "/pods/0/containers/0/rootfs/usedBytes",
        "/pods/0/containers/0/logs/inodesUsed",
        // What the container wrote there.
        "/pods/0/volume/0/usedBytes",
        "/pods/0/ephemeral-storage/usedBytes",
    ] {
        positive(summary, pointer)?;
    }
    ensure!(pods[0]["volume"][0]["name"] == "scratch", "{}", pods[0]["volume"]);
    let used = pods[0]["volume"][0]["usedBytes"].as_u64();
    ensure!(used.is_some_and(|used| used >= 100_000), "{used:?}");
    ensure!(pods[0]["network"]["time"].is_string(), "{}", pods[0]);
    let system = summary["node"]["systemContainers"]
        .as_array()
        .context("no system containers")?;
    ensure!(system.iter().any(|one| one["name"] == "pods"), "{system:?}");
    Ok(())
}

#[test]
fn a_pod_shows_what_it_uses_until_it_is_gone() {
    in_scope("statistics", async |scope| {
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        let node = &bed.node;
        let writes = format!("head -c 200000 /dev/zero > /scratch/file; echo a line; {UNTIL_TERM}");
        let mount = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
        let web = pod("web")
            .container(with(shell("main", &writes), "volumeMounts", mount))
            .spec("volumes", json!([{ "name": "scratch", "emptyDir": {} }]));
        node.write("web", &web.json())?;
        node.wait_until_ready("web").await?;
        let name = node.pod_name("web");
        let main = [
            ("container", "main"),
            ("namespace", "default"),
            ("pod", name.as_str()),
        ];
        let page = resources(node)?;
        for (family, labels, least) in [
            ("container_cpu_usage_seconds_total", &main[..], 0.001),
            ("container_memory_working_set_bytes", &main[..], 50_000.0),
            ("pod_cpu_usage_seconds_total", &main[1..], 0.001),
            ("pod_memory_working_set_bytes", &main[1..], 50_000.0),
            ("node_cpu_usage_seconds_total", &[], 0.1),
            ("node_memory_working_set_bytes", &[], 1_000_000.0),
        ] {
            let found = value(&page, family, labels)?;
            ensure!(found >= least, "{family} {labels:?}: {found}");
        }
        let started = page.sum("container_start_time_seconds", &main);
        ensure!(started.is_some_and(|started| started > 1.5e9), "{started:?}");
        ensure!(page.sum("resource_scrape_error", &[]) == Some(0.0), "an error");
        ensure!(
            page.sum("container_cpu_usage_seconds_total", &[("container", "")])
                .is_none()
        );
        check_containers(&containers(node)?, &name)?;
        wait_for("a summary has every part", DEADLINE, || {
            check_summary(&summary(node, "")?, node)
        })?;
        let short = summary(node, "?only_cpu_and_memory=true")?;
        ensure!(
            short["node"].get("fs").is_none() && short["pods"][0].get("network").is_none(),
            "{short}"
        );
        positive(&short, "/pods/0/containers/0/memory/workingSetBytes")?;
        node.remove("web")?;
        node.wait_until_gone("web").await?;
        wait_for("the pod's statistics are gone", DEADLINE, || {
            let page = resources(node)?;
            let left = page.sum("pod_cpu_usage_seconds_total", &main[1..]);
            ensure!(left.is_none(), "{left:?}");
            let left = containers(node)?.sum("container_last_seen", &[("pod", name.as_str())]);
            ensure!(left.is_none(), "container metrics are left: {left:?}");
            ensure!(summary(node, "")?["pods"] == json!([]), "it is in the summary");
            Ok(())
        })
    });
}

/// Of the node's own programs, as the summary shows it.
fn system_container(node: &Node, name: &str) -> Result<Value> {
    let summary = summary(node, "")?;
    let all = summary["node"]["systemContainers"].as_array();
    let found = all.and_then(|all| all.iter().find(|one| one["name"] == name));
    found
        .cloned()
        .with_context(|| format!("no {name} among {}", summary["node"]["systemContainers"]))
}

#[test]
fn rubelet_runs_in_its_own_cgroup_and_shows_it_beside_the_runtimes() {
    in_scope("system-cgroups", async |scope| {
        let tree = CgroupTree::at(scope.cgroup_root());
        let (own, runtime) = (
            format!("{}/own/kubelet", scope.cgroup_root()),
            format!("{}/runtime", scope.cgroup_root()),
        );
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let mut options = Options::new(kubelet).with("kubeletCgroups", json!(own));
        // A name without its first slash is a path from the root too.
        let name = runtime.trim_start_matches('/');
        options.arguments.push(format!("--runtime-cgroups={name}"));
        let mut bed = Bed::start(scope, Flavour::Debian, options).await?;
        let pid = bed.node.pid().context("it does not run")?;
        wait_for("it is in its cgroup", DEADLINE, || is_in(pid, &own))?;
        let shown = system_container(&bed.node, "kubelet")?;
        positive(&shown, "/memory/workingSetBytes")?;
        positive(&shown, "/cpu/usageCoreNanoSeconds")?;
        ensure!(
            shown.get("rootfs").is_none() && shown.get("logs").is_none(),
            "{shown}"
        );
        ensure!(
            system_container(&bed.node, "runtime").is_err(),
            "there is none yet"
        );
        // What is in the runtime's cgroup is the administrator's concern.
        tree.make_below("/runtime")?;
        wait_for("the runtime's cgroup is shown", DEADLINE, || {
            system_container(&bed.node, "runtime").map(|_| ())
        })?;
        let row = [("id", own.as_str())];
        let page = containers(&bed.node)?;
        ensure!(
            page.sum("container_last_seen", &row).is_some(),
            "no row for {own}"
        );
        ensure!(
            bed.node.log_lines(&["kubeletCgroups", "no effect"])?.is_empty(),
            "a warning"
        );
        // The root cannot be the cgroup of what runs in it: no process was moved.
        bed.node.terminate()?;
        bed.node.reconfigure("systemCgroups", json!("/"))?;
        bed.node.launch()?;
        bed.node
            .wait_for_log(&["systemCgroups", "is the root cgroup"])
            .await?;
        Ok(())
    });
}

#[test]
fn with_its_gate_the_runtime_counts_pods() {
    in_scope("runtime-counts", async |scope| {
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let gates = json!({ "PodAndContainerStatsFromCRI": true });
        let options = Options::new(kubelet).with("featureGates", gates);
        let bed = Bed::start(scope, Flavour::Debian, options).await?;
        let node = &bed.node;
        let web = pod("web").container(shell("main", UNTIL_TERM));
        node.write("web", &web.json())?;
        node.wait_until_ready("web").await?;
        wait_for("the runtime's figures are shown", DEADLINE, || {
            let summary = summary(node, "")?;
            for pointer in [
                "/pods/0/cpu/usageCoreNanoSeconds",
                "/pods/0/memory/workingSetBytes",
                "/pods/0/containers/0/cpu/usageCoreNanoSeconds",
                "/pods/0/containers/0/memory/workingSetBytes",
                "/pods/0/containers/0/rootfs/inodesUsed",
                "/node/cpu/usageCoreNanoSeconds",
            ] {
                positive(&summary, pointer)?;
            }
            Ok(())
        })?;
        let name = node.pod_name("web");
        let labels = [("namespace", "default"), ("pod", name.as_str())];
        let page = resources(node)?;
        ensure!(value(&page, "pod_memory_working_set_bytes", &labels)? > 50_000.0);
        // This containerd has no metrics of its own: the machine is all there is.
        let page = containers(node)?;
        ensure!(sum_of(&page, "machine_cpu_cores", &[])? >= 1.0);
        ensure!(page.sum("container_last_seen", &[]).is_none(), "rows of cgroups");
        let metrics = node.get("/metrics")?.text();
        ensure!(
            metrics.contains("kubelet_metrics_provider{provider=\"cri\"} 1"),
            "the provider"
        );
        ensure!(node.log_lines(&["does not have this feature"])?.is_empty());
        Ok(())
    });
}

/// Whether a process is in a cgroup, in every hierarchy.
fn is_in(pid: u32, cgroup: &str) -> Result<()> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let is_there = |line: &str| line.ends_with(&format!(":{cgroup}"));
    ensure!(text.lines().all(is_there), "{text}");
    Ok(())
}
