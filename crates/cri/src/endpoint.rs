//! The endpoint of a runtime, as flags and configuration spell it.
//!
//! Owns which spellings are accepted: `unix:///path` and `unix:/path`, and, deprecated, a bare `/path`. Pure text work; it
//! must not touch the filesystem.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The unix socket of a container runtime or image service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEndpoint {
    socket: PathBuf,
    bare: bool,
}

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error(
        "the runtime endpoint is empty: set containerRuntimeEndpoint, for instance to unix:///run/containerd/containerd.sock"
    )]
    Empty,
    #[error("runtime endpoint {endpoint:?}: only unix sockets are supported, write it as unix:///path")]
    NotUnix { endpoint: String },
    #[error("runtime endpoint {endpoint:?}: protocol {scheme:?} is not supported, write it as unix:///path")]
    Scheme { endpoint: String, scheme: String },
    #[error(
        "runtime endpoint {endpoint:?}: no absolute path of a socket, write it as unix:///path (three slashes)"
    )]
    NoPath { endpoint: String },
}

impl RuntimeEndpoint {
    /// The socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether it was written as a bare path, which upstream calls deprecated.
    #[must_use]
    pub fn is_bare_path(&self) -> bool {
        self.bare
    }
}

impl fmt::Display for RuntimeEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.socket.display())
    }
}

impl FromStr for RuntimeEndpoint {
    type Err = EndpointError;

    fn from_str(endpoint: &str) -> Result<Self, EndpointError> {
        let no_path = || EndpointError::NoPath {
            endpoint: endpoint.to_owned(),
        };
        if endpoint.is_empty() {
            return Err(EndpointError::Empty);
        }
        let (path, bare) = match endpoint.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => match scheme.to_ascii_lowercase().as_str() {
                "unix" => (rest.strip_prefix("//").unwrap_or(rest), false),
                "tcp" => {
                    return Err(EndpointError::NotUnix {
                        endpoint: endpoint.to_owned(),
                    });
                }
                _ => {
                    return Err(EndpointError::Scheme {
                        endpoint: endpoint.to_owned(),
                        scheme: scheme.to_owned(),
                    });
                }
            },
            _ => (endpoint, true),
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        if !path.starts_with('/') {
            return Err(no_path());
        }
        let socket = PathBuf::from(percent_decoded(path).ok_or_else(no_path)?);
        Ok(Self { socket, bare })
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Upstream reads the endpoint as a URL, so `%20` in it is a space. `None` when a sequence is broken.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(endpoint: &str, expected: &Result<(&str, bool), EndpointError>) {
        let parsed = endpoint.parse::<RuntimeEndpoint>();
        let seen = parsed
            .as_ref()
            .map(|e| (e.socket().to_str().unwrap(), e.is_bare_path()))
            .map_err(Clone::clone);
        assert_eq!(&seen, expected, "{endpoint:?}");
    }

    #[test]
    fn spellings() {
        let owned = str::to_owned;
        check(
            "unix:///run/containerd/containerd.sock",
            &Ok(("/run/containerd/containerd.sock", false)),
        );
        check("unix:/run/c.sock", &Ok(("/run/c.sock", false)));
        check("UNIX:///run/c.sock", &Ok(("/run/c.sock", false)));
        check("unix:///run/my%20dir/c.sock", &Ok(("/run/my dir/c.sock", false)));
        check("/run/c.sock", &Ok(("/run/c.sock", true)));
        check("/run/with:colon.sock", &Ok(("/run/with:colon.sock", true)));
        check("", &Err(EndpointError::Empty));
        let tcp = "tcp://127.0.0.1:3000";
        check(tcp, &Err(EndpointError::NotUnix { endpoint: owned(tcp) }));
        let npipe = "npipe:////./pipe/c";
        check(
            npipe,
            &Err(EndpointError::Scheme {
                endpoint: owned(npipe),
                scheme: owned("npipe"),
            }),
        );
        for endpoint in [
            "unix://run/c.sock",
            "unix://",
            "unix:",
            "run/c.sock",
            "c.sock",
            "unix:///a%2",
            "unix:///a%zz",
        ] {
            check(
                endpoint,
                &Err(EndpointError::NoPath {
                    endpoint: owned(endpoint),
                }),
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_gets_an_answer(text in ".{0,40}") {
            if let Ok(endpoint) = text.parse::<RuntimeEndpoint>() {
                prop_assert!(endpoint.socket().is_absolute());
            }
        }

        #[test]
        fn what_is_shown_can_be_read_again(path in "/[a-z0-9/._-]{1,30}") {
            let endpoint: RuntimeEndpoint = path.parse().unwrap();
            let again: RuntimeEndpoint = endpoint.to_string().parse().unwrap();
            prop_assert_eq!(again.socket(), endpoint.socket());
        }
    }
}
