//! The rules a configuration has to keep, after defaults and flags.
//!
//! Owns every rule upstream checks at start-up, each reported with its field, and all of them in one pass. What follows
//! from the machine (`validate_on_host`) is apart from what follows from the configuration alone (`validate`). The
//! names and values of feature gates are checked in `gates`, not here.

mod images;
mod node;
mod observability;
mod pods;
mod resources;

use std::fmt;

use super::node::shown;
use super::problem::Problem;
use super::types::KubeletConfiguration;
use crate::gates::{FeatureGates, Gate};

/// What the rules need to know about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// The unified cgroup hierarchy is mounted at the root.
    pub cgroup_v2: bool,
}

/// All broken rules that can be seen without looking at the machine.
pub fn validate(configuration: &KubeletConfiguration, gates: &FeatureGates) -> Vec<Problem> {
    let mut rules = Rules {
        configuration,
        gates,
        problems: Vec::new(),
    };
    node::check(&mut rules);
    images::check(&mut rules);
    resources::check(&mut rules);
    pods::check(&mut rules);
    observability::check(&mut rules);
    rules.problems
}

/// All rules that the machine breaks.
pub fn validate_on_host(configuration: &KubeletConfiguration, host: HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    if host.cgroup_v2 {
        return problems;
    }
    if configuration.fail_cgroup_v1.unwrap_or_default() {
        problems.push(Problem::new(
            "failCgroupV1",
            true,
            "must be false on a machine with cgroup v1, which is no longer supported",
        ));
    }
    if configuration.single_process_oom_kill == Some(false) {
        problems.push(Problem::new(
            "singleProcessOOMKill",
            false,
            "must be unset or true on a machine with cgroup v1",
        ));
    }
    problems
}

/// One pass over a configuration.
struct Rules<'a> {
    configuration: &'a KubeletConfiguration,
    gates: &'a FeatureGates,
    problems: Vec<Problem>,
}

impl<'a> Rules<'a> {
    fn enabled(&self, gate: Gate) -> bool {
        self.gates.enabled(gate)
    }

    fn refuse(&mut self, path: impl Into<String>, value: impl fmt::Display, allowed: impl Into<String>) {
        self.problems.push(Problem::new(path, value, allowed));
    }

    fn refuse_text(&mut self, path: impl Into<String>, value: &str, allowed: impl Into<String>) {
        self.refuse(path, shown(value), allowed);
    }

    fn not_negative(&mut self, path: &str, value: i64) {
        if value < 0 {
            self.refuse(path, value, "must not be negative");
        }
    }

    fn at_least(&mut self, path: &str, value: i64, least: i64) {
        if value < least {
            self.refuse(path, value, format!("must be at least {least}"));
        }
    }

    fn in_range(&mut self, path: &str, value: i64, least: i64, most: i64) {
        if !(least..=most).contains(&value) {
            self.refuse(path, value, format!("must be between {least} and {most}"));
        }
    }

    fn one_of(&mut self, path: &str, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            let allowed: Vec<String> = allowed.iter().map(|one| format!("{one:?}")).collect();
            self.refuse_text(path, value, format!("must be one of {}", allowed.join(", ")));
        }
    }
}
