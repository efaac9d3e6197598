//! Rules for projected volumes: each source, and paths that would collide.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, KeyToPath, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};

use super::env::downward_file;
use super::metadata::{label_selector, user_annotations};
use super::names::{is_bundle_name, signer_name};
use super::paths::{local, mode, user};
use super::volumes::key_to_path;
use crate::fields::{list, text};
use crate::problem::{Findings, Path};

const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const MIN_CERTIFICATE_SECONDS: i32 = 3600;
const MAX_CERTIFICATE_SECONDS: i32 = 91 * 86_400;
const MAX_KUBERNETES_CERTIFICATE_SECONDS: i32 = 86_400;
const KEY_TYPES: &[&str] = &[
    "RSA3072",
    "RSA4096",
    "ECDSAP256",
    "ECDSAP384",
    "ECDSAP521",
    "ED25519",
];

struct Paths<'a> {
    volume: &'a Path,
    taken: BTreeSet<String>,
}

impl Paths<'_> {
    fn take(&mut self, out: &mut Findings, target: &str) {
        if !self.taken.insert(target.to_owned()) {
            out.invalid(self.volume, "two sources write the same path");
        }
    }
}

pub(super) fn projected(out: &mut Findings, path: &Path, volume: &ProjectedVolumeSource) {
    mode(out, &path.child("defaultMode"), volume.default_mode);
    user(out, &path.child("defaultUser"), volume.default_user);
    let mut paths = Paths {
        volume: path,
        taken: BTreeSet::new(),
    };
    for (position, source) in list(&volume.sources).iter().enumerate() {
        projection(out, &path.child("sources").index(position), source, &mut paths);
    }
}

fn projection(out: &mut Findings, path: &Path, source: &VolumeProjection, paths: &mut Paths<'_>) {
    let mut sources = 0;
    if let Some(secret) = &source.secret {
        sources += 1;
        out.required_text(&path.child("secret").child("name"), &secret.name);
        items(
            out,
            &path.child("secret").child("items"),
            list(&secret.items),
            paths,
        );
    }
    if let Some(map) = &source.config_map {
        sources += 1;
        out.required_text(&path.child("configMap").child("name"), &map.name);
        items(
            out,
            &path.child("configMap").child("items"),
            list(&map.items),
            paths,
        );
    }
    if let Some(files) = &source.downward_api {
        sources += 1;
        for file in list(&files.items) {
            downward_file(out, &path.child("downwardAPI"), file);
            if !file.path.is_empty() {
                paths.take(out, &file.path);
            }
        }
    }
    if let Some(token) = &source.service_account_token {
        sources += 1;
        service_account_token(out, &path.child("serviceAccountToken"), paths.volume, token);
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        sources += 1;
        trust_bundle(out, &path.child("clusterTrustBundle"), bundle);
        paths.take(out, &bundle.path);
    }
    if let Some(certificate) = &source.pod_certificate {
        sources += 1;
        pod_certificate(out, &path.child("podCertificate"), certificate, paths);
    }
    if sources > 1 {
        out.forbidden(path, "only one of these");
    }
}

fn items(out: &mut Findings, path: &Path, items: &[KeyToPath], paths: &mut Paths<'_>) {
    for (position, item) in items.iter().enumerate() {
        key_to_path(out, &path.index(position), item);
        if !item.path.is_empty() {
            paths.take(out, &item.path);
        }
    }
}

fn service_account_token(
    out: &mut Findings,
    path: &Path,
    volume: &Path,
    token: &ServiceAccountTokenProjection,
) {
    match token.expiration_seconds {
        None => out.required(&path.child("expirationSeconds"), ""),
        Some(seconds) => out.invalid_unless(
            (MIN_TOKEN_SECONDS..=MAX_TOKEN_SECONDS).contains(&seconds),
            &path.child("expirationSeconds"),
            "must be between ten minutes and 2^32 seconds",
        ),
    }
    if token.path.is_empty() {
        out.required(&volume.child("path"), "");
    } else {
        local(out, &volume.child("path"), &token.path);
    }
    user(out, &path.child("user"), token.user);
}

fn trust_bundle(out: &mut Findings, path: &Path, bundle: &ClusterTrustBundleProjection) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => out.invalid(path, "name and signerName exclude each other"),
        (Some(name), None) => {
            out.required_text(&path.child("name"), name);
            out.invalid_unless(is_bundle_name(name), &path.child("name"), "not a bundle's name");
            if bundle.label_selector.is_some() {
                out.invalid(&path.child("labelSelector"), "not together with a name");
            }
        }
        (None, Some(signer)) => {
            signer_name(out, &path.child("signerName"), signer);
            label_selector(out, &path.child("labelSelector"), &bundle.label_selector);
        }
        (None, None) => out.required(path, "needs name or signerName"),
    }
    out.required_text(&path.child("path"), &bundle.path);
    user(out, &path.child("user"), bundle.user);
    local(out, &path.child("path"), &bundle.path);
}

fn pod_certificate(
    out: &mut Findings,
    path: &Path,
    source: &PodCertificateProjection,
    paths: &mut Paths<'_>,
) {
    signer_name(out, &path.child("signerName"), &source.signer_name);
    if let Some(annotations) = &source.user_annotations {
        user_annotations(out, &path.child("userAnnotations"), annotations);
    }
    user(out, &path.child("user"), source.user);
    out.one_of(&path.child("keyType"), &source.key_type, KEY_TYPES);
    if let Some(seconds) = source.max_expiration_seconds {
        let host = source.signer_name.split('/').next().unwrap_or_default();
        let own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
        let limit = if own {
            MAX_KUBERNETES_CERTIFICATE_SECONDS
        } else {
            MAX_CERTIFICATE_SECONDS
        };
        out.invalid_unless(
            (MIN_CERTIFICATE_SECONDS..=limit).contains(&seconds),
            &path.child("maxExpirationSeconds"),
            "outside of what a signer may be asked for",
        );
    }
    let targets = [
        ("credentialBundlePath", text(&source.credential_bundle_path)),
        ("keyPath", text(&source.key_path)),
        ("certificateChainPath", text(&source.certificate_chain_path)),
    ];
    let given: Vec<_> = targets.iter().filter(|(_, target)| !target.is_empty()).collect();
    if given.is_empty() {
        out.required(path, "needs a path to write to");
    }
    for (name, target) in given {
        local(out, &path.child(name), target);
        paths.take(out, target);
    }
}
