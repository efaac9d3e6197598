//! Rules for network and cloud disks, in the order in which sources are looked at.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, FCVolumeSource, FlockerVolumeSource, ISCSIVolumeSource, QuobyteVolumeSource,
    Volume,
};

use super::names::dns_label;
use super::paths::descending;
use super::volumes::OneSource;
use crate::fields::{flag, list, text};
use crate::problem::{Findings, Path};

const MAX_LUN: i32 = 255;
const MAX_INITIATOR: usize = 64;
const MAX_TENANT: usize = 64;

pub(super) fn before_secret(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("gitRepo", &volume.git_repo, |out, path, source| {
        out.required_text(&path.child("repository"), &source.repository);
        descending(out, &path.child("directory"), text(&source.directory));
    });
    let disk = &volume.gce_persistent_disk;
    one.check_named(
        "gcePersistentDisk",
        "persistentDisk",
        disk,
        |out, path, source| {
            out.required_text(&path.child("pdName"), &source.pd_name);
            partition(out, path, source.partition);
        },
    );
    one.check(
        "awsElasticBlockStore",
        &volume.aws_elastic_block_store,
        |out, path, source| {
            out.required_text(&path.child("volumeID"), &source.volume_id);
            partition(out, path, source.partition);
        },
    );
}

fn partition(out: &mut Findings, path: &Path, partition: Option<i32>) {
    let fits = (0..=255).contains(&partition.unwrap_or_default());
    out.invalid_unless(fits, &path.child("partition"), "must be between 0 and 255");
}

pub(super) fn before_claim(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("nfs", &volume.nfs, |out, path, source| {
        out.required_text(&path.child("server"), &source.server);
        out.required_text(&path.child("path"), &source.path);
        out.invalid_unless(
            source.path.starts_with('/'),
            &path.child("path"),
            "must be absolute",
        );
    });
    one.check("iscsi", &volume.iscsi, iscsi);
    if let Some(source) = &volume.iscsi {
        let length = volume.name.len() + 1 + source.target_portal.len();
        if source.initiator_name.is_some() && length > MAX_INITIATOR {
            one.out.invalid(
                &one.path.child("name"),
                "too long together with the target portal",
            );
        }
    }
    one.check("glusterfs", &volume.glusterfs, |out, path, source| {
        out.required_text(&path.child("endpoints"), &source.endpoints);
        out.required_text(&path.child("path"), &source.path);
    });
    one.check("flocker", &volume.flocker, flocker);
}

fn iscsi(out: &mut Findings, path: &Path, source: &ISCSIVolumeSource) {
    out.required_text(&path.child("targetPortal"), &source.target_portal);
    if source.iqn.is_empty() {
        out.required(&path.child("iqn"), "");
    } else {
        out.invalid_unless(
            is_initiator(&source.iqn),
            &path.child("iqn"),
            "not an iqn, eui or naa name",
        );
    }
    out.invalid_unless(
        (0..=MAX_LUN).contains(&source.lun),
        &path.child("lun"),
        "must be between 0 and 255",
    );
    let uses_chap = flag(source.chap_auth_discovery) || flag(source.chap_auth_session);
    if uses_chap && source.secret_ref.is_none() {
        out.required(&path.child("secretRef"), "");
    }
    if let Some(initiator) = &source.initiator_name {
        out.invalid_unless(
            is_initiator(initiator),
            &path.child("initiatorname"),
            "not an iqn, eui or naa name",
        );
    }
}

fn is_initiator(name: &str) -> bool {
    let fixed = |length: usize| {
        let mut letters = name.chars().skip(3);
        letters.next().is_some_and(|any| any != '\n')
            && letters.clone().count() == length
            && letters.all(|letter| letter.is_ascii_alphanumeric())
    };
    match name.get(..3) {
        Some("iqn") => name
            .match_indices("iqn.")
            .any(|(start, word)| is_iqn_rest(&name[start + word.len()..])),
        Some("eui") => fixed(16),
        Some("naa") => fixed(32),
        Some(_) | None => false,
    }
}

/// `2001-04.com.example:storage`
fn is_iqn_rest(rest: &str) -> bool {
    let Some((date, rest)) = rest.split_at_checked(8) else {
        return false;
    };
    let digits = |range: std::ops::Range<usize>| date.as_bytes()[range].iter().all(u8::is_ascii_digit);
    let Some((authority, unique)) = rest.split_once(':') else {
        return false;
    };
    digits(0..4)
        && date.as_bytes()[4] == b'-'
        && digits(5..7)
        && date.as_bytes()[7] == b'.'
        && !authority.is_empty()
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        && !unique.is_empty()
        && !unique.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\x0c'])
}

fn flocker(out: &mut Findings, path: &Path, source: &FlockerVolumeSource) {
    let (name, uuid) = (text(&source.dataset_name), text(&source.dataset_uuid));
    if name.is_empty() && uuid.is_empty() {
        out.required(path, "needs datasetName or datasetUUID");
    }
    if !name.is_empty() && !uuid.is_empty() {
        out.invalid(path, "datasetName and datasetUUID exclude each other");
    }
    out.invalid_unless(
        !name.contains('/'),
        &path.child("datasetName"),
        "must not contain '/'",
    );
}

