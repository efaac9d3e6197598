//! Which labels a node may register itself with.

use std::collections::BTreeMap;

use rubelet_model::names;

use crate::kubelet_configuration::Problem;

pub(super) const LABEL_KEY_FORM: &str = "a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, \
     and before it, if wanted, a DNS name and '/'";
pub(super) const LABEL_VALUE_FORM: &str =
    "empty, or at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends";

/// Namespaces (with what is below them) that are the node's to set.
const NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Labels outside those namespaces that are the node's to set.
const LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Everything that is wrong with the labels of `--node-labels`.
#[must_use]
pub(crate) fn problems(labels: &BTreeMap<String, String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, value) in labels {
        let path = format!("--node-labels[{key}]");
        if is_reserved(key) && !is_for_nodes(key) {
            let allowed = format!(
                "in the namespaces kubernetes.io and k8s.io a node may set only labels under {} and {}",
                NAMESPACES.join(", "),
                LABELS.join(", ")
            );
            problems.push(Problem::new(path.clone(), key, allowed));
        }
        if !names::is_qualified_name(key) {
            problems.push(Problem::new(
                path.clone(),
                key,
                format!("a label key must be {LABEL_KEY_FORM}"),
            ));
        }
        if !names::is_label_value(value) {
            problems.push(Problem::new(
                path,
                value,
                format!("a label value must be {LABEL_VALUE_FORM}"),
            ));
        }
    }
    problems
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn is_or_is_below(namespace: &str, parent: &str) -> bool {
    namespace == parent
        || namespace
            .strip_suffix(parent)
            .is_some_and(|prefix| prefix.ends_with('.'))
}

fn is_reserved(key: &str) -> bool {
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|parent| is_or_is_below(namespace(key), parent))
}

fn is_for_nodes(key: &str) -> bool {
    LABELS.contains(&key)
        || NAMESPACES
            .iter()
            .any(|parent| is_or_is_below(namespace(key), parent))
}
