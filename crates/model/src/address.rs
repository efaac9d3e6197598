//! IP addresses, CIDRs and URLs, with the tolerance of the Go packages that Kubernetes reads them with.
//!
//! Owns the syntax only: nothing is resolved or dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP address; leading zeros in IPv4 parts are read as decimal, as Kubernetes has always done.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return parse_ipv6(text).map(IpAddr::V6);
    }
    parse_ipv4(text).map(IpAddr::V4)
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = [0_u8; 4];
    let mut count = 0;
    for part in text.split('.') {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *parts.get_mut(count)? = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        count += 1;
    }
    (count == 4).then(|| Ipv4Addr::from(parts))
}

/// An embedded IPv4 tail may have leading zeros, too.
fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    if let Some((head, tail)) = text.rsplit_once(':')
        && tail.contains('.')
    {
        return format!("{head}:{}", parse_ipv4(tail)?).parse().ok();
    }
    text.parse().ok()
}

/// The host, without the brackets of IPv6, and the port of `host:port`. `None` for a text of another form, and for a port that
/// is no number of 16 bits: the port of the scheme would be another server.
pub fn split_host_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() || host.contains(['[', ']', '@']) {
        return None;
    }
    match port.strip_prefix(':') {
        Some("") => Some((host, None)),
        // `parse` alone would take a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((host, Some(digits.parse().ok()?)))
        }
        None if port.is_empty() => Some((host, None)),
        Some(_) | None => None,
    }
}

/// Whether the number is a port that can be listened on.
pub fn is_port(number: i64) -> bool {
    (1..=65535).contains(&number)
}

/// The text is not a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("it has a control character")]
    ControlCharacter,
    #[error("the scheme before the colon is missing")]
    MissingScheme,
    #[error("the first part of a relative path has a colon")]
    ColonInFirstSegment,
    #[error("a percent sign is not followed by two hexadecimal digits that are allowed there")]
    Escape,
    #[error("the host has a character that is not allowed there")]
    Host,
    #[error("the port is not a number")]
    Port,
    #[error("the address in brackets is not an IPv6 address")]
    Ipv6,
    #[error("the user part has a character that is not allowed there")]
    User,
}

/// The scheme of a URL in lower case, empty for a relative one, after checking the whole text.
pub fn url_scheme(text: &str) -> Result<String, UrlError> {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(UrlError::ControlCharacter);
    }
    check_escapes(fragment, Part::Path)?;
    if text == "*" {
        return Ok(String::new());
    }
    let (scheme, rest) = split_scheme(text)?;
    let scheme = scheme.to_ascii_lowercase();
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Ok(scheme);
        }
        if rest
            .split('/')
            .next()
            .is_some_and(|segment| segment.contains(':'))
        {
            return Err(UrlError::ColonInFirstSegment);
        }
    }
    let has_authority = rest.starts_with("//") && (!scheme.is_empty() || !rest.starts_with("///"));
    if !has_authority {
        check_escapes(rest, Part::Path)?;
        return Ok(scheme);
    }
    let authority = &rest[2..];
    let (authority, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
    check_authority(&scheme, authority)?;
    check_escapes(path, Part::Path)?;
    Ok(scheme)
}

