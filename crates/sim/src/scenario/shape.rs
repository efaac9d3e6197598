//! Pods of all shapes, and their manifests.
//!
//! Owns what a generated pod looks like. What such a pod should do is derived by the checks from its manifest.

use std::time::Duration;

use serde_json::{Value, json};

use super::handlers::{self, HookShape, ProbeShape};
use crate::dice::Dice;
use crate::runtime::{Exit, Script};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: &'static str,
    pub operator: &'static str,
    pub codes: Vec<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerShape {
    pub name: String,
    pub image: String,
    pub script: Script,
    pub restart_policy: Option<&'static str>,
    pub rules: Vec<Rule>,
    pub probes: Vec<ProbeShape>,
    pub post_start: Option<HookShape>,
    pub pre_stop: Option<HookShape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShape {
    pub name: String,
    /// `None` leaves the identity to the recipe, so that every edit is a new pod.
    pub uid: Option<String>,
    pub init: Vec<ContainerShape>,
    pub containers: Vec<ContainerShape>,
    pub restart_policy: &'static str,
    pub grace_seconds: i64,
    pub deadline_seconds: Option<i64>,
    pub host_network: bool,
    /// Requested by the first regular container.
    pub milli_cpu: i64,
    pub has_volumes: bool,
    /// It claims a volume of a driver that the node does not have.
    pub needs_driver: bool,
    /// Written as an annotation, so that an edit can change nothing else.
    pub revision: u32,
}

const IMAGES: [&str; 6] = ["app:1", "app:2", "web:1", "tool:1", "tool:2", "flaky:1"];

fn image(dice: &mut Dice) -> String {
    let tag = if dice.percent(4) {
        "missing:1"
    } else {
        dice.pick(&IMAGES)
    };
    format!("registry.test/{tag}")
}

fn exit(dice: &mut Dice, code: i32) -> Option<Exit> {
    Some(Exit {
        after: Duration::from_millis(dice.between(20, 8000)),
        code,
    })
}

fn on_term(dice: &mut Dice) -> Option<Exit> {
    match dice.below(10) {
        0 => None,
        1 | 2 => exit(dice, 0),
        _ => Some(Exit {
            after: Duration::from_millis(dice.between(1, 300)),
            code: *dice.pick(&[0, 143]),
        }),
    }
}

/// A process that fails a few times and then does its work.
fn script(dice: &mut Dice, last: Option<Exit>) -> Script {
    let mut runs = Vec::new();
    if dice.percent(30) {
        for _ in 0..dice.between(1, 2) {
            let code = *dice.pick(&[1, 2, 42]);
            runs.push(exit(dice, code));
        }
    }
    runs.push(last);
    Script {
        runs,
        on_term: on_term(dice),
        ..Script::default()
    }
}

fn container(dice: &mut Dice, name: String, script: Script) -> ContainerShape {
    ContainerShape {
        name,
        image: image(dice),
        script,
        restart_policy: None,
        rules: Vec::new(),
        probes: Vec::new(),
        post_start: None,
        pre_stop: None,
    }
}

fn add_rules(dice: &mut Dice, container: &mut ContainerShape) {
    container.restart_policy = Some(*dice.pick(&["Always", "OnFailure", "Never"]));
    let action = *dice.pick(&["Restart", "RestartAllContainers"]);
    container.rules = vec![Rule {
        action,
        operator: "In",
        codes: vec![42],
    }];
    if dice.percent(50) {
        // The first run ends with the code of the rule; nothing ends with it for ever.
        container.script.runs.insert(0, exit(dice, 42));
    }
}

impl PodShape {
    #[must_use]
    pub fn roll(dice: &mut Dice, number: u32) -> Self {
        let restart_policy = *dice.pick(&["Always", "Always", "Always", "OnFailure", "Never"]);
        let mut init = Vec::new();
        for index in 0..[0, 0, 0, 1, 1, 2][dice.below(6)] {
            let is_sidecar = dice.percent(50);
            let name = format!("{}{index}", if is_sidecar { "side" } else { "init" });
            let last = if is_sidecar { None } else { exit(dice, 0) };
            let script = script(dice, last);
            let mut one = container(dice, name, script);
            if is_sidecar {
                one.restart_policy = Some("Always");
            }
            init.push(one);
        }
        let mut containers = Vec::new();
        for index in 0..[1, 1, 1, 2, 3][dice.below(5)] {
            let last = match restart_policy {
                "Always" => None,
                _ if dice.percent(20) => None,
                "Never" => {
                    let code = *dice.pick(&[0, 1]);
                    exit(dice, code)
                }
                _ => exit(dice, 0),
            };
            let script = script(dice, last);
            let mut one = container(dice, format!("main{index}"), script);
            if dice.percent(12) {
                add_rules(dice, &mut one);
                handlers::turn_rules(&mut dice.aside("rules"), &mut one);
            }
            containers.push(one);
        }
        let uid = dice.percent(60).then(|| format!("{number:08x}-sim"));
        let mut shape = Self {
            name: format!("pod{number}"),
            uid,
            init,
            containers,
            restart_policy,
            grace_seconds: *dice.pick(&[0, 1, 2, 5, 30, 30, 120]),
            deadline_seconds: dice
                .percent(6)
                .then(|| i64::try_from(dice.between(5, 60)).unwrap_or(30)),
            host_network: dice.percent(10),
            milli_cpu: *dice.pick(&[0, 0, 0, 500, 500, 1000, 2000]),
            has_volumes: dice.percent(30),
            needs_driver: false,
            revision: 0,
        };
        let sidecars = shape.init.iter_mut().filter(|one| one.restart_policy.is_some());
        let stays = sidecars.chain(&mut shape.containers);
        handlers::add_handlers(
            &mut dice.aside("handlers"),
            stays,
            shape.host_network,
            shape.grace_seconds,
        );
        shape.stretch_grace(&mut dice.aside("grace"));
        shape
    }

    /// The longest grace period there is, for a pod that ends by itself long before.
    fn stretch_grace(&mut self, dice: &mut Dice) {
        let mut all = self.init.iter().chain(&self.containers);
        let ends = all.all(|one| one.script.on_term.is_some() && one.pre_stop.is_none());
        if ends && dice.percent(5) {
            self.grace_seconds = i64::MAX;
        }
    }

    /// A pod that is ready within seconds, and stops at once.
    #[must_use]
    pub fn tame(dice: &mut Dice, number: u32) -> Self {
        let quick = |last| Script {
            runs: vec![last],
            on_term: Some(Exit {
                after: Duration::from_millis(20),
                code: 0,
            }),
            ..Script::default()
        };
        let one = |name: &str, last| ContainerShape {
            name: name.to_owned(),
            image: "registry.test/app:1".to_owned(),
            script: quick(last),
            restart_policy: None,
            rules: Vec::new(),
            probes: Vec::new(),
            post_start: None,
            pre_stop: None,
        };
        let init = dice.percent(50).then(|| {
            one(
                "init0",
                Some(Exit {
                    after: Duration::from_millis(300),
                    code: 0,
                }),
            )
        });
        Self {
            name: format!("pod{number}"),
            uid: Some(format!("{number:08x}-sim")),
            init: init.into_iter().collect(),
            containers: vec![one("main0", None)],
            restart_policy: "Always",
            grace_seconds: 5,
            deadline_seconds: None,
            host_network: false,
            milli_cpu: 0,
            has_volumes: dice.percent(50),
            needs_driver: false,
            revision: 0,
        }
    }

    /// A new image for a regular container, one that can be pulled.
    pub fn edit_image(&mut self, dice: &mut Dice) {
        self.revision += 1;
        let place = dice.below(self.containers.len());
        self.containers[place].image = "registry.test/app:2".to_owned();
    }

    /// Changes something. Of a pod with a fixed identity only what can change in place.
    pub fn edit(&mut self, dice: &mut Dice) {
        self.revision += 1;
        match dice.below(3) {
            // A container that ended for good does not come back for a new image, so that only others get one.
            0 if self.restart_policy == "Always" => {
                let place = dice.below(self.containers.len());
                let image = image(dice);
                self.containers[place].image = image;
            }
            1 => {
                let all = self.init.iter().chain(&self.containers);
                let least = all.map(handlers::longest_sleep_seconds).max().unwrap_or(0);
                self.grace_seconds = least.max(*dice.pick(&[1, 5, 30, 60]));
            }
            _ => {}
        }
    }

    #[must_use]
    pub fn manifest(&self) -> Vec<u8> {
        let list = |containers: &[ContainerShape]| {
            let mut list: Vec<Value> = containers.iter().map(container_json).collect();
            if self.has_volumes {
                list.iter_mut().for_each(add_mounts);
            }
            list
        };
        let mut metadata = json!({
            "name": self.name,
            "annotations": {"revision": self.revision.to_string()},
        });
        if let Some(uid) = &self.uid {
            metadata["uid"] = json!(uid);
        }
        let mut spec = json!({
            "restartPolicy": self.restart_policy,
            "terminationGracePeriodSeconds": self.grace_seconds,
            "containers": list(&self.containers),
        });
        if !self.init.is_empty() {
            spec["initContainers"] = json!(list(&self.init));
        }
        if self.milli_cpu > 0 {
            let requests = json!({"requests": {"cpu": format!("{}m", self.milli_cpu)}});
            spec["containers"][0]["resources"] = requests;
        }
        if let Some(seconds) = self.deadline_seconds {
            spec["activeDeadlineSeconds"] = json!(seconds);
        }
        if self.host_network {
            spec["hostNetwork"] = json!(true);
        }
        if self.has_volumes {
            spec["volumes"] = volumes();
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        pod.to_string().into_bytes()
    }
}

/// One of each kind: on disk, in memory, written by the agent, of the node.
fn volumes() -> Value {
    let revision = json!({"path": "revision", "fieldRef": {"fieldPath": "metadata.annotations['revision']"}});
    json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "info", "downwardAPI": {"items": [revision]}},
        {"name": "host", "hostPath": {"path": "/srv/shared", "type": "DirectoryOrCreate"}},
    ])
}

fn add_mounts(container: &mut Value) {
    container["volumeMounts"] = json!([
        {"name": "disk", "mountPath": "/disk", "subPath": "inner"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "info", "mountPath": "/info"},
        {"name": "host", "mountPath": "/host"},
    ]);
}

fn container_json(container: &ContainerShape) -> Value {
    let mut value = json!({
        "name": container.name,
        "image": container.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/sim"],
        "args": container.script.arguments(),
    });
    if let Some(policy) = container.restart_policy {
        value["restartPolicy"] = json!(policy);
    }
    if !container.rules.is_empty() {
        value["restartPolicyRules"] = container
            .rules
            .iter()
            .map(|rule| {
                json!({
                    "action": rule.action,
                    "exitCodes": {"operator": rule.operator, "values": rule.codes},
                })
            })
            .collect();
    }
    handlers::add_to(&mut value, container);
    value
}
