//! Generated thresholds and readings: which pressure the node is under round by round, and what has to be done about, is upstream's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_resources::pressure::{
    PressureSettings, PressureState, Readings, ThresholdKey, ThresholdTexts, step,
};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Map, Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const CASES: u64 = 2_000;
const SIGNALS: &[&str] = &[
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];
const SECOND_LIMIT: usize = 400;

fn map(random: &mut Seeded, odds: usize, values: &[&str]) -> Value {
    let mut map = Map::new();
    for signal in SIGNALS {
        if random.below(odds) == 0 {
            map.insert((*signal).to_owned(), json!(random.one_of(values)));
        }
    }
    Value::Object(map)
}

fn amount(random: &mut Seeded, limit: usize) -> u64 {
    random.below(limit) as u64
}

fn disk(random: &mut Seeded) -> Value {
    json!({
        "available": amount(random, 1000), "capacity": 1000 + amount(random, 7),
        "inodesFree": amount(random, 1000), "inodes": 1001,
    })
}

fn memory(random: &mut Seeded) -> Value {
    json!({"available": amount(random, 1000), "workingSet": 1 + amount(random, 1000)})
}

fn input(random: &mut Seeded) -> Value {
    let values = [
        "100", "500", "1k", "0%", "100%", "10%", "33.3%", "99%", "0.0%", "250500m", "1Ki",
    ];
    let soft = map(random, 3, &values);
    let mut grace = Map::new();
    for signal in soft.as_object().into_iter().flat_map(Map::keys) {
        let period = *random.one_of(&["1s", "30s", "2m30s", "10m"]);
        grace.insert(signal.clone(), json!(period));
    }
    let (images_apart, containers_apart) = *random.one_of(&[(false, false), (true, false), (true, true)]);
    let mut rounds = Vec::new();
    let mut second = 0;
    for _ in 0..=random.below(12) {
        second += amount(random, SECOND_LIMIT);
        let node = disk(random);
        let images = if images_apart { disk(random) } else { node.clone() };
        // Upstream's containers apart from images are beside the node's own files.
        let containers = if containers_apart { &node } else { &images }.clone();
        rounds.push(json!({
            "atSeconds": second, "memory": memory(random), "pods": memory(random),
            "nodefs": node, "imagefs": images, "containerfs": containers,
            "maxProcesses": 1000, "processes": amount(random, 1100),
        }));
    }
    let enforced: &[&str] = if random.below(2) == 0 { &["pods"] } else { &[] };
    json!({
        "hard": map(random, 2, &values), "soft": soft, "softGrace": grace,
        "minimumReclaim": map(random, 3, &["0", "50", "5%", "300"]),
        "enforced": enforced, "transitionSeconds": *random.one_of(&[1, 60, 300, 1200]),
        "imagesApart": images_apart, "containersApart": containers_apart, "rounds": rounds,
    })
}

fn texts(value: &Value) -> Result<BTreeMap<String, String>> {
    Ok(serde_json::from_value(value.clone())?)
}

