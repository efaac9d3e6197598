//! Generated questions about pod statuses: pods of all shapes, what a runtime shows of them, and statuses said before.
//!
//! Owns the generator only. The same seed gives the same question on every machine.

use serde_json::{Map, Value, json};

use super::Set;

/// The operations that can be asked about.
pub const STATUS_OPS: [&str; 5] = [
    "status.conditions",
    "status.containers",
    "status.merge",
    "status.phase",
    "status.settle",
];

const GOLDEN_CASES: u64 = 40;

pub(super) fn sets() -> Vec<Set> {
    let files = [
        "status_conditions.jsonl",
        "status_containers.jsonl",
        "status_merging.jsonl",
        "status_phases.jsonl",
        "status_settling.jsonl",
    ];
    let set = |(file, op): (&'static str, &'static str)| Set {
        keep: without_moments,
        ..Set::new(
            file,
            op,
            (0..GOLDEN_CASES).map(|seed| status_question(op, seed)).collect(),
        )
    };
    files.into_iter().zip(STATUS_OPS).map(set).collect()
}

/// The times at which the oracle was asked would make every golden stale; those of the question stay.
pub fn without_moments(answer: Value) -> Value {
    match answer {
        Value::Object(fields) => {
            let kept = fields
                .into_iter()
                .filter(|(name, _)| name != "startTime")
                .map(|(name, value)| {
                    let asked_at = value.as_str().is_some_and(|time| !time.starts_with(QUESTION_DAY));
                    let value = if name == "lastTransitionTime" && asked_at {
                        "now".into()
                    } else {
                        without_moments(value)
                    };
                    (name, value)
                });
            Value::Object(kept.collect())
        }
        Value::Array(list) => list.into_iter().map(without_moments).collect(),
        other => other,
    }
}

/// All times in questions lie on this day.
const QUESTION_DAY: &str = "2026-01-01T";

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        let index = usize::try_from(self.below(all.len() as u64)).unwrap_or(0);
        all.get(index).copied().unwrap_or_default()
    }
}

/// The question of this operation and seed.
pub fn status_question(op: &str, seed: u64) -> Value {
    let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (pod, init, regular) = pod(&mut dice);
    let both: Vec<String> = regular.iter().chain(&init).cloned().collect();
    match op {
        "status.conditions" => json!({
            "pod": pod, "old": status(&mut dice, &init, &regular), "conditions": conditions(&mut dice),
            "statuses": if dice.chance(5) { Value::Null } else { statuses(&mut dice, &both) },
            "phase": phase(&mut dice), "observation": observation(&mut dice, &both),
        }),
        "status.containers" => {
            let is_init = !init.is_empty() && dice.chance(50);
            let names = if is_init { &init } else { &regular };
            let mut failures = Map::new();
            for name in names {
                if dice.chance(30) {
                    failures.insert(
                        name.clone(),
                        dice.of(&["CrashLoopBackOff", "ErrImagePull"]).into(),
                    );
                }
            }
            json!({
                "pod": pod, "previous": statuses(&mut dice, names), "observation": observation(&mut dice, &both),
                "failures": failures, "init": is_init, "restarting": dice.chance(20),
            })
        }
        "status.phase" => json!({
            "pod": pod, "statuses": statuses(&mut dice, &both), "terminal": dice.chance(30),
            "initialized": dice.chance(50),
        }),
        "status.merge" => json!({
            "pod": pod, "old": status(&mut dice, &init, &regular), "new": status(&mut dice, &init, &regular),
            "mayRun": dice.chance(50),
        }),
        _ => json!({
            "pod": pod, "old": status(&mut dice, &init, &regular), "new": status(&mut dice, &init, &regular),
        }),
    }
}

