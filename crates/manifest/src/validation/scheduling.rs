//! Rules for where a pod may run: tolerations, affinity, spreading, gates.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSchedulingGate, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rubelet_model::names::{is_dns_label, is_dns_subdomain, is_label_value};

use super::Options;
use super::metadata::{label_selector, selector_operator};
use super::names::qualified_name;
use crate::fields::{list, text};
use crate::problem::{Findings, Path};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn tolerations(out: &mut Findings, path: &Path, all: &[Toleration], options: &Options) {
    for (position, toleration) in all.iter().enumerate() {
        let path = path.index(position);
        let operator = text(&toleration.operator);
        let value = text(&toleration.value);
        let effect = text(&toleration.effect);
        let key = text(&toleration.key);
        if !key.is_empty() {
            qualified_name(out, &path.child("key"), key);
        } else if operator != "Exists" {
            out.invalid(&path.child("operator"), "must be Exists when key is empty");
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            out.invalid(
                &path.child("effect"),
                "must be NoExecute when tolerationSeconds is set",
            );
        }
        match operator {
            "Equal" | "" => out.invalid_unless(
                is_label_value(value),
                &path.child("operator"),
                "value is no label value",
            ),
            "Exists" => out.invalid_unless(value.is_empty(), &path.child("operator"), "Exists has no value"),
            "Lt" | "Gt" if options.toleration_comparison => {
                out.invalid_unless(
                    is_plain_integer(value),
                    &path.child("value"),
                    "must be a whole number",
                );
            }
            _ => out.not_supported(&path.child("operator"), &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            out.one_of(
                &path.child("effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            );
        }
    }
}

/// As a person writes it: no plus sign, no leading zeros.
fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = text == "0" || (digits.starts_with(|first: char| first != '0') && !digits.is_empty());
    canonical && digits.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_ok()
}

pub(super) fn affinity(out: &mut Findings, path: &Path, affinity: &Affinity) {
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            let path = path.child(REQUIRED).child("nodeSelectorTerms");
            if selector.node_selector_terms.is_empty() {
                out.required(&path, "");
            }
            for (position, term) in selector.node_selector_terms.iter().enumerate() {
                node_term(out, &path.index(position), term, true);
            }
        }
        for (position, term) in list(&node.preferred_during_scheduling_ignored_during_execution)
            .iter()
            .enumerate()
        {
            let path = path.child(PREFERRED).index(position);
            weight(out, &path, term.weight);
            node_term(out, &path.child("preference"), &term.preference, false);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let path = path.child("podAffinity");
        pod_terms(
            out,
            &path,
            list(&pods.required_during_scheduling_ignored_during_execution),
            list(&pods.preferred_during_scheduling_ignored_during_execution),
        );
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let path = path.child("podAntiAffinity");
        pod_terms(
            out,
            &path,
            list(&pods.required_during_scheduling_ignored_during_execution),
            list(&pods.preferred_during_scheduling_ignored_during_execution),
        );
    }
}

fn weight(out: &mut Findings, path: &Path, weight: i32) {
    out.invalid_unless(
        (1..=100).contains(&weight),
        &path.child("weight"),
        "must be between 1 and 100",
    );
}

fn node_term(out: &mut Findings, path: &Path, term: &NodeSelectorTerm, check_values: bool) {
    for (position, rule) in list(&term.match_expressions).iter().enumerate() {
        node_rule(
            out,
            &path.child("matchExpressions").index(position),
            rule,
            check_values,
        );
    }
    for (position, rule) in list(&term.match_fields).iter().enumerate() {
        let path = path.child("matchFields").index(position);
        let values = list(&rule.values);
        match rule.operator.as_str() {
            "In" | "NotIn" => {
                if values.len() != 1 {
                    out.required(&path.child("values"), "exactly one value");
                }
            }
            _ => out.invalid(&path.child("operator"), "not an operator of fields"),
        }
        if rule.key != "metadata.name" {
            out.invalid(&path.child("key"), "not a field of nodes that can be selected");
            continue;
        }
        for (position, value) in values.iter().enumerate() {
            out.invalid_unless(
                is_dns_subdomain(value),
                &path.child("values").index(position),
                "not a node name",
            );
        }
    }
}

fn node_rule(out: &mut Findings, path: &Path, rule: &NodeSelectorRequirement, check_values: bool) {
    let values = list(&rule.values);
    match rule.operator.as_str() {
        "Gt" | "Lt" if values.len() == 1 => {}
        "Gt" | "Lt" => out.required(&path.child("values"), "exactly one value"),
        operator => selector_operator(out, path, operator, values.len()),
    }
    qualified_name(out, &path.child("key"), &rule.key);
    for (position, value) in values.iter().enumerate().filter(|_| check_values) {
        out.invalid_unless(
            is_label_value(value),
            &path.child("values").index(position),
            "not a label value",
        );
    }
}

fn pod_terms(
    out: &mut Findings,
    path: &Path,
    required: &[PodAffinityTerm],
    preferred: &[WeightedPodAffinityTerm],
) {
    for (position, term) in required.iter().enumerate() {
        pod_term(out, &path.child(REQUIRED).index(position), term);
    }
    for (position, term) in preferred.iter().enumerate() {
        let path = path.child(PREFERRED).index(position);
        weight(out, &path, term.weight);
        pod_term(out, &path.child("podAffinityTerm"), &term.pod_affinity_term);
    }
}

fn pod_term(out: &mut Findings, path: &Path, term: &PodAffinityTerm) {
    label_selector(out, &path.child("labelSelector"), &term.label_selector);
    label_selector(out, &path.child("namespaceSelector"), &term.namespace_selector);
    for namespace in list(&term.namespaces) {
        out.invalid_unless(
            is_dns_label(namespace),
            &path.child("namespace"),
            "not a namespace's name",
        );
    }
    let (keys, other) = (list(&term.match_label_keys), list(&term.mismatch_label_keys));
    match_label_keys(out, path, keys, other, &term.label_selector);
    if term.topology_key.is_empty() {
        out.required(&path.child("topologyKey"), "");
    }
    qualified_name(out, &path.child("topologyKey"), &term.topology_key);
}

fn match_label_keys(
    out: &mut Findings,
    path: &Path,
    keys: &[String],
    mismatched: &[String],
    selector: &Option<LabelSelector>,
) {
    for (name, keys) in [("matchLabelKeys", keys), ("mismatchLabelKeys", mismatched)] {
        let path = path.child(name);
        if keys.is_empty() {
            continue;
        }
        if selector.is_none() {
            out.forbidden(&path, "needs a labelSelector");
            continue;
        }
        for (position, key) in keys.iter().enumerate() {
            qualified_name(out, &path.index(position), key);
        }
    }
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&str> = selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .collect();
        for expression in list(&selector.match_expressions) {
            let position = keys.iter().rposition(|key| *key == expression.key);
            if let Some(position) = position
                && seen.contains(expression.key.as_str())
            {
                out.invalid(&path.index(position), "is in matchLabelKeys and in the selector");
            }
            seen.insert(&expression.key);
        }
    }
    for (position, key) in keys.iter().enumerate() {
        if mismatched.contains(key) {
            out.invalid(
                &path.child("matchLabelKeys").index(position),
                "is in mismatchLabelKeys too",
            );
        }
    }
}

