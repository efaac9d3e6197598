//! `RubeletConfiguration`: the switches that only rubelet has, in a file of their own.
//!
//! Owns the shape of that file. Flags and `KubeletConfiguration` stay upstream's, so nothing else of ours may be added there.

use rubelet_model::document::{self, Limits, Node};

use crate::kubelet_configuration::Problem;

pub const API_VERSION: &str = "rubelet.dev/v1alpha1";
pub const KIND: &str = "RubeletConfiguration";

/// The file is a few lines. The second limit bounds what aliases can unfold to.
const LIMITS: Limits = Limits {
    max_bytes: 64 << 10,
    max_nodes: 1_000,
};

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
        let refused = |allowed: String| vec![Problem::new("", "", allowed)];
        let document = document::read(bytes, LIMITS).map_err(|error| refused(error.to_string()))?;
        if document.has_more {
            return Err(refused("must be one YAML document".to_owned()));
        }
        let Node::Map(fields) = document.root else {
            let expected = format!("must be an object with apiVersion {API_VERSION} and kind {KIND}");
            return Err(refused(expected));
        };
        let twice = |path: String| Problem::new(path, "", "must be set once");
        let mut problems: Vec<_> = document.duplicates.into_iter().map(twice).collect();
        for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let found = fields.iter().find(|(field, _)| field == name);
            match found.map(|(_, value)| value) {
                Some(Node::Text(text)) if text == expected => {}
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
                Node::Bool(on) => *switch = *on,
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
