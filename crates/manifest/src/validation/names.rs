//! Syntax of the names that pod fields hold, beyond those that `model` knows.

use rubelet_model::names::{is_dns_label, is_dns_subdomain, is_qualified_name};

use crate::problem::{Findings, Path};

const MAX_SUBDOMAIN: usize = 253;
/// What file systems allow.
const MAX_SEGMENT_BYTES: usize = 255;

pub(super) fn dns_label(out: &mut Findings, path: &Path, value: &str) {
    out.invalid_unless(
        is_dns_label(value),
        path,
        "not a DNS label (a-z, 0-9, hyphens inside, at most 63)",
    );
}

pub(super) fn dns_subdomain(out: &mut Findings, path: &Path, value: &str) {
    out.invalid_unless(
        is_dns_subdomain(value),
        path,
        "not a DNS name (lower case, at most 253)",
    );
}

pub(super) fn qualified_name(out: &mut Findings, path: &Path, value: &str) {
    out.invalid_unless(
        is_qualified_name(value),
        path,
        "not a name with an optional domain before a slash",
    );
}

/// The beginning of a DNS name, to which letters are added: as upstream, its last letter may be a hyphen after any ASCII letter.
pub(super) fn is_name_prefix(text: &str) -> bool {
    match text
        .strip_suffix('-')
        .and_then(|rest| rest.split_at_checked(rest.len().checked_sub(1)?))
    {
        Some((start, last)) if last.is_ascii() => is_dns_subdomain(&format!("{start}a")),
        Some(_) | None => is_dns_subdomain(text),
    }
}

/// What can be the name of a directory, by upstream's rule for names in paths. `%` would be read as an escape.
pub(crate) fn is_path_segment(text: &str) -> bool {
    let fits = (1..=MAX_SEGMENT_BYTES).contains(&text.len());
    fits && !matches!(text, "." | "..") && !text.contains(['/', '%', '\0'])
}

/// Labels of DNS names where underscores are allowed too, and one may lead.
pub(super) fn is_search_domain(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_SUBDOMAIN
        && text.split('.').all(|label| {
            let label = label.strip_prefix('_').unwrap_or(label).as_bytes();
            match (label.first(), label.last()) {
                (Some(first), Some(last)) => {
                    edge(*first)
                        && edge(*last)
                        && label.iter().all(|byte| edge(*byte) || b"-_".contains(byte))
                }
                (None, _) | (_, None) => false,
            }
        })
}

pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.contains("--")
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn leaves_directory(text: &str) -> bool {
    text == "." || text.starts_with("..")
}

pub(super) fn is_env_name(text: &str) -> bool {
    let first = |byte: u8| byte.is_ascii_alphabetic() || b"-._".contains(&byte);
    text.bytes().next().is_some_and(first)
        && text.bytes().all(|byte| first(byte) || byte.is_ascii_digit())
        && !leaves_directory(text)
}

/// Any printable ASCII but the equals sign.
pub(super) fn is_relaxed_env_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

pub(super) fn is_config_key(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_SUBDOMAIN
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        && !leaves_directory(text)
}

pub(super) fn is_header_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// `example.com/signer-name`
pub(super) fn signer_name(out: &mut Findings, path: &Path, value: &str) {
    if value.is_empty() {
        return out.required(path, "");
    }
    let segments: Vec<&str> = value.split('/').collect();
    let [domain, name] = segments[..] else {
        return out.invalid(path, "not a domain and a name with one slash between");
    };
    if domain.len() > MAX_SUBDOMAIN {
        out.too_long(path, MAX_SUBDOMAIN);
    }
    let labels = domain.split('.');
    out.invalid_unless(
        labels.clone().all(is_dns_label),
        path,
        "the domain is no DNS name",
    );
    out.invalid_unless(labels.count() >= 2, path, "the domain needs two parts");
    out.invalid_unless(
        name.split('.').all(is_dns_subdomain),
        path,
        "the name is no DNS name",
    );
    let limit = 2 * MAX_SUBDOMAIN + 63 + 2;
    if value.len() > limit {
        out.too_long(path, limit);
    }
}

pub(super) fn is_bundle_name(name: &str) -> bool {
    match name.rsplit_once(':') {
        // The part before the last colon is the signer, with colons for slashes.
        Some((_, rest)) => is_dns_subdomain(rest),
        None => is_dns_subdomain(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_names() {
        let check = |text: &str, expected: bool| assert_eq!(is_name_prefix(text), expected, "{text:?}");
        check("web", true);
        check("web-", true);
        check("w-", true);
        check("web--", true);
        check("-", false);
        check("--", true);
        check("", false);
        check("Web-", false);
        // Letters of more than one byte.
        check("é-", false);
        check("wé-", false);
        check("é", false);
        check("𝄞-", false);
    }

    #[test]
    fn names_of_directories() {
        let check = |text: &str, expected: bool| assert_eq!(is_path_segment(text), expected, "{text:?}");
        check("0f1c9a3e-7d21-4b7e-9e0c-0a1b2c3d4e5f", true);
        check("..a", true);
        check("é", true);
        check("", false);
        check(".", false);
        check("..", false);
        check("/", false);
        check("/etc", false);
        check("a/b", false);
        check("../a", false);
        check("a%2fb", false);
        check("a\0b", false);
        check(&"a".repeat(255), true);
        check(&"a".repeat(256), false);
    }
}
