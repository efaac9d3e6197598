//! The options of a session in a request.
//!
//! Owns the names in the query and their rules, with upstream's texts.

use http::HeaderMap;

use crate::upgrade::is_websocket;

/// Which streams of a process are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamOptions {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// Values by name, the first of each counting, as a query or a form has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Several texts, those of an earlier one counting first.
    pub(super) fn parse<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let pairs = texts.into_iter().flat_map(form_urlencoded::parse);
        Self(pairs.map(|(name, value)| (name.into(), value.into())).collect())
    }

    pub(super) fn first(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    pub(super) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(found, _)| found == name);
        named.map(|(_, value)| value.as_str())
    }
}

impl StreamOptions {
    pub(super) fn of(form: &Form) -> Result<Self, String> {
        let is_on = |name: &str| form.first(name) == "1";
        let tty = is_on("tty");
        let options = Self {
            stdin: is_on("input"),
            stdout: is_on("output"),
            // A terminal has one stream for both.
            stderr: is_on("error") && !tty,
            tty,
        };
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr".to_owned());
        }
        Ok(options)
    }
}

/// The ports to forward. Only WebSocket clients name them here; over SPDY each stream names its own.
pub(super) fn ports(headers: &HeaderMap, query: &Form) -> Result<Vec<i32>, String> {
    if !is_websocket(headers) {
        return Ok(Vec::new());
    }
    let mut ports = Vec::new();
    for value in query.all("port") {
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for port in value.split(',') {
            match port.parse::<u16>() {
                Ok(0) => return Err(format!("port {value:?} must be > 0")),
                Ok(port) => ports.push(i32::from(port)),
                Err(error) => return Err(format!("unable to parse {value:?} as a port: {error}")),
            }
        }
    }
    if ports.is_empty() {
        return Err("query parameter \"port\" is required".to_owned());
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn streams_are_chosen_as_upstream_does() {
        let check = |query: &str, expected: Option<(bool, bool, bool, bool)>| {
            let options = StreamOptions::of(&Form::parse([query.as_bytes()]));
            let options = options.ok().map(|o| (o.stdin, o.stdout, o.stderr, o.tty));
            assert_eq!(options, expected, "{query}");
        };
        check("input=1&output=1&error=1", Some((true, true, true, false)));
        check("output=1&error=1&tty=1", Some((false, true, false, true)));
        check("output=1", Some((false, true, false, false)));
        check("error=1", Some((false, false, true, false)));
        check("error=1&tty=1", None);
        check("", None);
        check("tty=1", None);
        check("output=true", None);
        check("stdout=1", None);
        check("output=1&output=0", Some((false, true, false, false)));
        check("output=0&output=1", None);
    }

    #[test]
    fn ports_are_for_websockets_only() {
        let check = |websocket: bool, query: &str, expected: Result<&[i32], &str>| {
            let mut headers = HeaderMap::new();
            headers.insert("connection", "Upgrade".parse().unwrap());
            let protocol = if websocket { "websocket" } else { "SPDY/3.1" };
            headers.insert("upgrade", protocol.parse().unwrap());
            let found = ports(&headers, &Form::parse([query.as_bytes()]));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{query}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{query}: {found}"),
                (found, _) => panic!("{query}: {found:?}"),
            }
        };
        check(false, "", Ok(&[]));
        check(false, "port=x", Ok(&[]));
        check(true, "port=80", Ok(&[80]));
        check(true, "port=80&port=81,82", Ok(&[80, 81, 82]));
        check(true, "", Err("query parameter \"port\" is required"));
        check(true, "port=", Err("query parameter \"port\" cannot be empty"));
        check(true, "port=0", Err("port \"0\" must be > 0"));
        check(true, "port=65536", Err("unable to parse \"65536\" as a port"));
        check(true, "port=80,x", Err("unable to parse \"80,x\" as a port"));
        check(true, "ports=80", Err("query parameter \"port\" is required"));
    }

    #[test]
    fn a_form_counts_before_the_query() {
        let form = Form::parse([b"cmd=from+form".as_slice(), b"cmd=query&command=a&command=b%20c"]);
        assert_eq!(form.first("cmd"), "from form");
        assert_eq!(form.all("command").collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!(form.first("none"), "");
    }

    fn websocket() -> HeaderMap {
        let header = |name: &'static str, value: &'static str| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        [header("connection", "Upgrade"), header("upgrade", "websocket")]
            .into_iter()
            .collect()
    }

    proptest! {
        #[test]
        fn no_choice_of_streams_upsets_it(query in "((input|output|error|tty|stdin)(=[01a-z%2]{0,3})?&?){0,6}|\\PC{0,40}") {
            let form = Form::parse([query.as_bytes()]);
            match StreamOptions::of(&form) {
                Ok(options) => {
                    prop_assert!(options.stdin || options.stdout || options.stderr, "{query}");
                    prop_assert!(!(options.tty && options.stderr), "{query}");
                    prop_assert_eq!(options.stdin, form.first("input") == "1");
                    prop_assert_eq!(options.stdout, form.first("output") == "1");
                }
                Err(_) => prop_assert!(form.first("input") != "1" && form.first("output") != "1", "{query}"),
            }
        }

        #[test]
        fn no_port_upsets_it(query in "(port=[-+0-9,x%]{0,8}&?){0,4}|\\PC{0,40}") {
            if let Ok(ports) = ports(&websocket(), &Form::parse([query.as_bytes()])) {
                prop_assert!(!ports.is_empty() && ports.iter().all(|port| (1..=65_535).contains(port)), "{query}");
            }
        }

        /// The command of `exec` and the one text of `run`, whatever they hold.
        #[test]
        fn commands_come_as_they_were_sent(words in proptest::collection::vec(any::<String>(), 1..5)) {
            let mut query = form_urlencoded::Serializer::new(String::new());
            for word in &words {
                query.append_pair("command", word).append_pair("cmd", word);
            }
            let form = Form::parse([query.finish().as_bytes()]);
            prop_assert_eq!(form.all("command").collect::<Vec<_>>(), words.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(form.first("cmd"), words[0].as_str());
        }

        #[test]
        fn no_bytes_upset_a_form(body: Vec<u8>, query in "\\PC{0,40}") {
            let form = Form::parse([body.as_slice(), query.as_bytes()]);
            let _ = (form.first("cmd"), form.all("command").count());
        }
    }
}
