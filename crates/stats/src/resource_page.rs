//! `/metrics/resource`: processor time, memory and swap of the node, its pods and containers.
//!
//! Owns the families, in the order in which upstream's registry gives them out. A collector drops a pod with a container whose
//! processor time or memory is zero, so that such a container has no row at all.

use std::collections::BTreeMap;

use rubelet_model::Timestamp;
use rubelet_usage::summary::{ContainerStats, CpuStats, MemoryStats, PodStats, Summary, SwapStats};

use crate::exposition::{push_escaped, push_head, push_value};

/// The page, or the one that says that there is none.
pub(crate) fn render(summary: Option<&Summary>) -> String {
    let mut page = Page::default();
    if let Some(summary) = summary {
        page.families(summary);
    }
    page.family(
        &SCRAPE_ERROR,
        [(String::new(), Some(sample(f64::from(summary.is_none()), None)))],
    );
    page.text
}

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "counter",
        help,
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "gauge",
        help,
    }
}

const CONTAINER_CPU: Family = counter(
    "container_cpu_usage_seconds_total",
    "[STABLE] Seconds of processor time that a container has used.",
);
const CONTAINER_MEMORY: Family = gauge(
    "container_memory_working_set_bytes",
    "[STABLE] Bytes of a container's memory that the kernel cannot reclaim easily.",
);
const CONTAINER_START: Family = gauge(
    "container_start_time_seconds",
    "[STABLE] When a container was created, in seconds since 1970.",
);
const CONTAINER_SWAP_LIMIT: Family = gauge(
    "container_swap_limit_bytes",
    "[ALPHA] Bytes of swap that a container may use; only where they are limited.",
);
const CONTAINER_SWAP: Family = gauge(
    "container_swap_usage_bytes",
    "[ALPHA] Bytes of swap that a container uses.",
);
const NODE_CPU: Family = counter(
    "node_cpu_usage_seconds_total",
    "[STABLE] Seconds of processor time that everything on the node has used.",
);
const NODE_MEMORY: Family = gauge(
    "node_memory_working_set_bytes",
    "[STABLE] Bytes of the node's memory that the kernel cannot reclaim easily.",
);
const NODE_SWAP: Family = gauge(
    "node_swap_usage_bytes",
    "[ALPHA] Bytes of swap that everything on the node uses.",
);
const POD_CPU: Family = counter(
    "pod_cpu_usage_seconds_total",
    "[STABLE] Seconds of processor time that a pod has used.",
);
const POD_MEMORY: Family = gauge(
    "pod_memory_working_set_bytes",
    "[STABLE] Bytes of a pod's memory that the kernel cannot reclaim easily.",
);
const POD_SWAP: Family = gauge("pod_swap_usage_bytes", "[ALPHA] Bytes of swap that a pod uses.");
const SCRAPE_ERROR: Family = gauge(
    "resource_scrape_error",
    "[STABLE] 1 where the figures could not be collected, else 0.",
);

struct Sample {
    value: f64,
    taken_at: Option<Timestamp>,
}

fn sample(value: f64, taken_at: Option<Timestamp>) -> Sample {
    Sample { value, taken_at }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn families(&mut self, summary: &Summary) {
        let pods = newest_of_each_name(&summary.pods);
        let containers: Vec<(String, &ContainerStats)> = pods
            .iter()
            .flat_map(|pod| {
                let alive = pod.containers.iter().filter(|container| is_alive(container));
                alive.map(|container| (container_labels(pod, container), container))
            })
            .collect();
        let of_containers = |figure: fn(&ContainerStats) -> Option<Sample>| {
            let rows = containers.iter();
            rows.map(move |(labels, container)| (labels.clone(), figure(container)))
        };
        self.family(&CONTAINER_CPU, of_containers(|one| cpu(one.cpu.as_ref())));
        self.family(
            &CONTAINER_MEMORY,
            of_containers(|one| memory(one.memory.as_ref())),
        );
        self.family(
            &CONTAINER_START,
            of_containers(|one| Some(sample(seconds(one.created_at.unix_nanos().unsigned_abs()), None))),
        );
        self.family(
            &CONTAINER_SWAP_LIMIT,
            of_containers(|one| swap_limit(one.swap.as_ref())),
        );
        self.family(&CONTAINER_SWAP, of_containers(|one| swap(one.swap.as_ref())));
        let node = &summary.node;
        let of_node = |figure: Option<Sample>| [(String::new(), figure)];
        self.family(&NODE_CPU, of_node(cpu(node.cpu.as_ref())));
        self.family(&NODE_MEMORY, of_node(memory(node.memory.as_ref())));
        self.family(&NODE_SWAP, of_node(swap(node.swap.as_ref())));
        let of_pods = |figure: fn(&PodStats) -> Option<Sample>| {
            let rows = pods.iter();
            rows.map(move |pod| (pod_labels(pod), figure(pod)))
        };
        self.family(&POD_CPU, of_pods(|pod| cpu(pod.cpu.as_ref())));
        self.family(&POD_MEMORY, of_pods(|pod| memory(pod.memory.as_ref())));
        self.family(&POD_SWAP, of_pods(|pod| swap(pod.swap.as_ref())));
    }

    /// A family without samples is none.
    fn family(&mut self, family: &Family, samples: impl IntoIterator<Item = (String, Option<Sample>)>) {
        let mut has_head = false;
        for (labels, sample) in samples {
            let Some(sample) = sample else {
                continue;
            };
            if !has_head {
                push_head(&mut self.text, family.name, family.kind, family.help);
                has_head = true;
            }
            self.text.push_str(family.name);
            self.text.push_str(&labels);
            push_value(&mut self.text, sample.value, sample.taken_at);
        }
    }
}

