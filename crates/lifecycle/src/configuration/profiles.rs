//! Seccomp and AppArmor profiles of containers.
//!
//! Owns which profile applies and its form in CRI messages. Admission checks whether the machine has it.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SeccompProfile};
use rubelet_model::pod::APP_ARMOR_ANNOTATION_PREFIX;
use rubelet_wire::cri::v1::SecurityProfile;
use rubelet_wire::cri::v1::security_profile::ProfileType;

use super::node::{ConfigurationError, NodeConfiguration};

const RUNTIME_DEFAULT: &str = "runtime/default";
const UNCONFINED: &str = "unconfined";
const LOCALHOST_PREFIX: &str = "localhost/";

pub(super) fn profile(kind: ProfileType, reference: impl Into<String>) -> SecurityProfile {
    SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: reference.into(),
    }
}

/// The container's profile, else the pod's, else the node's default.
pub fn seccomp(
    pod: &Pod,
    container: &Container,
    node: &NodeConfiguration,
) -> Result<SecurityProfile, ConfigurationError> {
    let own = container.security_context.as_ref();
    let pod_wide = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let wanted: Option<&SeccompProfile> = own
        .and_then(|context| context.seccomp_profile.as_ref())
        .or_else(|| pod_wide.and_then(|context| context.seccomp_profile.as_ref()));
    match wanted.map(|wanted| (wanted.type_.as_str(), wanted.localhost_profile.as_deref())) {
        None if node.seccomp_default => Ok(profile(ProfileType::RuntimeDefault, "")),
        Some(("RuntimeDefault", _)) => Ok(profile(ProfileType::RuntimeDefault, "")),
        Some(("Localhost", None | Some(""))) => Err(ConfigurationError::SeccompWithoutProfile),
        Some(("Localhost", Some(name))) => {
            let file = format!("{}/{name}", node.seccomp_root.trim_end_matches('/'));
            Ok(profile(ProfileType::Localhost, file))
        }
        None | Some(_) => Ok(profile(ProfileType::Unconfined, "")),
    }
}

/// The profile, and the same as the text that old runtimes read.
pub fn app_armor(
    pod: &Pod,
    container: &Container,
) -> Result<Option<(SecurityProfile, String)>, ConfigurationError> {
    let Some(wanted) = wanted_app_armor(pod, container) else {
        return Ok(None);
    };
    let found = match (wanted.type_.as_str(), wanted.localhost_profile) {
        ("RuntimeDefault", _) => (
            profile(ProfileType::RuntimeDefault, ""),
            RUNTIME_DEFAULT.to_owned(),
        ),
        ("Unconfined", _) => (profile(ProfileType::Unconfined, ""), UNCONFINED.to_owned()),
        ("Localhost", None) => return Err(ConfigurationError::AppArmorWithoutProfile),
        ("Localhost", Some(name)) => {
            let text = format!("{LOCALHOST_PREFIX}{name}");
            (profile(ProfileType::Localhost, name), text)
        }
        (other, _) => return Err(ConfigurationError::AppArmorType(other.to_owned())),
    };
    Ok(Some(found))
}

/// Static pods may still carry the annotation alone, which stands between the container's field and the pod's.
fn wanted_app_armor(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref();
    let own = own.and_then(|context| context.app_armor_profile.clone());
    let annotation = || {
        let key = format!("{APP_ARMOR_ANNOTATION_PREFIX}{}", container.name);
        let text = pod.metadata.annotations.as_ref()?.get(&key)?;
        let (type_, localhost_profile) = match text.as_str() {
            RUNTIME_DEFAULT => ("RuntimeDefault", None),
            UNCONFINED => ("Unconfined", None),
            text => ("Localhost", Some(text.strip_prefix(LOCALHOST_PREFIX)?.to_owned())),
        };
        Some(AppArmorProfile {
            type_: type_.to_owned(),
            localhost_profile,
        })
    };
    let pod_wide = || {
        pod.spec
            .as_ref()?
            .security_context
            .as_ref()?
            .app_armor_profile
            .clone()
    };
    own.or_else(annotation).or_else(pod_wide)
}