pub(super) fn before_downward(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("rbd", &volume.rbd, |out, path, source| {
        if source.monitors.is_empty() {
            out.required(&path.child("monitors"), "");
        }
        out.required_text(&path.child("image"), &source.image);
    });
    one.check("cinder", &volume.cinder, |out, path, source| {
        out.required_text(&path.child("volumeID"), &source.volume_id);
        if let Some(secret) = &source.secret_ref {
            out.required_text(&path.child("secretRef").child("name"), &secret.name);
        }
    });
    one.check_named("cephFS", "cephfs", &volume.cephfs, |out, path, source| {
        if source.monitors.is_empty() {
            out.required(&path.child("monitors"), "");
        }
    });
    one.check("quobyte", &volume.quobyte, quobyte);
}

fn quobyte(out: &mut Findings, path: &Path, source: &QuobyteVolumeSource) {
    if source.registry.is_empty() {
        out.required(&path.child("registry"), "");
    } else if text(&source.tenant).len() > MAX_TENANT {
        out.required(&path.child("tenant"), "at most 64 letters");
    } else {
        let fits = source.registry.split(',').all(has_host_and_port);
        out.invalid_unless(
            fits,
            &path.child("registry"),
            "must be host:port, or several with commas",
        );
    }
    out.required_text(&path.child("volume"), &source.volume);
}

fn has_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else {
        return false;
    };
    match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .is_some_and(|address| !address.contains(['[', ']']) && !port.contains(['[', ']'])),
        None => !host.contains([':', '[', ']']) && !port.contains(['[', ']']),
    }
}

pub(super) fn before_config_map(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("fc", &volume.fc, fibre_channel);
    one.check("flexVolume", &volume.flex_volume, |out, path, source| {
        out.required_text(&path.child("driver"), &source.driver);
        for key in source.options.iter().flatten().map(|(key, _)| key) {
            let namespace = key.split('/').next().unwrap_or_default().to_lowercase();
            let reserved = ["kubernetes.io", "k8s.io"]
                .iter()
                .any(|domain| namespace == *domain || namespace.ends_with(&format!(".{domain}")));
            out.invalid_unless(
                !reserved,
                &path.child("options").key(key),
                "this namespace is reserved",
            );
        }
    });
}

fn fibre_channel(out: &mut Findings, path: &Path, source: &FCVolumeSource) {
    let (targets, ids) = (list(&source.target_wwns), list(&source.wwids));
    if targets.is_empty() && ids.is_empty() {
        out.required(&path.child("targetWWNs"), "needs targetWWNs or wwids");
    }
    if !targets.is_empty() {
        out.invalid_unless(
            ids.is_empty(),
            &path.child("targetWWNs"),
            "targetWWNs and wwids exclude each other",
        );
        match source.lun {
            None => out.required(&path.child("lun"), ""),
            Some(lun) => {
                out.invalid_unless(
                    (0..=MAX_LUN).contains(&lun),
                    &path.child("lun"),
                    "must be between 0 and 255",
                );
            }
        }
    }
}

pub(super) fn before_projected(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("azureFile", &volume.azure_file, |out, path, source| {
        out.required_text(&path.child("secretName"), &source.secret_name);
        out.required_text(&path.child("shareName"), &source.share_name);
    });
    one.check("vsphereVolume", &volume.vsphere_volume, |out, path, source| {
        out.required_text(&path.child("volumePath"), &source.volume_path);
    });
    one.check(
        "photonPersistentDisk",
        &volume.photon_persistent_disk,
        |out, path, source| {
            out.required_text(&path.child("pdID"), &source.pd_id);
        },
    );
    one.check("portworxVolume", &volume.portworx_volume, |out, path, source| {
        out.required_text(&path.child("volumeID"), &source.volume_id);
    });
    one.check("azureDisk", &volume.azure_disk, azure_disk);
    one.check("storageos", &volume.storageos, |out, path, source| {
        let name = text(&source.volume_name);
        if name.is_empty() {
            out.required(&path.child("volumeName"), "");
        } else {
            dns_label(out, &path.child("volumeName"), name);
        }
        let namespace = text(&source.volume_namespace);
        if !namespace.is_empty() {
            dns_label(out, &path.child("volumeNamespace"), namespace);
        }
        if let Some(secret) = &source.secret_ref {
            out.required_text(&path.child("secretRef").child("name"), &secret.name);
        }
    });
}

fn azure_disk(out: &mut Findings, path: &Path, source: &AzureDiskVolumeSource) {
    out.required_text(&path.child("diskName"), &source.disk_name);
    out.required_text(&path.child("diskURI"), &source.disk_uri);
    if let Some(mode) = &source.caching_mode {
        out.one_of(
            &path.child("cachingMode"),
            mode,
            &["None", "ReadOnly", "ReadWrite"],
        );
    }
    if let Some(kind) = &source.kind {
        out.one_of(&path.child("kind"), kind, &["Dedicated", "Managed", "Shared"]);
        let prefix = if kind == "Managed" {
            "/subscriptions/"
        } else {
            "https://"
        };
        if !source.disk_uri.starts_with(prefix) {
            out.not_supported(&path.child("diskURI"), &[prefix]);
        }
    }
}

pub(super) fn before_csi(one: &mut OneSource<'_>, volume: &Volume) {
    one.check("scaleIO", &volume.scale_io, |out, path, source| {
        out.required_text(&path.child("gateway"), &source.gateway);
        out.required_text(&path.child("system"), &source.system);
        out.required_text(&path.child("volumeName"), text(&source.volume_name));
    });
}