/// Two sandboxes of one name would give two series of the same labels.
fn newest_of_each_name(pods: &[PodStats]) -> Vec<&PodStats> {
    let mut newest: BTreeMap<(&str, &str), &PodStats> = BTreeMap::new();
    for pod in pods {
        let name = (pod.pod_ref.namespace.as_str(), pod.pod_ref.name.as_str());
        let kept = newest.entry(name).or_insert(pod);
        if pod.start_time.0 > kept.start_time.0 {
            *kept = pod;
        }
    }
    newest.into_values().collect()
}

fn is_alive(container: &ContainerStats) -> bool {
    let cpu = container.cpu.as_ref().and_then(|cpu| cpu.usage_core_nano_seconds);
    let memory = container
        .memory
        .as_ref()
        .and_then(|memory| memory.working_set_bytes);
    cpu.unwrap_or(0) > 0 && memory.unwrap_or(0) > 0
}

fn container_labels(pod: &PodStats, container: &ContainerStats) -> String {
    labels(&[
        ("container", &container.name),
        ("namespace", &pod.pod_ref.namespace),
        ("pod", &pod.pod_ref.name),
    ])
}

fn pod_labels(pod: &PodStats) -> String {
    labels(&[("namespace", &pod.pod_ref.namespace), ("pod", &pod.pod_ref.name)])
}

fn labels(labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (place, (name, value)) in labels.iter().enumerate() {
        text.push(if place == 0 { '{' } else { ',' });
        text.push_str(name);
        text.push_str("=\"");
        push_escaped(&mut text, value, true);
        text.push('"');
    }
    text.push('}');
    text
}

fn cpu(cpu: Option<&CpuStats>) -> Option<Sample> {
    let cpu = cpu?;
    Some(sample(seconds(cpu.usage_core_nano_seconds?), Some(cpu.time.0)))
}

fn memory(memory: Option<&MemoryStats>) -> Option<Sample> {
    let memory = memory?;
    Some(sample(number(memory.working_set_bytes?), Some(memory.time.0)))
}

fn swap(swap: Option<&SwapStats>) -> Option<Sample> {
    let swap = swap?;
    Some(sample(number(swap.swap_usage_bytes?), Some(swap.time.0)))
}

fn swap_limit(swap: Option<&SwapStats>) -> Option<Sample> {
    let swap = swap?;
    let limit = swap.swap_available_bytes?.saturating_add(swap.swap_usage_bytes?);
    Some(sample(number(limit), Some(swap.time.0)))
}

#[expect(clippy::cast_precision_loss, reason = "as the format has it")]
fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(nanos: u64) -> f64 {
    number(nanos) / 1e9
}

#[cfg(test)]
mod tests {
    use rubelet_testbed::metrics_text::MetricsText;
    use rubelet_usage::summary::{NodeStats, PodReference, ShownTime};

    use super::*;

    const AT: Timestamp = Timestamp::from_unix_nanos(1_763_495_289_123_456_789);

    fn cpu_stats(nanos: u64) -> Option<CpuStats> {
        Some(CpuStats {
            time: ShownTime(AT),
            usage_core_nano_seconds: Some(nanos),
            ..CpuStats::default()
        })
    }

