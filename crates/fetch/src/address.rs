//! Addresses of documents: parsing, joining with a redirect, and how they are shown.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use rubelet_model::address::split_host_port;

/// An absolute address over HTTP or HTTPS. Shown without what may be secret: user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    uri: Uri,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.trim().parse().map_err(|_| "it cannot be read as a URL")?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err("only http and https are possible"),
            None => return Err("it does not begin with http:// or https://"),
        }
        if uri.host().is_none_or(|host| host.is_empty() || host == "[]") {
            return Err("it names no host");
        }
        let address = Self { uri };
        split_host_port(&address.authority()).ok_or("its port is not a number up to 65535")?;
        Ok(address)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Name or number, without the brackets of IPv6.
    pub(crate) fn host(&self) -> &str {
        let host = self.uri.host().unwrap_or_default();
        host.strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
    }

    pub(crate) fn port(&self) -> u16 {
        let default = if self.is_https() { 443 } else { 80 };
        self.uri.port_u16().unwrap_or(default)
    }

    /// Scheme, host and port alone.
    pub(crate) fn server(&self) -> Uri {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let host = self.uri.host().unwrap_or_default();
        let server = format!("{scheme}://{host}:{}/", self.port()).parse();
        // What was parsed once and is put together again can be parsed again.
        server.unwrap_or_else(|_| self.uri.clone())
    }

    /// The host as a request names it.
    pub(crate) fn authority(&self) -> String {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        host.to_owned()
    }

    pub(crate) fn path(&self) -> &PathAndQuery {
        static ROOT: std::sync::LazyLock<PathAndQuery> =
            std::sync::LazyLock::new(|| PathAndQuery::from_static("/"));
        self.uri.path_and_query().unwrap_or(&ROOT)
    }

    /// The value of an `Authorization` header when the address has a user.
    pub(crate) fn basic_credentials(&self) -> Option<String> {
        let (user, _) = self.uri.authority()?.as_str().rsplit_once('@')?;
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let mut plain: Vec<u8> = percent_decode_str(name).collect();
        plain.push(b':');
        plain.extend(percent_decode_str(password));
        Some(format!("Basic {}", STANDARD.encode(plain)))
    }

    /// Whether what was to be sent to `first` may be sent here too: the same host or one below it, and not less protected.
    pub(crate) fn may_see_what_is_for(&self, first: &Self) -> bool {
        let (host, home) = (self.host().to_lowercase(), first.host().to_lowercase());
        let is_below = host
            .strip_suffix(&home)
            .is_some_and(|rest| rest.ends_with('.') && home.parse::<std::net::IpAddr>().is_err());
        (host == home || is_below) && (self.is_https() || !first.is_https())
    }

    /// The address that a `Location` leads to from here.
    pub(crate) fn join(&self, location: &str) -> Result<Self, &'static str> {
        let location = location.trim();
        let location = location.split('#').next().unwrap_or_default();
        let scheme = self.uri.scheme_str().unwrap_or_default();
        if has_scheme(location) {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        let (path, query) = location
            .split_once('?')
            .map_or((location, None), |(path, query)| (path, Some(query)));
        let path = match path {
            "" => self.uri.path().to_owned(),
            absolute if absolute.starts_with('/') => without_dots(absolute),
            relative => {
                let directory = self
                    .uri
                    .path()
                    .rsplit_once('/')
                    .map_or("", |(directory, _)| directory);
                without_dots(&format!("{directory}/{relative}"))
            }
        };
        let query = match (location.is_empty(), query) {
            (_, Some(query)) => format!("?{query}"),
            (true, None) => self
                .uri
                .query()
                .map(|query| format!("?{query}"))
                .unwrap_or_default(),
            (false, None) => String::new(),
        };
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        Self::parse(&format!("{scheme}://{authority}{path}{query}"))
    }
}

fn has_scheme(location: &str) -> bool {
    let Some((scheme, _)) = location.split_once(':') else {
        return false;
    };
    let mut characters = scheme.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && characters.all(|other| other.is_ascii_alphanumeric() || matches!(other, '+' | '-' | '.'))
}

/// Resolves `.` and `..` in an absolute path.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    parts.pop();
                }
                if is_last {
                    parts.push("");
                }
            }
            segment => parts.push(segment),
        }
    }
    format!("/{}", parts.join("/"))
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        write!(formatter, "{scheme}://{}{}", self.authority(), self.uri.path())?;
        if self.uri.query().is_some() {
            formatter.write_str("?…")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({self})")
    }
}

