//! What Kubernetes accepts as a name: DNS labels and subdomains, label keys and values, sysctl names, image names.
//!
//! Owns syntax checks that answer yes or no. The caller reports the field and words the error.

pub const MAX_DNS_LABEL_LENGTH: usize = 63;
pub const MAX_DNS_SUBDOMAIN_LENGTH: usize = 253;
pub const MAX_LABEL_LENGTH: usize = 63;
const MAX_SYSCTL_LENGTH: usize = 253;
const MAX_IMAGE_PATH_LENGTH: usize = 255;

/// Starts and ends with an `edge`, and has only `inner` between.
fn is_framed(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => edge(*first) && edge(*last) && bytes.iter().all(|byte| inner(*byte)),
        (None, _) | (_, None) => false,
    }
}

fn is_lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn has_dns_label_form(text: &str) -> bool {
    is_framed(text, is_lower_or_digit, |byte| {
        is_lower_or_digit(byte) || byte == b'-'
    })
}

/// RFC 1123 label: `my-name`.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_DNS_LABEL_LENGTH && has_dns_label_form(text)
}

/// RFC 1123 subdomain: `example.com`. The parts have no length limit of their own.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_DNS_SUBDOMAIN_LENGTH && text.split('.').all(has_dns_label_form)
}

fn is_label_name(text: &str) -> bool {
    text.len() <= MAX_LABEL_LENGTH
        && is_framed(
            text,
            |byte| byte.is_ascii_alphanumeric(),
            |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte),
        )
}

/// A label key: a name with an optional DNS subdomain before a slash.
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// A label value, which may be empty.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// A sysctl name with dots or slashes between its segments.
pub fn is_sysctl_name(text: &str) -> bool {
    let inner = |byte: u8| is_lower_or_digit(byte) || byte == b'-' || byte == b'_';
    text.len() <= MAX_SYSCTL_LENGTH
        && text
            .split(['.', '/'])
            .all(|segment| is_framed(segment, is_lower_or_digit, inner))
}

/// The sysctl with dots as separators: where the first separator is a slash, dots and slashes change places.
pub fn normalize_sysctl(text: &str) -> String {
    match text.find(['.', '/']) {
        Some(position) if text.as_bytes()[position] == b'/' => text
            .chars()
            .map(|letter| match letter {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        Some(_) | None => text.to_owned(),
    }
}

/// Whether the sysctl, with dots as separators, belongs to the IPC namespace.
pub fn is_ipc_sysctl(name: &str) -> bool {
    matches!(
        name,
        "kernel.sem"
            | "kernel.shmall"
            | "kernel.shmmax"
            | "kernel.shmmni"
            | "kernel.shm_rmid_forced"
            | "kernel.shm"
            | "kernel.msgmax"
            | "kernel.msgmnb"
            | "kernel.msgmni"
            | "kernel.msg"
    ) || name.starts_with("fs.mqueue.")
}

/// Whether each pod has its own value of the sysctl.
pub fn is_namespaced_sysctl(text: &str) -> bool {
    let name = normalize_sysctl(text);
    let name = name.split('*').next().unwrap_or_default();
    name == "kernel.domainname"
        || is_ipc_sysctl(name)
        || ["net.", "user."].iter().any(|prefix| name.starts_with(prefix))
}

/// An image name without tag and digest: an optional registry, then a path in lower case.
pub fn is_image_name(text: &str) -> bool {
    let path = match text.split_once('/') {
        Some((registry, path)) if is_registry(registry) => path,
        Some(_) | None => text,
    };
    path.len() <= MAX_IMAGE_PATH_LENGTH && path.split('/').all(is_image_path_component)
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else {
                return false;
            };
            if address.is_empty()
                || !address
                    .bytes()
                    .all(|byte| byte.is_ascii_hexdigit() || byte == b':')
            {
                return false;
            }
            ("", port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_component = |part: &str| {
        is_framed(
            part,
            |byte| byte.is_ascii_alphanumeric(),
            |byte| byte.is_ascii_alphanumeric() || byte == b'-',
        )
    };
    let host_fits = text.starts_with('[') || host.split('.').all(is_component);
    let port_fits = match port.strip_prefix(':') {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    host_fits && port_fits
}

/// Lower-case parts joined by one dot, one or two underscores, or any number of hyphens.
fn is_image_path_component(text: &str) -> bool {
    if !is_framed(text, is_lower_or_digit, |byte| {
        is_lower_or_digit(byte) || b"._-".contains(&byte)
    }) {
        return false;
    }
    text.split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        .filter(|separator| !separator.is_empty())
        .all(|separator| matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(rule: fn(&str) -> bool, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(rule(text), "{text:?} is refused");
        }
        for text in bad {
            assert!(!rule(text), "{text:?} is accepted");
        }
    }

    #[test]
    fn dns_names() {
        let (long, longer) = ("a".repeat(63), "a".repeat(64));
        check(
            is_dns_label,
            &["a", "a-b", "1", &long],
            &["", "-a", "a-", "A", "a.b", "a_b", &longer],
        );
        check(
            is_dns_subdomain,
            &["a.b", "example.com", &longer],
            &["", ".", "a..b", "a.", "A.b", "a_.b"],
        );
    }

    #[test]
    fn labels() {
        let (long, longer) = ("a".repeat(63), "a".repeat(64));
        check(
            is_qualified_name,
            &["simple", "a/b", "example.com/My.Name_1", &long],
            &["", "/a", "a/", "a/b/c", "A/b", "-a", "a b", &longer],
        );
        check(
            is_label_value,
            &["", "a", "A.b_c-d", &long],
            &["-", "a/b", ".a", &longer],
        );
    }

    #[test]
    fn sysctls() {
        check(
            is_sysctl_name,
            &[
                "a",
                "net.core.somaxconn",
                "net/ipv4/conf/eth0.100/forwarding",
                "a-b_c.d",
            ],
            &["", "a.", ".a", "a..b", "A", "a_.b", "net.*"],
        );
        check(
            is_namespaced_sysctl,
            &[
                "net.core.somaxconn",
                "net/core/x",
                "kernel.shmmax",
                "kernel/shmmax",
                "fs.mqueue.x",
                "user.max",
            ],
            &["net", "kernel.pid_max", "vm.swappiness", "kernel.shm_x"],
        );
        assert_eq!(
            normalize_sysctl("net/ipv4/conf/eth0.100/forwarding"),
            "net.ipv4.conf.eth0/100.forwarding"
        );
        assert_eq!(
            normalize_sysctl("net.ipv4.conf.eth0/100.forwarding"),
            "net.ipv4.conf.eth0/100.forwarding"
        );
    }

    #[test]
    fn image_names() {
        let long = "a".repeat(256);
        check(
            is_image_name,
            &[
                "a",
                "a/b",
                "registry.io/a",
                "registry.io:5000/a/b",
                "a.b",
                "a__b",
                "a---b",
                "localhost/x",
                "[::1]:5000/x",
                "Registry.IO/x",
                "192.168.0.1:1/x",
            ],
            &[
                "",
                "a:tag",
                "A",
                "a/",
                "/a",
                "a//b",
                "a...b",
                "a___b",
                "a@b",
                "registry.io:/a",
                "a b",
                "a.",
                "x/A",
                &long,
            ],
        );
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "\\PC{0,40}") {
            for rule in [is_dns_label, is_dns_subdomain, is_qualified_name, is_label_value, is_sysctl_name, is_namespaced_sysctl, is_image_name] {
                let _ = rule(&text);
            }
        }
    }
}
