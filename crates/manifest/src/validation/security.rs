//! Rules for security contexts, of pods and of containers, and for the annotations with the same meaning.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_model::names::{is_ipc_sysctl, is_sysctl_name, normalize_sysctl};
use rubelet_model::pod::APP_ARMOR_ANNOTATION_PREFIX;

use super::metadata::{SECCOMP_CONTAINER, SECCOMP_POD};
use super::paths::{descending, user};
use super::{Options, each_container, windows};
use crate::fields::{flag, list};
use crate::problem::{Findings, Path};

const MAX_APPARMOR_PROFILE: usize = 4095;
const PROFILE_TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];

pub(super) fn container_context(out: &mut Findings, path: &Path, context: &SecurityContext, spec: &PodSpec) {
    user(out, &path.child("runAsUser"), context.run_as_user);
    user(out, &path.child("runAsGroup"), context.run_as_group);
    if let Some(mount) = &context.proc_mount {
        out.one_of(&path.child("procMount"), mount, &["Default", "Unmasked"]);
        if mount == "Unmasked" && spec.host_users.unwrap_or(true) {
            out.invalid(&path.child("procMount"), "Unmasked needs hostUsers false");
        }
    }
    seccomp(
        out,
        &path.child("seccompProfile"),
        context.seccomp_profile.as_ref(),
    );
    if context.allow_privilege_escalation == Some(false) {
        out.invalid_unless(
            !flag(context.privileged),
            path,
            "privileged needs allowPrivilegeEscalation",
        );
        let added = context
            .capabilities
            .as_ref()
            .map(|capabilities| list(&capabilities.add));
        let is_admin = added
            .unwrap_or_default()
            .iter()
            .any(|capability| capability == "CAP_SYS_ADMIN");
        out.invalid_unless(!is_admin, path, "CAP_SYS_ADMIN needs allowPrivilegeEscalation");
    }
    windows::options(
        out,
        &path.child("windowsOptions"),
        context.windows_options.as_ref(),
    );
    apparmor(
        out,
        &path.child("appArmorProfile"),
        context.app_armor_profile.as_ref(),
    );
}

pub(super) fn pod_context(
    out: &mut Findings,
    path: &Path,
    context: &PodSecurityContext,
    spec: &PodSpec,
    options: &Options,
) {
    user(out, &path.child("fsGroup"), context.fs_group);
    user(out, &path.child("runAsUser"), context.run_as_user);
    user(out, &path.child("runAsGroup"), context.run_as_group);
    for (position, group) in list(&context.supplemental_groups).iter().enumerate() {
        user(
            out,
            &path.child("supplementalGroups").index(position),
            Some(*group),
        );
    }
    sysctls(out, &path.child("sysctls"), context, spec);
    if let Some(policy) = &context.fs_group_change_policy {
        out.one_of(
            &path.child("fsGroupChangePolicy"),
            policy,
            &["Always", "OnRootMismatch"],
        );
    }
    seccomp(
        out,
        &path.child("seccompProfile"),
        context.seccomp_profile.as_ref(),
    );
    windows::options(
        out,
        &path.child("windowsOptions"),
        context.windows_options.as_ref(),
    );
    apparmor(
        out,
        &path.child("appArmorProfile"),
        context.app_armor_profile.as_ref(),
    );
    if let Some(policy) = &context.supplemental_groups_policy {
        out.one_of(
            &path.child("supplementalGroupsPolicy"),
            policy,
            &["Merge", "Strict"],
        );
    }
    if let Some(policy) = &context.se_linux_change_policy {
        let allowed: &[&str] = if options.selinux_mount {
            &["MountOption", "Recursive"]
        } else {
            &["Recursive"]
        };
        out.one_of(&path.child("seLinuxChangePolicy"), policy, allowed);
    }
}

fn sysctls(out: &mut Findings, path: &Path, context: &PodSecurityContext, spec: &PodSpec) {
    let mut names = BTreeSet::new();
    for (position, sysctl) in list(&context.sysctls).iter().enumerate() {
        let path = path.index(position).child("name");
        if sysctl.name.is_empty() {
            out.required(&path, "");
        } else if !is_sysctl_name(&sysctl.name) {
            out.invalid(&path, "not a sysctl's name");
        } else if names.contains(&sysctl.name) {
            out.duplicate(&path);
        }
        let name = normalize_sysctl(&sysctl.name);
        let name = name.split('*').next().unwrap_or_default();
        let is_ipc = is_ipc_sysctl(name);
        if flag(spec.host_network) && name.starts_with("net.") {
            out.invalid(&path, "not with hostNetwork");
        } else if flag(spec.host_ipc) && is_ipc {
            out.invalid(&path, "not with hostIPC");
        }
        names.insert(&sysctl.name);
    }
}

