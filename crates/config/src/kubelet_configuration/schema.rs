//! How a typed field is read from a document and written to JSON.
//!
//! Owns the rules of the wire that hold for every field: which JSON kinds a Rust type accepts, what `null` means, when a
//! value counts as empty and is left out, and that reading goes on after a defect so that all are found. It knows no field by name.

use std::collections::BTreeMap;

use rubelet_model::{GoDuration, Quantity};
use serde_json::{Map, Value};

use super::node::Node;
use super::problem::Problem;

/// How keys of a document are matched with field names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMatch {
    /// As written: a configuration file.
    Exact,
    /// Upper and lower case alike where nothing fits exactly: the merged result of drop-ins.
    IgnoreCase,
}

/// A reading pass: where it is, and what it found.
#[derive(Debug)]
pub(crate) struct Walk {
    path: String,
    pub(crate) key_match: KeyMatch,
    pub(crate) problems: Vec<Problem>,
    /// Paths of fields that do not exist.
    pub(crate) unknown: Vec<String>,
    /// Above zero inside a field whose values must not be shown.
    secret_depth: usize,
}

impl Walk {
    pub(crate) fn new(key_match: KeyMatch) -> Self {
        Self {
            path: String::new(),
            key_match,
            problems: Vec::new(),
            unknown: Vec::new(),
            secret_depth: 0,
        }
    }

    pub(crate) fn field(&mut self, name: &str, read: impl FnOnce(&mut Self)) {
        let parent = self.path.len();
        self.path = self.child(name);
        read(self);
        self.path.truncate(parent);
    }

    fn index(&mut self, index: usize, read: impl FnOnce(&mut Self)) {
        let parent = self.path.len();
        self.path.push_str(&format!("[{index}]"));
        read(self);
        self.path.truncate(parent);
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub(crate) fn refuse(&mut self, node: &Node, allowed: impl Into<String>) {
        let value = if self.secret_depth > 0 {
            "the value (not shown)".to_owned()
        } else {
            node.to_string()
        };
        self.problems
            .push(Problem::new(self.path.clone(), value, allowed));
    }

    pub(crate) fn unknown_field(&mut self, name: &str) {
        self.unknown.push(self.child(name));
    }

    pub(crate) fn secret(&mut self, read: impl FnOnce(&mut Self)) {
        self.secret_depth += 1;
        read(self);
        self.secret_depth -= 1;
    }
}

/// A type that can stand behind a field.
pub(crate) trait Field {
    /// Reads the node into `self`. A value that does not fit is reported and leaves `self` as it was.
    fn read(&mut self, node: &Node, walk: &mut Walk);

    fn to_json(&self) -> Value;

    /// Whether the value is left out of JSON where its field allows that.
    fn is_empty(&self) -> bool {
        false
    }
}

impl Field for bool {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Null => {}
            Node::Bool(flag) => *self = *flag,
            Node::Number(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => {
                walk.refuse(node, "must be true or false");
            }
        }
    }

    fn to_json(&self) -> Value {
        (*self).into()
    }

    fn is_empty(&self) -> bool {
        !*self
    }
}

impl Field for String {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Null => {}
            Node::Text(text) => self.clone_from(text),
            Node::Bool(_) | Node::Number(_) | Node::List(_) | Node::Map(_) => {
                walk.refuse(
                    node,
                    "must be a string (put it in quotes if it looks like a number or a boolean)",
                );
            }
        }
    }

    fn to_json(&self) -> Value {
        self.as_str().into()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

macro_rules! integer_field {
    ($type:ty) => {
        impl Field for $type {
            fn read(&mut self, node: &Node, walk: &mut Walk) {
                let number = match node {
                    Node::Null => return,
                    Node::Number(number) => {
                        let signed = number
                            .as_i64()
                            .and_then(|value| <$type>::try_from(value).ok());
                        signed.or_else(|| {
                            number
                                .as_u64()
                                .and_then(|value| <$type>::try_from(value).ok())
                        })
                    }
                    Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => None,
                };
                match number {
                    Some(number) => *self = number,
                    None => {
                        walk.refuse(
                            node,
                            format!(
                                "must be a whole number between {} and {}",
                                <$type>::MIN,
                                <$type>::MAX
                            ),
                        );
                    }
                }
            }

            fn to_json(&self) -> Value {
                (*self).into()
            }

            fn is_empty(&self) -> bool {
                *self == 0
            }
        }
    };
}

integer_field!(i32);
integer_field!(i64);
integer_field!(u32);

impl Field for f64 {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        let number = match node {
            Node::Null => return,
            Node::Number(number) => number.as_f64(),
            Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => None,
        };
        match number {
            Some(number) => *self = number,
            None => walk.refuse(node, "must be a number"),
        }
    }

    fn to_json(&self) -> Value {
        // Whole numbers are written without a fraction on this wire.
        let whole = *self as i64;
        if whole as f64 == *self {
            whole.into()
        } else {
            (*self).into()
        }
    }

    fn is_empty(&self) -> bool {
        *self == 0.0
    }
}

