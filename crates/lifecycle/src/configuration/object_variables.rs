//! Variables that are taken from ConfigMaps and Secrets.
//!
//! Owns which objects a container's environment needs and what is taken out of them. The caller reads the objects;
//! `environment` puts the variables together with the others. Values are bytes: a Secret's need not be text. Only
//! `data` counts, never `binaryData`. No error and no `Debug` carries a value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapKeySelector, Container, EnvFromSource, EnvVar, Secret, SecretKeySelector,
};
use thiserror::Error;

/// The names of the objects that a container's environment is made from, all in the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvReferences {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

impl EnvReferences {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.config_maps.is_empty() && self.secrets.is_empty()
    }
}

/// Why an object could not be read, with the message of the API client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectProblem {
    /// The object does not exist; an optional reference skips it.
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Unavailable(String),
}

/// The objects by name, or why they cannot be read. A name that is not in it was never requested: there is no API server.
#[derive(Clone, Default, PartialEq)]
pub struct EnvObjects {
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectProblem>>,
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectProblem>>,
}

impl fmt::Debug for EnvObjects {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EnvObjects")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .finish()
    }
}

/// Why a variable has no value. The text becomes the message of the container's waiting state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectVariableError {
    #[error("couldn't get {kind} {namespace}/{name}, there is no API server")]
    NoApiServer {
        kind: &'static str,
        namespace: String,
        name: String,
    },
    #[error(transparent)]
    Object(ObjectProblem),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        key: String,
        kind: &'static str,
        namespace: String,
        name: String,
    },
}

/// What the container's `env` and `envFrom` refer to. A value that is not empty wins over its source, which is then not needed.
#[must_use]
pub fn env_references(container: &Container) -> EnvReferences {
    references(
        container.env_from.as_deref().unwrap_or_default(),
        container.env.as_deref().unwrap_or_default(),
    )
}

/// As [`env_references`], for whatever has such lists.
#[must_use]
pub fn references(env_from: &[EnvFromSource], env: &[EnvVar]) -> EnvReferences {
    let mut references = EnvReferences::default();
    for from in env_from {
        match (&from.config_map_ref, &from.secret_ref) {
            (Some(source), _) => references.config_maps.insert(source.name.clone()),
            (None, Some(source)) => references.secrets.insert(source.name.clone()),
            (None, None) => continue,
        };
    }
    for variable in env {
        if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
            continue;
        }
        let Some(from) = &variable.value_from else {
            continue;
        };
        // Of several sources the first of this order is taken.
        if from.field_ref.is_some() || from.resource_field_ref.is_some() {
            continue;
        }
        match (&from.config_map_key_ref, &from.secret_key_ref) {
            (Some(key), _) => references.config_maps.insert(key.name.clone()),
            (None, Some(key)) => references.secrets.insert(key.name.clone()),
            (None, None) => continue,
        };
    }
    references
}

/// The variables of `envFrom`, in the order in which they apply: a later one of the same name wins, and `env` wins over all.
/// Every key becomes a variable; the runtime refuses names that it cannot use.
pub fn env_from(
    container: &Container,
    namespace: &str,
    objects: &EnvObjects,
) -> Result<Vec<(String, Vec<u8>)>, ObjectVariableError> {
    let mut variables = Vec::new();
    for from in container.env_from.iter().flatten() {
        env_from_one(from, namespace, objects, &mut variables)?;
    }
    Ok(variables)
}

fn env_from_one(
    from: &EnvFromSource,
    namespace: &str,
    objects: &EnvObjects,
    variables: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), ObjectVariableError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(source) = &from.config_map_ref {
        let found = wanted(
            &CONFIG_MAPS,
            &objects.config_maps,
            namespace,
            &source.name,
            source.optional,
        )?;
        for (key, value) in found.iter().flat_map(|map| map.data.iter().flatten()) {
            variables.push((format!("{prefix}{key}"), value.clone().into_bytes()));
        }
    } else if let Some(source) = &from.secret_ref {
        let found = wanted(
            &SECRETS,
            &objects.secrets,
            namespace,
            &source.name,
            source.optional,
        )?;
        for (key, value) in found.iter().flat_map(|secret| secret.data.iter().flatten()) {
            variables.push((format!("{prefix}{key}"), value.0.clone()));
        }
    }
    Ok(())
}

/// The value of `configMapKeyRef`; `None` for one that may be missing and is.
pub fn config_map_value(
    selector: &ConfigMapKeySelector,
    namespace: &str,
    objects: &EnvObjects,
) -> Result<Option<Vec<u8>>, ObjectVariableError> {
    let ConfigMapKeySelector { key, name, optional } = selector;
    let Some(map) = wanted(&CONFIG_MAPS, &objects.config_maps, namespace, name, *optional)? else {
        return Ok(None);
    };
    let value = map.data.as_ref().and_then(|data| data.get(key));
    let value = value.map(|value| value.clone().into_bytes());
    keyed(&CONFIG_MAPS, value, key, namespace, name, *optional)
}

/// The value of `secretKeyRef`; `None` for one that may be missing and is.
pub fn secret_value(
    selector: &SecretKeySelector,
    namespace: &str,
    objects: &EnvObjects,
) -> Result<Option<Vec<u8>>, ObjectVariableError> {
    let SecretKeySelector { key, name, optional } = selector;
    let Some(secret) = wanted(&SECRETS, &objects.secrets, namespace, name, *optional)? else {
        return Ok(None);
    };
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    let value = value.map(|value| value.0.clone());
    keyed(&SECRETS, value, key, namespace, name, *optional)
}

/// How upstream's messages name a kind of object, for a missing object and for a missing key.
struct Kind {
    asked: &'static str,
    keyed: &'static str,
}

const CONFIG_MAPS: Kind = Kind {
    asked: "configMap",
    keyed: "ConfigMap",
};
const SECRETS: Kind = Kind {
    asked: "secret",
    keyed: "Secret",
};

fn wanted<T>(
    kind: &Kind,
    objects: &BTreeMap<String, Result<Arc<T>, ObjectProblem>>,
    namespace: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Arc<T>>, ObjectVariableError> {
    match objects.get(name) {
        None => Err(ObjectVariableError::NoApiServer {
            kind: kind.asked,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        Some(Ok(object)) => Ok(Some(Arc::clone(object))),
        Some(Err(ObjectProblem::NotFound(_))) if optional == Some(true) => Ok(None),
        Some(Err(problem)) => Err(ObjectVariableError::Object(problem.clone())),
    }
}

fn keyed(
    kind: &Kind,
    value: Option<Vec<u8>>,
    key: &str,
    namespace: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Vec<u8>>, ObjectVariableError> {
    if value.is_some() || optional == Some(true) {
        return Ok(value);
    }
    Err(ObjectVariableError::NoKey {
        key: key.to_owned(),
        kind: kind.keyed,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}
