//! Strategic merge patches of pods, applied as an API server does. Checked against upstream's own by the tests with the oracle.

use serde_json::{Map, Value};

const STATUS_LISTS: &[(&str, &str)] = &[
    ("conditions", "type"),
    ("hostIPs", "ip"),
    ("podIPs", "ip"),
    ("resourceClaimStatuses", "name"),
];

/// Applies a patch of a pod.
pub(crate) fn apply_to_pod(pod: &Value, patch: &Value) -> Value {
    let mut pod = pod.clone();
    if let (Value::Object(fields), Value::Object(patch)) = (&mut pod, patch) {
        merge(fields, patch, &[]);
    }
    pod
}

fn merge(fields: &mut Map<String, Value>, patch: &Map<String, Value>, lists: &[(&str, &str)]) {
    let directive = "$setElementOrder/";
    for name in patch
        .keys()
        .map(|name| name.strip_prefix(directive).unwrap_or(name))
    {
        let order = patch.get(&format!("{directive}{name}")).and_then(Value::as_array);
        let value = patch.get(name);
        if value == Some(&Value::Null) {
            fields.remove(name);
        } else if let Some((_, key)) = lists.iter().find(|(list, _)| *list == name) {
            let list = fields.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            let old = list.as_array().cloned().unwrap_or_default();
            let changes = value.and_then(Value::as_array).cloned().unwrap_or_default();
            *list = Value::Array(merge_list(&old, &changes, order, key));
            if list.as_array().is_some_and(Vec::is_empty) {
                fields.remove(name);
            }
        } else if let Some(value) = value {
            match (fields.get_mut(name), value) {
                (Some(Value::Object(inner)), Value::Object(change)) => {
                    merge(inner, change, if name == "status" { STATUS_LISTS } else { &[] });
                }
                (Some(_) | None, Value::Object(change)) => {
                    let mut inner = Map::new();
                    merge(
                        &mut inner,
                        change,
                        if name == "status" { STATUS_LISTS } else { &[] },
                    );
                    fields.insert(name.to_owned(), Value::Object(inner));
                }
                (_, value) => {
                    fields.insert(name.to_owned(), value.clone());
                }
            }
        }
    }
}

fn merge_list(old: &[Value], changes: &[Value], order: Option<&Vec<Value>>, key: &str) -> Vec<Value> {
    let place = |list: &[Value], one: &Value| list.iter().position(|other| other[key] == one[key]);
    let (gone, changes): (Vec<Value>, Vec<Value>) = changes
        .iter()
        .cloned()
        .partition(|change| change["$patch"] == "delete");
    let mut all: Vec<Value> = old
        .iter()
        .filter(|one| place(&gone, one).is_none())
        .cloned()
        .collect();
    for change in &changes {
        match place(&all, change) {
            Some(found) => {
                if let (Value::Object(fields), Value::Object(change)) = (&mut all[found], change) {
                    merge(fields, change, &[]);
                }
            }
            None => all.push(change.clone()),
        }
    }
    let order = order.unwrap_or(&changes);
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|one| place(order, one).is_some());
    named.sort_by_key(|one| place(order, one));
    interleave(others, named, |one| place(old, one))
}

/// Both keep their own order; an element of `others` goes before the first of `named` that stood behind it.
fn interleave(
    others: Vec<Value>,
    named: Vec<Value>,
    old_place: impl Fn(&Value) -> Option<usize>,
) -> Vec<Value> {
    let mut others = others.into_iter().peekable();
    let mut named = named.into_iter().peekable();
    let mut all = Vec::new();
    while let (Some(other), Some(one)) = (others.peek(), named.peek()) {
        let stood_before = matches!((old_place(other), old_place(one)), (Some(a), Some(b)) if a < b);
        all.extend(if stood_before { others.next() } else { named.next() });
    }
    all.extend(others);
    all.extend(named);
    all
}
