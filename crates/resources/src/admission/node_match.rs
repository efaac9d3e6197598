//! Whether the node is one that the pod asks for: operating system, name, labels.
//!
//! Owns node selectors and affinity. Taints are in `taints`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};
use rubelet_model::names::{is_label_value, is_qualified_name};

use super::{AdmissionReason, Refusal};

const OS_LABEL: &str = "kubernetes.io/os";
const LINUX: &str = "linux";
const NAME_FIELD: &str = "metadata.name";
/// The reason of a pod that wants other labels.
pub const NODE_AFFINITY: &str = AdmissionReason::NodeAffinity.as_str();

/// The pod is meant for another operating system.
pub fn os_refusal(pod: &Pod) -> Option<Refusal> {
    let label = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| os != LINUX) {
        return Some(Refusal::for_good(
            AdmissionReason::PodOsLabelDoesNotMatch,
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let field = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    field.filter(|os| os.name != LINUX).map(|_| {
        Refusal::for_good(
            AdmissionReason::PodOsNotSupported,
            "Failed to admit pod as the OS field doesn't match node OS",
        )
    })
}

/// The node as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    pub name: String,
    /// Those that it gives itself; they count while no Node object is known.
    pub labels: BTreeMap<String, String>,
}

impl NodeIdentity {
    /// Everything about the node that the pod does not want, in upstream's order. `labels` are those of the Node object.
    pub fn refusals(&self, pod: &Pod, labels: Option<&BTreeMap<String, String>>) -> Vec<Refusal> {
        let Some(spec) = &pod.spec else {
            return Vec::new();
        };
        let compared = Compared {
            name: &self.name,
            labels: labels.unwrap_or(&self.labels),
        };
        let mut found = Vec::new();
        if !compared.has_labels(spec) || !compared.has_affinity(spec) {
            found.push(Refusal::for_good(
                AdmissionReason::NodeAffinity,
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ));
        }
        let name = spec.node_name.as_deref().unwrap_or_default();
        if !name.is_empty() && name != self.name {
            found.push(Refusal::for_good(
                AdmissionReason::NodeName,
                "Predicate NodeName failed: node(s) didn't match the requested node name",
            ));
        }
        found
    }
}

/// The node that pods are compared with.
struct Compared<'a> {
    name: &'a str,
    labels: &'a BTreeMap<String, String>,
}

impl Compared<'_> {
    /// The label of the operating system is fixed, whatever the Node object has.
    fn label(&self, key: &str) -> Option<&str> {
        match key {
            OS_LABEL if !self.labels.is_empty() => Some(LINUX),
            _ => self.labels.get(key).map(String::as_str),
        }
    }

    fn has_labels(&self, spec: &PodSpec) -> bool {
        let mut wanted = spec.node_selector.iter().flatten();
        wanted.all(|(key, value)| self.label(key) == Some(value))
    }

    fn has_affinity(&self, spec: &PodSpec) -> bool {
        let affinity = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
        let required =
            affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        required.is_none_or(|selector| {
            let mut terms = selector.node_selector_terms.iter();
            terms.any(|term| self.meets(term))
        })
    }

    /// A term without any demand is met by no node.
    fn meets(&self, term: &NodeSelectorTerm) -> bool {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|one| self.has_label(one))
            && fields.iter().all(|one| self.has_field(one))
    }

    fn has_label(&self, wanted: &NodeSelectorRequirement) -> bool {
        let own = self.label(&wanted.key);
        let values = wanted.values.as_deref().unwrap_or_default();
        // What can be no label is met by no node.
        if !is_qualified_name(&wanted.key) || !values.iter().all(|value| is_label_value(value)) {
            return false;
        }
        let is_one_of = |own: &str| values.iter().any(|value| value == own);
        let compared = |holds: fn(i64, i64) -> bool| {
            let (Some(own), [bound]) = (own, values) else {
                return false;
            };
            matches!((own.parse(), bound.parse()), (Ok(own), Ok(bound)) if holds(own, bound))
        };
        match wanted.operator.as_str() {
            "In" => own.is_some_and(is_one_of),
            "NotIn" => !values.is_empty() && !own.is_some_and(is_one_of),
            "Exists" => values.is_empty() && own.is_some(),
            "DoesNotExist" => values.is_empty() && own.is_none(),
            "Gt" => compared(|own, bound| own > bound),
            "Lt" => compared(|own, bound| own < bound),
            _ => false,
        }
    }

    fn has_field(&self, wanted: &NodeSelectorRequirement) -> bool {
        let [value] = wanted.values.as_deref().unwrap_or_default() else {
            return false;
        };
        // No node has any other field.
        let own = if wanted.key == NAME_FIELD { self.name } else { "" };
        match wanted.operator.as_str() {
            "In" => own == value,
            "NotIn" => own != value,
            _ => false,
        }
    }
}