fn settings(input: &Value) -> Result<PressureSettings> {
    let texts_of = |field: &str| texts(&input[field]);
    let read = ThresholdTexts {
        hard: &texts_of("hard")?,
        soft: &texts_of("soft")?,
        soft_grace: &texts_of("softGrace")?,
        minimum_reclaim: &texts_of("minimumReclaim")?,
        are_pods_enforced: input["enforced"] == json!(["pods"]),
    };
    let (thresholds, overridden) = read.read()?;
    Ok(PressureSettings {
        thresholds,
        transition_period: Duration::from_secs(number(&input["transitionSeconds"])),
        huge_page_bytes: 0,
        overridden,
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn readings(input: &Value, round: &Value) -> Readings {
    let memory = |value: &Value| {
        let used = number(&value["workingSet"]);
        MemoryReading {
            limit_bytes: Some(number(&value["available"]) + used),
            usage_bytes: used,
            inactive_file_bytes: 0,
        }
    };
    let disk = |device: u64, value: &Value| FilesystemReading {
        device,
        capacity_bytes: number(&value["capacity"]),
        available_bytes: number(&value["available"]),
        inodes: number(&value["inodes"]),
        inodes_free: number(&value["inodesFree"]),
    };
    let images = if input["imagesApart"] == true { 2 } else { 1 };
    let containers = if input["containersApart"] == true {
        1
    } else {
        images
    };
    Readings {
        memory: Some(memory(&round["memory"])),
        pods_memory: Some(memory(&round["pods"])),
        node_filesystem: Some(disk(1, &round["nodefs"])),
        image_filesystem: Some(disk(images, &round["imagefs"])),
        container_filesystem: Some(disk(containers, &round["containerfs"])),
        processes: Some(ProcessReading {
            most: number(&round["maxProcesses"]),
            running: number(&round["processes"]),
        }),
    }
}

/// Of the containers' filesystem everything is known from the one that it is on; upstream forgets it in the first round.
fn is_compared(signal: &str) -> bool {
    !signal.contains("containerfs")
}

fn ours(input: &Value) -> Result<Value> {
    let settings = settings(input)?;
    let mut state = PressureState::default();
    let mut due: BTreeSet<ThresholdKey> = BTreeSet::new();
    let mut outputs = Vec::new();
    for round in input["rounds"].as_array().into_iter().flatten() {
        let now = Duration::from_secs(number(&round["atSeconds"]));
        let (next, findings) = step(&settings, state, &readings(input, round), now);
        state = next;
        for key in &findings.left {
            due.remove(key);
        }
        due.extend(findings.crossed.iter().map(|crossing| crossing.key));
        let names: BTreeSet<String> = due
            .iter()
            .filter(|key| is_compared(key.signal.name()))
            .map(|key| format!("{} {}", if key.is_soft { "soft" } else { "hard" }, key.signal))
            .collect();
        let pressure = findings.pressure;
        outputs.push(json!({
            "memory": pressure.memory, "disk": pressure.disk, "pid": pressure.pid, "due": names,
        }));
    }
    Ok(json!(outputs))
}

fn without_containers(mut answer: Value) -> Value {
    for round in answer.as_array_mut().into_iter().flatten() {
        if let Some(due) = round["due"].as_array_mut() {
            due.retain(|name| name.as_str().is_some_and(is_compared));
        }
    }
    answer
}

#[test]
fn pressure_is_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let inputs: Vec<Value> = seeds(CASES).map(|seed| input(&mut Seeded::new(seed))).collect();
    let answers = oracle.ask_all("pressure", inputs.clone())?;
    let mut differences = Differences::default();
    let mut seen = [0; 3];
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        let upstream = without_containers(answer?);
        for (index, condition) in ["memory", "disk", "pid"].iter().enumerate() {
            let rounds = upstream.as_array().into_iter().flatten();
            seen[index] += rounds.filter(|round| round[condition] == true).count();
        }
        differences.compare(seed, input, &upstream, &ours(input)?);
    }
    println!("rounds under pressure of memory, disk, processes: {seen:?}");
    differences.assert_none();
    assert!(seen.iter().all(|count| *count >= 500), "{seen:?}");
    Ok(())
}

#[test]
fn thresholds_are_refused_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let values = [
        "100Mi", "0", "-1", "5%", "0%", "100%", "101%", "-1%", "%", "5%%", "lots", "", "1e3", "0.5%",
        "50.5.5%",
    ];
    let mut inputs = Vec::new();
    for value in values {
        let map = json!({"memory.available": value});
        let grace = json!({"memory.available": "30s"});
        inputs.push(json!({"hard": map}));
        inputs.push(json!({"soft": map, "softGrace": grace}));
        inputs.push(json!({"minimumReclaim": map}));
    }
    for grace in ["30s", "-30s", "0", "", "never", "1h2m"] {
        let map = json!({"memory.available": "1Gi"});
        inputs.push(json!({"soft": map, "softGrace": {"memory.available": grace}}));
    }
    inputs.push(json!({"soft": {"memory.available": "1Gi"}}));
    inputs.push(json!({"hard": {"memory.free": "1Gi"}}));
    inputs.push(json!({"softGrace": {"memory.free": "1s"}}));
    inputs.push(json!({"minimumReclaim": {"memory.free": "1Gi"}}));
    for input in &mut inputs {
        for field in ["hard", "soft", "softGrace", "minimumReclaim"] {
            if input[field].is_null() {
                input[field] = json!({});
            }
        }
    }
    let answers = oracle.ask_all("pressure", inputs.clone())?;
    for (input, answer) in inputs.iter().zip(answers) {
        assert_eq!(settings(input).is_ok(), answer.is_ok(), "{input}: {answer:?}");
    }
    Ok(())
}
