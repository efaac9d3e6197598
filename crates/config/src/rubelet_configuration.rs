//! `RubeletConfiguration`: the switches that only rubelet has, in a file of their own.
//!
//! Owns the shape of that file. Flags and `KubeletConfiguration` stay upstream's, so nothing else of ours may be added there.

use serde_json::Value;

use crate::kubelet_configuration::Problem;

pub const API_VERSION: &str = "rubelet.dev/v1alpha1";
pub const KIND: &str = "RubeletConfiguration";

/// The switches. All are off by default: without the file rubelet behaves as upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RubeletConfiguration {
    /// `sessionsNeedCreate`: exec, attach, run and port forwarding need the verb `create`, also by GET.
    pub sessions_need_create: bool,
    /// `allowUnknownVolumes`: start also where volumes of plugins are mounted that rubelet does not have.
    pub allow_unknown_volumes: bool,
}

impl RubeletConfiguration {
    /// Reads a document in YAML or JSON; unknown fields are errors.
    pub fn decode(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| vec![Problem::new("", "", "must be UTF-8 text")])?;
        let document: Value = serde_saphyr::from_str(text).map_err(|error| {
            vec![Problem::new(
                "",
                "",
                format!("must be one YAML document: {error}"),
            )]
        })?;
        let Value::Object(fields) = document else {
            return Err(vec![Problem::new(
                "",
                "",
                format!("must be an object with apiVersion {API_VERSION} and kind {KIND}"),
            )]);
        };
        let mut problems = Vec::new();
        for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match fields.get(name) {
                Some(Value::String(text)) if text == expected => {}
                found => {
                    let shown = found.map(ToString::to_string).unwrap_or_default();
                    problems.push(Problem::new(name, shown, format!("must be {expected}")));
                }
            }
        }
        let mut read = Self::default();
        for (name, value) in &fields {
            let switch = match name.as_str() {
                "apiVersion" | "kind" => continue,
                "sessionsNeedCreate" => &mut read.sessions_need_create,
                "allowUnknownVolumes" => &mut read.allow_unknown_volumes,
                _ => {
                    problems.push(Problem::new(name, "", "no such setting"));
                    continue;
                }
            };
            match value {
                Value::Bool(on) => *switch = *on,
                value => problems.push(Problem::new(name, value.to_string(), "must be true or false")),
            }
        }
        if problems.is_empty() {
            Ok(read)
        } else {
            Err(problems)
        }
    }
}
