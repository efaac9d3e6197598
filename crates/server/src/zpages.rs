//! `/flagz` and `/statusz`: the flags of the process and what it is, human-readable.
//!
//! Owns the two pages in their two forms: text, and JSON for clients that name the kind and version. YAML is given as JSON, which is
//! YAML.

use std::collections::BTreeMap;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use serde_json::{Value, json};

use crate::response::{Answer, Body, text};

const COMPONENT: &str = "kubelet";
const GROUP: &str = "config.k8s.io";
const OLD_VERSION: &str = "v1alpha1";
const VERSION: &str = "v1beta1";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
                       and is for debugging purposes only.";
/// What stands in for the version of Go.
const LANGUAGE: &str = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));

/// What the pages show.
pub(crate) struct ZPages {
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) started: Timestamp,
    pub(crate) binary_version: String,
    /// Of the authenticated port.
    pub(crate) paths: Vec<&'static str>,
}

/// The form that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Object {
        version: &'static str,
        content_type: &'static str,
    },
}

impl ZPages {
    pub(crate) fn flagz(&self, headers: &HeaderMap) -> Answer {
        match form(headers, "Flagz") {
            None => not_acceptable(),
            Some(Form::Text) => {
                let mut page = format!("\n{COMPONENT} flagz\n{WARNING}\n");
                for (name, value) in &self.flags {
                    page.push_str(&format!("{name}={value}\n"));
                }
                text(StatusCode::OK, page)
            }
            Some(Form::Object {
                version,
                content_type,
            }) => {
                let fields = json!({ "flags": self.flags });
                object("Flagz", version, content_type, fields)
            }
        }
    }

    pub(crate) fn statusz(&self, headers: &HeaderMap, now: Timestamp) -> Answer {
        let uptime = now.unix_nanos().saturating_sub(self.started.unix_nanos()).max(0) / 1_000_000_000;
        let started =
            jiff::Timestamp::from_nanosecond(i128::from(self.started.unix_nanos())).unwrap_or_default();
        let emulated = self
            .binary_version
            .rsplit_once('.')
            .map_or("", |(minor, _)| minor);
        match form(headers, "Statusz") {
            None => not_acceptable(),
            Some(Form::Text) => {
                let page = format!(
                    "\n{COMPONENT} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: \
                     {LANGUAGE}\nBinary version: {}\nEmulation version: {emulated}\nPaths: {}\n",
                    started.strftime("%a %b %e %H:%M:%S UTC %Y"),
                    uptime / 3600,
                    uptime / 60 % 60,
                    uptime % 60,
                    self.binary_version,
                    self.folders().join(" "),
                );
                text(StatusCode::OK, page)
            }
            Some(Form::Object {
                version,
                content_type,
            }) => {
                let fields = json!({
                    "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    "uptimeSeconds": uptime,
                    "goVersion": LANGUAGE,
                    "binaryVersion": self.binary_version,
                    "emulationVersion": emulated,
                    "paths": self.folders(),
                });
                object("Statusz", version, content_type, fields)
            }
        }
    }

    /// The first segments of all paths.
    fn folders(&self) -> Vec<String> {
        let mut folders: Vec<String> = self
            .paths
            .iter()
            .filter_map(|path| path.split('/').nth(1))
            .map(|folder| format!("/{folder}"))
            .collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

/// The first form that the client takes and that there is.
fn form(headers: &HeaderMap, kind: &str) -> Option<Form> {
    let accept = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next()?;
        let parameters: Vec<&str> = parts.collect();
        let parameter = |name: &str| {
            let found = parameters
                .iter()
                .find_map(|parameter| parameter.strip_prefix(name));
            found.and_then(|value| value.strip_prefix('='))
        };
        let version = match parameter("v") {
            Some(VERSION) => Some(VERSION),
            Some(OLD_VERSION) => Some(OLD_VERSION),
            _ => None,
        };
        let version = version.filter(|_| parameter("g") == Some(GROUP) && parameter("as") == Some(kind));
        let content_type = match media_type {
            "text/plain" | "text/*" | "*/*" => return Some(Form::Text),
            "application/json" | "application/*" => "application/json",
            "application/yaml" => "application/yaml",
            _ => return None,
        };
        version.map(|version| Form::Object {
            version,
            content_type,
        })
    })
}

fn not_acceptable() -> Answer {
    let message =
        "only the following media types are accepted: application/json, application/yaml, text/plain";
    text(StatusCode::NOT_ACCEPTABLE, message)
}

fn object(kind: &str, version: &str, content_type: &'static str, mut fields: Value) -> Answer {
    fields["kind"] = json!(kind);
    fields["apiVersion"] = json!(format!("{GROUP}/{version}"));
    fields["metadata"] = json!({ "name": COMPONENT });
    let mut answer = Response::new(Body::whole(format!("{fields}\n")));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if version == OLD_VERSION {
        let page = kind.to_ascii_lowercase();
        let warning = format!(
            "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
        );
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            headers.insert(HeaderName::from_static("warning"), warning);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_chosen_by_what_the_client_takes() {
        let check = |accept: &str, expected: Option<Form>| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(form(&headers, "Flagz"), expected, "{accept}");
        };
        let json = |version| {
            Some(Form::Object {
                version,
                content_type: "application/json",
            })
        };
        check("", Some(Form::Text));
        check("text/plain", Some(Form::Text));
        check("text/html, */*;q=0.8", Some(Form::Text));
        check("application/json", None);
        check(
            "application/json;as=Flagz;v=v1beta1;g=config.k8s.io",
            json("v1beta1"),
        );
        check(
            "application/json; as=Flagz; v=v1alpha1; g=config.k8s.io",
            json("v1alpha1"),
        );
        check("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", None);
        check("application/json;as=Flagz;v=v2;g=config.k8s.io", None);
        check("application/cbor, text/plain", Some(Form::Text));
    }
}
