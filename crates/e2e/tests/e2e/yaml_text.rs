//! A value as YAML that a person could have written, in a style that its seed chooses.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::oracle_ours::Seeded;

/// The document's text. What is text in the value may become something else in YAML (`yes`, `1e3`): that is for the readers.
pub(crate) fn yaml_text(value: &Value, seed: u64) -> String {
    let mut writer = Writer {
        seeded: Seeded::new(seed),
        text: String::new(),
        step: if seed.is_multiple_of(3) { 4 } else { 2 },
    };
    if seed.is_multiple_of(4) {
        writer.text.push_str("---\n");
    }
    if seed.is_multiple_of(7) {
        writer.text.push_str("# a comment: {not: read}\n\n");
    }
    writer.node(value, 0);
    if seed.is_multiple_of(11) {
        writer.text.push_str("---\nkind: Another\n");
    }
    writer.text
}

struct Writer {
    seeded: Seeded,
    text: String,
    step: usize,
}

impl Writer {
    /// A value that begins on a line of its own.
    fn node(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(entries) if !entries.is_empty() => self.object(entries, indent),
            Value::Array(items) if !items.is_empty() => self.list(items, indent),
            other => {
                let text = self.inline(other);
                let _ = writeln!(self.text, "{:indent$}{text}", "");
            }
        }
    }

    fn object(&mut self, entries: &Map<String, Value>, indent: usize) {
        for (name, value) in entries {
            let key = self.key(name);
            let _ = write!(self.text, "{:indent$}{key}:", "");
            self.after_key(value, indent, false);
        }
    }

    fn list(&mut self, items: &[Value], indent: usize) {
        for item in items {
            let _ = write!(self.text, "{:indent$}-", "");
            match item {
                Value::Object(entries) if !entries.is_empty() && !self.chance(5) => {
                    let mut entries = entries.iter();
                    let Some((name, value)) = entries.next() else {
                        continue;
                    };
                    // The first field stands beside the dash, the others below it.
                    let inner = indent + 2;
                    let key = self.key(name);
                    let _ = write!(self.text, " {key}:");
                    self.after_key(value, inner, false);
                    for (name, value) in entries {
                        let key = self.key(name);
                        let _ = write!(self.text, "{:inner$}{key}:", "");
                        self.after_key(value, inner, false);
                    }
                }
                other => self.after_key(other, indent, true),
            }
        }
    }

    /// What follows a key or a dash.
    fn after_key(&mut self, value: &Value, indent: usize, is_item: bool) {
        match value {
            Value::Object(entries) if !entries.is_empty() && !self.chance(6) => {
                self.line_end();
                self.object(entries, indent + self.step);
            }
            Value::Array(items) if !items.is_empty() && !self.chance(6) => {
                self.line_end();
                // A list may stand below its key without being indented.
                let is_indented = is_item || self.chance(2);
                let deeper = if is_indented { indent + self.step } else { indent };
                self.list(items, deeper);
            }
            Value::String(text) if is_block(text) && self.chance(2) => self.block(text, indent),
            other => {
                let text = self.inline(other);
                let _ = write!(self.text, " {text}");
                self.line_end();
            }
        }
    }

    fn block(&mut self, text: &str, indent: usize) {
        let inner = indent + self.step;
        let sign = if text.ends_with('\n') { "|" } else { "|-" };
        let _ = writeln!(self.text, " {sign}");
        for line in text.lines() {
            let _ = writeln!(self.text, "{:inner$}{line}", "");
        }
    }

    fn line_end(&mut self) {
        if self.chance(12) {
            self.text.push_str(" # why");
        }
        self.text.push('\n');
    }

    fn key(&mut self, name: &str) -> String {
        if is_plain(name) && !self.chance(10) {
            name.to_owned()
        } else {
            self.quoted(name)
        }
    }

    /// A value on one line.
    fn inline(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) if is_plain(text) && !self.chance(3) => text.clone(),
            Value::String(text) => self.quoted(text),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.inline(item)).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Object(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(name, value)| format!("{}: {}", self.key(name), self.inline(value)))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }
            Value::Null if self.chance(2) => "~".to_owned(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        }
    }

    fn quoted(&mut self, text: &str) -> String {
        let is_simple = text.chars().all(|character| !character.is_control());
        if is_simple && self.chance(2) {
            format!("'{}'", text.replace('\'', "''"))
        } else {
            // What JSON writes in quotes YAML reads in quotes.
            Value::String(text.to_owned()).to_string()
        }
    }

    /// One time out of so many.
    fn chance(&mut self, of: usize) -> bool {
        self.seeded.below(of) == 0
    }
}

/// Lines that can stand as they are below a `|`.
fn is_block(text: &str) -> bool {
    let is_line = |line: &str| {
        !line.is_empty() && !line.starts_with([' ', '\t']) && !line.chars().any(char::is_control)
    };
    text.contains('\n') && !text.ends_with("\n\n") && text.lines().all(is_line)
}

/// Text that has no sign of its own in YAML. It may still read as a number, a bool or nothing.
fn is_plain(text: &str) -> bool {
    let is_inner = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '/' | '-' | '+')
    };
    text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/' || first == '.')
        && text.chars().all(is_inner)
}

#[test]
fn the_text_means_the_value() {
    let value = serde_json::json!({"a": ["x", {"b": "two\nlines"}, [1, 2], {}], "c d": {"e": null, "f": "it's"}, "g": true});
    let mut styles = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let text = yaml_text(&value, seed);
        let first = text.split("---\nkind: Another").next().unwrap_or_default();
        let read: Value = serde_saphyr::from_str(first).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        assert_eq!(read, value, "{text}");
        styles.insert(text);
    }
    assert!(styles.len() > 100, "{} styles", styles.len());
}
