//! Image references: parsing and the default tag.
//!
//! Owns the grammar with upstream's error messages. It must not know registries: a short name stays short.

use crate::names::is_image_name;
use thiserror::Error;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DEFAULT_DOMAIN: &str = "index.docker.io";
const DEFAULT_TAG: &str = "latest";
const MAX_TAG_LENGTH: usize = 128;
const MAX_PATH_LENGTH: usize = 255;
const MIN_DIGEST_LENGTH: usize = 32;

/// Why a text is no image reference.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReferenceError {
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    #[error("repository name must be lowercase")]
    UppercaseDomain,
    #[error("invalid reference format")]
    Format,
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    #[error("invalid checksum digest length")]
    DigestLength,
    #[error("invalid checksum digest format")]
    DigestFormat,
}

/// The reference with a tag where it has neither tag nor digest. Nothing else changes: which registry a short name means is
/// the runtime's decision.
///
/// # Errors
/// When the text is no image reference.
pub fn with_default_tag(image: &str) -> Result<String, ReferenceError> {
    if image.len() == 64 && image.bytes().all(is_lower_hex) {
        return Err(ReferenceError::Identifier(image.to_owned()));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if remote.to_lowercase() != remote {
        return Err(ReferenceError::Uppercase(remote.to_owned()));
    }
    let Some(parts) = Parts::find(&domain, &remainder) else {
        let in_lowercase = remainder.to_lowercase();
        return Err(match Parts::find(&domain.to_lowercase(), &in_lowercase) {
            Some(_) => ReferenceError::UppercaseDomain,
            None => ReferenceError::Format,
        });
    };
    if parts.path.len() > MAX_PATH_LENGTH {
        return Err(ReferenceError::TooLong);
    }
    if let Some(digest) = parts.digest {
        check_digest(digest)?;
    }
    Ok(match (parts.tag, parts.digest) {
        (None, None) => format!("{image}:{DEFAULT_TAG}"),
        (Some(_), _) | (None, Some(_)) => image.to_owned(),
    })
}

/// The repository with its registry, written out: what credentials are looked up by.
#[must_use]
pub fn repository(image: &str) -> String {
    let (domain, remainder) = split_domain(image);
    format!("{domain}/{}", without_tag(&remainder))
}

/// The reference without tag and digest, and otherwise as it was written.
#[must_use]
pub fn without_tag(image: &str) -> &str {
    let named = image.split_once('@').map_or(image, |(named, _)| named);
    let path_start = named.rfind('/').map_or(0, |slash| slash + 1);
    match named[path_start..].find(':') {
        Some(colon) => &named[..path_start + colon],
        None => named,
    }
}

/// Whether the reference means the tag `latest`, by name or because it has neither tag nor digest. A text that is no reference does not.
#[must_use]
pub fn is_latest(image: &str) -> bool {
    with_default_tag(image).is_ok_and(|full| {
        let named = full.split_once('@').map_or(full.as_str(), |(named, _)| named);
        named
            .strip_suffix(DEFAULT_TAG)
            .is_some_and(|rest| rest.ends_with(':'))
    })
}

/// What a reference consists of, as far as its letters fit.
struct Parts<'r> {
    path: &'r str,
    tag: Option<&'r str>,
    digest: Option<&'r str>,
}

impl<'r> Parts<'r> {
    fn find(domain: &str, remainder: &'r str) -> Option<Self> {
        let (named, digest) = match remainder.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (remainder, None),
        };
        let (path, tag) = match named.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (named, None),
        };
        let fits = is_image_name(&format!("{domain}/a"))
            && path.split('/').all(is_path_component)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest_shaped);
        fits.then_some(Self { path, tag, digest })
    }
}

fn split_domain(image: &str) -> (String, String) {
    let (domain, remainder) = match image.split_once('/') {
        Some((LEGACY_DEFAULT_DOMAIN, rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest))
            if first == "localhost" || first.contains(['.', ':']) || first.to_lowercase() != first =>
        {
            (first, rest)
        }
        Some(_) | None => (DEFAULT_DOMAIN, image),
    };
    if domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        return (domain.to_owned(), format!("library/{remainder}"));
    }
    (domain.to_owned(), remainder.to_owned())
}

