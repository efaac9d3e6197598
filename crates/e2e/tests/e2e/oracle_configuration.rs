//! Generated pods: DNS, expansion, downward values and port mappings are upstream's.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, PodSpec, ResourceFieldSelector};
use rubelet_lifecycle::configuration::downward::{Addresses, field_value, resource_value};
use rubelet_lifecycle::configuration::expansion::expand;
use rubelet_lifecycle::configuration::ports::port_mappings;
use rubelet_lifecycle::configuration::{NodeConfiguration, ResolvConf, pod_dns};
use rubelet_model::address::parse_ip;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::{PodDemand, Rules};
use rubelet_testbed::oracle::Oracle;
use rubelet_wire::cri::v1::Protocol;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};
use crate::oracle_resources::node_facts;

const CASES: u64 = 5_000;

pub(crate) fn compare(
    op: &str,
    input: impl Fn(&mut Seeded) -> Value,
    ours: impl Fn(&Value) -> Result<Value>,
    upstream: impl Fn(Value) -> Value,
) -> Result<()> {
    let inputs: Vec<Value> = seeds(CASES).map(|seed| input(&mut Seeded::new(seed))).collect();
    let answers = Oracle::start()?.ask_all(op, inputs.clone())?;
    let mut differences = Differences::default();
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        // A refusal is an answer too.
        let upstream = answer.map_or(json!({"refused": true}), &upstream);
        differences.compare(seed, input, &upstream, &ours(input)?);
    }
    differences.assert_none();
    Ok(())
}

fn some(random: &mut Seeded, most: usize, from: &[&str]) -> Vec<String> {
    (0..random.below(most + 1))
        .map(|_| (*random.one_of(from)).to_owned())
        .collect()
}

fn searches(random: &mut Seeded) -> Vec<String> {
    let mut all = some(random, 4, &["a.b", "b.c.", ".", "svc.cluster.local", "x", "y"]);
    if random.below(6) == 0 {
        all.extend((0..random.below(40)).map(|index| format!("search{index}.example")));
    }
    if random.below(10) == 0 {
        all.push("l".repeat(254));
    }
    if random.below(10) == 0 {
        all.extend((0..12).map(|index| format!("{index}{}", "m".repeat(200))));
    }
    all
}

fn resolv_conf(random: &mut Seeded) -> String {
    let mut text = String::new();
    for _ in 0..random.below(7) {
        let line = match random.below(8) {
            0..3 => format!(
                "nameserver {}",
                random.one_of(&["1.1.1.1", "8.8.8.8", "fe80::1", ""])
            ),
            3..5 => format!("search {}", searches(random).join(" ")),
            5 => format!(
                "options {}",
                some(random, 3, &["ndots:2", "ndots:7", "rotate", "timeout:1"]).join("\t")
            ),
            6 => "  # nameserver 9.9.9.9".to_owned(),
            _ => (*random.one_of(&["", "domain x", "sortlist", "; search z"])).to_owned(),
        };
        text.push_str(&line);
        let end = *random.one_of(&["\n", "\r\n", "  \n"]);
        text.push_str(end);
    }
    text
}

