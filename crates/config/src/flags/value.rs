//! The value of a flag: read from text, and added to by later uses.
//!
//! Owns the per-type rules (what a second use does, what an empty text means). It does not know which flag it belongs to.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::{GoDuration, Quantity, names};

use super::definition::Kind;
use super::node_labels::{LABEL_KEY_FORM, LABEL_VALUE_FORM};
use super::text;
use crate::kubelet_configuration::{MemoryReservation, Taint};
use crate::version::{self, VersionRequest};

/// What the uses of one flag amount to.
#[derive(Debug, Clone, PartialEq)]
pub enum FlagValue {
    Bool(bool),
    Text(String),
    Int(i64),
    Duration(GoDuration),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
    BoolMap(BTreeMap<String, bool>),
    Headers(BTreeMap<String, Vec<String>>),
    ReservedMemory(Vec<MemoryReservation>),
    Taints(Vec<Taint>),
    Level(u32),
    VModule(Vec<(String, u32)>),
    Quantity(Quantity),
    Version(VersionRequest),
    /// The flag was used, but its text leaves the value as it is.
    Unchanged,
}

impl FlagValue {
    /// Reads one use of a flag, on top of its earlier uses.
    pub(super) fn read(kind: Kind, text: &str, earlier: Option<Self>) -> Result<Self, String> {
        Ok(match kind {
            Kind::Bool => Self::Bool(text::boolean(text)?),
            Kind::Text => Self::Text(text.to_owned()),
            Kind::Int32 => Self::Int(text::integer(text, i64::from(i32::MIN), i64::from(i32::MAX))?),
            Kind::Int64 => Self::Int(text::integer(text, i64::MIN, i64::MAX)?),
            Kind::Duration => Self::Duration(
                text.parse()
                    .map_err(|err: rubelet_model::duration::ParseDurationError| err.to_string())?,
            ),
            Kind::Ip => ip(text, earlier)?,
            Kind::List => list(text, earlier)?,
            Kind::StringMap => map(text::pairs(text, '=')?, earlier),
            Kind::OnePair => map(vec![text::pair(text, '=')?], earlier),
            Kind::Labels => map(labels(text), earlier),
            Kind::Thresholds => map(text::pairs(text, '<')?, earlier),
            Kind::BoolMap => bool_map(text, earlier)?,
            Kind::Headers => headers(text, earlier)?,
            Kind::ReservedMemory => reserved_memory(text, earlier)?,
            Kind::Taints => Self::Taints(taints(text)?),
            Kind::Level => Self::Level(text::level(text)?),
            Kind::VModule => vmodule(text, earlier)?,
            Kind::Quantity => Self::Quantity(quantity(text)?),
            Kind::Version => Self::Version(version::request(text, reported_so_far(earlier))?),
        })
    }
}

fn reported_so_far(earlier: Option<FlagValue>) -> Option<String> {
    match earlier {
        Some(FlagValue::Version(request)) => request.report,
        _ => None,
    }
}

fn ip(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    if text.is_empty() {
        return Ok(earlier.unwrap_or(FlagValue::Unchanged));
    }
    if rubelet_model::address::parse_ip(text).is_none() {
        return Err("must be an IP address".to_owned());
    }
    Ok(FlagValue::Text(text.to_owned()))
}

fn list(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    let mut values = match earlier {
        Some(FlagValue::List(values)) => values,
        _ => Vec::new(),
    };
    values.extend(text::csv(text)?);
    Ok(FlagValue::List(values))
}

fn map(pairs: Vec<(String, String)>, earlier: Option<FlagValue>) -> FlagValue {
    let mut values = match earlier {
        Some(FlagValue::Map(values)) => values,
        _ => BTreeMap::new(),
    };
    values.extend(pairs);
    FlagValue::Map(values)
}

/// A label without `=` has the empty value.
fn labels(text: &str) -> Vec<(String, String)> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        })
        .collect()
}

fn bool_map(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    let mut values = match earlier {
        Some(FlagValue::BoolMap(values)) => values,
        _ => BTreeMap::new(),
    };
    for (name, value) in text::pairs(text, '=')? {
        let value = text::boolean(&value)
            .map_err(|_| format!("has the value {value:?} for {name}, which must be true or false"))?;
        values.insert(name, value);
    }
    Ok(FlagValue::BoolMap(values))
}

fn headers(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    let mut values = match earlier {
        Some(FlagValue::Headers(values)) => values,
        _ => BTreeMap::new(),
    };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        // Header values are often credentials, so the text at fault is not repeated.
        let (name, value) = part
            .split_once(':')
            .ok_or("has a part that is not of the form name:value")?;
        values
            .entry(name.trim().to_owned())
            .or_default()
            .push(value.trim().to_owned());
    }
    Ok(FlagValue::Headers(values))
}

