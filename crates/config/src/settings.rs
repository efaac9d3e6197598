//! The one value that a running node reads its settings from.
//!
//! Owns nothing but the outcome of loading: it is made once by `load`, never changed, and holds no default or rule of its own.

use std::collections::BTreeMap;
use std::fmt;

use rubelet_model::document;
use serde_json::Value;

use crate::flags::KubeletFlags;
use crate::gates::FeatureGates;
use crate::kubelet_configuration::KubeletConfiguration;
use crate::rubelet_configuration::RubeletConfiguration;
use crate::version;

/// What stands in place of a secret value.
const MASK: &str = "<masked>";

/// Something about the settings that the user should know, though the node starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The setting it is about; empty when it is about more than one.
    pub setting: String,
    pub message: String,
}

impl Warning {
    pub fn new(setting: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            setting: setting.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.setting.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.setting, self.message)
        }
    }
}

/// All settings of a node, validated and complete.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(crate) flags: KubeletFlags,
    pub(crate) configuration: KubeletConfiguration,
    pub(crate) gates: FeatureGates,
    pub(crate) rubelet: RubeletConfiguration,
    pub(crate) flag_texts: BTreeMap<String, String>,
    pub(crate) warnings: Vec<Warning>,
}

impl Settings {
    /// The settings that only flags have.
    #[must_use]
    pub fn flags(&self) -> &KubeletFlags {
        &self.flags
    }

    /// The configuration in effect: defaults, file, drop-ins and flags.
    #[must_use]
    pub fn configuration(&self) -> &KubeletConfiguration {
        &self.configuration
    }

    #[must_use]
    pub fn gates(&self) -> &FeatureGates {
        &self.gates
    }

    /// The switches that only rubelet has.
    #[must_use]
    pub fn rubelet(&self) -> &RubeletConfiguration {
        &self.rubelet
    }

    /// Every flag with the value that it was given or has by default, as `/flagz` shows it; what may carry a token is masked.
    #[must_use]
    pub fn flag_texts(&self) -> &BTreeMap<String, String> {
        &self.flag_texts
    }

    /// Warnings for the start-up log, in the order they were found.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The version to report as the kubelet's.
    #[must_use]
    pub fn reported_version(&self) -> &str {
        self.flags.reported_version.as_deref().unwrap_or(version::VERSION)
    }

    /// The configuration in effect as `/configz` shows it, with header values masked: they may carry a token.
    #[must_use]
    pub fn configz_json(&self) -> Value {
        let mut configuration = self.configuration.clone();
        for values in configuration.static_pod_url_header.values_mut() {
            *values = vec![MASK.to_owned()];
        }
        configuration.to_configz()
    }

    /// The same as YAML, for the log.
    #[must_use]
    pub fn effective_yaml(&self) -> String {
        document::yaml_text(&self.configz_json())
    }
}