/// Parts of lower-case letters and digits, joined by one dot, one or two underscores, or any number of hyphens.
fn is_path_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let framed = text.bytes().next().is_some_and(is_word) && text.bytes().next_back().is_some_and(is_word);
    framed
        && text
            .split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
            .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG_LENGTH
        && tag.bytes().next().is_some_and(is_word)
        && tag
            .bytes()
            .all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest_shaped(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let is_component = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(is_component)
        && hex.len() >= MIN_DIGEST_LENGTH
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), ReferenceError> {
    let (algorithm, hex) = digest.split_once(':').ok_or(ReferenceError::DigestFormat)?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        other if other.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            return Err(ReferenceError::DigestFormat);
        }
        _ => return Err(ReferenceError::DigestAlgorithm),
    };
    if hex.len() != length {
        return Err(ReferenceError::DigestLength);
    }
    if !hex.bytes().all(is_lower_hex) {
        return Err(ReferenceError::DigestFormat);
    }
    Ok(())
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(image: &str, expected: Result<&str, &str>) {
        let found = with_default_tag(image).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{image:?}");
    }

    #[test]
    fn a_tag_is_added_only_where_nothing_says_which_image() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("busybox", "busybox:latest"),
            ("busybox:1.36", "busybox:1.36"),
            ("busybox:latest", "busybox:latest"),
            ("latest", "latest:latest"),
            ("localhost/x", "localhost/x:latest"),
            ("registry.io:5000/a/b", "registry.io:5000/a/b:latest"),
            ("registry.io:5000/a/b:v1", "registry.io:5000/a/b:v1"),
            ("Registry.IO/x", "Registry.IO/x:latest"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("a__b/c---d.e", "a__b/c---d.e:latest"),
            ("x:V1_a-b.C", "x:V1_a-b.C"),
        ] {
            check(image, Ok(expected));
        }
        for image in [
            format!("busybox@{digest}"),
            format!("busybox:1@{digest}"),
            format!("a.b:1/c@{digest}"),
        ] {
            check(&image, Ok(&image));
        }
    }

    #[test]
    fn what_is_no_reference_is_told_in_upstreams_words() {
        let identifier = "0".repeat(64);
        let words =
            format!("invalid repository name ({identifier}), cannot specify 64-byte hexadecimal strings");
        check(&identifier, Err(&words));
        check(
            "Busybox",
            Err("invalid reference format: repository name (library/Busybox) must be lowercase"),
        );
        check(
            "a.io/B/c:x",
            Err("invalid reference format: repository name (B/c) must be lowercase"),
        );
        check("A__B/c", Err("repository name must be lowercase"));
        for image in [
            "",
            " ",
            "a b",
            "a:",
            "a/",
            "/a",
            "a//b",
            "a___b",
            "a..b",
            "a:b/c",
            "a@b",
            "-a",
            "a-",
            "a:.b",
            "a@sha256:12",
        ] {
            check(image, Err("invalid reference format"));
        }
        check(&format!("a:{}", "t".repeat(129)), Err("invalid reference format"));
        let long = "a".repeat(256);
        check(
            &format!("r.io/{long}"),
            Err("repository name must not be more than 255 characters"),
        );
        check(
            &format!("a@sha256:{}", "a".repeat(63)),
            Err("invalid checksum digest length"),
        );
        check(
            &format!("a@sha256:{}", "A".repeat(64)),
            Err("invalid checksum digest format"),
        );
        check(
            &format!("a:1@SHA256:{}", "a".repeat(64)),
            Err("invalid checksum digest format"),
        );
        check(
            &format!("a@md5:{}", "a".repeat(32)),
            Err("unsupported digest algorithm"),
        );
    }

    #[test]
    fn repositories() {
        let check = |image: &str, full: &str, bare: &str| {
            assert_eq!(repository(image), full, "{image}");
            assert_eq!(without_tag(image), bare, "{image}");
        };
        let digest = format!("sha256:{}", "a".repeat(64));
        check("busybox", "docker.io/library/busybox", "busybox");
        check("busybox:1", "docker.io/library/busybox", "busybox");
        check(
            &format!("busybox:1@{digest}"),
            "docker.io/library/busybox",
            "busybox",
        );
        check("a/b:latest", "docker.io/a/b", "a/b");
        check("index.docker.io/a/b", "docker.io/a/b", "index.docker.io/a/b");
        check("r.io:5000/a/b:v1", "r.io:5000/a/b", "r.io:5000/a/b");
        check(&format!("r.io:5000/a@{digest}"), "r.io:5000/a", "r.io:5000/a");
        check("localhost/x", "localhost/x", "localhost/x");
    }

    proptest! {
        #[test]
        fn adding_the_tag_twice_changes_nothing(image in "[a-z0-9./:@_-]{0,30}|\\PC{0,30}") {
            if let Ok(tagged) = with_default_tag(&image) {
                prop_assert!(tagged.starts_with(&image));
                prop_assert_eq!(with_default_tag(&tagged), Ok(tagged.clone()));
            }
        }
    }
}