impl Field for GoDuration {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        const ALLOWED: &str = "must be a duration in quotes or with a unit, such as 10s, 1m30s or 4h";
        let Node::Text(text) = node else {
            return walk.refuse(node, ALLOWED);
        };
        match text.parse() {
            Ok(duration) => *self = duration,
            Err(error) => walk.refuse(node, format!("{ALLOWED} ({})", error.reason)),
        }
    }

    fn to_json(&self) -> Value {
        self.to_string().into()
    }
}

impl Field for Quantity {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        let text = match node {
            Node::Null => {
                *self = Self::default();
                return;
            }
            Node::Text(text) => text.clone(),
            Node::Number(number) => number.to_string(),
            Node::Bool(_) | Node::List(_) | Node::Map(_) => {
                return walk.refuse(node, "must be a quantity, such as 512, 10Mi or 1500m");
            }
        };
        match text.trim().parse() {
            Ok(quantity) => *self = quantity,
            Err(error) => walk.refuse(node, error.to_string()),
        }
    }

    fn to_json(&self) -> Value {
        self.to_string().into()
    }
}

impl<T: Field + Default> Field for Option<T> {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        if *node == Node::Null {
            *self = None;
            return;
        }
        let mut inner = self.take().unwrap_or_default();
        inner.read(node, walk);
        *self = Some(inner);
    }

    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, Field::to_json)
    }

    fn is_empty(&self) -> bool {
        self.is_none()
    }
}

impl<T: Field + Default> Field for Vec<T> {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Null => self.clear(),
            Node::List(items) => {
                self.clear();
                for (position, item) in items.iter().enumerate() {
                    let mut value = T::default();
                    walk.index(position, |walk| value.read(item, walk));
                    self.push(value);
                }
            }
            Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::Map(_) => {
                walk.refuse(node, "must be a list");
            }
        }
    }

    fn to_json(&self) -> Value {
        Value::Array(self.iter().map(Field::to_json).collect())
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<T: Field + Default> Field for BTreeMap<String, T> {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Null => self.clear(),
            Node::Map(entries) => {
                for (key, entry) in entries {
                    let mut value = T::default();
                    walk.field(key, |walk| value.read(entry, walk));
                    self.insert(key.clone(), value);
                }
            }
            Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::List(_) => {
                walk.refuse(node, "must be an object of names and values");
            }
        }
    }

    fn to_json(&self) -> Value {
        Value::Object(
            self.iter()
                .map(|(key, value)| (key.clone(), value.to_json()))
                .collect::<Map<_, _>>(),
        )
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// The field a key stands for.
pub(crate) fn match_key<'a>(names: &[&'a str], key: &str, key_match: KeyMatch) -> Option<&'a str> {
    if let Some(name) = names.iter().find(|name| **name == key) {
        return Some(name);
    }
    match key_match {
        KeyMatch::Exact => None,
        KeyMatch::IgnoreCase => names.iter().find(|name| name.eq_ignore_ascii_case(key)).copied(),
    }
}

/// A struct of the wire: fields with their JSON names. `omit` leaves an empty value out of the JSON, `keep` writes it.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $type:ident {
            $( $(#[$field_meta:meta])* $field:ident : $field_type:ty => $name:literal $rule:ident, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $type {
            $( $(#[$field_meta])* pub $field: $field_type, )*
        }

        impl $type {
            /// The JSON names of all fields.
            pub const FIELD_NAMES: &[&str] = &[$($name),*];
        }

        impl $crate::kubelet_configuration::schema::Field for $type {
            fn read(
                &mut self,
                node: &$crate::kubelet_configuration::node::Node,
                walk: &mut $crate::kubelet_configuration::schema::Walk,
            ) {
                use $crate::kubelet_configuration::node::Node;
                let entries = match node {
                    Node::Null => return,
                    Node::Map(entries) => entries,
                    Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::List(_) => {
                        return walk.refuse(node, "must be an object");
                    }
                };
                for (key, entry) in entries {
                    match $crate::kubelet_configuration::schema::match_key(Self::FIELD_NAMES, key, walk.key_match) {
                        $( Some($name) => walk.field($name, |walk| self.$field.read(entry, walk)), )*
                        Some(_) | None => walk.unknown_field(key),
                    }
                }
            }

            fn to_json(&self) -> serde_json::Value {
                let mut object = serde_json::Map::new();
                $( $crate::kubelet_configuration::schema::wire_struct!(@write object, self.$field, $name, $rule); )*
                serde_json::Value::Object(object)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::kubelet_configuration::schema::Field::to_json(self).serialize(serializer)
            }
        }
    };
    (@write $object:ident, $value:expr, $name:literal, omit) => {
        if !$crate::kubelet_configuration::schema::Field::is_empty(&$value) {
            $object.insert($name.to_owned(), $crate::kubelet_configuration::schema::Field::to_json(&$value));
        }
    };
    (@write $object:ident, $value:expr, $name:literal, omit_nil_or_empty) => {
        // An empty list or map counts as empty here even though it differs from "not set".
        if $value.as_ref().is_some_and(|value| !$crate::kubelet_configuration::schema::Field::is_empty(value)) {
            $object.insert($name.to_owned(), $crate::kubelet_configuration::schema::Field::to_json(&$value));
        }
    };
    (@write $object:ident, $value:expr, $name:literal, keep) => {
        $object.insert($name.to_owned(), $crate::kubelet_configuration::schema::Field::to_json(&$value));
    };
}
pub(crate) use wire_struct;
