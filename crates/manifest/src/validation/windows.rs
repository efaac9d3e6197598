//! Rules for Windows options and for the fields that a pod of the other operating system must not set.

use k8s_openapi::api::core::v1::{PodSpec, WindowsSecurityContextOptions};

use super::each_container;
use super::names::dns_subdomain;
use crate::fields::{flag, list};
use crate::problem::{Findings, Path};

const MAX_CREDENTIAL_SPEC: usize = 64 << 10;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;

pub(super) fn options(out: &mut Findings, path: &Path, options: Option<&WindowsSecurityContextOptions>) {
    let Some(options) = options else { return };
    if let Some(name) = &options.gmsa_credential_spec_name {
        dns_subdomain(out, &path.child("gmsaCredentialSpecName"), name);
    }
    if let Some(spec) = &options.gmsa_credential_spec {
        let fits = !spec.is_empty() && spec.len() <= MAX_CREDENTIAL_SPEC;
        out.invalid_unless(
            fits,
            &path.child("gmsaCredentialSpec"),
            "must not be empty, at most 64 KiB",
        );
    }
    if let Some(name) = &options.run_as_user_name {
        out.invalid_unless(
            is_user_name(name),
            &path.child("runAsUserName"),
            "not a Windows user's name",
        );
    }
}

fn is_user_name(name: &str) -> bool {
    if name.is_empty() || name.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return false;
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts[..] {
        [user] => (None, user),
        [domain, user] => (Some(domain), user),
        _ => return false,
    };
    let domain_fits =
        domain.is_none_or(|domain| domain.len() < MAX_DOMAIN && (is_netbios(domain) || is_dns(domain)));
    domain_fits
        && !user.is_empty()
        && user.len() <= MAX_USER
        && !user.chars().all(|letter| letter == '.' || letter == ' ')
        && !user.contains([
            '"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']',
        ])
}

fn is_netbios(domain: &str) -> bool {
    let bad = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    let length = domain.chars().count();
    (1..=15).contains(&length) && !domain.starts_with('.') && !domain.contains(bad)
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        bytes.len() <= 63
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    })
}

pub(super) fn host_process(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.windows_options.as_ref())
        .and_then(|options| options.host_process);
    let (mut containers, mut host_processes) = (0, 0);
    each_container(spec, path, |container, path| {
        containers += 1;
        let own = container
            .security_context
            .as_ref()
            .and_then(|context| context.windows_options.as_ref())
            .and_then(|options| options.host_process);
        if own.is_some() && of_pod.is_some() && own != of_pod {
            let path = path
                .child("securityContext")
                .child("windowsOptions")
                .child("hostProcess");
            out.invalid(&path, "differs from the pod's");
        }
        host_processes += usize::from(own.or(of_pod) == Some(true));
    });
    if host_processes > 0 {
        out.invalid_unless(
            host_processes == containers,
            path,
            "all containers are host processes, or none",
        );
        out.invalid_unless(
            flag(spec.host_network),
            &path.child("hostNetwork"),
            "host processes need it",
        );
    }
}

/// Fields of the other operating system.
pub(super) fn other_system(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => out.required(&path.child("os").child("name"), ""),
        "linux" => linux(out, path, spec),
        "windows" => windows(out, path, spec),
        _ => out.not_supported(&path.child("os"), &["linux", "windows"]),
    }
}

fn linux(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let why = "not for a Linux pod";
    if spec
        .security_context
        .as_ref()
        .is_some_and(|context| context.windows_options.is_some())
    {
        out.forbidden(&path.child("securityContext").child("windowsOptions"), why);
    }
    each_container(spec, path, |container, path| {
        if container
            .security_context
            .as_ref()
            .is_some_and(|context| context.windows_options.is_some())
        {
            out.forbidden(&path.child("securityContext").child("windowsOptions"), why);
        }
    });
}

fn windows(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let mut forbid = |path: Path, is_set: bool| {
        if is_set {
            out.forbidden(&path, "not for a Windows pod");
        }
    };
    if let Some(context) = &spec.security_context {
        let path = path.child("securityContext");
        forbid(path.child("appArmorProfile"), context.app_armor_profile.is_some());
        forbid(path.child("seLinuxOptions"), context.se_linux_options.is_some());
        forbid(path.child("seccompProfile"), context.seccomp_profile.is_some());
        forbid(path.child("fsGroup"), context.fs_group.is_some());
        forbid(
            path.child("fsGroupChangePolicy"),
            context.fs_group_change_policy.is_some(),
        );
        forbid(path.child("sysctls"), !list(&context.sysctls).is_empty());
        forbid(path.child("runAsUser"), context.run_as_user.is_some());
        forbid(path.child("runAsGroup"), context.run_as_group.is_some());
        forbid(
            path.child("supplementalGroups"),
            context.supplemental_groups.is_some(),
        );
        forbid(
            path.child("supplementalGroupsPolicy"),
            context.supplemental_groups_policy.is_some(),
        );
        forbid(
            path.child("seLinuxChangePolicy"),
            context.se_linux_change_policy.is_some(),
        );
    }
    forbid(path.child("hostUsers"), spec.host_users.is_some());
    forbid(path.child("hostPID"), flag(spec.host_pid));
    forbid(path.child("hostIPC"), flag(spec.host_ipc));
    forbid(
        path.child("shareProcessNamespace"),
        spec.share_process_namespace.is_some(),
    );
    each_container(spec, path, |container, path| {
        let Some(context) = &container.security_context else {
            return;
        };
        let path = path.child("securityContext");
        forbid(path.child("appArmorProfile"), context.app_armor_profile.is_some());
        forbid(path.child("seLinuxOptions"), context.se_linux_options.is_some());
        forbid(path.child("seccompProfile"), context.seccomp_profile.is_some());
        forbid(path.child("capabilities"), context.capabilities.is_some());
        forbid(
            path.child("readOnlyRootFilesystem"),
            context.read_only_root_filesystem.is_some(),
        );
        forbid(path.child("privileged"), context.privileged.is_some());
        forbid(
            path.child("allowPrivilegeEscalation"),
            context.allow_privilege_escalation.is_some(),
        );
        forbid(path.child("procMount"), context.proc_mount.is_some());
        forbid(path.child("runAsUser"), context.run_as_user.is_some());
        forbid(path.child("runAsGroup"), context.run_as_group.is_some());
    });
}
