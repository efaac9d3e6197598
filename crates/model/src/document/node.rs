//! A document as a tree: what YAML and JSON have in common, before anything is known about fields.
//!
//! Maps keep their entries in the order of the document. The tree knows no field names; reading it into types is
//! its user's work.

use std::fmt;

use serde_json::{Map, Number, Value};

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Longer values are cut in messages.
const MAX_SHOWN_CHARS: usize = 80;

impl Node {
    /// What the value is called in a message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

impl From<Node> for Value {
    fn from(node: Node) -> Self {
        match node {
            Node::Null => Self::Null,
            Node::Bool(flag) => Self::Bool(flag),
            Node::Number(number) => Self::Number(number),
            Node::Text(text) => Self::String(text),
            Node::List(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Node::Map(entries) => Self::Object(
                entries
                    .into_iter()
                    .map(|(key, node)| (key, Self::from(node)))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(flag),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(entries) => {
                let mut entries: Vec<_> = entries
                    .into_iter()
                    .map(|(key, value)| (key, Self::from(value)))
                    .collect();
                entries.sort_by(|left, right| left.0.cmp(&right.0));
                Self::Map(entries)
            }
        }
    }
}

/// Short enough for a message.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(&shown(text)),
            Self::List(items) => write!(f, "a list of {} items", items.len()),
            Self::Map(entries) => write!(f, "an object with {} fields", entries.len()),
        }
    }
}

/// A string in quotes, cut to what fits in a message.
pub fn shown(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN_CHARS {
        return format!("{text:?}");
    }
    let head: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    format!("{head:?}…")
}
