//! Feature gates: which ones exist, how they are set, and the one immutable value that holds the result.
//!
//! Owns the rules (unknown name, locked gate, `AllAlpha`/`AllBeta`, dependencies). There is no
//! global state: code that depends on a gate takes a `FeatureGates` and names the gate by its variant of [`Gate`].

mod table;

use std::collections::BTreeMap;
use std::fmt;

pub use table::Gate;
use table::TABLE;

/// How mature a gate is at this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

impl Stage {
    /// The stage with Kubernetes' name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "Alpha",
            Self::Beta => "Beta",
            Self::Ga => "GA",
            Self::Deprecated => "Deprecated",
        }
    }
}

/// A gate's default, and whether it may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
    LockedOn,
    LockedOff,
}

impl Switch {
    #[must_use]
    pub const fn default_value(self) -> bool {
        matches!(self, Self::On | Self::LockedOn)
    }

    #[must_use]
    pub const fn is_locked(self) -> bool {
        matches!(self, Self::LockedOn | Self::LockedOff)
    }
}

/// What is known of one gate.
#[derive(Debug, Clone, Copy)]
pub struct GateInfo {
    pub gate: Gate,
    pub name: &'static str,
    pub stage: Stage,
    pub switch: Switch,
    /// Gates that must be on whenever this one is.
    pub needs: &'static [Gate],
}

impl Gate {
    /// Every gate, in alphabetical order.
    #[must_use]
    pub fn all() -> &'static [GateInfo] {
        TABLE
    }

    /// The gate of that name; names are case-sensitive.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        TABLE
            .binary_search_by(|info| info.name.cmp(name))
            .ok()
            .and_then(|index| TABLE.get(index))
            .map(|info| info.gate)
    }

    /// Upstream's name of the gate.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.info().name
    }

    /// The gate's row of the table.
    #[must_use]
    pub fn info(self) -> &'static GateInfo {
        // The macro that makes the enum makes the table, in the same order.
        &TABLE[self as usize]
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a set of gate values is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateProblem {
    #[error("unrecognized feature gate: {name}")]
    Unknown { name: String },
    #[error("cannot set feature gate {gate} to {value}, feature is locked to {}", !value)]
    Locked { gate: Gate, value: bool },
    #[error(
        "{gate} is enabled, but depends on features that are disabled: {}",
        names(missing)
    )]
    DependencyOff { gate: Gate, missing: Vec<Gate> },
}

impl GateProblem {
    /// The name of the gate the problem is about.
    #[must_use]
    pub fn gate_name(&self) -> &str {
        match self {
            Self::Unknown { name } => name,
            Self::Locked { gate, .. } | Self::DependencyOff { gate, .. } => gate.as_str(),
        }
    }
}

fn names(gates: &[Gate]) -> String {
    let names: Vec<&str> = gates.iter().map(|gate| gate.as_str()).collect();
    names.join(", ")
}

/// The state of every gate. Made once at start-up, never changed.
#[derive(Clone, PartialEq, Eq)]
pub struct FeatureGates {
    enabled: Vec<bool>,
    set: BTreeMap<Gate, bool>,
}

impl fmt::Debug for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeatureGates")
            .field("set", &self.set)
            .finish_non_exhaustive()
    }
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            enabled: TABLE.iter().map(|info| info.switch.default_value()).collect(),
            set: BTreeMap::new(),
        }
    }
}

impl FeatureGates {
    /// Applies explicit values over the defaults; the error lists everything that is wrong with them.
    pub fn from_values(values: &BTreeMap<String, bool>) -> Result<Self, Vec<GateProblem>> {
        let (set, mut problems) = recognise(values);
        let gates = Self::resolve(set);
        // As upstream: dependencies are looked at only when each value by itself is acceptable.
        if problems.is_empty() {
            problems = gates.unmet_dependencies();
        }
        if problems.is_empty() {
            Ok(gates)
        } else {
            Err(problems)
        }
    }

    /// Every gate at this value, locked ones included: for tests of what depends on gates.
    #[must_use]
    pub fn every(value: bool) -> Self {
        Self {
            enabled: vec![value; TABLE.len()],
            set: BTreeMap::new(),
        }
    }

    /// Whether the gate is on.
    #[must_use]
    pub fn enabled(&self, gate: Gate) -> bool {
        self.enabled[gate as usize]
    }

    /// Gates that were named explicitly, with the value given.
    pub fn explicitly_set(&self) -> impl Iterator<Item = (Gate, bool)> + '_ {
        self.set.iter().map(|(gate, value)| (*gate, *value))
    }

    /// One line per explicitly set gate that will disappear: general availability and deprecated ones.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.explicitly_set()
            .filter_map(|(gate, value)| {
                let kind = match gate.info().stage {
                    Stage::Ga => "GA",
                    Stage::Deprecated => "deprecated",
                    Stage::Alpha | Stage::Beta => return None,
                };
                Some(format!(
                    "setting {kind} feature gate {gate}={value}; the gate will be removed in a future release"
                ))
            })
            .collect()
    }

    fn resolve(set: BTreeMap<Gate, bool>) -> Self {
        let mut gates = Self::default();
        for info in TABLE {
            let by_stage = match info.stage {
                Stage::Alpha => set.get(&Gate::AllAlpha),
                Stage::Beta => set.get(&Gate::AllBeta),
                Stage::Ga | Stage::Deprecated => None,
            };
            // The two toggles are themselves alpha and beta, but do not turn each other.
            let by_stage = by_stage.filter(|_| !matches!(info.gate, Gate::AllAlpha | Gate::AllBeta));
            if let Some(value) = set.get(&info.gate).or(by_stage) {
                gates.enabled[info.gate as usize] = *value;
            }
        }
        gates.set = set;
        gates
    }

    fn unmet_dependencies(&self) -> Vec<GateProblem> {
        TABLE
            .iter()
            .filter(|info| self.enabled(info.gate))
            .filter_map(|info| {
                let missing: Vec<Gate> = info
                    .needs
                    .iter()
                    .copied()
                    .filter(|gate| !self.enabled(*gate))
                    .collect();
                (!missing.is_empty()).then_some(GateProblem::DependencyOff {
                    gate: info.gate,
                    missing,
                })
            })
            .collect()
    }
}

fn recognise(values: &BTreeMap<String, bool>) -> (BTreeMap<Gate, bool>, Vec<GateProblem>) {
    let mut set = BTreeMap::new();
    let mut problems = Vec::new();
    for (name, value) in values {
        let Some(gate) = Gate::by_name(name) else {
            problems.push(GateProblem::Unknown { name: name.clone() });
            continue;
        };
        let switch = gate.info().switch;
        if switch.is_locked() && switch.default_value() != *value {
            problems.push(GateProblem::Locked { gate, value: *value });
            continue;
        }
        set.insert(gate, *value);
    }
    (set, problems)
}
