//! Generated pods: class, totals, cgroup values and kill scores are upstream's.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::{CgroupDriver, pod_cgroup_name};
use rubelet_resources::cpu::{
    milli_cpu_of_quota, milli_cpu_of_shares, quota_of_milli_cpu, shares_of_milli_cpu,
};
use rubelet_resources::demand::Overhead;
use rubelet_resources::oom::score_adjustment;
use rubelet_resources::qos::computed_qos_class;
use rubelet_resources::{
    CgroupVersion, MemoryReservation, NodeFacts, PodDemand, QosClass, Rules, pod_cgroup,
};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Map, Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const CASES: u64 = 10_000;
const MEMORY_CAPACITY: i64 = 16 << 30;

const CPU: &[&str] = &[
    "0", "1m", "2m", "100m", "250m", "1", "1.5", "2000m", "300", "0.0001", "1e3",
];
const MEMORY: &[&str] = &[
    "0", "1", "4095", "4096", "10Mi", "128Mi", "1Gi", "3Gi", "16Gi", "40Gi", "1500m", "1e9",
];
const HUGE: &[&str] = &["0", "2Mi", "4Mi", "1Gi"];

fn list(random: &mut Seeded) -> Value {
    let mut list = Map::new();
    let mut maybe = |random: &mut Seeded, odds: usize, name: &str, values: &[&str]| {
        if random.below(odds) == 0 {
            list.insert(name.to_owned(), json!(random.one_of(values)));
        }
    };
    maybe(random, 2, "cpu", CPU);
    maybe(random, 2, "memory", MEMORY);
    maybe(random, 8, "hugepages-2Mi", HUGE);
    maybe(random, 12, "hugepages-1Gi", HUGE);
    maybe(random, 12, "ephemeral-storage", MEMORY);
    maybe(random, 16, "example.com/device", &["1", "3"]);
    Value::Object(list)
}

fn requirements(random: &mut Seeded) -> Value {
    match random.below(5) {
        0 => json!({}),
        1 | 2 => {
            let both = list(random);
            json!({"requests": both, "limits": both})
        }
        3 => json!({"limits": list(random)}),
        _ => json!({"requests": list(random), "limits": list(random)}),
    }
}

