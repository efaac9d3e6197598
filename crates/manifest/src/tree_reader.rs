//! A document's tree as input of a typed reader, with the path of what does not fit.
//!
//! Null is the zero value wherever a value is needed, as it is for the API's own reader. Quantities may be numbers; they are
//! checked here and become their canonical text. It knows no pod fields.

use std::cell::RefCell;
use std::fmt;

use rubelet_model::Quantity;
use rubelet_model::document::Node;
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Why a tree does not fit the type, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// Reads a value of `T` from a tree whose root has the given path.
pub(crate) fn read<T: de::DeserializeOwned>(root: &Node, path: &str) -> Result<T, Mismatch> {
    let failed_at = RefCell::new(None);
    let reader = Reader {
        node: root,
        place: Place {
            parent: None,
            step: Step::Root(path),
        },
        failed_at: &failed_at,
    };
    T::deserialize(reader).map_err(|error| Mismatch {
        path: failed_at.into_inner().unwrap_or_else(|| path.to_owned()),
        reason: error.0,
    })
}

#[derive(Debug)]
pub(crate) struct ReadError(String);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root(&'a str),
    Key(&'a str),
    Position(usize),
}

#[derive(Clone, Copy)]
struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    step: Step<'a>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.step {
            Step::Root(path) => f.write_str(path),
            Step::Position(position) => write!(f, "[{position}]"),
            Step::Key(key) => match self.parent {
                Some(Place {
                    parent: None,
                    step: Step::Root(""),
                })
                | None => f.write_str(key),
                Some(_) => write!(f, ".{key}"),
            },
        }
    }
}

struct Reader<'a> {
    node: &'a Node,
    place: Place<'a>,
    failed_at: &'a RefCell<Option<String>>,
}

impl<'a> Reader<'a> {
    /// Remembers the innermost place; the outer ones only pass the error on.
    fn located<T>(&self, result: Result<T, ReadError>) -> Result<T, ReadError> {
        if result.is_err() {
            self.note_place();
        }
        result
    }

    fn note_place(&self) {
        self.failed_at
            .borrow_mut()
            .get_or_insert_with(|| self.place.to_string());
    }

    /// The items of a list; the code of a visitor that takes nothing else is small.
    fn items(&self, visitor: &dyn de::Expected) -> Result<Items<'_>, ReadError> {
        let items = match self.node {
            Node::Null => &[][..],
            Node::List(items) => items,
            other => return self.located(Err(de::Error::invalid_type(unexpected(other), visitor))),
        };
        Ok(Items {
            items: items.iter().enumerate(),
            place: &self.place,
            failed_at: self.failed_at,
        })
    }

    fn entries(&self, visitor: &dyn de::Expected) -> Result<Entries<'_>, ReadError> {
        let entries = match self.node {
            Node::Null => &[][..],
            Node::Map(entries) => entries,
            other => return self.located(Err(de::Error::invalid_type(unexpected(other), visitor))),
        };
        Ok(Entries {
            entries: entries.iter(),
            value: None,
            place: &self.place,
            failed_at: self.failed_at,
        })
    }

    fn visit<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node {
            Node::Null => visitor.visit_unit(),
            Node::Bool(flag) => visitor.visit_bool(*flag),
            Node::Number(number) => visit_number(number, visitor),
            Node::Text(text) => visitor.visit_str(text),
            Node::List(items) => visitor.visit_seq(Items {
                items: items.iter().enumerate(),
                place: &self.place,
                failed_at: self.failed_at,
            }),
            Node::Map(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
                place: &self.place,
                failed_at: self.failed_at,
            }),
        }
    }

    /// Null as the zero value that `zero` gives.
    fn visit_or<'de, V, Z>(&self, visitor: V, zero: Z) -> Result<V::Value, ReadError>
    where
        V: Visitor<'de>,
        Z: FnOnce(V) -> Result<V::Value, ReadError>,
    {
        let result = if *self.node == Node::Null {
            zero(visitor)
        } else {
            self.visit(visitor)
        };
        self.located(result)
    }
}

