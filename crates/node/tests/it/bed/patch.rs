//! Strategic merge patches of Nodes, as an API server applies them.

use serde_json::{Map, Value};

pub(super) fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let object = target.as_object_mut().unwrap();
    for (key, value) in fields.iter().filter(|(key, _)| !key.starts_with('$')) {
        match value {
            Value::Null => drop(object.remove(key)),
            Value::Object(_) => apply(
                object.entry(key).or_insert_with(|| Value::Object(Map::new())),
                value,
            ),
            Value::Array(items) if key == "conditions" || key == "addresses" => {
                let before = object.remove(key).unwrap_or_else(|| Value::Array(vec![]));
                object.insert(key.clone(), Value::Array(merged(before, items)));
            }
            _ => drop(object.insert(key.clone(), value.clone())),
        }
    }
    for (key, order) in fields {
        if let Some(key) = key.strip_prefix("$setElementOrder/") {
            let position = |item: &Value| {
                let order = order.as_array().unwrap();
                order.iter().position(|wanted| wanted["type"] == item["type"])
            };
            let list = object.get_mut(key).unwrap().as_array_mut().unwrap();
            list.sort_by_key(position);
        }
    }
}

fn merged(before: Value, items: &[Value]) -> Vec<Value> {
    let is = |item: &Value, directive: &str| item["$patch"] == directive;
    if items.iter().any(|item| is(item, "replace")) {
        return items
            .iter()
            .filter(|item| !is(item, "replace"))
            .cloned()
            .collect();
    }
    let Value::Array(mut list) = before else {
        panic!("no list: {before}");
    };
    for item in items {
        let found = list.iter().position(|one| one["type"] == item["type"]);
        match found {
            Some(found) if is(item, "delete") => drop(list.remove(found)),
            Some(found) => apply(&mut list[found], item),
            None => list.push(item.clone()),
        }
    }
    list
}