fn dns_input(random: &mut Seeded) -> Value {
    let mut spec = json!({"containers": [], "hostNetwork": random.below(3) == 0});
    let policies = [
        "ClusterFirst",
        "ClusterFirstWithHostNet",
        "Default",
        "None",
        "Odd",
    ];
    spec["dnsPolicy"] = json!(random.one_of(&policies));
    if random.below(2) == 0 {
        let options: Vec<Value> = some(random, 3, &["ndots", "rotate", "timeout"])
            .into_iter()
            .map(|name| match random.below(2) {
                0 => json!({"name": name}),
                _ => json!({"name": name, "value": "3"}),
            })
            .collect();
        let servers = some(random, 4, &["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]);
        spec["dnsConfig"] = json!({"nameservers": servers, "searches": searches(random), "options": options});
    }
    let mut input = json!({
        "pod": {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec},
        "nodeIPs": some(random, 2, &["10.0.0.1", "fd00::1"]),
        "clusterDNS": some(random, 4, &["10.96.0.10", "fd00::a", "10.96.0.11"]),
        "clusterDomain": *random.one_of(&["", "cluster.local"]),
    });
    if random.below(4) != 0 {
        input["resolvConf"] = json!(resolv_conf(random));
    }
    input
}

fn sorted(list: &Value) -> Vec<String> {
    let mut texts: Vec<String> = serde_json::from_value(list.clone()).unwrap_or_default();
    texts.sort();
    texts
}

/// A node about which nothing is said.
pub(crate) fn plain_node() -> NodeConfiguration {
    NodeConfiguration {
        pod_logs_dir: String::new(),
        cluster_domain: String::new(),
        cluster_dns: Vec::new(),
        resolver_file: None,
        node_ips: Vec::new(),
        cgroup_root: String::new(),
        cgroups_per_qos: true,
        cgroup_driver: CgroupDriver::Cgroupfs,
        default_pod_sysctls: BTreeMap::new(),
        seccomp_default: false,
        seccomp_root: String::new(),
        thermal_throttle_paths: Vec::new(),
        is_selinux_enabled: false,
        has_stop_signals: false,
        rules: Rules::default(),
        facts: node_facts(),
    }
}

fn our_dns(input: &Value) -> Result<Value> {
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    let list =
        |name: &str| -> Vec<String> { serde_json::from_value(input[name].clone()).unwrap_or_default() };
    let resolver = match input["resolvConf"].as_str().map(ResolvConf::parse) {
        Some(Err(_)) => return Ok(json!({"refused": true})),
        Some(Ok(file)) => Some(file),
        None => None,
    };
    let node = NodeConfiguration {
        cluster_domain: input["clusterDomain"].as_str().unwrap_or_default().to_owned(),
        cluster_dns: list("clusterDNS")
            .iter()
            .filter_map(|text| parse_ip(text))
            .collect(),
        node_ips: list("nodeIPs").iter().filter_map(|text| parse_ip(text)).collect(),
        ..plain_node()
    };
    let dns = pod_dns(&pod, &node, resolver.as_ref());
    let reasons: Vec<&str> = dns
        .warnings
        .iter()
        .map(rubelet_lifecycle::configuration::DnsWarning::reason)
        .collect();
    Ok(json!({
        "servers": dns.config.servers, "searches": dns.config.searches,
        "options": sorted(&json!(dns.config.options)), "reasons": reasons,
    }))
}

/// Upstream keeps options in no order, and says a missing cluster DNS to the node and to the pod.
fn upstream_dns(answer: &Value) -> Value {
    let events: Vec<String> = serde_json::from_value(answer["events"].clone()).unwrap_or_default();
    let mut reasons: Vec<&str> = events
        .iter()
        .filter_map(|event| event.split(' ').nth(1))
        .collect();
    if reasons.starts_with(&["MissingClusterDNS", "MissingClusterDNS"]) {
        reasons.remove(0);
    }
    let list = |name: &str| {
        if answer[name].is_null() {
            json!([])
        } else {
            answer[name].clone()
        }
    };
    json!({
        "servers": list("servers"), "searches": list("searches"),
        "options": sorted(&answer["options"]), "reasons": reasons,
    })
}

#[test]
fn dns_is_alike() -> Result<()> {
    compare("dns", dns_input, our_dns, |answer| upstream_dns(&answer))
}

#[test]
fn references_are_expanded_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let text = some(
            random,
            8,
            &[
                "$", "(", ")", "A", "$(A)", "$$", "$(B", "é", "$(é)", " ", "$($(A))",
            ],
        )
        .concat();
        json!({"text": text, "vars": {"A": "1", "B": "$(A)", "é": "e", "$(A": "odd"}})
    };
    compare(
        "expand",
        input,
        |input| {
            let lookup = |name: &str| input["vars"][name].as_str();
            Ok(json!(expand(input["text"].as_str().context("a text")?, lookup)))
        },
        |answer| answer,
    )
}