fn vmodule(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    let mut items = match earlier {
        Some(FlagValue::VModule(items)) => items,
        _ => Vec::new(),
    };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let fields: Vec<&str> = part.split('=').collect();
        let [pattern, level] = fields.as_slice() else {
            return Err(format!("has {part:?} where pattern=N is expected"));
        };
        if pattern.is_empty() {
            return Err(format!("has {part:?} where pattern=N is expected"));
        }
        let level = text::level(level).map_err(|err| format!("has {part:?}, whose level {err}"))?;
        items.push(((*pattern).to_owned(), level));
    }
    Ok(FlagValue::VModule(items))
}

fn quantity(text: &str) -> Result<Quantity, String> {
    text.parse()
        .map_err(|err: rubelet_model::quantity::ParseQuantityError| err.to_string())
}

fn reserved_memory(text: &str, earlier: Option<FlagValue>) -> Result<FlagValue, String> {
    if text.is_empty() {
        return Ok(earlier.unwrap_or(FlagValue::Unchanged));
    }
    let mut nodes = match earlier {
        Some(FlagValue::ReservedMemory(nodes)) => nodes,
        _ => Vec::new(),
    };
    for part in text.split(';') {
        nodes.push(memory_reservation(part)?);
    }
    Ok(FlagValue::ReservedMemory(nodes))
}

fn memory_reservation(text: &str) -> Result<MemoryReservation, String> {
    let form = || format!("has {text:?} where node:type=amount[,type=amount...] is expected");
    let (node, amounts) = text
        .split_once(':')
        .filter(|(_, rest)| !rest.contains(':'))
        .ok_or_else(form)?;
    // Upstream narrows a 64-bit number to 32 bits and so accepts nonsense; a NUMA node outside 32 bits is refused here.
    let digits = node.strip_prefix(['+', '-']).unwrap_or(node);
    let well_formed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let numa_node = if well_formed {
        node.parse::<i32>().ok()
    } else {
        None
    };
    let numa_node =
        numa_node.ok_or_else(|| format!("has the NUMA node {node:?}, which must be an integer"))?;
    let mut limits = BTreeMap::new();
    for part in amounts.split(',') {
        let (kind, amount) = part
            .split_once('=')
            .filter(|(_, rest)| !rest.contains('='))
            .ok_or_else(form)?;
        if kind != "memory" && !kind.starts_with("hugepages-") {
            return Err(format!(
                "has the type {kind:?}, which must be memory or hugepages-<size>"
            ));
        }
        limits.insert(kind.to_owned(), quantity(amount)?);
    }
    Ok(MemoryReservation {
        numa_node,
        limits: Some(limits),
    })
}

/// Taints to add. A part that ends in `-` asks for a removal elsewhere in Kubernetes; it is checked and then has no effect.
fn taints(text: &str) -> Result<Vec<Taint>, String> {
    let mut seen = BTreeSet::new();
    let mut taints = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        if let Some(removal) = part.strip_suffix('-') {
            taint(removal)?;
            continue;
        }
        let taint = taint(part)?;
        if taint.effect.is_empty() {
            return Err(format!("has the taint {part:?} without an effect"));
        }
        if !seen.insert((taint.key.clone(), taint.effect.clone())) {
            return Err(format!(
                "has two taints with the key {} and the effect {}",
                taint.key, taint.effect
            ));
        }
        taints.push(taint);
    }
    Ok(taints)
}

fn taint(text: &str) -> Result<Taint, String> {
    let (pair, effect) = match text.split(':').collect::<Vec<_>>().as_slice() {
        [key] => (*key, ""),
        [pair, effect] => (*pair, *effect),
        _ => return Err(format!("has the taint {text:?}, which must be key=value:effect")),
    };
    let has_effect = text.contains(':');
    if has_effect && !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!(
            "has the taint effect {effect:?}, which must be NoSchedule, PreferNoSchedule or NoExecute"
        ));
    }
    let (key, value) = match pair.split_once('=').filter(|_| has_effect) {
        Some((_, value)) if value.contains('=') => {
            return Err(format!("has the taint {text:?}, which must be key=value:effect"));
        }
        Some(pair) => pair,
        None => (pair, ""),
    };
    if !names::is_qualified_name(key) {
        return Err(format!(
            "has the taint key {key:?}, which must be {LABEL_KEY_FORM}"
        ));
    }
    if !names::is_label_value(value) {
        return Err(format!(
            "has the taint value {value:?}, which must be {LABEL_VALUE_FORM}"
        ));
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        time_added: None,
    })
}
