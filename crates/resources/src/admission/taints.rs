//! Whether the pod tolerates the node's taints.
//!
//! Owns tolerations. Only `NoExecute` counts on the node: the others are for the scheduler. Static pods tolerate all.

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use rubelet_model::pod::is_static_pod;

use super::{AdmissionReason, Refusal};

const NO_EXECUTE: &str = "NoExecute";

/// A taint that the pod does not tolerate.
pub fn taint_refusal(pod: &Pod, taints: &[Taint], compares: bool) -> Option<Refusal> {
    let mut barring = taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
    if is_static_pod(pod) || barring.all(|taint| is_tolerated(pod, taint, compares)) {
        return None;
    }
    Some(Refusal::for_good(
        AdmissionReason::TaintToleration,
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    ))
}

/// `compares` is the gate of the two operators for numbers.
pub(super) fn is_tolerated(pod: &Pod, taint: &Taint, compares: bool) -> bool {
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations
        .into_iter()
        .any(|toleration| tolerates(toleration, taint, compares))
}

fn tolerates(toleration: &Toleration, taint: &Taint, compares: bool) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    // What is empty matches all.
    let fits = |own: &Option<String>, theirs: &str| {
        let own = own.as_deref().unwrap_or_default();
        own.is_empty() || own == theirs
    };
    if !fits(&toleration.effect, &taint.effect) || !fits(&toleration.key, &taint.key) {
        return false;
    }
    let (own, theirs) = (text(&toleration.value), text(&taint.value));
    let compared = |holds: fn(i64, i64) -> bool| {
        let numbers = whole_number(&theirs).zip(whole_number(&own));
        compares && numbers.is_some_and(|(theirs, own)| holds(theirs, own))
    };
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => own == theirs,
        "Exists" => true,
        "Lt" => compared(|theirs, own| theirs < own),
        "Gt" => compared(|theirs, own| theirs > own),
        _ => false,
    }
}

/// A number as people write it: no sign but a minus, no zeros in front.
fn whole_number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
