//! A value as YAML in block style.
//!
//! Owns when text needs quotes: whenever it is not plainly text for every reader. It knows no field names.

use serde_json::Value;

use super::Node;
use super::yaml_scalar;

/// The text of a document; equal values have equal text.
pub fn yaml_text(value: &Value) -> String {
    let mut text = String::new();
    if is_nested(value) {
        write_nested(&mut text, value, 0, false);
    } else {
        text.push_str(&inline(value));
        text.push('\n');
    }
    text
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// `continues`: the first line has its indentation already.
fn write_nested(text: &mut String, value: &Value, indent: usize, continues: bool) {
    let mut is_first = continues;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.extend(std::iter::repeat_n(' ', indent));
        }
    };
    match value {
        Value::Array(items) => {
            for item in items {
                begin(text);
                text.push_str("- ");
                if is_nested(item) {
                    write_nested(text, item, indent + 2, true);
                } else {
                    text.push_str(&inline(item));
                    text.push('\n');
                }
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                begin(text);
                text.push_str(&scalar(key));
                text.push(':');
                if is_nested(value) {
                    text.push('\n');
                    write_nested(text, value, indent + 2, false);
                } else {
                    text.push(' ');
                    text.push_str(&inline(value));
                    text.push('\n');
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

fn scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// Only what no reader can take for anything else, a date for example.
fn is_plain(text: &str) -> bool {
    let is_harmless =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '/' | '.' | '-' | '_');
    let begins_well = match text.bytes().next() {
        Some(b'0'..=b'9') => text.ends_with(|last: char| last.is_ascii_alphabetic()),
        first => first.is_some_and(|first| first.is_ascii_alphabetic() || first == b'/'),
    };
    begins_well && text.chars().all(is_harmless) && matches!(yaml_scalar::resolve(text), Ok(Node::Text(_)))
}

/// JSON's quotes are YAML's, but YAML has fewer letters that may stand as they are.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::document::{Limits, read};

    fn reread(text: &str) -> Value {
        let limits = Limits {
            max_bytes: 1 << 20,
            max_nodes: 10_000,
        };
        let document = read(text.as_bytes(), limits).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        document.root.into()
    }

    #[test]
    fn it_looks_like_what_a_person_writes() {
        let value = json!({
            "kind": "Config",
            "lists": [[1, 2], [], {"name": "a", "is": {"on": true}}, "b: c"],
            "none": {},
            "yes": "yes",
            "date": "2026-01-31",
            "duration": "1m0s",
            "empty": "",
            "path": "/var/lib/kubelet",
        });
        let expected = r#"date: "2026-01-31"
duration: 1m0s
empty: ""
kind: Config
lists:
  - - 1
    - 2
  - []
  - is:
      "on": true
    name: a
  - "b: c"
none: {}
path: /var/lib/kubelet
"yes": "yes"
"#;
        assert_eq!(yaml_text(&value), expected);
        assert_eq!(reread(expected), value);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[-+~yn0-9._:#,/ a-fx{}\\[\\]]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[ -~]{1,6}", inner, 0..5)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(value in any_value()) {
            // A document that begins with a brace is JSON.
            let text = format!("---\n{}", yaml_text(&value));
            prop_assert_eq!(reread(&text), value);
        }
    }
}
