//! Addresses of registries and repositories without a scheme, and which of them a pattern matches.
//!
//! Owns how such an address is taken apart, which is what Go's URL parser makes of it, and the rule: the same port, as many parts of the
//! host name, each fitting, and the pattern's path as the beginning of the other's. It knows no credentials.

use percent_encoding::percent_decode_str;

/// `host:port/path`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// As it was written, with the port.
    pub(crate) authority: String,
    pub(crate) path: String,
    host: String,
    port: String,
}

impl Address {
    /// `None` when it is no address; no image has such a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.chars().any(|letter| letter.is_ascii_control()) {
            return None;
        }
        let text = text.split_once('#').map_or(text, |(before, _)| before);
        let text = text.split_once('?').map_or(text, |(before, _)| before);
        let (authority, path) = match text.find('/') {
            Some(start) => text.split_at(start),
            None => (text, ""),
        };
        // A user in an address is not the one who pulls.
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_port(authority)?;
        if !is_host(host) || !has_whole_escapes(path) {
            return None;
        }
        Some(Self {
            authority: authority.to_owned(),
            path: percent_decode_str(path).decode_utf8().ok()?.into_owned(),
            host: host.to_owned(),
            port: port.to_owned(),
        })
    }

    /// Whether this address, taken as a pattern, means the other one. `*` stands for any letters within one part of a host name.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let (patterns, parts) = (self.host.split('.'), other.host.split('.'));
        self.port == other.port
            && patterns.clone().count() == parts.clone().count()
            && other.path.starts_with(&self.path)
            && patterns.zip(parts).all(|(pattern, part)| fits(pattern, part))
    }
}

/// The host without the port, which may be missing or empty. An IPv6 address is in brackets.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    let (host, port) = if authority.starts_with('[') {
        let end = authority.rfind(']')? + 1;
        let (host, rest) = authority.split_at(end);
        match rest {
            "" => (host, ""),
            rest => (host, rest.strip_prefix(':')?),
        }
    } else {
        authority.split_once(':').unwrap_or((authority, ""))
    };
    port.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some((host, port))
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        let address = address
            .trim_end_matches(']')
            .split('%')
            .next()
            .unwrap_or_default();
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    host.chars().all(|letter| {
        !letter.is_ascii() || letter.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=]<>\"".contains(letter)
    })
}

fn has_whole_escapes(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| {
        let mut digits = rest.bytes().take(2);
        digits.len() == 2 && digits.all(|byte| byte.is_ascii_hexdigit())
    })
}

/// `*` stands for any letters, also none.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(before) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(index, _)| index).chain([rest.len()]);
    ends.any(|end| fits(after, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, target: &str, expected: bool) {
        let covers = Address::parse(pattern)
            .zip(Address::parse(target))
            .is_some_and(|(pattern, target)| pattern.covers(&target));
        assert_eq!(covers, expected, "{pattern} {target}");
    }

    #[test]
    fn which_images_a_pattern_means() {
        for (pattern, target) in [
            ("k8s.io", "k8s.io"),
            ("*.k8s.io", "prefix.k8s.io"),
            ("*.docker.io", "prefix.docker.io"),
            ("prefix.*.io", "prefix.kubernetes.io"),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io"),
            ("*.*.kubernetes.io", "p.q.kubernetes.io"),
            ("k8s.io/path", "k8s.io/path/more"),
            ("k8s.io/pa", "k8s.io/path"),
            ("k8s.io:8888", "k8s.io:8888/x"),
            ("[::1]:5000", "[::1]:5000/x"),
            ("a**b.io", "aXb.io"),
        ] {
            check(pattern, target, true);
        }
        for (pattern, target) in [
            ("*.k8s.io", "k8s.io"),
            ("*.kubernetes.io", "a.b.kubernetes.io"),
            ("kubernetes.io", "kubernetes.com"),
            ("k8s.*", "quay.io"),
            ("k8s.io/path", "k8s.io/other"),
            ("k8s.io/*", "k8s.io/path"),
            ("k8s.io:8888", "k8s.io:8889"),
            ("k8s.io", "k8s.io:443"),
            ("k8s.io:443", "k8s.io"),
            ("prefix*.io", "notprefix.io"),
            ("A.io", "a.io"),
            ("", "a.io"),
        ] {
            check(pattern, target, false);
        }
    }

    #[test]
    fn what_is_no_address() {
        for text in [
            "a b",
            "a:b",
            "a.io:80:90",
            "a\n.io",
            "[::1",
            "[a]:1",
            "x[::1]",
            "a.io/%zz",
            "a.io/%4",
            "a|b",
            "%41.io",
        ] {
            assert_eq!(Address::parse(text), None, "{text:?}");
        }
        let address = Address::parse("u:p@a.io:80/v1/%41?x#y").unwrap();
        assert_eq!(
            (address.authority.as_str(), address.path.as_str()),
            ("a.io:80", "/v1/A")
        );
    }

    proptest! {
        #[test]
        fn parsing_never_fails_badly(text in "\\PC{0,20}|[a-z*.:/@\\[\\]%]{0,12}") {
            if let Some(address) = Address::parse(&text) {
                prop_assert!(!address.authority.contains('/'));
            }
        }

        #[test]
        fn every_plain_address_means_itself_and_what_is_below(
            host in "[a-z0-9-]{1,5}(\\.[a-z0-9-]{1,5}){0,3}(:[0-9]{1,5})?", path in "(/[a-z]{1,4}){0,3}",
        ) {
            let own = Address::parse(&format!("{host}{path}")).unwrap();
            let below = Address::parse(&format!("{host}{path}/more")).unwrap();
            prop_assert!(own.covers(&own) && own.covers(&below) && !below.covers(&own));
        }
    }
}
