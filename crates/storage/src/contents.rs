//! The contents of the volumes that are files: keys of ConfigMaps and Secrets, fields of the pod, tokens, trust anchors and
//! certificates, alone or merged into a projected volume.
//!
//! Owns which key becomes which file, what is optional, and the errors when something is missing. No error contains a value.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, PodCertificateProjection,
    ProjectedVolumeSource, Secret, ServiceAccountTokenProjection,
};
use rubelet_lifecycle::configuration::downward::{Addresses, field_value, resource_value};
use rubelet_lifecycle::configuration::unsupported_volumes::projection_type;
use rubelet_resources::{ContainerDemand, PodDemand};

use crate::files::{FileDefaults, Files};
use crate::objects::{Answer, BundleNeed, CertificateNeed, ObjectAnswers, bundle_need, token_need};
use crate::volume::ProjectedSource;
use crate::{StorageError, StorageNode};

/// What the contents are taken from.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) node: &'a StorageNode,
    pub(crate) answers: &'a ObjectAnswers,
}

/// A reference to an object by name.
#[derive(Clone, Copy)]
pub(crate) struct KeysOf<'a> {
    pub(crate) name: &'a str,
    /// All keys when there are none.
    pub(crate) items: Option<&'a Vec<KeyToPath>>,
    pub(crate) optional: Option<bool>,
}

impl KeysOf<'_> {
    fn is_optional(&self) -> bool {
        self.optional == Some(true)
    }
}

/// The object of an answer; nothing for one that may be missing and is.
fn object<'a, T>(
    answer: Option<&'a Answer<T>>,
    is_optional: bool,
    what: &str,
) -> Result<Option<&'a T>, StorageError> {
    match answer {
        Some(Ok(object)) => Ok(Some(object)),
        Some(Err(absence)) if is_optional && absence.is_not_found => Ok(None),
        Some(Err(absence)) => Err(StorageError::Object(absence.message.clone())),
        None => Err(StorageError::Object(format!("{what} was not asked for"))),
    }
}

pub(crate) fn config_map_files(
    keys: KeysOf<'_>,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let answer = sources.answers.config_maps.get(keys.name);
    let map = object(answer, keys.is_optional(), "the ConfigMap")?;
    let Some(map) = map else {
        return Ok(());
    };
    let ConfigMap {
        data, binary_data, ..
    } = &**map;
    let texts = data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
    let binary = binary_data
        .iter()
        .flatten()
        .map(|(key, bytes)| (key, bytes.0.as_slice()));
    let missing = |key: &str| StorageError::NoConfigKey(key.to_owned());
    if keys.items.is_none_or(Vec::is_empty) {
        all_keys(texts.chain(binary), defaults, files);
        return Ok(());
    }
    // A key is looked for among the texts first; validation lets no key be both.
    let contents = binary.chain(texts).collect();
    chosen_keys(keys, &contents, missing, defaults, files)
}

pub(crate) fn secret_files(
    keys: KeysOf<'_>,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let answer = sources.answers.secrets.get(keys.name);
    let secret = object(answer, keys.is_optional(), "the Secret")?;
    let Some(secret) = secret else {
        return Ok(());
    };
    let Secret { data, .. } = &**secret;
    let contents = data.iter().flatten();
    let contents = contents.map(|(key, bytes)| (key, bytes.0.as_slice()));
    let missing = |key: &str| StorageError::NoSecretKey(key.to_owned());
    if keys.items.is_none_or(Vec::is_empty) {
        all_keys(contents, defaults, files);
        return Ok(());
    }
    chosen_keys(keys, &contents.collect(), missing, defaults, files)
}

fn all_keys<'a>(
    contents: impl Iterator<Item = (&'a String, &'a [u8])>,
    defaults: FileDefaults,
    files: &mut Files,
) {
    for (key, content) in contents {
        files.put(key, defaults.item(None, None), content.to_vec());
    }
}

fn chosen_keys(
    keys: KeysOf<'_>,
    contents: &BTreeMap<&String, &[u8]>,
    missing: impl Fn(&str) -> StorageError,
    defaults: FileDefaults,
    files: &mut Files,
) -> Result<(), StorageError> {
    for item in keys.items.into_iter().flatten() {
        match contents.get(&item.key) {
            Some(content) => {
                let access = defaults.item(item.mode, item.user);
                files.put(&item.path, access, content.to_vec());
            }
            None if keys.is_optional() => {}
            None => return Err(missing(&item.key)),
        }
    }
    Ok(())
}