pub(super) fn topology_spread(
    out: &mut Findings,
    path: &Path,
    all: &[TopologySpreadConstraint],
    options: &Options,
) {
    for (position, rule) in all.iter().enumerate() {
        let path = path.index(position);
        out.invalid_unless(rule.max_skew > 0, &path.child("maxSkew"), "must be positive");
        out.required_text(&path.child("topologyKey"), &rule.topology_key);
        let action = &rule.when_unsatisfiable;
        out.one_of(
            &path.child("whenUnsatisfiable"),
            action,
            &["DoNotSchedule", "ScheduleAnyway"],
        );
        let repeated = all[position + 1..]
            .iter()
            .any(|other| other.topology_key == rule.topology_key && other.when_unsatisfiable == *action);
        if repeated {
            out.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"));
        }
        if let Some(domains) = rule.min_domains {
            let path = path.child("minDomains");
            out.invalid_unless(domains > 0, &path, "must be positive");
            out.invalid_unless(
                action == "DoNotSchedule",
                &path,
                "needs whenUnsatisfiable DoNotSchedule",
            );
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &rule.node_affinity_policy),
            ("nodeTaintsPolicy", &rule.node_taints_policy),
        ] {
            if let Some(policy) = policy {
                out.one_of(&path.child(name), policy, &["Honor", "Ignore"]);
            }
        }
        let keys = list(&rule.match_label_keys);
        if options.spread_selector_merge {
            match_label_keys(out, &path, keys, &[], &rule.label_selector);
        } else {
            spread_label_keys(out, &path.child("matchLabelKeys"), keys, &rule.label_selector);
        }
        label_selector(out, &path.child("labelSelector"), &rule.label_selector);
    }
}

fn spread_label_keys(out: &mut Findings, path: &Path, keys: &[String], selector: &Option<LabelSelector>) {
    if keys.is_empty() {
        return;
    }
    let Some(selector) = selector else {
        out.forbidden(path, "needs a labelSelector");
        for (position, key) in keys.iter().enumerate() {
            qualified_name(out, &path.index(position), key);
        }
        return;
    };
    let labels = selector.match_labels.iter().flatten().map(|(key, _)| key);
    let expressions = list(&selector.match_expressions)
        .iter()
        .map(|expression| &expression.key);
    let selected: BTreeSet<&String> = labels.chain(expressions).collect();
    for (position, key) in keys.iter().enumerate() {
        qualified_name(out, &path.index(position), key);
        out.invalid_unless(
            !selected.contains(key),
            &path.index(position),
            "is in the selector too",
        );
    }
}

pub(super) fn gates(out: &mut Findings, path: &Path, gates: &[PodSchedulingGate]) {
    let mut seen = BTreeSet::new();
    for (position, gate) in gates.iter().enumerate() {
        qualified_name(out, &path.index(position), &gate.name);
        if !seen.insert(&gate.name) {
            out.duplicate(&path.index(position));
        }
    }
}
