//! Rules for volumes: one source each, and what that source needs.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_model::names::is_dns_subdomain;

use super::names::{dns_label, dns_subdomain};
use super::paths::{local, mode, no_backsteps, user};
use super::{claims, disks, env, projected};
use crate::fields::{list, quantity, text};
use crate::problem::{Findings, Path};

const MAX_DRIVER_NAME: usize = 63;

/// Checks all volumes; gives those that are fine, by name.
pub(super) fn volumes<'a>(
    out: &mut Findings,
    path: &Path,
    volumes: &'a [Volume],
    meta: &ObjectMeta,
) -> BTreeMap<&'a str, &'a Volume> {
    let pod_name = text(&meta.name);
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| volume.ephemeral.is_some() && !pod_name.is_empty())
        .map(|volume| format!("{pod_name}-{}", volume.name))
        .collect();
    let mut good = BTreeMap::new();
    for (position, volume) in volumes.iter().enumerate() {
        let path = path.index(position);
        let before = out.len();
        source(out, &path, volume, pod_name);
        if volume.name.is_empty() {
            out.required(&path.child("name"), "");
        } else {
            dns_label(out, &path.child("name"), &volume.name);
        }
        if good.contains_key(volume.name.as_str()) {
            out.duplicate(&path.child("name"));
        }
        if out.len() == before {
            good.insert(volume.name.as_str(), volume);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created.contains(&claim.claim_name)
        {
            out.invalid(
                &path.child("persistentVolumeClaim").child("claimName"),
                "is the claim of an ephemeral volume",
            );
        }
    }
    good
}

/// Counts sources; the second one is forbidden and not looked into.
pub(super) struct OneSource<'a> {
    pub(super) out: &'a mut Findings,
    pub(super) path: &'a Path,
    pub(super) seen: bool,
}

impl OneSource<'_> {
    pub(super) fn check<T>(
        &mut self,
        name: &str,
        source: &Option<T>,
        check: impl FnOnce(&mut Findings, &Path, &T),
    ) {
        self.check_named(name, name, source, check);
    }

    /// Some sources have another name when they are forbidden.
    pub(super) fn check_named<T>(
        &mut self,
        forbidden_name: &str,
        name: &str,
        source: &Option<T>,
        check: impl FnOnce(&mut Findings, &Path, &T),
    ) {
        let Some(source) = source else { return };
        if self.seen {
            return self
                .out
                .forbidden(&self.path.child(forbidden_name), "only one of these");
        }
        self.seen = true;
        check(self.out, &self.path.child(name), source);
    }
}

fn source(out: &mut Findings, path: &Path, volume: &Volume, pod_name: &str) {
    let mut one = OneSource {
        out,
        path,
        seen: false,
    };
    one.check("emptyDir", &volume.empty_dir, empty_dir);
    one.check("hostPath", &volume.host_path, host_path);
    disks::before_secret(&mut one, volume);
    one.check("secret", &volume.secret, secret);
    disks::before_claim(&mut one, volume);
    one.check(
        "persistentVolumeClaim",
        &volume.persistent_volume_claim,
        |out, path, source| {
            out.required_text(&path.child("claimName"), &source.claim_name);
        },
    );
    disks::before_downward(&mut one, volume);
    one.check_named(
        "downwarAPI",
        "downwardAPI",
        &volume.downward_api,
        |out, path, source| {
            mode(out, &path.child("defaultMode"), source.default_mode);
            user(out, &path.child("defaultUser"), source.default_user);
            for file in list(&source.items) {
                env::downward_file(out, path, file);
            }
        },
    );
    disks::before_config_map(&mut one, volume);
    one.check("configMap", &volume.config_map, config_map);
    disks::before_projected(&mut one, volume);
    one.check("projected", &volume.projected, projected::projected);
    disks::before_csi(&mut one, volume);
    one.check("csi", &volume.csi, csi);
    one.check(
        "ephemeral",
        &volume.ephemeral,
        |out, path, source| match &source.volume_claim_template {
            None => out.required(&path.child("volumeClaimTemplate"), ""),
            Some(template) => claims::template(out, &path.child("volumeClaimTemplate"), template),
        },
    );
    let is_ephemeral = volume.ephemeral.is_some() && !has_other_source_before_ephemeral(volume);
    one.check("image", &volume.image, |out, path, source| {
        out.required_text(&path.child("reference"), text(&source.reference));
        let policy = text(&source.pull_policy);
        out.required_one_of(
            &path.child("pullPolicy"),
            policy,
            &["Always", "IfNotPresent", "Never"],
        );
    });
    if !one.seen {
        out.required(path, "needs a source");
    }
    if is_ephemeral && !pod_name.is_empty() && !volume.name.is_empty() {
        let claim = format!("{pod_name}-{}", volume.name);
        out.invalid_unless(
            is_dns_subdomain(&claim),
            &path.child("name"),
            "makes no name of a claim",
        );
    }
}