pub(crate) fn pod_value(random: &mut Seeded) -> Value {
    let mut init = Vec::new();
    for index in 0..random.below(4) {
        let mut container = json!({"name": format!("i{index}"), "resources": requirements(random)});
        if random.below(2) == 0 {
            container["restartPolicy"] = json!("Always");
        }
        init.push(container);
    }
    let mut containers = Vec::new();
    for index in 0..=random.below(3) {
        containers.push(json!({"name": format!("c{index}"), "resources": requirements(random)}));
    }
    let mut spec = json!({"initContainers": init, "containers": containers});
    if random.below(3) == 0 {
        spec["resources"] = requirements(random);
    }
    if random.below(4) == 0 {
        spec["overhead"] = list(random);
    }
    if random.below(8) == 0 {
        spec["priority"] = json!(*random.one_of(&[0, 1_999_999_999, 2_000_000_000, 2_000_001_000]));
        spec["priorityClassName"] =
            json!(*random.one_of(&["system-node-critical", "system-cluster-critical"]));
    }
    let mut metadata = json!({"name": "p", "namespace": "n", "uid": "11-22-33"});
    if random.below(8) == 0 {
        let source = *random.one_of(&["api", "file", "http"]);
        metadata["annotations"] = json!({"kubernetes.io/config.source": source});
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn gates(random: &mut Seeded) -> Value {
    match random.below(6) {
        0 => json!({"PodLevelResourcesFixKubeletQOSClass": false}),
        1 => json!({
            "PodLevelResources": false, "PodLevelResourcesFixKubeletQOSClass": false,
            "PodLevelResourcesFixDefaulting": false, "InPlacePodLevelResourcesVerticalScaling": false,
        }),
        _ => json!({}),
    }
}

fn rules(input: &Value) -> Rules {
    let gate = |name: &str| input["gates"][name].as_bool().unwrap_or(true);
    Rules {
        pod_level_resources: gate("PodLevelResources"),
        empty_pod_level_decides_class: !gate("PodLevelResourcesFixKubeletQOSClass"),
        ..Rules::default()
    }
}

pub(crate) fn node_facts() -> NodeFacts {
    NodeFacts {
        cgroup: CgroupVersion::V2,
        page_size_bytes: 4096,
        huge_page_sizes: Vec::new(),
        memory_capacity_bytes: MEMORY_CAPACITY,
        swap_capacity_bytes: 0,
        has_swap_controller: false,
        allocatable: Amounts::default(),
    }
}

fn demand(input: &Value) -> Result<PodDemand> {
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    PodDemand::read(&pod).context("the generated pod is a good one")
}

fn compare(
    op: &str,
    input: impl Fn(&mut Seeded) -> Value,
    ours: impl Fn(&Value) -> Result<Value>,
) -> Result<()> {
    let inputs: Vec<Value> = seeds(CASES).map(|seed| input(&mut Seeded::new(seed))).collect();
    let answers = Oracle::start()?.ask_all(op, inputs.clone())?;
    let mut differences = Differences::default();
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        differences.compare(seed, input, &answer?, &ours(input)?);
    }
    differences.assert_none();
    Ok(())
}

#[test]
fn classes_are_alike() -> Result<()> {
    let input = |random: &mut Seeded| json!({"gates": gates(random), "pod": pod_value(random)});
    compare("qos", input, |input| {
        Ok(json!(computed_qos_class(&demand(input)?, &rules(input)).as_str()))
    })
}

#[test]
fn totals_and_kill_scores_are_alike() -> Result<()> {
    let input = |random: &mut Seeded| json!({"gates": gates(random), "pod": pod_value(random), "memoryCapacity": MEMORY_CAPACITY});
    let texts = |list: &Amounts| -> BTreeMap<String, String> {
        list.iter()
            .map(|(name, amount)| (name.to_owned(), amount.to_string()))
            .collect()
    };
    compare("resources.totals", input, |input| {
        let (demand, rules) = (demand(input)?, rules(input));
        let oom: BTreeMap<&str, i64> = demand
            .started_containers()
            .map(|one| {
                (
                    one.name.as_str(),
                    score_adjustment(&demand, one, &rules, MEMORY_CAPACITY),
                )
            })
            .collect();
        let name = pod_cgroup_name("/node", QosClass::Guaranteed, "11-22-33")?;
        Ok(json!({
            "requests": texts(&demand.requests(&rules, Overhead::Included)),
            "limits": texts(&demand.limits(&rules, Overhead::Included)),
            "oom": oom,
            "cgroupfs": name.path(CgroupDriver::Cgroupfs),
            "systemd": name.path(CgroupDriver::Systemd),
        }))
    })
}

#[test]
fn pod_cgroups_are_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let mut input = json!({
            "gates": gates(random), "pod": pod_value(random),
            "enforceCPULimits": random.below(4) != 0,
            "cpuPeriodUs": *random.one_of(&[100_000, 1000, 5000, 1_000_000]),
            "memoryReservationPolicy": *random.one_of(&["", "None", "TieredReservation"]),
        });
        if random.below(2) == 0 {
            input["enforceMemoryQoS"] = json!(true);
            if random.below(2) == 0 {
                input["memoryThrottlingFactor"] = json!(*random.one_of(&[0.0, 0.1, 0.5, 0.9, 1.0]));
            }
        }
        input
    };
    compare("cgroup.resources", input, |input| {
        let tiered = input["memoryReservationPolicy"] == "TieredReservation";
        let rules = Rules {
            cpu_cfs_quota: input["enforceCPULimits"] == true,
            cpu_cfs_quota_period_us: input["cpuPeriodUs"].as_i64().unwrap_or(0),
            memory_qos: input["enforceMemoryQoS"] == true,
            memory_reservation: if tiered {
                MemoryReservation::Tiered
            } else {
                MemoryReservation::None
            },
            memory_throttling_factor: input["memoryThrottlingFactor"].as_f64(),
            ..rules(input)
        };
        let found = pod_cgroup(&demand(input)?, &rules, &node_facts(), false);
        let mut answer = json!({});
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                answer[name] = value;
            }
        };
        set("memory", found.memory_bytes.map(Value::from));
        set("cpuShares", found.cpu_shares.map(Value::from));
        set("cpuQuota", found.cpu_quota_us.map(Value::from));
        set("cpuPeriod", found.cpu_period_us.map(Value::from));
        let huge = &found.huge_page_limits;
        set("hugePageLimit", (!huge.is_empty()).then(|| json!(huge)));
        let unified = &found.unified;
        set("unified", (!unified.is_empty()).then(|| json!(unified)));
        Ok(answer)
    })
}

#[test]
fn cpu_conversions_are_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let bits = u32::try_from(random.below(52)).unwrap_or(0);
        let milli = i64::try_from(random.next() >> (63 - bits)).unwrap_or(0);
        json!({"milliCPU": milli, "periodUs": *random.one_of(&[1000, 5000, 100_000, 1_000_000])})
    };
    compare("cgroup.cpu", input, |input| {
        let milli = input["milliCPU"].as_i64().context("a number")?;
        let period = input["periodUs"].as_i64().context("a number")?;
        let (shares, quota) = (shares_of_milli_cpu(milli), quota_of_milli_cpu(milli, period));
        Ok(json!({
            "shares": shares, "quota": quota,
            "milliCPUFromShares": milli_cpu_of_shares(i64::try_from(shares)?),
            "milliCPUFromQuota": milli_cpu_of_quota(quota, period),
        }))
    })
}
