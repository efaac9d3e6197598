//! Statistics on cgroup version 2 with both drivers, as parts of a virtual node's day: what the pages say of a pod beside what the
//! kernel says, with processors and memory that are waited for, and memory that was swapped out.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::http;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::node::RuntimeView;
use rubelet_testbed::node::manifest::{pod, shell, with};
use rubelet_testbed::virtual_node::VirtualNode;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::cgroups_v2::READ_ONLY_PORT;

const DEADLINE: Duration = Duration::from_secs(480);
/// The kernel counts stalls unless it is told otherwise; some are built to be told.
pub(crate) const STALLS: &str = "psi=1";
pub(crate) const MEASURED: &str = "measured";
const UID: &str = "2-2";
/// What the pod holds, and how much of it the kernel is to swap out.
const HELD_BYTES: u64 = 6_000_000;
const SWAPPED_BYTES: u64 = 3_000_000;
/// Memory moves a little between two looks.
const SLACK_BYTES: f64 = 1e6;
const FILES: [&str; 11] = [
    "cpu.stat",
    "cpu.max",
    "cpu.pressure",
    "memory.current",
    "memory.max",
    "memory.stat",
    "memory.swap.current",
    "memory.pressure",
    "io.pressure",
    "io.stat",
    "pids.current",
];

/// A pod with a container that waits for its processor, and one that holds memory.
pub(crate) fn manifest() -> Value {
    let limits = json!({ "limits": { "cpu": "100m", "memory": "32Mi" } });
    // Past the page cache, so that the disk sees it at once.
    let writes = "dd if=/dev/zero of=/written bs=4096 count=100 oflag=direct 2>/dev/null";
    let holds =
        format!("{writes}; (head -c {HELD_BYTES} /dev/zero; exec sleep 100000) | tail -c {HELD_BYTES}");
    let requests = json!({ "requests": { "memory": "16Mi" } });
    pod(MEASURED)
        .metadata("uid", json!(UID))
        .container(with(shell("work", "while :; do :; done"), "resources", limits))
        .container(with(shell("hold", &holds), "resources", requests))
        .json()
}

/// Cgroups by what they are.
fn places(driver: &str, work: &str, hold: &str) -> BTreeMap<&'static str, String> {
    let is_systemd = driver == "systemd";
    let pod = if is_systemd {
        let tier = "/kubepods.slice/kubepods-burstable.slice";
        format!("{tier}/kubepods-burstable-pod{}.slice", UID.replace('-', "_"))
    } else {
        format!("/kubepods/burstable/pod{UID}")
    };
    let scope = |id: &str| {
        if is_systemd {
            format!("cri-containerd-{id}.scope")
        } else {
            id.to_owned()
        }
    };
    [
        ("work", format!("{pod}/{}", scope(work))),
        ("hold", format!("{pod}/{}", scope(hold))),
        ("pod", pod),
    ]
    .into()
}

/// The kernel's figures of a moment, by place and file.
struct Kernel(BTreeMap<(String, String), String>);