/// Any text that should be an address, without what may be secret in it.
pub(crate) fn shown(url: &str) -> String {
    let url = url.trim();
    if let Ok(address) = Address::parse(url) {
        return address.to_string();
    }
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (visible, hidden) = url.split_at(end);
    let (scheme, rest) = visible.split_once("://").unwrap_or(("", visible));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let scheme = if scheme.is_empty() {
        String::new()
    } else {
        format!("{scheme}://")
    };
    let more = if hidden.is_empty() { "" } else { "?…" };
    format!("{scheme}{rest}{more}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let check = |url: &str, expected: Result<(&str, u16, &str), ()>| {
            let address = Address::parse(url);
            let got = address
                .as_ref()
                .map(|address| (address.host(), address.port(), address.path().as_str()));
            assert_eq!(got.map_err(|_| ()), expected, "{url}");
        };
        check("http://host", Ok(("host", 80, "/")));
        check("https://host/a?b=c", Ok(("host", 443, "/a?b=c")));
        check("http://user:pass@host:8080/a", Ok(("host", 8080, "/a")));
        check("http://[::1]:81/", Ok(("::1", 81, "/")));
        for bad in [
            "",
            "host",
            "/path",
            "ftp://host/",
            "http://",
            "http:///a",
            "http://ho st/",
            "file:///etc",
            "http://host:65536/",
            "http://user:1@host:65536/",
            "http://[::1]:65536/",
        ] {
            check(bad, Err(()));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let check = |url: &str, expected: &str| assert_eq!(shown(url), expected);
        check(
            "http://user:secret@host:1/a/b?token=secret#x",
            "http://host:1/a/b?…",
        );
        check("http://host/", "http://host/");
        check("ftp://user:secret@host/a?secret", "ftp://host/a?…");
        check("user:secret@host", "host");
        let address = Address::parse("http://user:secret@host/?secret").unwrap();
        assert!(!format!("{address} {address:?}").contains("secret"));
        assert_eq!(address.authority(), "host");
    }

    #[test]
    fn a_user_in_the_address_becomes_basic_credentials() {
        let check = |url: &str, expected: Option<&str>| {
            let plain = Address::parse(url).unwrap().basic_credentials().map(|value| {
                let encoded = value.strip_prefix("Basic ").unwrap();
                String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
            });
            assert_eq!(plain.as_deref(), expected, "{url}");
        };
        check("http://host/", None);
        check("http://me:word@host/", Some("me:word"));
        check("http://me@host/", Some("me:"));
        check("http://m%40e:w%3Ard@host/", Some("m@e:w:rd"));
    }

    #[test]
    fn redirects_lead_where_the_standard_says() {
        let check = |location: &str, expected: &str| {
            let base = Address::parse("http://a:1/b/c/d?q").unwrap();
            let joined = base.join(location).unwrap();
            assert_eq!(joined.uri.to_string(), expected, "{location}");
        };
        check("https://other/x", "https://other/x");
        check("//other/x", "http://other/x");
        check("/x?y", "http://a:1/x?y");
        check("x", "http://a:1/b/c/x");
        check("./x", "http://a:1/b/c/x");
        check("../x", "http://a:1/b/x");
        check("../../../x", "http://a:1/x");
        check("..", "http://a:1/b/");
        check("?y", "http://a:1/b/c/d?y");
        check("", "http://a:1/b/c/d?q");
        check("x#fragment", "http://a:1/b/c/x");
        check("x:y/z".strip_prefix("x:").unwrap(), "http://a:1/b/c/y/z");
        let base = Address::parse("http://a/").unwrap();
        assert!(base.join("mailto:x").is_err());
        assert!(base.join("ftp://x/").is_err());
    }

    #[test]
    fn only_the_same_place_sees_the_headers() {
        let check = |first: &str, next: &str, expected: bool| {
            let (first, next) = (Address::parse(first).unwrap(), Address::parse(next).unwrap());
            assert_eq!(next.may_see_what_is_for(&first), expected, "{first} -> {next}");
        };
        check("http://a.b/", "http://A.b:8080/x", true);
        check("http://a.b/", "https://x.a.b/", true);
        check("http://a.b/", "http://xa.b/", false);
        check("http://a.b/", "http://b/", false);
        check("https://a.b/", "http://a.b/", false);
        check("http://1.2.3.4/", "http://9.1.2.3.4/", false);
    }

    proptest! {
        #[test]
        fn nothing_of_user_or_query_is_shown(host in "[a-z]{1,8}", user in "[A-Z]{4,8}", query in "[A-Z]{4,8}") {
            let text = shown(&format!("http://{user}:{user}@{host}/p?{query}"));
            prop_assert!(!text.contains(&user) && !text.contains(&query), "{}", text);
        }

        #[test]
        fn joining_never_panics_and_keeps_the_place(location in "[a-z./?#]{0,20}") {
            let base = Address::parse("http://host:7/a/b").unwrap();
            if let Ok(joined) = base.join(&location) && !location.trim().starts_with("//") {
                prop_assert_eq!(joined.authority(), "host:7");
            }
        }
    }
}
