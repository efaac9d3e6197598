//! The options of a request for a log.
//!
//! Owns the names in the query and their rules, which are those of `PodLogOptions`.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_model::Timestamp;

use crate::rfc3339;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogOptions {
    pub(super) tail_lines: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// Only what is not older.
    pub(super) since: Option<Timestamp>,
    pub(super) timestamps: bool,
    pub(super) follow: bool,
    /// The container before the one that runs.
    pub(super) previous: bool,
    /// One stream of the two, which is wanted alone.
    pub(super) single_stream: Option<LogStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStream {
    Stdout,
    Stderr,
}

impl LogStream {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "Stdout",
            Self::Stderr => "Stderr",
        }
    }

    /// As it stands in a log.
    pub(super) fn in_log(name: &[u8]) -> Option<Self> {
        match name {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionsProblem {
    /// A value that is no number or no time.
    Undecodable,
    /// A value that is not allowed, or not together with another.
    Invalid,
}

impl LogOptions {
    pub(super) fn parse(query: &str, now: Timestamp) -> Result<Self, OptionsProblem> {
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            first.entry(name.into_owned()).or_insert(value.into_owned());
        }
        // The older name of `tailLines`.
        match first.get("tail").map(String::as_str) {
            None | Some("") => {}
            Some("all") => drop(first.remove("tailLines")),
            Some(tail) => drop(first.insert("tailLines".to_owned(), tail.to_owned())),
        }
        let number = |name: &str| -> Result<Option<i64>, OptionsProblem> {
            let value = first.get(name).map(|text| text.parse::<i64>());
            value.transpose().map_err(|_| OptionsProblem::Undecodable)
        };
        let switch = |name: &str| {
            first
                .get(name)
                .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
        };
        let tail_lines = number("tailLines")?;
        let limit_bytes = number("limitBytes")?;
        let since_seconds = number("sinceSeconds")?;
        let since_time = match first.get("sinceTime").map(String::as_str) {
            None => None,
            Some("" | "null") => Some(Timestamp::EPOCH),
            Some(text) => Some(rfc3339::parse(text).ok_or(OptionsProblem::Undecodable)?),
        };
        let single_stream = match first.get("stream").map(String::as_str) {
            None | Some("All") => None,
            Some("Stdout") => Some(LogStream::Stdout),
            Some("Stderr") => Some(LogStream::Stderr),
            Some(_) => return Err(OptionsProblem::Invalid),
        };

        let is_valid = tail_lines.is_none_or(|lines| lines >= 0)
            && limit_bytes.is_none_or(|bytes| bytes >= 1)
            && since_seconds.is_none_or(|seconds| seconds >= 1)
            && !(since_seconds.is_some() && since_time.is_some())
            && !(single_stream.is_some() && tail_lines.is_some());
        if !is_valid {
            return Err(OptionsProblem::Invalid);
        }
        let since_seconds = since_seconds
            .map(|seconds| now.minus(Duration::from_secs(u64::try_from(seconds).unwrap_or_default())));
        let positive = |number: i64| u64::try_from(number).ok();
        Ok(Self {
            tail_lines: tail_lines.and_then(positive),
            limit_bytes: limit_bytes.and_then(positive),
            since: since_seconds.or(since_time),
            timestamps: switch("timestamps"),
            follow: switch("follow"),
            previous: switch("previous"),
            single_stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any query is taken, refused or not understood, and what is taken keeps the rules.
        #[test]
        fn no_query_upsets_it(
            pairs in prop::collection::vec(
                (
                    prop_oneof![
                        Just("tailLines"), Just("tail"), Just("limitBytes"), Just("sinceSeconds"), Just("sinceTime"),
                        Just("stream"), Just("follow"), Just("previous"), Just("timestamps"), Just("%ff"), Just("")
                    ],
                    prop_oneof![
                        "[-+]?[0-9]{1,25}", Just("2026-01-01T00:00:00Z".to_owned()), Just("Stderr".to_owned()),
                        Just("true".to_owned()), "%[0-9a-f]{2}", "\\PC{0,10}"
                    ],
                ),
                0..6,
            ),
            noise in "\\PC{0,20}",
        ) {
            let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            for query in [query.join("&"), query.join(";"), noise] {
                if let Ok(options) = LogOptions::parse(&query, NOW) {
                    prop_assert!(options.limit_bytes.is_none_or(|limit| limit > 0), "{query}");
                    prop_assert!(options.single_stream.is_none() || options.tail_lines.is_none(), "{query}");
                }
            }
        }
    }

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_000_000);

    #[test]
    fn the_query_is_read_as_upstream_reads_it() {
        let check = |query: &str, expected: Result<LogOptions, OptionsProblem>| {
            assert_eq!(LogOptions::parse(query, NOW), expected, "{query}");
        };
        let default = LogOptions::default;
        let tail = |lines| {
            Ok(LogOptions {
                tail_lines: Some(lines),
                ..default()
            })
        };
        check("", Ok(default()));
        check("foo=bar&container=x", Ok(default()));
        check("tailLines=10", tail(10));
        check("tailLines=10&tailLines=x", tail(10));
        check("tailLines=0", tail(0));
        check("tail=7&tailLines=3", tail(7));
        check("tail=all&tailLines=3", Ok(default()));
        check("tail=&tailLines=3", tail(3));
        check("tailLines=", Err(OptionsProblem::Undecodable));
        check("tailLines=x", Err(OptionsProblem::Undecodable));
        check("tail=x", Err(OptionsProblem::Undecodable));
        check("tailLines=-1", Err(OptionsProblem::Invalid));
        check("limitBytes=0", Err(OptionsProblem::Invalid));
        check("sinceSeconds=0", Err(OptionsProblem::Invalid));
        check("sinceTime=abc", Err(OptionsProblem::Undecodable));
        check(
            "sinceTime=1970-01-02T00:00:00Z&sinceSeconds=1",
            Err(OptionsProblem::Invalid),
        );
        check(
            "sinceTime=1970-01-02T00:00:00Z",
            Ok(LogOptions {
                since: Some(Timestamp::from_unix_seconds(86_400)),
                ..default()
            }),
        );
        check(
            "sinceSeconds=60",
            Ok(LogOptions {
                since: Some(Timestamp::from_unix_seconds(999_940)),
                ..default()
            }),
        );
        let all_on = LogOptions {
            follow: true,
            previous: true,
            timestamps: true,
            ..default()
        };
        check("follow=true&previous=1&timestamps", Ok(all_on));
        check("follow=false&previous=0&timestamps=FALSE", Ok(default()));
        check("stream=All", Ok(default()));
        check("stream=x", Err(OptionsProblem::Invalid));
        check("stream=Stdout&tailLines=1", Err(OptionsProblem::Invalid));
        check(
            "stream=Stdout",
            Ok(LogOptions {
                single_stream: Some(LogStream::Stdout),
                ..default()
            }),
        );
    }
}
