//! Command lines with files, and the configuration that upstream's own program logged for each at start-up.
//!
//! The golden's first line holds the files, the second the whole configuration without any argument, and every further
//! line the top-level fields in which another command line's configuration differs from that one.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::golden;
use crate::load::settings;

#[test]
fn upstream_s_effective_configurations() {
    let text = golden("command_lines.jsonl");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a golden is JSON"));
    let files: BTreeMap<String, String> =
        serde_json::from_value(lines.next().expect("files")["files"].take()).expect("names and texts");
    let files: Vec<(String, String)> = files
        .into_iter()
        .map(|(name, text)| (format!("/srv/dir/{name}"), text))
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let effective = |line: &Value| {
        let arguments: Vec<&str> = line["args"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        settings(&arguments, &files).configz_json()
    };
    let bare = lines.next().expect("the bare command line");
    assert_eq!(effective(&bare), bare["effective"]);
    let mut compared = 0;
    for line in lines {
        assert_eq!(
            Value::Object(changes(&bare["effective"], &effective(&line))),
            line["changed"],
            "{}",
            line["args"]
        );
        compared += 1;
    }
    assert!(compared >= 15, "only {compared} command lines");
}

/// The top-level fields of `after` that differ from `before`; null where one is gone.
fn changes(before: &Value, after: &Value) -> Map<String, Value> {
    let fields = |value: &Value| {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    fields(before)
        .into_iter()
        .chain(fields(after))
        .filter(|name| before.get(name) != after.get(name))
        .map(|name| {
            let value = after.get(&name).cloned().unwrap_or_default();
            (name, value)
        })
        .collect()
}
