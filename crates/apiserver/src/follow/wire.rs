//! Lists and watches as they come over the wire: objects are kept as text until they are decoded one by one.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::failure::describe_decode_error;

/// All of it but the metadata's content must be there: an answer of something else is no empty list.
#[derive(Deserialize)]
pub(super) struct Page {
    kind: String,
    pub(super) metadata: PageMetadata,
    /// Some servers write an empty list as null.
    #[serde(deserialize_with = "Deserialize::deserialize")]
    pub(super) items: Option<Vec<Box<RawValue>>>,
}

impl Page {
    /// The error message quotes nothing of the answer.
    pub(super) fn read(body: &[u8], kind: &str) -> Result<Self, String> {
        let page: Self = serde_json::from_slice(body).map_err(|error| {
            format!(
                "the answer, which should be a {kind}List, {}",
                describe_decode_error(&error)
            )
        })?;
        if page.kind.strip_suffix("List") != Some(kind) {
            return Err(format!("the answer should be a {kind}List and is something else"));
        }
        Ok(page)
    }
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