fn container(dice: &mut Dice, name: &str, sidecar: bool) -> Value {
    let mut container = json!({"name": name, "image": format!("{name}:1")});
    if sidecar {
        container["restartPolicy"] = "Always".into();
    } else if dice.chance(40) {
        container["restartPolicy"] = dice.of(&["Always", "OnFailure", "Never"]).into();
        if dice.chance(50) {
            let values: Vec<u64> = (0..dice.below(3)).map(|_| dice.below(4)).collect();
            let action = dice.of(&["Restart", "Restart", "RestartAllContainers"]);
            let codes = json!({"operator": dice.of(&["In", "NotIn"]), "values": values});
            container["restartPolicyRules"] = json!([{"action": action, "exitCodes": codes}]);
        }
    }
    if dice.chance(30) {
        container["resources"] = json!({"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}});
    }
    container
}

fn pod(dice: &mut Dice) -> (Value, Vec<String>, Vec<String>) {
    let init: Vec<String> = ["i1", "i0", "i2"]
        .iter()
        .take(usize::try_from(dice.below(4)).unwrap_or(0))
        .map(ToString::to_string)
        .collect();
    let regular: Vec<String> = ["b", "a", "c"]
        .iter()
        .take(1 + usize::try_from(dice.below(3)).unwrap_or(0))
        .map(ToString::to_string)
        .collect();
    let mut metadata = json!({"name": "p", "namespace": "n", "generation": dice.below(3)});
    if dice.chance(20) {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    if dice.chance(20) {
        metadata["annotations"] = json!({"kubernetes.io/config.source": dice.of(&["file", "api"])});
    }
    let inits: Vec<Value> = init
        .iter()
        .map(|name| {
            let sidecar = dice.chance(40);
            container(dice, name, sidecar)
        })
        .collect();
    let regulars: Vec<Value> = regular.iter().map(|name| container(dice, name, false)).collect();
    let gates: Vec<Value> = (0..dice.below(3))
        .map(|n| json!({"conditionType": format!("x/g{n}")}))
        .collect();
    let spec = json!({
        "initContainers": inits, "containers": regulars, "readinessGates": gates,
        "restartPolicy": dice.of(&["Always", "OnFailure", "Never"]), "hostNetwork": dice.chance(10),
    });
    (json!({"metadata": metadata, "spec": spec}), init, regular)
}

fn phase(dice: &mut Dice) -> &'static str {
    dice.of(&["", "Pending", "Running", "Running", "Succeeded", "Failed"])
}

fn end(dice: &mut Dice) -> Value {
    let reason = dice.of(&["Completed", "Error", "RestartingAllContainers"]);
    json!({"terminated": {"exitCode": dice.below(4), "reason": reason, "startedAt": null, "finishedAt": null}})
}

fn state(dice: &mut Dice) -> Value {
    match dice.below(10) {
        0..4 => json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}}),
        4..7 => end(dice),
        7..9 => {
            json!({"waiting": {"reason": dice.of(&["ContainerCreating", "PodInitializing", "CrashLoopBackOff"])}})
        }
        _ => json!({}),
    }
}

fn statuses(dice: &mut Dice, names: &[String]) -> Value {
    let mut list = Vec::new();
    for name in names {
        if dice.chance(8) {
            continue;
        }
        let last = if dice.chance(40) { end(dice) } else { json!({}) };
        let mut one = json!({
            "name": name, "image": "i", "imageID": "r", "restartCount": dice.below(3), "ready": dice.chance(60),
            "containerID": format!("containerd://{name}{}", dice.below(2)), "state": state(dice), "lastState": last,
        });
        if dice.chance(70) {
            one["started"] = dice.chance(70).into();
        }
        list.push(one);
    }
    Value::Array(list)
}

const CONDITION_TYPES: [&str; 10] = [
    "Ready",
    "ContainersReady",
    "Initialized",
    "PodScheduled",
    "PodReadyToStartContainers",
    "DisruptionTarget",
    "AllContainersRestarting",
    "x/g0",
    "x/g1",
    "x/other",
];

fn conditions(dice: &mut Dice) -> Value {
    let mut list = Vec::new();
    for type_ in CONDITION_TYPES {
        if dice.chance(55) {
            let second = dice.below(60);
            list.push(json!({
                "type": type_, "status": dice.of(&["True", "True", "False", "Unknown"]), "reason": dice.of(&["", "R"]),
                "lastTransitionTime": format!("2026-01-01T00:00:{second:02}Z"), "lastProbeTime": null,
            }));
        }
    }
    Value::Array(list)
}

fn status(dice: &mut Dice, init: &[String], regular: &[String]) -> Value {
    json!({
        "phase": phase(dice), "reason": dice.of(&["", "Evicted"]), "message": dice.of(&["", "words"]),
        "conditions": conditions(dice), "containerStatuses": statuses(dice, regular),
        "initContainerStatuses": statuses(dice, init), "observedGeneration": dice.below(3),
        "qosClass": dice.of(&["Burstable", "BestEffort"]),
    })
}

fn observation(dice: &mut Dice, names: &[String]) -> Value {
    let count = dice.below(3);
    let sandboxes: Vec<Value> = (0..count)
        .map(|n| json!({"id": format!("s{n}"), "ready": dice.chance(60), "host": dice.chance(15), "ip": dice.of(&["10.0.0.1", "10.0.0.1", ""])}))
        .collect();
    let mut containers = Vec::new();
    for name in names {
        for age in 0..dice.below(4) {
            let state = dice.of(&["running", "exited", "exited", "created", "unknown"]);
            let ended = state == "exited";
            containers.push(json!({
                "id": format!("{name}{age}"), "name": name, "sandbox": dice.of(&["s0", "s0", "s1"]), "state": state,
                "exitCode": if ended { dice.below(4) } else { 0 }, "reason": if ended { "Error" } else { "" }, "message": "",
                "createdAt": 1_700_000_000 - age * 100, "startedAt": if state == "created" { 0 } else { 1_700_000_001 - age * 100 },
                "finishedAt": if ended { 1_700_000_002 - age * 100 } else { 0 },
                "image": name, "imageRef": format!("{name}@sha256:1"), "restartCount": 3 - age,
            }));
        }
    }
    json!({"sandboxes": sandboxes, "containers": containers})
}
