//! Lists and watches as they come over the wire: objects are kept as text until they are decoded one by one.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Object;

#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    pub(super) items: Option<Vec<Box<RawValue>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: Option<String>,
    pub(super) r#continue: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Line<'a> {
    pub(super) r#type: String,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// What is read of an object that cannot be decoded.
#[derive(Default, Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    pub(super) metadata: HeadMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct HeadMetadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) resource_version: String,
}

/// An older version of the API is told as the newest, whose fields it has.
pub(super) fn decode<T: Object>(raw: &RawValue, is_older: bool) -> Result<T, serde_json::Error> {
    if !is_older {
        return serde_json::from_str(raw.get());
    }
    let mut value: Value = serde_json::from_str(raw.get())?;
    if let Some(version) = value.get_mut("apiVersion") {
        *version = T::API_VERSION.into();
    }
    serde_json::from_value(value)
}