    fn memory_stats(bytes: u64) -> Option<MemoryStats> {
        Some(MemoryStats {
            time: ShownTime(AT),
            working_set_bytes: Some(bytes),
            ..MemoryStats::default()
        })
    }

    fn swap_stats(used: u64, available: Option<u64>) -> Option<SwapStats> {
        Some(SwapStats {
            time: ShownTime(AT),
            swap_usage_bytes: Some(used),
            swap_available_bytes: available,
        })
    }

    fn container(name: &str, nanos: u64, bytes: u64) -> ContainerStats {
        ContainerStats {
            name: name.to_owned(),
            created_at: Timestamp::from_unix_nanos(1_500_000_000),
            cpu: cpu_stats(nanos),
            memory: memory_stats(bytes),
            swap: swap_stats(3, (name == "limited").then_some(7)),
            ..ContainerStats::default()
        }
    }

    fn pod(name: &str, started: i64, containers: Vec<ContainerStats>) -> PodStats {
        PodStats {
            pod_ref: PodReference {
                name: name.to_owned(),
                namespace: "default".to_owned(),
                uid: format!("{name}-{started}"),
            },
            start_time: ShownTime(Timestamp::from_unix_seconds(started)),
            cpu: cpu_stats(4_500_000_000),
            memory: memory_stats(2_000_000),
            swap: swap_stats(0, None),
            containers,
            ..PodStats::default()
        }
    }

    #[test]
    fn a_page_has_every_family_with_the_time_of_its_figures() {
        let summary = Summary {
            node: NodeStats {
                cpu: cpu_stats(123_456_789),
                memory: memory_stats(1_000_000),
                swap: swap_stats(5, None),
                ..NodeStats::default()
            },
            pods: vec![pod("web", 1, vec![container("limited", 250_000_000, 4096)])],
        };
        let text = render(Some(&summary));
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of_container = r#"{container="limited",namespace="default",pod="web"}"#;
        let of_pod = r#"{namespace="default",pod="web"}"#;
        let at = "1763495289123";
        assert_eq!(
            samples,
            [
                format!("container_cpu_usage_seconds_total{of_container} 0.25 {at}"),
                format!("container_memory_working_set_bytes{of_container} 4096 {at}"),
                format!("container_start_time_seconds{of_container} 1.5"),
                format!("container_swap_limit_bytes{of_container} 10 {at}"),
                format!("container_swap_usage_bytes{of_container} 3 {at}"),
                format!("node_cpu_usage_seconds_total 0.123456789 {at}"),
                format!("node_memory_working_set_bytes 1e+06 {at}"),
                format!("node_swap_usage_bytes 5 {at}"),
                format!("pod_cpu_usage_seconds_total{of_pod} 4.5 {at}"),
                format!("pod_memory_working_set_bytes{of_pod} 2e+06 {at}"),
                format!("pod_swap_usage_bytes{of_pod} 0 {at}"),
                "resource_scrape_error 0".to_owned(),
            ]
        );
        let page = MetricsText::parse(&text).unwrap();
        assert_eq!(page.families.len(), 12);
    }

    #[test]
    fn a_container_with_a_zero_has_no_row() {
        let containers = vec![
            container("fine", 1, 1),
            container("no-cpu", 0, 1),
            container("no-memory", 1, 0),
            ContainerStats::default(),
        ];
        let summary = Summary {
            pods: vec![pod("web", 1, containers)],
            ..Summary::default()
        };
        let text = render(Some(&summary));
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("container_")?.split('"').nth(1))
            .collect();
        assert_eq!(names, ["fine"; 4]);
        assert!(
            !text.contains("container_swap_limit_bytes"),
            "nothing is limited: {text}"
        );
        assert!(!text.contains("node_cpu"), "the node was not read: {text}");
    }

    #[test]
    fn two_sandboxes_of_one_name_give_one_series() {
        let summary = Summary {
            pods: vec![
                pod("web", 5, vec![container("new", 1, 1)]),
                pod("web", 4, vec![container("old", 1, 1)]),
            ],
            ..Summary::default()
        };
        let text = render(Some(&summary));
        assert!(text.contains("new") && !text.contains("old"), "{text}");
        assert!(MetricsText::parse(&text).is_ok());
    }

    #[test]
    fn a_failure_leaves_nothing_but_itself() {
        let text = render(None);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1);
        assert!(text.ends_with("resource_scrape_error 1\n"), "{text}");
    }
}