impl Kernel {
    fn read(node: &VirtualNode, places: &BTreeMap<&'static str, String>) -> Result<Self> {
        let script: String = places
            .iter()
            .flat_map(|(place, path)| {
                FILES.map(|file| format!("echo '== {place} {file}'; cat /sys/fs/cgroup{path}/{file}\n"))
            })
            .collect();
        let mut texts = BTreeMap::new();
        let mut current = None;
        for line in node.succeed(&script)?.lines() {
            match line.strip_prefix("== ").and_then(|rest| rest.split_once(' ')) {
                Some((place, file)) => current = Some((place.to_owned(), file.to_owned())),
                None => {
                    let key = current.clone().context("a line before any file")?;
                    let text: &mut String = texts.entry(key).or_default();
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        Ok(Self(texts))
    }

    fn text(&self, place: &str, file: &str) -> Result<&str> {
        let text = self.0.get(&(place.to_owned(), file.to_owned()));
        text.map(String::as_str)
            .with_context(|| format!("no {file} of {place}"))
    }

    fn number(&self, place: &str, file: &str) -> Result<f64> {
        Ok(self.text(place, file)?.trim().parse()?)
    }

    /// The number behind a word at the beginning of a line.
    fn entry(&self, place: &str, file: &str, key: &str) -> Result<f64> {
        let text = self.text(place, file)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{key} ")));
        Ok(line
            .with_context(|| format!("no {key} in {text}"))?
            .trim()
            .parse()?)
    }

    /// How long processes stood still, in microseconds.
    fn stalls(&self, place: &str, file: &str, kind: &str) -> Result<f64> {
        let text = self.text(place, file)?;
        let line = text.lines().find(|line| line.starts_with(kind));
        let total = line.and_then(|line| line.rsplit_once("total="));
        Ok(total.with_context(|| format!("no {kind} in {text}"))?.1.parse()?)
    }

    /// A counter of all devices.
    fn io(&self, place: &str, key: &str) -> Result<f64> {
        let words = self.text(place, "io.stat")?.split_whitespace();
        let counts = words.filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let counts: Vec<f64> = counts.map(str::parse).collect::<Result<_, _>>()?;
        Ok(counts.iter().sum())
    }

    fn working_set(&self, place: &str) -> Result<f64> {
        Ok(self.number(place, "memory.current")? - self.entry(place, "memory.stat", "inactive_file")?)
    }
}

fn page(node: &VirtualNode, path: &str) -> Result<String> {
    let port = node
        .host_port(READ_ONLY_PORT)
        .context("the port is not forwarded")?;
    let answer = http::get(&format!("127.0.0.1:{port}"), path)?;
    ensure!(answer.status == 200, "{path} answered {}", answer.status);
    Ok(answer.text())
}

/// The pages of one moment.
struct Pages {
    summary: Value,
    resource: MetricsText,
    containers: MetricsText,
}

impl Pages {
    fn read(node: &VirtualNode) -> Result<Self> {
        Ok(Self {
            summary: serde_json::from_str(&page(node, "/stats/summary")?)?,
            resource: MetricsText::parse(&page(node, "/metrics/resource")?)?,
            containers: MetricsText::parse(&page(node, "/metrics/cadvisor")?)?,
        })
    }

    fn pod(&self) -> Result<&Value> {
        let pods = self.summary["pods"].as_array().context("no pods")?;
        let found = pods.iter().find(|pod| pod["podRef"]["uid"] == UID);
        found.context("the summary has not the pod")
    }

    fn container(&self, name: &str) -> Result<&Value> {
        let containers = self.pod()?["containers"].as_array().context("no containers")?;
        let found = containers.iter().find(|container| container["name"] == name);
        found.with_context(|| format!("the summary has not the container {name}"))
    }

    fn sample(&self, family: &str, container: &str) -> Result<f64> {
        let labels = [("pod", "measured-virtual-node"), ("container", container)];
        let sum = self.containers.sum(family, &labels);
        sum.with_context(|| format!("no {family} of {container}"))
    }

    fn resource(&self, family: &str, container: &str) -> Result<f64> {
        let sum = self.resource.sum(family, &[("container", container)]);
        sum.with_context(|| format!("no {family} of {container}"))
    }
}

fn number(value: &Value, path: &str) -> Result<f64> {
    let found = path.split('.').fold(value, |value, field| &value[field]);
    found.as_f64().with_context(|| format!("no {path} in {value}"))
}

/// A figure between those of two moments, or as far outside of them as is allowed.
fn between(what: &str, shown: f64, before: f64, after: f64, slack: f64) -> Result<()> {
    let (least, most) = (before.min(after) - slack, before.max(after) + slack);
    ensure!(
        (least..=most).contains(&shown),
        "{what} is {shown}, and {before} before, {after} after"
    );
    Ok(())
}

/// That the pages say of the pod and its containers what the kernel says.
pub(crate) async fn check(node: &VirtualNode, view: &RuntimeView, driver: &str) -> Result<()> {
    let (work, hold) = wait_until("the pod runs", DEADLINE, async || {
        let running = view.running().await?;
        let id = |name: &str| {
            let key = (format!("{MEASURED}-virtual-node"), name.to_owned());
            running.get(&key).cloned().context("it does not run")
        };
        Ok((id("work")?, id("hold")?))
    })
    .await?;
    let places = places(driver, &work, &hold);
    swap_out(node, &places).await?;
    // A machine this slow may leave rows out of a page, because their time was up.
    wait_until("the pages say what the kernel says", DEADLINE, async || {
        let before = Kernel::read(node, &places)?;
        let pages = Pages::read(node)?;
        let after = Kernel::read(node, &places)?;
        let moments = (&before, &after);
        check_summary(&pages, moments).context("/stats/summary")?;
        check_stalls(&pages, moments).context("stalls")?;
        check_containers(&pages, moments).context("/metrics/cadvisor")?;
        check_swap(node, &pages, moments).context("swap")
    })
    .await
}

/// Static pods are critical, and those do not swap; here the administrator lets one.
async fn swap_out(node: &VirtualNode, places: &BTreeMap<&'static str, String>) -> Result<()> {
    let (pod, hold) = (&places["pod"], &places["hold"]);
    let script = format!(
        "cd /sys/fs/cgroup && echo max >.{pod}/memory.swap.max && echo max >.{hold}/memory.swap.max\n\
         echo {SWAPPED_BYTES} >.{hold}/memory.reclaim 2>/dev/null\n\
         cat .{hold}/memory.swap.current"
    );
    wait_until("memory is swapped out", DEADLINE, async || {
        let swapped = node.succeed(&script)?;
        let bytes: u64 = swapped.trim().parse()?;
        ensure!(bytes >= SWAPPED_BYTES / 2, "{bytes} bytes are swapped out");
        Ok(())
    })
    .await
}

fn check_summary(pages: &Pages, (before, after): (&Kernel, &Kernel)) -> Result<()> {
    for place in ["work", "hold", "pod"] {
        let shown = match place {
            "pod" => pages.pod()?,
            container => pages.container(container)?,
        };
        let nanos = |kernel: &Kernel| Ok(kernel.entry(place, "cpu.stat", "usage_usec")? * 1e3);
        let check = |field: &str, of: &dyn Fn(&Kernel) -> Result<f64>, slack: f64| {
            let what = format!("{field} of {place}");
            between(&what, number(shown, field)?, of(before)?, of(after)?, slack)
        };
        check("cpu.usageCoreNanoSeconds", &nanos, 0.0)?;
        check(
            "memory.usageBytes",
            &|kernel| kernel.number(place, "memory.current"),
            SLACK_BYTES,
        )?;
        check(
            "memory.workingSetBytes",
            &|kernel| kernel.working_set(place),
            SLACK_BYTES,
        )?;
        check(
            "memory.rssBytes",
            &|kernel| kernel.entry(place, "memory.stat", "anon"),
            SLACK_BYTES,
        )?;
    }
    // A tenth of a processor; the second look at it is the first one's successor.
    let cores = number(pages.container("work")?, "cpu.usageNanoCores")?;
    ensure!((3e7..=1.3e8).contains(&cores), "the work takes {cores} nanocores");
    let available = number(pages.container("work")?, "memory.availableBytes")?;
    let limit = after.number("work", "memory.max")?;
    between(
        "what is left of the limit",
        available,
        limit - before.working_set("work")?,
        limit - after.working_set("work")?,
        SLACK_BYTES,
    )
}

fn check_stalls(pages: &Pages, (before, after): (&Kernel, &Kernel)) -> Result<()> {
    for (resource, field) in [("cpu", "cpu.psi"), ("memory", "memory.psi"), ("io", "io.psi")] {
        for kind in ["some", "full"] {
            for place in ["work", "pod"] {
                let shown = match place {
                    "pod" => pages.pod()?,
                    container => pages.container(container)?,
                };
                let of = |kernel: &Kernel| kernel.stalls(place, &format!("{resource}.pressure"), kind);
                let path = format!("{field}.{kind}.total");
                between(&path, number(shown, &path)?, of(before)?, of(after)?, 0.0)
                    .with_context(|| place.to_owned())?;
            }
        }
    }
    let waited = number(pages.container("work")?, "cpu.psi.some.total")?;
    ensure!(waited > 0.0, "the work has never waited for its processor");
    let lately = number(pages.container("work")?, "cpu.psi.some.avg10")?;
    ensure!(lately > 0.0, "nor in the last ten seconds");
    for (resource, end) in [("cpu", "waiting"), ("memory", "waiting"), ("io", "waiting")] {
        let family = format!("container_pressure_{resource}_{end}_seconds_total");
        let of = |kernel: &Kernel| Ok(kernel.stalls("work", &format!("{resource}.pressure"), "some")? / 1e6);
        let (before, after): (Result<f64>, Result<f64>) = (of(before), of(after));
        between(&family, pages.sample(&family, "work")?, before?, after?, 1e-9)?;
    }
    Ok(())
}

fn check_containers(pages: &Pages, (before, after): (&Kernel, &Kernel)) -> Result<()> {
    let check = |family: &str, of: &dyn Fn(&Kernel) -> Result<f64>, slack: f64| {
        between(
            family,
            pages.sample(family, "work")?,
            of(before)?,
            of(after)?,
            slack,
        )
    };
    let cpu = |key: &'static str, unit: f64| {
        move |kernel: &Kernel| Ok(kernel.entry("work", "cpu.stat", key)? / unit)
    };
    check("container_cpu_usage_seconds_total", &cpu("usage_usec", 1e6), 1e-9)?;
    check("container_cpu_user_seconds_total", &cpu("user_usec", 1e6), 1e-9)?;
    check("container_cpu_cfs_periods_total", &cpu("nr_periods", 1.0), 0.0)?;
    check(
        "container_cpu_cfs_throttled_periods_total",
        &cpu("nr_throttled", 1.0),
        0.0,
    )?;
    check(
        "container_cpu_cfs_throttled_seconds_total",
        &cpu("throttled_usec", 1e6),
        1e-9,
    )?;
    check(
        "container_threads",
        &|kernel| kernel.number("work", "pids.current"),
        1.0,
    )?;
    check(
        "container_memory_rss",
        &|kernel| kernel.entry("work", "memory.stat", "anon"),
        SLACK_BYTES,
    )?;
    for (family, key) in [
        ("container_fs_writes_bytes_total", "wbytes"),
        ("container_fs_writes_total", "wios"),
    ] {
        let shown = pages.sample(family, "hold")?;
        ensure!(shown > 0.0, "{family} is 0 of a container that has written");
        between(
            family,
            shown,
            before.io("hold", key)?,
            after.io("hold", key)?,
            0.0,
        )?;
    }
    let (quota, period) = after
        .text("work", "cpu.max")?
        .trim()
        .split_once(' ')
        .context("no quota")?;
    ensure!(pages.sample("container_spec_cpu_quota", "work")? == quota.parse::<f64>()?);
    ensure!(pages.sample("container_spec_cpu_period", "work")? == period.parse::<f64>()?);
    let limit = after.number("work", "memory.max")?;
    ensure!(pages.sample("container_spec_memory_limit_bytes", "work")? == limit);
    Ok(())
}

fn check_swap(node: &VirtualNode, pages: &Pages, (before, after): (&Kernel, &Kernel)) -> Result<()> {
    let of = |kernel: &Kernel| kernel.number("hold", "memory.swap.current");
    let (least, most) = (of(before)?, of(after)?);
    let check = |what: &str, shown: f64| {
        ensure!(shown > 0.0, "{what}: nothing is swapped out");
        between(what, shown, least, most, SLACK_BYTES)
    };
    let hold = pages.container("hold")?;
    check("swap.swapUsageBytes", number(hold, "swap.swapUsageBytes")?)?;
    check(
        "container_swap_usage_bytes",
        pages.resource("container_swap_usage_bytes", "hold")?,
    )?;
    check(
        "container_memory_swap",
        pages.sample("container_memory_swap", "hold")?,
    )?;
    let used = number(&pages.summary, "node.swap.swapUsageBytes")?;
    let left = number(&pages.summary, "node.swap.swapAvailableBytes")?;
    let total = node.succeed("awk '/SwapTotal/ {print $2 * 1024}' /proc/meminfo")?;
    let total: f64 = total.trim().parse()?;
    ensure!(
        used >= least - SLACK_BYTES,
        "the node has {used} bytes swapped out"
    );
    ensure!(used + left == total, "{used} and {left} of {total} bytes");
    let shown = pages.resource.sum("node_swap_usage_bytes", &[]);
    let shown = shown.context("no node_swap_usage_bytes")?;
    between("node_swap_usage_bytes", shown, used, used, SLACK_BYTES)
}
