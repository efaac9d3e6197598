//! Strategic merge patches of JSON objects.
//!
//! Owns the form: `null` for what is gone, `$patch: delete` for elements of merged lists, `$setElementOrder` where the server would
//! put the elements into another order by itself. It knows nothing of pods.

use serde_json::{Map, Value, json};

/// Names of lists that are merged, each with the key of its elements.
pub(super) type Lists = &'static [(&'static str, &'static str)];

/// What to change in `old` to get `new`. Empty when nothing differs.
pub(super) fn map_difference(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    lists: Lists,
) -> Map<String, Value> {
    let mut patch = Map::new();
    for (name, key) in lists {
        list_difference(name, key, elements(old, name), elements(new, name), &mut patch);
    }
    let is_merged = |name: &String| lists.iter().any(|(list, _)| list == name);
    for (name, value) in new.iter().filter(|(name, _)| !is_merged(name)) {
        match (old.get(name), value) {
            (Some(before), value) if before == value => {}
            (Some(Value::Object(before)), Value::Object(value)) => {
                let inner = map_difference(before, value, &[]);
                patch.insert(name.clone(), Value::Object(inner));
            }
            (Some(_) | None, value) => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !is_merged(name)) {
        if !new.contains_key(name) {
            patch.insert(name.clone(), Value::Null);
        }
    }
    patch
}

fn elements<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    let list = fields.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

/// A list that vanished is not `null`: that would take elements with it that we do not know of.
fn list_difference(name: &str, key: &str, old: &[Value], new: &[Value], patch: &mut Map<String, Value>) {
    let find = |list: &'_ [Value], one: &Value| list.iter().position(|other| other[key] == one[key]);
    let mut changes = Vec::new();
    let mut has_new = false;
    for element in new {
        match find(old, element).map(|place| &old[place]) {
            None => {
                has_new = true;
                changes.push(element.clone());
            }
            Some(before) if before == element => {}
            Some(before) => changes.push(changed_element(key, before, element)),
        }
    }
    let gone = old.iter().filter(|element| find(new, element).is_none());
    changes.extend(gone.map(|element| json!({"$patch": "delete", key: element[key]})));
    let places: Vec<usize> = new.iter().filter_map(|element| find(old, element)).collect();
    let is_in_order = places.is_sorted();
    if !changes.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changes));
    }
    // The server keeps its own order of what it has, and puts what is new before it.
    if !is_in_order || (has_new && !places.is_empty()) {
        let order: Vec<Value> = new.iter().map(|element| json!({key: element[key]})).collect();
        patch.insert(format!("$setElementOrder/{name}"), Value::Array(order));
    }
}

fn changed_element(key: &str, before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let mut change = map_difference(before, after, &[]);
    change.insert(key.to_owned(), after[key].clone());
    Value::Object(change)
}
