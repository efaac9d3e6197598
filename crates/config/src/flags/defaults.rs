//! The default of a flag, as text for the help.

use serde_json::Value;

use super::definition::{Definition, OwnFlag, Target};
use super::own::KubeletFlags;
use crate::gates::FeatureGates;
use crate::kubelet_configuration::legacy_kubelet_configuration;

/// The default; `None` where it is empty, zero or false.
pub(super) fn text(definition: &Definition) -> Option<String> {
    match definition.target {
        Target::Config(path) => {
            let configuration = legacy_kubelet_configuration(&FeatureGates::default()).to_configz();
            path.split('.')
                .try_fold(&configuration, |value, name| value.get(name))
                .and_then(|value| render(definition, value))
        }
        Target::Own(flag) => of_own(flag),
    }
}

fn render(definition: &Definition, value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) | Value::Object(_) => None,
        Value::Bool(true) => Some("true".to_owned()),
        Value::Number(number) => (number.as_i64() != Some(0)).then(|| number.to_string()),
        Value::String(text) if text.is_empty() || text == "0s" || text == "0" => None,
        Value::String(text) if definition.kind == super::Kind::Text => Some(format!("{text:?}")),
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            (!items.is_empty()).then(|| format!("[{}]", items.join(",")))
        }
    }
}

fn of_own(flag: OwnFlag) -> Option<String> {
    let default = KubeletFlags::default();
    match flag {
        OwnFlag::RootDir => Some(format!("{:?}", default.root_dir)),
        OwnFlag::CertDir => Some(format!("{:?}", default.cert_dir)),
        OwnFlag::HousekeepingInterval => Some(default.housekeeping_interval.to_string()),
        OwnFlag::MaximumDeadContainers => Some(default.maximum_dead_containers.to_string()),
        OwnFlag::MaximumDeadContainersPerContainer => {
            Some(default.maximum_dead_containers_per_container.to_string())
        }
        _ => None,
    }
}