fn empty_dir(out: &mut Findings, path: &Path, source: &EmptyDirVolumeSource) {
    let limit = source.size_limit.as_ref();
    if limit.is_some_and(|limit| quantity(limit).signum() < 0) {
        out.forbidden(&path.child("sizeLimit"), "must not be negative");
    }
    let fits = source.mode.is_none_or(|mode| (0..=0o1777).contains(&mode));
    out.invalid_unless(fits, &path.child("mode"), "must be between 0 and 01777 (octal)");
}

fn host_path(out: &mut Findings, path: &Path, source: &HostPathVolumeSource) {
    if source.path.is_empty() {
        return out.required(&path.child("path"), "");
    }
    no_backsteps(out, &path.child("path"), &source.path);
    let kinds = [
        "",
        "DirectoryOrCreate",
        "Directory",
        "FileOrCreate",
        "File",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ];
    out.one_of(&path.child("type"), text(&source.type_), &kinds);
}

fn csi(out: &mut Findings, path: &Path, source: &CSIVolumeSource) {
    driver_name(out, &path.child("driver"), &source.driver);
    match &source.node_publish_secret_ref {
        Some(secret) if secret.name.is_empty() => {
            out.required(&path.child("nodePublishSecretRef").child("name"), "");
        }
        Some(secret) => dns_subdomain(out, &path.child("name"), &secret.name),
        None => {}
    }
}

/// Image is the only source that is looked at after ephemeral.
fn has_other_source_before_ephemeral(volume: &Volume) -> bool {
    let alone = Volume {
        name: volume.name.clone(),
        ephemeral: volume.ephemeral.clone(),
        image: volume.image.clone(),
        ..Volume::default()
    };
    *volume != alone
}

fn driver_name(out: &mut Findings, path: &Path, name: &str) {
    if name.is_empty() {
        return out.required(path, "");
    }
    if name.len() > MAX_DRIVER_NAME {
        out.too_long(path, MAX_DRIVER_NAME);
    }
    dns_subdomain(out, path, &name.to_lowercase());
}

fn secret(out: &mut Findings, path: &Path, source: &SecretVolumeSource) {
    out.required_text(&path.child("secretName"), text(&source.secret_name));
    mode(out, &path.child("defaultMode"), source.default_mode);
    user(out, &path.child("defaultUser"), source.default_user);
    for (position, item) in list(&source.items).iter().enumerate() {
        key_to_path(out, &path.child("items").index(position), item);
    }
}

fn config_map(out: &mut Findings, path: &Path, source: &ConfigMapVolumeSource) {
    out.required_text(&path.child("name"), &source.name);
    mode(out, &path.child("defaultMode"), source.default_mode);
    user(out, &path.child("defaultUser"), source.default_user);
    for (position, item) in list(&source.items).iter().enumerate() {
        key_to_path(out, &path.child("items").index(position), item);
    }
}

pub(super) fn key_to_path(out: &mut Findings, path: &Path, item: &KeyToPath) {
    out.required_text(&path.child("key"), &item.key);
    out.required_text(&path.child("path"), &item.path);
    local(out, &path.child("path"), &item.path);
    mode(out, &path.child("mode"), item.mode);
    user(out, &path.child("user"), item.user);
}
