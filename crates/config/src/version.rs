//! The version this program reports, in the forms that Kubernetes' tools read.
//!
//! Owns the text of `--version` and the rule for `--version=vX.Y.Z...`. It prints nothing.

use crate::flags::boolean;

/// The upstream version whose behaviour this program has.
pub const KUBERNETES_VERSION: &str = "v1.37.1";

/// The version reported as the kubelet's: upstream's with ours as build metadata, as other distributions do.
pub const VERSION: &str = concat!("v1.37.1+rubelet.", env!("CARGO_PKG_VERSION"));

/// What the uses of `--version` ask for together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionRequest {
    /// What to print before exiting; the last use decides.
    pub print: VersionPrint,
    /// `--version=v1.37.1-custom`: the version to report; it stays when a later use only asks to print.
    pub report: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VersionPrint {
    /// Nothing: run.
    #[default]
    Nothing,
    /// `--version`: one line.
    Short,
    /// `--version=raw`: all parts.
    Raw,
}

/// The line of `--version`; kubeadm reads it with a pattern.
#[must_use]
pub fn short(reported: &str) -> String {
    format!("Kubernetes {reported}")
}

/// The line of `--version=raw`, in the form Go prints its version structure.
#[must_use]
pub fn raw(reported: &str) -> String {
    let parts = [
        ("Major", "1"),
        ("Minor", "37"),
        ("EmulationMajor", ""),
        ("EmulationMinor", ""),
        ("MinCompatibilityMajor", ""),
        ("MinCompatibilityMinor", ""),
        ("GitVersion", reported),
        ("GitCommit", ""),
        ("GitTreeState", ""),
        ("BuildDate", "1970-01-01T00:00:00Z"),
        ("GoVersion", ""),
        ("Compiler", "rustc"),
        ("Platform", PLATFORM),
    ];
    let parts: Vec<String> = parts
        .iter()
        .map(|(name, value)| format!("{name}:{value:?}"))
        .collect();
    format!("version.Info{{{}}}", parts.join(", "))
}

#[cfg(target_arch = "x86_64")]
const PLATFORM: &str = "linux/amd64";
#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "linux/arm64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const PLATFORM: &str = "linux/unknown";

/// Reads one use of `--version`, on top of the version that an earlier use set.
pub(crate) fn request(text: &str, earlier: Option<String>) -> Result<VersionRequest, String> {
    let print = |print| {
        Ok(VersionRequest {
            print,
            report: earlier,
        })
    };
    match text {
        "raw" => print(VersionPrint::Raw),
        version if version.starts_with('v') => reported(version).map(|version| VersionRequest {
            print: VersionPrint::Nothing,
            report: Some(version),
        }),
        flag => match boolean(flag) {
            Ok(true) => print(VersionPrint::Short),
            Ok(false) => print(VersionPrint::Nothing),
            Err(_) => Err(format!(
                "must be true, false, raw or a version {KUBERNETES_VERSION}[-suffix][+suffix]"
            )),
        },
    }
}

/// A version to report must be semantic and may differ from ours only behind major, minor and patch.
fn reported(version: &str) -> Result<String, String> {
    let wrong = || format!("must be a semantic version that begins with {KUBERNETES_VERSION}");
    let suffix = version.strip_prefix(KUBERNETES_VERSION).ok_or_else(wrong)?;
    let (pre_release, build) = suffix
        .split_once('+')
        .map_or((suffix, None), |(pre, build)| (pre, Some(build)));
    let identifiers_valid = |text: &str, numbers_without_zero: bool| {
        text.split('.').all(|part| {
            let plain = !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            let padded =
                part.len() > 1 && part.starts_with('0') && part.bytes().all(|byte| byte.is_ascii_digit());
            plain && !(numbers_without_zero && padded)
        })
    };
    let pre_release_valid = match pre_release.strip_prefix('-') {
        Some(text) => identifiers_valid(text, true),
        None => pre_release.is_empty(),
    };
    let build_valid = build.is_none_or(|text| identifiers_valid(text, false));
    if pre_release_valid && build_valid {
        Ok(version.to_owned())
    } else {
        Err(wrong())
    }
}
