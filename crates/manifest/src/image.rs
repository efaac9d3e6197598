//! The default pull policy of an image reference: `Always` only for a reference that means `latest`.

use rubelet_model::names::is_image_name;

const DEFAULT_DOMAIN: &str = "docker.io";
const MAX_TAG_LENGTH: usize = 128;

/// The policy of a container that has none.
pub fn default_pull_policy(image: &str) -> &'static str {
    if tag(image).as_deref() == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

/// The tag, `latest` when neither tag nor digest is there; `None` for a digest alone and for what is no reference.
fn tag(image: &str) -> Option<String> {
    if image.len() == 64
        && image
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if remote.chars().any(char::is_uppercase) {
        return None;
    }
    let (named, digest) = match remainder.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (remainder.as_str(), None),
    };
    let (name, tag) = match named.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (named, None),
    };
    let fits =
        is_image_name(&format!("{domain}/{name}")) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    if !fits {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, None) => Some("latest".to_owned()),
        (None, Some(_)) => None,
    }
}

fn split_domain(image: &str) -> (String, String) {
    let (domain, remainder) = match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            let domain = if first == "index.docker.io" {
                DEFAULT_DOMAIN
            } else {
                first
            };
            (domain, rest)
        }
        Some(_) | None => (DEFAULT_DOMAIN, image),
    };
    if domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        return (domain.to_owned(), format!("library/{remainder}"));
    }
    (domain.to_owned(), remainder.to_owned())
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG_LENGTH
        && tag.bytes().next().is_some_and(is_word)
        && tag
            .bytes()
            .all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == length && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_is_pulled_always() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("registry.io:5000/a/b", "Always"),
            ("localhost/x", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("registry.io:5000/a/b:v1", "IfNotPresent"),
            ("Nginx", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("a b", "IfNotPresent"),
            ("nginx:la/test", "IfNotPresent"),
            (&format!("nginx@{digest}"), "IfNotPresent"),
            (&format!("nginx:latest@{digest}"), "Always"),
            ("nginx:latest@sha256:12", "IfNotPresent"),
            (&"a".repeat(64), "IfNotPresent"),
        ] {
            assert_eq!(default_pull_policy(image), expected, "{image:?}");
        }
    }
}
