//! Feature gates: the rules for setting them. The table is compared with upstream's in `goldens`.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rubelet_config::gates::{FeatureGates, Gate, GateProblem};

fn values(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect()
}

/// What is on (`+`) or off (`-`) after setting, or the problems as text.
fn check(set: &[(&str, bool)], expect: Result<&[(Gate, bool)], &[&str]>) {
    match (FeatureGates::from_values(&values(set)), expect) {
        (Ok(gates), Ok(states)) => {
            for (gate, on) in states {
                assert_eq!(gates.enabled(*gate), *on, "{gate} after {set:?}");
            }
        }
        (Err(problems), Err(texts)) => {
            let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(found, texts, "after {set:?}");
        }
        (found, expected) => panic!("{set:?}: found {found:?}, expected {expected:?}"),
    }
}

#[test]
fn setting_gates() {
    check(
        &[],
        Ok(&[
            (Gate::MemoryQoS, true),
            (Gate::EventedPLEG, false),
            (Gate::AllAlpha, false),
        ]),
    );
    check(
        &[("MemoryQoS", false), ("EventedPLEG", true)],
        Ok(&[(Gate::MemoryQoS, false), (Gate::EventedPLEG, true)]),
    );
    // A locked gate may be set to what it is.
    check(&[("NodeSwap", true)], Ok(&[(Gate::NodeSwap, true)]));
    check(
        &[("NodeSwap", false)],
        Err(&["cannot set feature gate NodeSwap to false, feature is locked to true"]),
    );
    check(
        &[("GitRepoVolumeDriver", true)],
        Err(&["cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"]),
    );
    // Unknown, removed, and wrong case.
    check(&[("Nope", true)], Err(&["unrecognized feature gate: Nope"]));
    check(
        &[("SidecarContainers", true)],
        Err(&["unrecognized feature gate: SidecarContainers"]),
    );
    check(
        &[("memoryqos", true)],
        Err(&["unrecognized feature gate: memoryqos"]),
    );
    check(&[("", true)], Err(&["unrecognized feature gate: "]));
    // All problems together.
    check(
        &[("Nope", true), ("NodeSwap", false)],
        Err(&[
            "cannot set feature gate NodeSwap to false, feature is locked to true",
            "unrecognized feature gate: Nope",
        ]),
    );
}

#[test]
fn all_alpha_and_all_beta() {
    check(
        &[("AllBeta", false), ("MemoryQoS", true)],
        Ok(&[
            (Gate::MemoryQoS, true),
            (Gate::PodsAPI, false),
            (Gate::NodeSwap, true),
        ]),
    );
    check(
        &[("AllBeta", true)],
        Ok(&[
            (Gate::PodLevelResourceManagers, true),
            (Gate::EventedPLEG, false),
            (Gate::AllAlpha, false),
            (Gate::AllBeta, true),
        ]),
    );
    // General availability and deprecated gates are not touched by either.
    check(
        &[("AllBeta", false)],
        Ok(&[
            (Gate::KubeletPodResourcesListUseActivePods, true),
            (Gate::SELinuxMount, true),
        ]),
    );
    // Alpha gates that need beta gates which are off by default.
    check(
        &[("AllAlpha", true)],
        Err(&[
            "CompositePodGroup is enabled, but depends on features that are disabled: GenericWorkload",
            "PodGroupPreemptionPolicy is enabled, but depends on features that are disabled: GenericWorkload",
            "TopologyAwareWorkloadScheduling is enabled, but depends on features that are disabled: GenericWorkload",
            "WorkloadWithJob is enabled, but depends on features that are disabled: GenericWorkload",
        ]),
    );
    check(
        &[("AllAlpha", true), ("AllBeta", true)],
        Ok(&[(Gate::CompositePodGroup, true)]),
    );
}

#[test]
fn dependencies() {
    check(
        &[("PodLevelResources", false)],
        Err(&[
            "InPlacePodLevelResourcesVerticalScaling is enabled, but depends on features that are disabled: PodLevelResources",
            "PodLevelResourcesFixDefaulting is enabled, but depends on features that are disabled: PodLevelResources",
            "PodLevelResourcesFixKubeletQOSClass is enabled, but depends on features that are disabled: PodLevelResources",
        ]),
    );
    check(
        &[
            ("PodLevelResources", false),
            ("InPlacePodLevelResourcesVerticalScaling", false),
            ("PodLevelResourcesFixDefaulting", false),
            ("PodLevelResourcesFixKubeletQOSClass", false),
        ],
        Ok(&[(Gate::PodLevelResources, false)]),
    );
    // A gate of another platform counts like any other.
    check(
        &[
            ("GracefulNodeShutdown", false),
            ("GracefulNodeShutdownBasedOnPodPriority", false),
        ],
        Err(&[
            "WindowsGracefulNodeShutdown is enabled, but depends on features that are disabled: GracefulNodeShutdown",
        ]),
    );
}

#[test]
fn warnings_name_gates_that_will_disappear() {
    let gates = FeatureGates::from_values(&values(&[
        ("NodeSwap", true),
        ("MemoryQoS", true),
        ("AllowDNSOnlyNodeCSR", true),
    ]));
    let warnings = gates.expect("valid").warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("deprecated feature gate AllowDNSOnlyNodeCSR=true"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("GA feature gate NodeSwap=true"),
        "{warnings:?}"
    );
}

#[test]
fn the_table_is_sorted_and_found_by_name() {
    for pair in Gate::all().windows(2) {
        assert!(
            pair[0].name < pair[1].name,
            "{} before {}",
            pair[0].name,
            pair[1].name
        );
    }
    for info in Gate::all() {
        assert_eq!(Gate::by_name(info.name), Some(info.gate));
        assert_eq!(info.gate.info().name, info.name);
    }
}

#[test]
fn the_table_is_consistent() {
    for info in Gate::all() {
        for need in info.needs {
            assert!(
                !info.switch.default_value() || need.info().switch.default_value(),
                "{} is on, its need {need} is off",
                info.name
            );
        }
    }
    FeatureGates::from_values(&BTreeMap::new()).expect("the defaults stand together");
}

proptest! {
    /// Whatever is set: either all of it stands, or there is a reason that names a gate.
    #[test]
    fn any_values_give_an_answer(set in proptest::collection::btree_map(gate_name(), any::<bool>(), 0..12)) {
        match FeatureGates::from_values(&set) {
            Ok(gates) => {
                for (name, value) in &set {
                    let gate = Gate::by_name(name).expect("accepted names are known");
                    prop_assert_eq!(gates.enabled(gate), *value);
                }
                for info in Gate::all().iter().filter(|info| gates.enabled(info.gate)) {
                    for need in info.needs {
                        prop_assert!(gates.enabled(*need), "{} without {}", info.name, need);
                    }
                }
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                for problem in &problems {
                    let named = set.contains_key(problem.gate_name()) || matches!(problem, GateProblem::DependencyOff { .. });
                    prop_assert!(named, "{}", problem);
                }
            }
        }
    }
}

fn gate_name() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (0..Gate::all().len()).prop_map(|index| Gate::all()[index].name.to_owned()),
        1 => "[A-Za-z]{0,6}",
    ]
}
