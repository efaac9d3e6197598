//! Label selectors of trust bundles.
//!
//! Owns the rule which labels a selector matches, and which operators are valid.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a valid label selector operator")]
pub(crate) struct BadOperator(String);

/// No selector matches nothing, an empty one everything.
pub(crate) fn matches(
    selector: Option<&LabelSelector>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, BadOperator> {
    let Some(selector) = selector else {
        return Ok(false);
    };
    let mut wanted = selector.match_labels.iter().flatten();
    let mut is_match = wanted.all(|(key, value)| labels.get(key) == Some(value));
    // All are looked at: a wrong operator is an error whatever the labels are.
    for requirement in selector.match_expressions.iter().flatten() {
        let value = labels.get(&requirement.key);
        let is_listed = value.is_some_and(|value| {
            let mut values = requirement.values.iter().flatten();
            values.any(|one| one == value)
        });
        is_match &= match requirement.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(BadOperator(other.to_owned())),
        };
    }
    Ok(is_match)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn selectors_match_as_kubernetes_says() {
        let check = |selector: Value, expected: Option<bool>| {
            let text = selector.to_string();
            let selector: Option<LabelSelector> = serde_json::from_value(selector).unwrap();
            let labels = [("tier", "web"), ("zone", "a")];
            let labels = labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
            assert_eq!(matches(selector.as_ref(), &labels).ok(), expected, "{text}");
        };
        let one = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check(Value::Null, Some(false));
        check(json!({}), Some(true));
        check(json!({"matchLabels": {"tier": "web"}}), Some(true));
        check(json!({"matchLabels": {"tier": "db"}}), Some(false));
        check(json!({"matchLabels": {"none": "web"}}), Some(false));
        check(one("tier", "In", &["db", "web"]), Some(true));
        check(one("tier", "In", &["db"]), Some(false));
        check(one("none", "In", &["db"]), Some(false));
        check(one("tier", "NotIn", &["web"]), Some(false));
        check(one("none", "NotIn", &["web"]), Some(true));
        check(one("tier", "Exists", &[]), Some(true));
        check(one("none", "Exists", &[]), Some(false));
        check(one("none", "DoesNotExist", &[]), Some(true));
        check(one("tier", "DoesNotExist", &[]), Some(false));
        check(one("tier", "Like", &["web"]), None);
        check(
            json!({"matchLabels": {"tier": "db"}, "matchExpressions": [{"key": "a", "operator": "Like"}]}),
            None,
        );
        check(
            json!({"matchLabels": {"tier": "web"}, "matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}),
            Some(false),
        );
    }
}
