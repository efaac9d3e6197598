//! `capacity` and `allocatable` of the Node.
//!
//! Owns the merge of what this machine has with what others put on the Node: a resource of another component stays, with all of it
//! allocatable. It must not measure anything.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_resources::amounts::Amounts;

use crate::settings::MachineFacts;

pub(super) type ResourceList = BTreeMap<String, ApiQuantity>;

/// As the API has it.
pub(super) fn list(amounts: &Amounts) -> ResourceList {
    let entries = amounts.iter();
    entries
        .map(|(name, quantity)| (name.to_owned(), ApiQuantity(quantity.canonical())))
        .collect()
}

pub(super) fn set_resources(status: &mut NodeStatus, machine: &MachineFacts) {
    let own = list(&machine.allocatable);
    let mut capacity = status.capacity.take().unwrap_or_default();
    capacity.extend(list(&machine.capacity));
    let mut allocatable = status.allocatable.take().unwrap_or_default();
    allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended(name));
    for (name, whole) in &capacity {
        let left = own.get(name).unwrap_or(whole);
        allocatable.insert(name.clone(), left.clone());
    }
    status.capacity = Some(capacity);
    status.allocatable = Some(allocatable);
}

/// Whether a resource is none of Kubernetes' own.
pub(super) fn is_extended(name: &str) -> bool {
    let Some((prefix, suffix)) = name.split_once('/') else {
        return false;
    };
    let is_ours = name.contains("kubernetes.io/") || name.starts_with("requests.");
    // The name must still be a qualified one when a quota writes `requests.` before it.
    let is_domain = !prefix.is_empty()
        && prefix.len() + "requests.".len() <= 253
        && prefix
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=63).contains(&suffix.len()) && suffix.bytes().all(is_word);
    !is_ours && is_domain && is_name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(entries: &[(&str, &str)]) -> ResourceList {
        let entries = entries.iter();
        entries
            .map(|(name, quantity)| ((*name).to_owned(), ApiQuantity((*quantity).to_owned())))
            .collect()
    }

    fn amounts(entries: &[(&str, &str)]) -> Amounts {
        Amounts::read(Some(&resources(entries))).unwrap()
    }

    #[test]
    fn what_others_put_on_the_node_stays() {
        let machine = MachineFacts {
            capacity: amounts(&[("cpu", "2"), ("memory", "4194304Ki"), ("pods", "110")]),
            allocatable: amounts(&[("cpu", "1900m"), ("memory", "4Gi"), ("pods", "110")]),
            ..MachineFacts::default()
        };
        let mut status = NodeStatus {
            capacity: Some(resources(&[("cpu", "1"), ("example.com/gpu", "3")])),
            allocatable: Some(resources(&[
                ("example.com/gpu", "1"),
                ("example.com/gone", "1"),
                ("hugepages-4Mi", "0"),
            ])),
            ..NodeStatus::default()
        };
        set_resources(&mut status, &machine);
        assert_eq!(
            status.capacity,
            Some(resources(&[
                ("cpu", "2"),
                ("memory", "4Gi"),
                ("pods", "110"),
                ("example.com/gpu", "3")
            ]))
        );
        assert_eq!(
            status.allocatable,
            Some(resources(&[
                ("cpu", "1900m"),
                ("memory", "4Gi"),
                ("pods", "110"),
                ("example.com/gpu", "3"),
                ("hugepages-4Mi", "0"),
            ]))
        );
    }

    #[test]
    fn devices_of_a_plugin_that_is_gone_are_zero() {
        let machine = MachineFacts {
            capacity: amounts(&[("cpu", "2"), ("example.com/gpu", "0")]),
            allocatable: amounts(&[("cpu", "2"), ("example.com/gpu", "0")]),
            ..MachineFacts::default()
        };
        let shown = resources(&[("cpu", "2"), ("example.com/gpu", "4")]);
        let mut status = NodeStatus {
            capacity: Some(shown.clone()),
            allocatable: Some(shown),
            ..NodeStatus::default()
        };
        set_resources(&mut status, &machine);
        let left = resources(&[("cpu", "2"), ("example.com/gpu", "0")]);
        assert_eq!(
            (status.capacity, status.allocatable),
            (Some(left.clone()), Some(left))
        );
    }

    #[test]
    fn extended_resources_have_a_domain_of_their_own() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("gpu", false),
            ("kubernetes.io/gpu", false),
            ("x.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
            ("/gpu", false),
            ("Example.com/gpu", false),
            ("example.com/a/b", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
    }
}
