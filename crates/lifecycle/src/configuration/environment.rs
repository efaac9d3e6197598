//! A container's environment.
//!
//! Owns precedence and expansion. API objects come in as data; where there is no API server, references to them are errors. Values
//! are bytes, because a Secret's need not be text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, FileKeySelector, Pod};
use rubelet_model::pod::namespace_of;
use rubelet_resources::{ContainerDemand, PodDemand};

use super::downward::{Addresses, field_value, resource_value};
use super::env_file::value_of;
use super::expansion::expand_bytes;
use super::node::{ConfigurationError, NodeConfiguration};
use super::object_variables::{EnvObjects, config_map_value, env_from, secret_value};

/// What values may be taken from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub demand: &'a PodDemand,
    pub container_demand: &'a ContainerDemand,
    pub node: &'a NodeConfiguration,
    pub pod_ips: &'a [String],
    /// The node's addresses, the primary one first.
    pub host_ips: &'a [IpAddr],
    /// Variables of services; the container's own win.
    pub services: &'a BTreeMap<String, String>,
    pub files: &'a EnvFiles,
    pub objects: &'a EnvObjects,
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
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, Vec<u8>)>);

/// Values may be secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Environment {
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_slice())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    fn set(&mut self, name: &str, value: Vec<u8>) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, own)) => *own = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

/// The container's whole environment.
pub fn environment(container: &Container, sources: Sources<'_>) -> Result<Environment, ConfigurationError> {
    let mut environment = Environment::default();
    for (name, value) in env_from(container, namespace_of(sources.pod), sources.objects)? {
        environment.set(&name, value);
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(variable, &environment, sources)? {
            environment.set(&variable.name, value);
        }
    }
    for (name, value) in sources.services {
        if environment.get(name).is_none() {
            environment.0.push((name.clone(), value.clone().into_bytes()));
        }
    }
    Ok(environment)
}

/// `None` for a variable that may be missing and is.
fn value(
    variable: &EnvVar,
    earlier: &Environment,
    sources: Sources<'_>,
) -> Result<Option<Vec<u8>>, ConfigurationError> {
    if let Some(text) = variable.value.as_deref().filter(|text| !text.is_empty()) {
        let lookup = |name: &str| {
            let service = || sources.services.get(name).map(String::as_bytes);
            earlier.get(name).or_else(service)
        };
        return Ok(Some(expand_bytes(text, lookup)));
    }
    match &variable.value_from {
        Some(from) => referenced(&variable.name, from, sources),
        None => Ok(Some(Vec::new())),
    }
}

fn referenced(
    variable: &str,
    from: &EnvVarSource,
    sources: Sources<'_>,
) -> Result<Option<Vec<u8>>, ConfigurationError> {
    let downward = |result: Result<String, super::downward::DownwardError>| match result {
        Ok(text) => Ok(Some(text.into_bytes())),
        Err(problem) => Err(ConfigurationError::Downward {
            variable: variable.to_owned(),
            problem,
        }),
    };
    let namespace = namespace_of(sources.pod);
    if let Some(selector) = &from.field_ref {
        let addresses = Addresses {
            pod_ips: sources.pod_ips,
            node_ips: &sources.node.node_ips,
            host_ips: sources.host_ips,
        };
        downward(field_value(selector, sources.pod, addresses))
    } else if let Some(selector) = &from.resource_field_ref {
        let (rules, allocatable) = (&sources.node.rules, &sources.node.facts.allocatable);
        downward(resource_value(
            selector,
            sources.demand,
            sources.container_demand,
            rules,
            allocatable,
        ))
    } else if let Some(selector) = &from.config_map_key_ref {
        Ok(config_map_value(selector, namespace, sources.objects)?)
    } else if let Some(selector) = &from.secret_key_ref {
        Ok(secret_value(selector, namespace, sources.objects)?)
    } else if let Some(selector) = &from.file_key_ref {
        let value = from_file(variable, selector, sources.files)?;
        Ok(value.map(String::into_bytes))
    } else {
        Ok(Some(Vec::new()))
    }
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
