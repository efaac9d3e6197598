//! Decodes API objects as Go's client does.
//!
//! Owns the differences between what the API server accepts and what the generated types read: timestamps outside the range of
//! `jiff`, `null` where a type requires a timestamp, a list or a map, and `managedFields`, which is skipped without being built. Everything else is
//! left to the types. It works on text and decides nothing about an object.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::value::{CowStrDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Map, Value};

/// What Go writes as `null`: the zero of its `time.Time`.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
const FIRST_TIME: &str = "0000-01-01T00:00:00Z";
/// The last whole second that `jiff::Timestamp` can hold.
const LAST_TIME: &str = "9999-12-30T22:00:00Z";

/// Reads an object, or a part of one.
pub(crate) fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = T::deserialize(Tolerant(&mut json))?;
    json.end()?;
    Ok(object)
}

/// As [`object`], for an object of an older version of its API whose fields are those of `api_version`.
pub(crate) fn older_object<T: DeserializeOwned>(
    text: &[u8],
    api_version: &str,
) -> Result<T, serde_json::Error> {
    let mut value: Value = serde_json::from_slice(text)?;
    if let Some(version) = value.get_mut("apiVersion") {
        *version = api_version.into();
    }
    object(value.to_string().as_bytes())
}

/// As much of an object's metadata as can be read, when the object cannot.
pub(crate) fn metadata(text: &[u8]) -> ObjectMeta {
    let value: Value = serde_json::from_slice(text).unwrap_or_default();
    let fields = value.get("metadata").and_then(Value::as_object);
    object(readable::<ObjectMeta>(fields).to_string().as_bytes()).unwrap_or_default()
}

/// An object that cannot be read as a whole, without its `spec`: what is left of that could have another meaning.
pub(crate) fn without_spec<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let Value::Object(mut fields) = serde_json::from_slice(text)? else {
        return object(text);
    };
    let metadata = readable::<ObjectMeta>(fields.get("metadata").and_then(Value::as_object));
    fields.remove("spec");
    fields.insert("metadata".to_owned(), metadata);
    object(readable::<T>(Some(&fields)).to_string().as_bytes())
}

/// The fields that can be read, each for itself.
fn readable<T: DeserializeOwned>(fields: Option<&Map<String, Value>>) -> Value {
    let is_readable = |(name, value): &(&String, &Value)| {
        let field = serde_json::json!({ name.as_str(): value });
        object::<T>(field.to_string().as_bytes()).is_ok()
    };
    let fields = fields.into_iter().flatten().filter(is_readable);
    fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// A deserializer, a visitor, a seed, or the access to a map or a list: each hands on what is inside of it as tolerant as itself.
struct Tolerant<T>(T);

/// Deserializers of these have nothing inside that is read otherwise.
macro_rules! pass_on {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tolerant<D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
        deserialize_ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Tolerant(visitor))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(ListOrNull(visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(MapOrNull(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if name == "ObjectMeta" {
            return self.0.deserialize_struct(name, fields, Metadata(visitor));
        }
        self.0.deserialize_struct(name, fields, Tolerant(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match name {
            "Time" | "MicroTime" => visitor.visit_newtype_struct(Time(self.0)),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Tolerant(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Tolerant(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }
}

/// Go writes a list or a map that was never made as `null`, also inside of another one, where no `Option` is around it.
macro_rules! or_null {
    ($name:ident, $deserialize:ident, $visit:ident, $empty:ident, $entry:ty) => {
        struct $name<V>(V);

        impl<'de, V: Visitor<'de>> Visitor<'de> for $name<V> {
            type Value = V::Value;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.expecting(formatter)
            }

            fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
                self.0.$visit($empty::new(std::iter::empty::<$entry>()))
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
                self.visit_none()
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
                deserializer.$deserialize(Tolerant(self.0))
            }
        }
    };
}

or_null!(ListOrNull, deserialize_seq, visit_seq, SeqDeserializer, ());
or_null!(MapOrNull, deserialize_map, visit_map, MapDeserializer, ((), ()));

impl<'de, V: Visitor<'de>> Visitor<'de> for Tolerant<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(formatter)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Tolerant(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Tolerant(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Tolerant(map))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Tolerant<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Tolerant(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Tolerant<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Tolerant(seed))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Tolerant<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Tolerant(seed))
    }
}

/// The visitor of an object's metadata, and the access to its fields.
struct Metadata<T>(T);

impl<'de, V: Visitor<'de>> Visitor<'de> for Metadata<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Metadata(map))
    }
}

#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Metadata<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(FieldName(name)) = self.0.next_key()? {
            if name != "managedFields" {
                return seed.deserialize(CowStrDeserializer::new(name)).map(Some);
            }
            self.0.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Tolerant(seed))
    }
}

/// A timestamp in the range of `jiff`.
struct Time<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Time<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let text = Option::<FieldName<'de>>::deserialize(self.0)?;
        match &text {
            Some(FieldName(text)) => visitor.visit_str(in_range(text)),
            None => visitor.visit_str(ZERO_TIME),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The nearest timestamp that can be read. The API server writes UTC; a time of another zone that was accepted in the last or the
/// first year may have become one of the year 10000 or of the year before 0.
fn in_range(text: &str) -> &str {
    let year_digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_utc = text.ends_with('Z');
    if text.starts_with('-') {
        FIRST_TIME
    } else if year_digits > 4 || (is_utc && year_digits == 4 && text > LAST_TIME) {
        LAST_TIME
    } else {
        text
    }
}

#[cfg(test)]
mod tests;