fn seccomp(out: &mut Findings, path: &Path, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    out.required_one_of(&path.child("type"), &profile.type_, PROFILE_TYPES);
    let path = path.child("localhostProfile");
    match (&profile.localhost_profile, profile.type_ == "Localhost") {
        (None, true) => out.required(&path, ""),
        (Some(file), true) => descending(out, &path, file),
        (Some(_), false) => out.invalid(&path, "needs type Localhost"),
        (None, false) => {}
    }
}

fn apparmor(out: &mut Findings, path: &Path, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    out.required_one_of(&path.child("type"), &profile.type_, PROFILE_TYPES);
    let path = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => out.required(&path, ""),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                out.invalid(&path, "has spaces around it");
            } else if name.is_empty() {
                out.required(&path, "");
            }
            if name.len() > MAX_APPARMOR_PROFILE {
                out.too_long(&path, MAX_APPARMOR_PROFILE);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(_)) => out.invalid(&path, "needs type Localhost"),
        (_, _) => {}
    }
}

/// A seccomp profile as annotations name it.
pub(super) fn annotation_profile(out: &mut Findings, path: &Path, profile: &str) {
    if let Some(file) = profile.strip_prefix("localhost/") {
        return descending(out, path, file);
    }
    let fits = ["runtime/default", "docker/default", "unconfined"].contains(&profile);
    out.invalid_unless(fits, path, "not a seccomp profile");
}

/// Annotations and fields with the same meaning must agree.
pub(super) fn annotations_match(out: &mut Findings, spec_path: &Path, meta: &ObjectMeta, spec: &PodSpec) {
    let none = BTreeMap::new();
    let annotations = meta.annotations.as_ref().unwrap_or(&none);
    let context = spec.security_context.as_ref();
    if let (Some(profile), Some(annotation)) = (
        context.and_then(|context| context.seccomp_profile.as_ref()),
        annotations.get(SECCOMP_POD),
    ) {
        let path = spec_path.child("securityContext").child("seccompProfile");
        let defaults = ["runtime/default", "docker/default"];
        agree(
            out,
            &path,
            annotation,
            &profile.type_,
            profile.localhost_profile.as_ref(),
            &defaults,
        );
    }
    let is_windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    each_container(spec, spec_path, |container, path| {
        let own = container.security_context.as_ref();
        let path = path.child("securityContext");
        if let (Some(profile), Some(annotation)) = (
            own.and_then(|own| own.seccomp_profile.as_ref()),
            annotations.get(&format!("{SECCOMP_CONTAINER}{}", container.name)),
        ) {
            let defaults = ["runtime/default", "docker/default"];
            let path = path.child("seccompProfile");
            agree(
                out,
                &path,
                annotation,
                &profile.type_,
                profile.localhost_profile.as_ref(),
                &defaults,
            );
        }
        let inherited = context.and_then(|context| context.app_armor_profile.as_ref());
        let profile = own.and_then(|own| own.app_armor_profile.as_ref()).or(inherited);
        let annotation = annotations.get(&format!("{APP_ARMOR_ANNOTATION_PREFIX}{}", container.name));
        if let (Some(profile), Some(annotation), false) = (profile, annotation, is_windows) {
            let path = path.child("appArmorProfile");
            let defaults = ["runtime/default"];
            agree(
                out,
                &path,
                annotation,
                &profile.type_,
                profile.localhost_profile.as_ref(),
                &defaults,
            );
        }
    });
}

fn agree(
    out: &mut Findings,
    path: &Path,
    annotation: &str,
    kind: &str,
    file: Option<&String>,
    defaults: &[&str],
) {
    let fits = match kind {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => defaults.contains(&annotation),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            None => false,
            Some(named) => {
                if file.is_none_or(|file| file != named) {
                    out.forbidden(&path.child("localhostProfile"), "differs from the annotation");
                }
                true
            }
        },
        _ => true,
    };
    if !fits {
        out.forbidden(&path.child("type"), "differs from the annotation");
    }
}

/// Whether a pod shares more with the host than user namespaces allow.
pub(super) fn host_users(out: &mut Findings, path: &Path, spec: &PodSpec, options: &Options) {
    if spec.host_users.unwrap_or(true) {
        return;
    }
    let why = "not when hostUsers is false";
    if flag(spec.host_network) && !options.user_namespaces_host_network {
        out.forbidden(&path.child("hostNetwork"), why);
    }
    if flag(spec.host_pid) {
        out.forbidden(&path.child("HostPID"), why);
    }
    if flag(spec.host_ipc) {
        out.forbidden(&path.child("HostIPC"), why);
    }
    each_container(spec, path, |container, path| {
        if !list(&container.volume_devices).is_empty() {
            out.forbidden(&path.child("volumeDevices"), why);
        }
    });
}