pub(crate) fn downward_files(
    items: &[DownwardAPIVolumeFile],
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let mut problems = Vec::new();
    for item in items {
        let access = defaults.item(item.mode, item.user);
        match field_content(item, sources) {
            Ok(text) => files.put(&item.path, access, text.into_bytes()),
            Err(problem) => problems.push(problem),
        }
    }
    StorageError::all_of(problems)
}

fn field_content(item: &DownwardAPIVolumeFile, sources: Sources<'_>) -> Result<String, StorageError> {
    let Sources { pod, node, .. } = sources;
    let value = if let Some(selector) = &item.field_ref {
        let addresses = Addresses {
            pod_ips: &[],
            node_ips: &[],
            host_ips: &node.host_ips,
        };
        field_value(selector, pod, addresses)
    } else if let Some(selector) = &item.resource_field_ref {
        let demand = PodDemand::read(pod)?;
        // Files always name their container.
        let no_container = ContainerDemand::default();
        resource_value(
            selector,
            &demand,
            &no_container,
            &node.rules,
            &node.facts.allocatable,
        )
    } else {
        Ok(String::new())
    };
    value.map_err(|problem| StorageError::File {
        path: item.path.clone(),
        problem,
    })
}

/// The files of all sources; of two with the same path the later counts. The error has the problems of all sources.
pub(crate) fn projected_files(
    volume: &str,
    source: &ProjectedVolumeSource,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let mut problems = Vec::new();
    for (index, projection) in source.sources.iter().flatten().enumerate() {
        let added = match ProjectedSource::of(projection) {
            Some(ProjectedSource::Secret(secret)) => {
                let keys = KeysOf {
                    name: &secret.name,
                    items: secret.items.as_ref(),
                    optional: secret.optional,
                };
                secret_files(keys, defaults, sources, files)
            }
            Some(ProjectedSource::ConfigMap(map)) => {
                let keys = KeysOf {
                    name: &map.name,
                    items: map.items.as_ref(),
                    optional: map.optional,
                };
                config_map_files(keys, defaults, sources, files)
            }
            Some(ProjectedSource::Downward(downward)) => {
                let items = downward.items.as_deref().unwrap_or_default();
                downward_files(items, defaults, sources, files)
            }
            Some(ProjectedSource::Token(token)) => token_file(token, defaults, sources, files),
            Some(ProjectedSource::Bundle(bundle)) => bundle_file(bundle, defaults, sources, files),
            Some(ProjectedSource::Certificate(certificate)) => {
                let volume = volume.to_owned();
                let place = CertificateNeed {
                    volume,
                    source: index,
                };
                certificate_files(&place, certificate, defaults, sources, files)
            }
            None => Err(StorageError::NotSupported {
                kind: projection_type(projection),
            }),
        };
        problems.extend(added.err());
    }
    StorageError::all_of(problems)
}

fn token_file(
    source: &ServiceAccountTokenProjection,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let answer = sources.answers.tokens.get(&token_need(source));
    let token = object(answer, false, "the token")?;
    let content = token.map(|token| token.as_bytes().to_vec());
    let access = defaults.credential(source.user);
    files.put(&source.path, access, content.unwrap_or_default());
    Ok(())
}

fn bundle_file(
    source: &ClusterTrustBundleProjection,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let need = bundle_need(source).ok_or(StorageError::BundleNobody)?;
    let is_this = |(asked, _): &&(BundleNeed, _)| *asked == need;
    let answer = sources.answers.bundles.iter().find(is_this);
    let is_optional = source.optional == Some(true);
    let anchors = object(answer.map(|(_, answer)| answer), is_optional, "the trust bundle")?;
    // One that may be missing and is leaves an empty file.
    let content = anchors.map(|anchors| anchors.as_bytes().to_vec());
    let access = defaults.credential(source.user);
    files.put(&source.path, access, content.unwrap_or_default());
    Ok(())
}

fn certificate_files(
    place: &CertificateNeed,
    source: &PodCertificateProjection,
    defaults: FileDefaults,
    sources: Sources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    let answer = sources.answers.certificates.get(place);
    let Some(found) = object(answer, false, "the certificate")? else {
        return Ok(());
    };
    let access = defaults.credential(source.user);
    let bundle = [found.key.as_slice(), &found.chain].concat();
    let wanted = [
        (&source.credential_bundle_path, bundle.as_slice()),
        (&source.key_path, found.key.as_slice()),
        (&source.certificate_chain_path, found.chain.as_slice()),
    ];
    for (path, content) in wanted {
        if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
            files.put(path, access, content.to_vec());
        }
    }
    Ok(())
}
