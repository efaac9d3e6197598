//! A container's environment.
//!
//! Owns precedence and expansion. References to API objects are refused: there is no API server to ask.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, EnvVarSource, Pod};
use rubelet_resources::{ContainerDemand, PodDemand};

use super::downward::{Addresses, field_value, resource_value};
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
        let value = value(variable, &environment, sources)?;
        environment.set(&variable.name, value);
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

fn value(
    variable: &EnvVar,
    earlier: &Environment,
    sources: Sources<'_>,
) -> Result<String, ConfigurationError> {
    if let Some(text) = variable.value.as_deref().filter(|text| !text.is_empty()) {
        let lookup = |name: &str| {
            let service = || sources.services.get(name).map(String::as_str);
            earlier.get(name).or_else(service)
        };
        return Ok(expand(text, lookup));
    }
    match &variable.value_from {
        Some(from) => referenced(&variable.name, from, sources),
        None => Ok(String::new()),
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
    if from.file_key_ref.is_some() {
        let what = "values from files of volumes";
        return Err(ConfigurationError::NotYet { variable, what });
    }
    Ok(String::new())
}
