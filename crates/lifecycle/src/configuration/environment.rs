//! A container's environment.
//!
//! Owns precedence and expansion. References to API objects are refused: there is no API server to ask.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, Pod};
use rubelet_resources::{ContainerDemand, PodDemand};

use super::downward::{Addresses, field_value, resource_value};
use super::env_file::value_of;
use super::expansion::expand;
use super::node::{ConfigurationError, NodeConfiguration};

/// What values may be taken from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub demand: &'a PodDemand,
    pub container_demand: &'a ContainerDemand,
    pub node: &'a NodeConfiguration,
    pub pod_ips: &'a [String],
    /// Variables of services; the container's own win.
    pub services: &'a BTreeMap<String, String>,
    pub files: &'a EnvFiles,
}

/// A file in a volume that variables are taken from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvFileKey {
    pub volume: String,
    pub path: String,
}

/// What is in the files, or why they cannot be read; a volume that is not mounted has none.
pub type EnvFiles = BTreeMap<EnvFileKey, Result<Vec<u8>, String>>;

/// The files that the container's variables are taken from.
#[must_use]
pub fn env_files(container: &Container) -> BTreeSet<EnvFileKey> {
    let variables = container.env.iter().flatten();
    variables
        .filter(|variable| variable.value.as_ref().is_none_or(String::is_empty))
        .filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref())
        .map(EnvFileKey::of)
        .collect()
}

impl EnvFileKey {
    fn of(selector: &FileKeySelector) -> Self {
        Self {
            volume: selector.volume_name.clone(),
            path: selector.path.clone(),
        }
    }
}

/// Variables in the order in which they are declared; a name that is declared again keeps its place and takes the new value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, own)) => *own = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

/// The container's whole environment.
pub fn environment(container: &Container, sources: Sources<'_>) -> Result<Environment, ConfigurationError> {
    if let Some(from) = container.env_from.iter().flatten().next() {
        return Err(env_from_error(from));
    }
    let mut environment = Environment::default();
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(variable, &environment, sources)? {
            environment.set(&variable.name, value);
        }
    }
    for (name, value) in sources.services {
        if environment.get(name).is_none() {
            environment.0.push((name.clone(), value.clone()));
        }
    }
    Ok(environment)
}

fn env_from_error(from: &EnvFromSource) -> ConfigurationError {
    let what = match (&from.config_map_ref, &from.secret_ref) {
        (Some(source), _) => format!("ConfigMap {:?}", source.name),
        (None, Some(source)) => format!("Secret {:?}", source.name),
        (None, None) => "a source without a kind".to_owned(),
    };
    ConfigurationError::NeedsApiServer {
        variable: format!("{}*", from.prefix.as_deref().unwrap_or_default()),
        what,
    }
}

/// `None` for a variable that may be missing and is.
fn value(
    variable: &EnvVar,
    earlier: &Environment,
    sources: Sources<'_>,
) -> Result<Option<String>, ConfigurationError> {
    if let Some(text) = variable.value.as_deref().filter(|text| !text.is_empty()) {
        let lookup = |name: &str| {
            let service = || sources.services.get(name).map(String::as_str);
            earlier.get(name).or_else(service)
        };
        return Ok(Some(expand(text, lookup)));
    }
    match &variable.value_from {
        Some(EnvVarSource {
            field_ref: None,
            resource_field_ref: None,
            config_map_key_ref: None,
            secret_key_ref: None,
            file_key_ref: Some(selector),
        }) => from_file(&variable.name, selector, sources.files),
        Some(from) => referenced(&variable.name, from, sources).map(Some),
        None => Ok(Some(String::new())),
    }
}

fn referenced(
    variable: &str,
    from: &EnvVarSource,
    sources: Sources<'_>,
) -> Result<String, ConfigurationError> {
    let variable = variable.to_owned();
    if let Some(selector) = &from.field_ref {
        let addresses = Addresses {
            pod_ips: sources.pod_ips,
            node_ips: &sources.node.node_ips,
        };
        return field_value(selector, sources.pod, addresses)
            .map_err(|problem| ConfigurationError::Downward { variable, problem });
    }
    if let Some(selector) = &from.resource_field_ref {
        let (rules, allocatable) = (&sources.node.rules, &sources.node.facts.allocatable);
        return resource_value(
            selector,
            sources.demand,
            sources.container_demand,
            rules,
            allocatable,
        )
        .map_err(|problem| ConfigurationError::Downward { variable, problem });
    }
    if let Some(selector) = &from.config_map_key_ref {
        let what = format!("ConfigMap {:?}", selector.name);
        return Err(ConfigurationError::NeedsApiServer { variable, what });
    }
    if let Some(selector) = &from.secret_key_ref {
        let what = format!("Secret {:?}", selector.name);
        return Err(ConfigurationError::NeedsApiServer { variable, what });
    }
    Ok(String::new())
}

fn from_file(
    variable: &str,
    selector: &FileKeySelector,
    files: &EnvFiles,
) -> Result<Option<String>, ConfigurationError> {
    let FileKeySelector {
        key,
        path,
        volume_name,
        optional,
    } = selector;
    let content =
        files
            .get(&EnvFileKey::of(selector))
            .ok_or_else(|| ConfigurationError::NoEnvFileVolume {
                volume: volume_name.clone(),
            })?;
    let value = match content {
        Ok(content) => value_of(content, key).map_err(|error| error.to_string()),
        Err(problem) => Err(problem.clone()),
    };
    let value = value.map_err(|problem| ConfigurationError::EnvFile {
        variable: variable.to_owned(),
        problem,
    })?;
    if !value.is_empty() {
        return Ok(Some(value));
    }
    // An empty value counts as none, as upstream has it.
    if *optional == Some(true) {
        return Ok(None);
    }
    Err(ConfigurationError::NoEnvFileKey {
        key: key.clone(),
        path: path.clone(),
    })
}