#[test]
fn fields_are_read_alike() -> Result<()> {
    let paths = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.labels",
        "metadata.annotations",
        "metadata.labels['a']",
        "metadata.labels['b/c']",
        "metadata.labels['?']",
        "metadata.annotations['A']",
        "metadata.annotations['none']",
        "metadata.name['a']",
        "metadata.labels['']",
        "status.phase",
        "spec.restartPolicy",
        "",
    ];
    let input = |random: &mut Seeded| {
        let value = some(
            random,
            5,
            &[
                "x",
                "\"",
                "\\",
                "\n",
                "\u{1}",
                "\u{7f}",
                "é",
                "\u{a0}",
                "\u{301}",
                "'",
                "\u{10ffff}",
                "\u{1f600}",
            ],
        )
        .concat();
        json!({"path": random.one_of(&paths), "pod": {"metadata": {
            "name": "p", "namespace": "n", "uid": "u",
            "labels": {"a": "1", "b/c": "2"}, "annotations": {"A": value, "z": "last"}}, "spec": {"containers": []}}})
    };
    let ours = |input: &Value| {
        let pod: Pod = serde_json::from_value(input["pod"].clone())?;
        let selector = ObjectFieldSelector {
            api_version: None,
            field_path: input["path"].as_str().context("a path")?.to_owned(),
        };
        let addresses = Addresses {
            pod_ips: &[],
            node_ips: &[],
            host_ips: &[],
        };
        Ok(match field_value(&selector, &pod, addresses) {
            Ok(text) => json!({"ok": true, "text": text}),
            Err(_) => json!({"ok": false, "text": ""}),
        })
    };
    compare("downward.field", input, ours, |answer| answer)
}

#[test]
fn resource_fields_are_read_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let resource = *random.one_of(&[
            "limits.cpu",
            "limits.memory",
            "limits.ephemeral-storage",
            "requests.cpu",
            "requests.memory",
            "requests.hugepages-2Mi",
            "limits.hugepages-1Gi",
            "limits.pods",
            "cpu",
            "odd.cpu",
        ]);
        let mut selector = json!({"resource": resource});
        selector["divisor"] = json!(*random.one_of(&["0", "1", "1m", "1Mi", "1k", "3"]));
        let mut limits = json!({});
        let mut requests = json!({});
        for list in [&mut limits, &mut requests] {
            for name in ["cpu", "memory", "hugepages-2Mi", "ephemeral-storage"] {
                if random.below(2) == 0 {
                    list[name] = json!(*random.one_of(&["0", "1", "1500m", "1Gi", "7"]));
                }
            }
        }
        json!({"container": {"name": "c", "resources": {"limits": limits, "requests": requests}},
            "selector": selector, "allocatable": {"cpu": "4", "memory": "8Gi"}})
    };
    let ours = |input: &Value| {
        let selector: ResourceFieldSelector = serde_json::from_value(input["selector"].clone())?;
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [input["container"]]}}))?;
        let demand = PodDemand::read(&pod)?;
        let allocatable: Amounts = [("cpu", "4"), ("memory", "8Gi")]
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), text.parse().ok()?)))
            .collect();
        let found = resource_value(
            &selector,
            &demand,
            &demand.containers[0],
            &Rules::default(),
            &allocatable,
        );
        Ok(match found {
            Ok(text) => json!({"ok": true, "text": text}),
            Err(_) => json!({"ok": false, "text": ""}),
        })
    };
    compare("downward.limit", input, ours, |answer| answer)
}

#[test]
fn ports_are_mapped_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let ports: Vec<Value> = (0..random.below(6))
            .map(|_| {
                let mut port = json!({"containerPort": *random.one_of(&[80, 81]), "protocol": *random.one_of(&["TCP", "UDP", "SCTP"])});
                if random.below(3) == 0 {
                    port["name"] = json!(*random.one_of(&["web", "dns"]));
                }
                if random.below(2) == 0 {
                    port["hostPort"] = json!(*random.one_of(&[8080, 8081]));
                }
                if random.below(3) == 0 {
                    port["hostIP"] = json!(*random.one_of(&["10.0.0.1", "fd00::1"]));
                }
                port
            })
            .collect();
        json!({"container": {"name": "c", "ports": ports}})
    };
    let ours = |input: &Value| {
        let container: Container = serde_json::from_value(input["container"].clone())?;
        let spec = PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        };
        let mapped = port_mappings(&spec).into_iter().map(|port| {
            let protocol = Protocol::try_from(port.protocol).map_or("", |protocol| protocol.as_str_name());
            json!({"protocol": protocol, "containerPort": port.container_port, "hostPort": port.host_port, "hostIP": port.host_ip})
        });
        Ok(Value::Array(mapped.collect()))
    };
    compare("ports", input, ours, |answer| answer)
}
