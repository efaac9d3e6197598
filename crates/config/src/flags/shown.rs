//! The flags of a running node as text, for `/flagz`.
//!
//! Owns the form of each value, which is that of upstream's flag library.

use std::collections::BTreeMap;

use super::command_line::CommandLine;
use super::definition::Kind;
use super::{FlagValue, default_text, definitions};

/// Stands for what may carry a token.
const CLASSIFIED: &str = "CLASSIFIED";

/// Every flag with its value.
pub(crate) fn texts(command_line: &CommandLine) -> BTreeMap<String, String> {
    let text = |value: &FlagValue| value_text(value);
    definitions()
        .iter()
        .map(|definition| {
            let given = command_line.value(definition.name).and_then(text);
            let value = given
                .or_else(|| default_text(definition))
                .unwrap_or_else(|| zero_text(definition.kind).to_owned());
            (definition.name.to_owned(), value)
        })
        .collect()
}

/// Nothing where the value is the default all the same.
fn value_text(value: &FlagValue) -> Option<String> {
    let pairs = |pairs: Vec<String>| pairs.join(",");
    Some(match value {
        FlagValue::Bool(on) => on.to_string(),
        FlagValue::Text(text) => text.clone(),
        FlagValue::Int(number) => number.to_string(),
        FlagValue::Duration(duration) => duration.to_string(),
        FlagValue::List(items) => format!("[{}]", items.join(",")),
        FlagValue::Map(map) => pairs(
            map.iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        FlagValue::BoolMap(map) => pairs(
            map.iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        FlagValue::Headers(_) => CLASSIFIED.to_owned(),
        FlagValue::ReservedMemory(reservations) => {
            let nodes: Vec<String> = reservations
                .iter()
                .map(|reservation| {
                    let limits = reservation.limits.iter().flatten();
                    let limits = limits.map(|(name, amount)| format!("{name}={amount}")).collect();
                    format!("{}:{}", reservation.numa_node, pairs(limits))
                })
                .collect();
            nodes.join(";")
        }
        FlagValue::Taints(taints) => {
            let taints = taints.iter();
            pairs(
                taints
                    .map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect))
                    .collect(),
            )
        }
        FlagValue::Level(level) => level.to_string(),
        FlagValue::VModule(rules) => pairs(
            rules
                .iter()
                .map(|(pattern, level)| format!("{pattern}={level}"))
                .collect(),
        ),
        FlagValue::Quantity(quantity) => quantity.to_string(),
        FlagValue::Version(_) | FlagValue::Unchanged => return None,
    })
}

fn zero_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool | Kind::Version => "false",
        Kind::Int32 | Kind::Int64 | Kind::Level => "0",
        Kind::Duration => "0s",
        Kind::List => "[]",
        Kind::Text
        | Kind::Ip
        | Kind::StringMap
        | Kind::OnePair
        | Kind::Labels
        | Kind::Thresholds
        | Kind::BoolMap
        | Kind::Headers
        | Kind::ReservedMemory
        | Kind::Taints
        | Kind::VModule
        | Kind::Quantity => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_text() {
        let arguments = [
            "--v=4",
            "--node-labels=a=b,c=d",
            "--register-with-taints=k=v:NoSchedule",
            "--cluster-dns=10.0.0.10",
            "--manifest-url-header=Authorization:secret",
            "--sync-frequency=90s",
            "--feature-gates=AllAlpha=false",
        ];
        let texts = texts(&CommandLine::parse(&arguments).unwrap());
        assert_eq!(texts.len(), definitions().len());
        let check = |name: &str, expected: &str| assert_eq!(texts[name], expected, "{name}");
        check("v", "4");
        check("node-labels", "a=b,c=d");
        check("register-with-taints", "k=v:NoSchedule");
        check("cluster-dns", "[10.0.0.10]");
        check("manifest-url-header", CLASSIFIED);
        check("sync-frequency", "1m30s");
        check("feature-gates", "AllAlpha=false");
        check("kubeconfig", "");
        check("address", "0.0.0.0");
        check("runonce", "false");
    }
}
