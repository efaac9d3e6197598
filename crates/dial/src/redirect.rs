//! Where a redirect leads.

use http::uri::{Authority, InvalidUri};
use rubelet_model::address::split_host_port;
use rubelet_ports::dial::request_target;
use rubelet_ports::{HttpScheme, host_and_port};

/// An address that a GET goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) scheme: HttpScheme,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) target: String,
}

impl Place {
    pub(crate) fn authority(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}{}", self.scheme.as_str(), self.authority(), self.target)
    }

    /// The place that a `Location` names from here, and whether it names its host itself.
    pub(crate) fn follow(&self, location: &str) -> Result<(Self, bool), String> {
        let bad = |problem: &str| format!("failed to parse Location header {location:?}: {problem}");
        let text = location.split('#').next().unwrap_or_default();
        let has_scheme = text.split_once("://").is_some_and(|(scheme, _)| {
            !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        });
        if !has_scheme && !text.starts_with("//") {
            let target = self.resolve(text);
            return Ok((
                Self {
                    target,
                    ..self.clone()
                },
                false,
            ));
        }
        let (scheme, rest) = text.split_once("//").ok_or_else(|| bad("no host"))?;
        let scheme = match scheme.trim_end_matches(':').to_ascii_lowercase().as_str() {
            "" => self.scheme,
            "http" => HttpScheme::Http,
            "https" => HttpScheme::Https,
            other => return Err(format!("unsupported protocol scheme {other:?}")),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        // What stands before the host would be credentials; a probe has none to give.
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let checked: Authority = authority
            .parse()
            .map_err(|error: InvalidUri| bad(&error.to_string()))?;
        let (host, port) =
            split_host_port(checked.as_str()).ok_or_else(|| bad("no host, or no valid port"))?;
        let default_port = match scheme {
            HttpScheme::Http => 80,
            HttpScheme::Https => 443,
        };
        let place = Self {
            scheme,
            host: host.to_owned(),
            port: port.unwrap_or(default_port),
            target: request_target(target),
        };
        Ok((place, true))
    }

    /// A path or a query relative to the present one.
    fn resolve(&self, text: &str) -> String {
        let (path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (self.target.as_str(), None),
        };
        let joined = match (text.is_empty(), text.starts_with('?'), text.starts_with('/')) {
            (true, _, _) => match query {
                Some(query) => format!("{path}?{query}"),
                None => path.to_owned(),
            },
            (_, true, _) => format!("{path}{text}"),
            (_, _, true) => text.to_owned(),
            _ => {
                let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
                format!("{folder}{text}")
            }
        };
        let (path, query) = match joined.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (joined.as_str(), None),
        };
        let path = without_dots(path);
        request_target(&match query {
            Some(query) => format!("{path}?{query}"),
            None => path,
        })
    }
}

/// `/a/./b/../c` is `/a/c`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        match *part {
            "." if is_last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if is_last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Place {
        Place {
            scheme: HttpScheme::Http,
            host: "10.0.0.1".to_owned(),
            port: 8080,
            target: "/a/b?c=d".to_owned(),
        }
    }

    #[test]
    fn locations_are_followed() {
        let check = |location: &str, expected: Result<&str, &str>| {
            let found = here().follow(location).map(|(place, _)| place.url());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{location:?}"),
                (Err(found), Err(part)) => assert!(found.contains(part), "{location:?}: {found}"),
                (found, expected) => panic!("{location:?}: {found:?} instead of {expected:?}"),
            }
        };
        check("/x", Ok("http://10.0.0.1:8080/x"));
        check("x?y", Ok("http://10.0.0.1:8080/a/x?y"));
        check("../x", Ok("http://10.0.0.1:8080/x"));
        check("/a/./../b/..", Ok("http://10.0.0.1:8080/"));
        check("?z", Ok("http://10.0.0.1:8080/a/b?z"));
        check("#part", Ok("http://10.0.0.1:8080/a/b?c=d"));
        check("//other/x", Ok("http://other:80/x"));
        check("https://other", Ok("https://other:443/"));
        check("https://[fd00::1]:1/x", Ok("https://[fd00::1]:1/x"));
        check("http://user:word@other/x", Ok("http://other:80/x"));
        check(
            "/to?url=http://other/",
            Ok("http://10.0.0.1:8080/to?url=http://other/"),
        );
        check("ftp://other/x", Err("unsupported protocol scheme"));
        check("http://a b/", Err("failed to parse Location"));
        check("http://other:65536/", Err("no valid port"));
        check("http://other:+80/", Err("no valid port"));
        check("http://[]/", Err("no host"));
        check("http:///x", Err("failed to parse Location"));
    }

    proptest::proptest! {
        #[test]
        fn no_location_breaks_anything(location in "\\PC{0,40}") {
            if let Ok((place, _)) = here().follow(&location) {
                proptest::prop_assert!(place.target.starts_with('/'));
                proptest::prop_assert!(place.target.is_ascii());
            }
        }
    }
}