fn split_scheme(text: &str) -> Result<(&str, &str), UrlError> {
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if position > 0 => {}
            b':' if position == 0 => return Err(UrlError::MissingScheme),
            b':' => return Ok((&text[..position], &text[position + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_authority(scheme: &str, authority: &str) -> Result<(), UrlError> {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return check_host(scheme, authority);
    };
    check_host(scheme, host)?;
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(letter);
    if !user.chars().all(allowed) {
        return Err(UrlError::User);
    }
    check_escapes(user, Part::Path)
}

fn check_host(scheme: &str, host: &str) -> Result<(), UrlError> {
    match host.rfind('[') {
        Some(0) => return check_bracketed(host),
        Some(_) => return Err(UrlError::Ipv6),
        None => {}
    }
    if let Some(first) = host.find(':') {
        let strict = matches!(scheme, "http" | "https");
        let port_at = if strict {
            first
        } else {
            host.rfind(':').unwrap_or(first)
        };
        check_port(&host[port_at..])?;
    }
    check_escapes(host, Part::Host)
}

fn check_bracketed(host: &str) -> Result<(), UrlError> {
    let end = host.rfind(']').ok_or(UrlError::Ipv6)?;
    check_port(&host[end + 1..])?;
    let inner = &host[1..end];
    let (address, zone) = match inner.find("%25") {
        Some(position) => {
            check_escapes(&inner[position..], Part::Zone)?;
            (&inner[..position], Some(&inner[position + 3..]))
        }
        None => (inner, None),
    };
    check_escapes(address, Part::Host)?;
    if zone == Some("") {
        return Err(UrlError::Ipv6);
    }
    address
        .parse::<Ipv6Addr>()
        .map(|_| ())
        .map_err(|_| UrlError::Ipv6)
}

fn check_port(text: &str) -> Result<(), UrlError> {
    match text.strip_prefix(':') {
        None if text.is_empty() => Ok(()),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        None | Some(_) => Err(UrlError::Port),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    Host,
    Zone,
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

fn check_escapes(text: &str, part: Part) -> Result<(), UrlError> {
    let bytes = text.as_bytes();
    let mut position = 0;
    while position < bytes.len() {
        let byte = bytes[position];
        if byte != b'%' {
            if part != Part::Path && byte < 0x80 && !is_host_byte(byte) {
                return Err(UrlError::Host);
            }
            position += 1;
            continue;
        }
        let hex = bytes.get(position + 1..position + 3).ok_or(UrlError::Escape)?;
        let decoded = std::str::from_utf8(hex)
            .ok()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or(UrlError::Escape)?;
        let allowed = match part {
            Part::Path => true,
            Part::Host => decoded >= 0x80 || hex == b"25",
            Part::Zone => hex == b"25" || decoded == b' ' || is_host_byte(decoded),
        };
        if !allowed {
            return Err(UrlError::Escape);
        }
        position += 3;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        for (text, valid) in [
            ("10.0.0.1", true),
            ("010.000.0.1", true),
            ("256.0.0.1", false),
            ("1.2.3", false),
            ("1.2.3.4.5", false),
            ("1..3.4", false),
            ("::1", true),
            ("::ffff:1.2.3.4", true),
            ("::ffff:01.2.3.4", true),
            ("fe80::1%eth0", false),
            ("", false),
            ("localhost", false),
        ] {
            assert_eq!(parse_ip(text).is_some(), valid, "{text}");
        }
    }

    #[test]
    fn hosts_with_ports() {
        for (text, expected) in [
            ("a", Some(("a", None))),
            ("a:", Some(("a", None))),
            ("a:0", Some(("a", Some(0)))),
            ("a:65535", Some(("a", Some(65535)))),
            ("a:00080", Some(("a", Some(80)))),
            ("a:65536", None),
            ("a:99999999999999999999", None),
            ("a:+80", None),
            ("a:-1", None),
            ("a:b", None),
            ("a:1:2", None),
            ("[::1]", Some(("::1", None))),
            ("[::1]:80", Some(("::1", Some(80)))),
            ("[fe80::1%25eth0]:80", Some(("fe80::1%25eth0", Some(80)))),
            ("[::1]80", None),
            ("[::1", None),
            ("[]:80", None),
            ("[[::1]]:80", None),
            ("]@[", None),
            ("a@b", None),
            ("[a@b]", None),
            ("", None),
            (":80", None),
        ] {
            assert_eq!(split_host_port(text), expected, "{text}");
        }
    }

    #[test]
    fn urls() {
        let ok = |scheme: &str| Ok(scheme.to_owned());
        for (text, expected) in [
            ("dns://localhost:4317", ok("dns")),
            ("DNS://x", ok("dns")),
            ("unix:///run/otel.sock", ok("unix")),
            ("unix-abstract:otel", ok("unix-abstract")),
            ("http://localhost:4317/%zz", Err(UrlError::Escape)),
            ("dn%2s://localhost:4317", Err(UrlError::ColonInFirstSegment)),
            ("dns://host:port", Err(UrlError::Port)),
            ("dns://a:1,b:2", ok("dns")),
            ("http://a:1,b:2", Err(UrlError::Port)),
            ("dns://[::1]:80", ok("dns")),
            ("dns://[fe80::1%25eth0]:80", ok("dns")),
            ("dns://[127.0.0.1]:80", Err(UrlError::Ipv6)),
            ("dns://[::1", Err(UrlError::Ipv6)),
            ("dns://a b", Err(UrlError::Host)),
            ("dns://user name@host", Err(UrlError::User)),
            ("dns://a\u{1}", Err(UrlError::ControlCharacter)),
            ("//host", ok("")),
            ("://host", Err(UrlError::MissingScheme)),
            ("dns://x#%", Err(UrlError::Escape)),
            ("dns://x?%", ok("dns")),
        ] {
            assert_eq!(url_scheme(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "\\PC{0,40}") {
            let _ = (url_scheme(&text), parse_ip(&text), split_host_port(&text));
        }

        #[test]
        fn any_url_like_text_gives_an_answer(text in "(dns|unix|http)?:?/{0,3}[\\[\\]%:@a-f0-9/.?#é]{0,30}") {
            let _ = url_scheme(&text);
        }

        #[test]
        fn printed_addresses_read_back(address: IpAddr) {
            prop_assert_eq!(parse_ip(&address.to_string()), Some(address));
        }
    }
}
