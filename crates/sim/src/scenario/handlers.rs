//! Probes, lifecycle hooks and rules of restart that are the rule's opposite, for generated pods.
//!
//! Owns what they look like. They have dice of their own, so that everything else of a pod is the same with and without them.

use std::time::Duration;

use rubelet_ports::ProbeKind;
use serde_json::{Value, json};

use super::shape::ContainerShape;
use crate::dice::Dice;
use crate::runtime::{Health, PROBE_KINDS, probe_word};

/// How a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Exec,
    Http,
    Tcp,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeShape {
    pub kind: ProbeKind,
    pub way: Way,
    pub initial_delay_seconds: u64,
    pub period_seconds: u64,
    pub timeout_seconds: u64,
    pub failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookShape {
    /// A script of the simulated runtime.
    Exec(&'static str),
    Sleep(u64),
}

/// Where the ports of the first container begin, and how many each has.
const FIRST_PORT: u16 = 7000;
const PORTS_EACH: u16 = 10;

/// Gives some containers of a pod probes and hooks. Only those that stay may have any.
pub(super) fn add_handlers<'a>(
    dice: &mut Dice,
    containers: impl Iterator<Item = &'a mut ContainerShape>,
    is_on_node: bool,
    grace_seconds: i64,
) {
    if !dice.percent(40) {
        return;
    }
    let mut port = FIRST_PORT;
    for container in containers {
        if dice.percent(60) {
            add_probes(dice, container, is_on_node);
            container.script.port = Some(port);
            port += PORTS_EACH;
        }
        if dice.percent(30) {
            container.post_start = Some(post_start(dice, container, grace_seconds));
        }
        if dice.percent(40) {
            container.pre_stop = Some(pre_stop(dice, grace_seconds));
        }
    }
}

/// Every other rule is for all codes but those that a script ends with for good.
pub(super) fn turn_rules(dice: &mut Dice, container: &mut ContainerShape) {
    for rule in &mut container.rules {
        if dice.percent(50) {
            rule.operator = "NotIn";
            rule.codes = vec![0, 1];
        }
    }
}

fn add_probes(dice: &mut Dice, container: &mut ContainerShape, is_on_node: bool) {
    // Whoever restarts others must come to rest.
    let may_be_bad = container.rules.is_empty();
    for (place, kind) in PROBE_KINDS.into_iter().enumerate() {
        if !dice.percent(55) {
            continue;
        }
        let way = match is_on_node {
            // The ports of the node are everybody's.
            true => Way::Exec,
            false => *dice.pick(&[Way::Exec, Way::Http, Way::Tcp, Way::Grpc]),
        };
        container.script.health[place] = health(dice, kind, may_be_bad);
        container.probes.push(ProbeShape {
            kind,
            way,
            initial_delay_seconds: *dice.pick(&[0, 0, 1, 5]),
            period_seconds: *dice.pick(&[2, 5, 5, 10, 30]),
            timeout_seconds: *dice.pick(&[1, 1, 3]),
            // What warms up is well before the second one.
            failures: *dice.pick(&[2, 2, 3]),
        });
    }
}

fn health(dice: &mut Dice, kind: ProbeKind, may_be_bad: bool) -> Health {
    let warm = Duration::from_millis(dice.between(100, 1500));
    let before = Health::BadBefore(u32::try_from(dice.between(1, 2)).unwrap_or(1));
    let roll = dice.below(100);
    match (kind, roll) {
        (ProbeKind::Startup | ProbeKind::Liveness, 85..) if !may_be_bad => Health::Good,
        (_, 85..92) => Health::Bad,
        (_, 92..) => Health::Silent,
        (ProbeKind::Liveness, 60..85) | (ProbeKind::Startup, 65..85) => before,
        (ProbeKind::Startup, 30..65) | (ProbeKind::Readiness, 50..85) => Health::WarmsUp(warm),
        (_, _) => Health::Good,
    }
}

/// No hook may sleep for longer than the grace period.
fn sleep(dice: &mut Dice, most_seconds: i64) -> HookShape {
    match u64::try_from(most_seconds) {
        Ok(0) | Err(_) => HookShape::Exec("exit 0"),
        Ok(most) => HookShape::Sleep(dice.between(1, most)),
    }
}

fn post_start(dice: &mut Dice, container: &ContainerShape, grace_seconds: i64) -> HookShape {
    let may_be_bad = container.rules.is_empty();
    match dice.below(100) {
        0..45 => HookShape::Exec("exit 0"),
        45..60 => HookShape::Exec("take 2500"),
        60..75 => HookShape::Exec("fail-before 1"),
        75..83 => sleep(dice, grace_seconds.min(4)),
        83..91 if may_be_bad => HookShape::Exec("exit 1"),
        91.. if may_be_bad => HookShape::Exec("hang"),
        _ => HookShape::Exec("exit 0"),
    }
}

fn pre_stop(dice: &mut Dice, grace_seconds: i64) -> HookShape {
    match dice.below(100) {
        0..30 => HookShape::Exec("exit 0"),
        30..45 => HookShape::Exec("exit 1"),
        45..65 => HookShape::Exec("take 3000"),
        65..85 => sleep(dice, grace_seconds.min(10)),
        _ => HookShape::Exec("hang"),
    }
}

/// The longest that a hook of it sleeps.
pub(super) fn longest_sleep_seconds(container: &ContainerShape) -> i64 {
    let hooks = [&container.post_start, &container.pre_stop];
    let sleeps = hooks.into_iter().flatten().map(|hook| match hook {
        HookShape::Sleep(seconds) => i64::try_from(*seconds).unwrap_or(0),
        HookShape::Exec(_) => 0,
    });
    sleeps.max().unwrap_or(0)
}

pub(super) fn add_to(value: &mut Value, container: &ContainerShape) {
    for probe in &container.probes {
        let name = format!("{}Probe", probe_word(probe.kind));
        value[name] = probe_json(probe, container.script.port.unwrap_or(FIRST_PORT));
    }
    let hooks = [
        ("postStart", &container.post_start),
        ("preStop", &container.pre_stop),
    ];
    for (name, hook) in hooks {
        value["lifecycle"][name] = match hook {
            None => continue,
            Some(HookShape::Sleep(seconds)) => json!({"sleep": {"seconds": seconds}}),
            Some(HookShape::Exec(script)) => {
                let words: Vec<&str> = std::iter::once(name).chain(script.split(' ')).collect();
                json!({"exec": {"command": words}})
            }
        };
    }
}

fn probe_json(probe: &ProbeShape, first_port: u16) -> Value {
    let place = PROBE_KINDS.iter().position(|kind| *kind == probe.kind);
    let port = first_port + place.and_then(|place| u16::try_from(place).ok()).unwrap_or(0);
    let mut value = match probe.way {
        Way::Exec => json!({"exec": {"command": ["probe", probe_word(probe.kind)]}}),
        Way::Http => json!({"httpGet": {"path": "/", "port": port}}),
        Way::Tcp => json!({"tcpSocket": {"port": port}}),
        Way::Grpc => json!({"grpc": {"port": port}}),
    };
    value["initialDelaySeconds"] = json!(probe.initial_delay_seconds);
    value["periodSeconds"] = json!(probe.period_seconds);
    value["timeoutSeconds"] = json!(probe.timeout_seconds);
    value["failureThreshold"] = json!(probe.failures);
    value
}