fn unexpected(node: &Node) -> de::Unexpected<'_> {
    match node {
        Node::Null => de::Unexpected::Unit,
        Node::Bool(flag) => de::Unexpected::Bool(*flag),
        Node::Number(number) => {
            if let Some(whole) = number.as_i64() {
                de::Unexpected::Signed(whole)
            } else if let Some(whole) = number.as_u64() {
                de::Unexpected::Unsigned(whole)
            } else {
                de::Unexpected::Float(number.as_f64().unwrap_or_default())
            }
        }
        Node::Text(text) => de::Unexpected::Str(text),
        Node::List(_) => de::Unexpected::Seq,
        Node::Map(_) => de::Unexpected::Map,
    }
}

fn visit_number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, ReadError> {
    if let Some(whole) = number.as_i64() {
        visitor.visit_i64(whole)
    } else if let Some(whole) = number.as_u64() {
        visitor.visit_u64(whole)
    } else {
        visitor.visit_f64(number.as_f64().unwrap_or_default())
    }
}

fn canonical_quantity(node: &Node) -> Result<String, ReadError> {
    let text = match node {
        Node::Null => return Ok("0".to_owned()),
        Node::Text(text) => text.trim().to_owned(),
        Node::Number(number) => number.to_string(),
        Node::Bool(_) | Node::List(_) | Node::Map(_) => {
            return Err(ReadError(format!("{} is no quantity", node.kind())));
        }
    };
    let quantity: Quantity = text.parse().map_err(|error| ReadError(format!("{error}")))?;
    Ok(quantity.to_string())
}

macro_rules! with_zero {
    ($($method:ident: $zero:expr),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            self.visit_or(visitor, $zero)
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    with_zero! {
        deserialize_any: Visitor::visit_unit,
        deserialize_unit: Visitor::visit_unit,
        deserialize_bool: |visitor| visitor.visit_bool(false),
        deserialize_i8: |visitor| visitor.visit_i64(0),
        deserialize_i16: |visitor| visitor.visit_i64(0),
        deserialize_i32: |visitor| visitor.visit_i64(0),
        deserialize_i64: |visitor| visitor.visit_i64(0),
        deserialize_u8: |visitor| visitor.visit_u64(0),
        deserialize_u16: |visitor| visitor.visit_u64(0),
        deserialize_u32: |visitor| visitor.visit_u64(0),
        deserialize_u64: |visitor| visitor.visit_u64(0),
        deserialize_f32: |visitor| visitor.visit_f64(0.0),
        deserialize_f64: |visitor| visitor.visit_f64(0.0),
        deserialize_char: |visitor| visitor.visit_str(""),
        deserialize_str: |visitor| visitor.visit_str(""),
        deserialize_string: |visitor| visitor.visit_str(""),
        deserialize_bytes: |visitor| visitor.visit_bytes(&[]),
        deserialize_byte_buf: |visitor| visitor.visit_bytes(&[]),
        deserialize_identifier: |visitor| visitor.visit_str(""),
        deserialize_ignored_any: Visitor::visit_unit,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        if *self.node == Node::Null {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if name == "Quantity" {
            let text = canonical_quantity(self.node);
            let text = self.located(text)?;
            return visitor.visit_newtype_struct(IntoDeserializer::<ReadError>::into_deserializer(text));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let items = self.items(&visitor)?;
        let result = visitor.visit_seq(items);
        self.located(result)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let entries = self.entries(&visitor)?;
        let result = visitor.visit_map(entries);
        self.located(result)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_any(visitor)
    }
}

struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    place: &'a Place<'a>,
    failed_at: &'a RefCell<Option<String>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some((position, node)) = self.items.next() else {
            return Ok(None);
        };
        seed.deserialize(Reader {
            node,
            place: Place {
                parent: Some(self.place),
                step: Step::Position(position),
            },
            failed_at: self.failed_at,
        })
        .map(Some)
    }
}

struct Entries<'a> {
    entries: std::slice::Iter<'a, (String, Node)>,
    value: Option<&'a (String, Node)>,
    place: &'a Place<'a>,
    failed_at: &'a RefCell<Option<String>>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        self.value = self.entries.next();
        match self.value {
            Some((key, _)) => seed.deserialize(key.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let Some((key, node)) = self.value.take() else {
            return Err(ReadError("a value without its key".to_owned()));
        };
        seed.deserialize(Reader {
            node,
            place: Place {
                parent: Some(self.place),
                step: Step::Key(key),
            },
            failed_at: self.failed_at,
        })
    }
}
