//! A query of the node's logs.
//!
//! Owns the names in the query, their rules and the texts of errors, which are upstream's. Nothing that is not
//! allowed here reaches a program's command line.

use rubelet_model::Timestamp;
use serde_json::json;

use crate::rfc3339;

const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICE_BYTES: usize = 256;
const MAX_SERVICES: usize = 4;

/// A point in time with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Time {
    instant: Timestamp,
    text: String,
}

impl Time {
    /// As upstream hands it to the journal's program: the clock as it was written, without its zone.
    fn in_journal(&self) -> String {
        let numbers: Vec<&str> = self
            .text
            .split(['-', 'T', ':', '.', 'Z', '+'])
            .take(6)
            .map(|number| match number.trim_start_matches('0') {
                "" => "0",
                trimmed => trimmed,
            })
            .collect();
        match numbers.as_slice() {
            // A year has four digits always.
            [_, month, day, hour, minute, second] => {
                format!("{}-{month}-{day} {hour}:{minute}:{second}", &self.text[..4])
            }
            _ => String::new(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    pub(super) services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    since: Option<Time>,
    until: Option<Time>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

impl NodeLogQuery {
    /// `None` when the query has no name that is known here.
    pub(super) fn parse(query: &str) -> Result<Option<Self>, String> {
        let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let first = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name);
            found
                .map(|(_, value)| value.as_str())
                .filter(|value| !value.is_empty())
        };
        let asked: Vec<&String> = pairs
            .iter()
            .filter(|(key, _)| key == "query")
            .map(|(_, value)| value)
            .collect();
        let mut parsed = Self::default();
        let mut problems = Vec::new();
        for name in &asked {
            if name.contains(['/', '\\']) {
                parsed.files.push((*name).clone());
            } else if !name.trim().is_empty() {
                parsed.services.push((*name).clone());
            }
        }
        if !asked.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
            problems.push(format!(
                "query: Invalid value: {}: may not be empty",
                json!(asked)
            ));
        }
        let mut time = |name: &str| {
            let text = first(name)?;
            let instant = rfc3339::parse(text);
            if instant.is_none() {
                problems.push(format!("{name}: Invalid value: {text:?}: invalid time format"));
            }
            Some(Time {
                instant: instant?,
                text: text.to_owned(),
            })
        };
        parsed.options.since = time("sinceTime");
        parsed.options.until = time("untilTime");
        let mut number = |name: &str| {
            let text = first(name)?;
            match text.parse::<i64>() {
                Ok(number) => Some(number),
                Err(error) => {
                    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
                    let why = match error.kind() {
                        PosOverflow | NegOverflow => "value out of range",
                        _ => "invalid syntax",
                    };
                    problems.push(format!(
                        "{name}: Invalid value: {text:?}: strconv.Atoi: parsing {text:?}: {why}"
                    ));
                    None
                }
            }
        };
        parsed.options.boot = number("boot");
        parsed.options.tail_lines = number("tailLines");
        parsed.options.pattern = first("pattern").unwrap_or_default().to_owned();
        if !problems.is_empty() {
            return Err(together(&problems));
        }
        Ok(Some(parsed).filter(|parsed| *parsed != Self::default()))
    }

    /// The one file in the query.
    pub(super) fn single_file(&self) -> Option<&str> {
        match (self.files.as_slice(), self.services.as_slice()) {
            ([file], []) if self.options == Options::default() => Some(file),
            _ => None,
        }
    }

    pub(super) fn has_options(&self) -> bool {
        self.options != Options::default()
    }

    /// What is not allowed, apart from a file that is not there.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for service in &self.services {
            if let Some(why) = unsafe_service(service) {
                problems.push(format!("query: Invalid value: {service:?}: {why}"));
            }
        }
        let count = self.services.len();
        if count > MAX_SERVICES {
            problems.push(format!(
                "query: Too many: {count}: must have at most {MAX_SERVICES} items"
            ));
        }
        match (self.files.len(), count) {
            (0, 0) => problems.push("query: Required value: cannot be empty with options".to_owned()),
            (1.., 1..) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                problems.push(format!(
                    "query: Invalid value: {both:?}: cannot specify a file and service"
                ));
            }
            (2.., 0) => problems.push(invalid_files(&self.files, "cannot specify more than one file")),
            (1, 0) if self.has_options() => {
                problems.push(invalid_files(&self.files, "cannot specify file with options"));
            }
            (0 | 1, _) => {}
        }
        let Options {
            since,
            until,
            tail_lines,
            boot,
            pattern,
        } = &self.options;
        if let (Some(since), Some(until)) = (since, until)
            && since.instant > until.instant
        {
            let shown = &until.text;
            problems.push(format!(
                "untilTime: Invalid value: {shown:?}: must be after `sinceTime`"
            ));
        }
        if let Some(boot @ 1..) = boot {
            problems.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = tail_lines
            && !(0..=MAX_TAIL_LINES).contains(lines)
        {
            problems.push(format!(
                "tailLines: Invalid value: {lines}: must be between 0 and {MAX_TAIL_LINES}, inclusive"
            ));
        }
        if let Err(error) = regex_syntax::ast::parse::Parser::new().parse(pattern) {
            problems.push(format!(
                "pattern: Invalid value: {pattern:?}: error parsing regexp: {}: `{pattern}`",
                error.kind()
            ));
        }
        problems
    }

    /// The arguments of the journal's program.
    pub(super) fn journal_arguments(&self, services: &[&str]) -> Vec<String> {
        let Options {
            since,
            until,
            tail_lines,
            boot,
            pattern,
        } = &self.options;
        let mut arguments = vec![
            "--utc".to_owned(),
            "--no-pager".to_owned(),
            "--output=short-precise".to_owned(),
        ];
        arguments.extend(
            since
                .as_ref()
                .map(|time| format!("--since={}", time.in_journal())),
        );
        arguments.extend(
            until
                .as_ref()
                .map(|time| format!("--until={}", time.in_journal())),
        );
        if let Some(lines) = tail_lines {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if !pattern.is_empty() {
            arguments.push(format!("--grep={pattern}"));
        }
        if let Some(boot) = boot {
            arguments.extend(["--boot".to_owned(), boot.to_string()]);
        }
        arguments
    }
}

pub(super) fn invalid_files(files: &[String], why: &str) -> String {
    format!("query: Invalid value: {}: {why}", json!(files))
}

/// Several errors as one, equal ones only once.
pub(super) fn together(problems: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for problem in problems {
        if !distinct.contains(&problem.as_str()) {
            distinct.push(problem);
        }
    }
    match distinct.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

fn unsafe_service(service: &str) -> Option<String> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    if service.len() > MAX_SERVICE_BYTES {
        Some(format!("length must be less than {MAX_SERVICE_BYTES}"))
    } else if !service.bytes().all(is_safe) {
        Some("input contains unsupported characters".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn queries_are_read_and_refused_as_upstream_does() {
        let check = |query: &str, expected: Result<Option<&str>, &str>| {
            let found = NodeLogQuery::parse(query);
            let found = found.map(|query| query.map(|query| together_or_ok(&query.problems())));
            let expected = expected
                .map(|query| query.map(str::to_owned))
                .map_err(str::to_owned);
            assert_eq!(found, expected, "{query}");
        };
        check("", Ok(None));
        check("foo=bar", Ok(None));
        check("tailLines=", Ok(None));
        check("query=kubelet", Ok(Some("ok")));
        check(
            "query=kubelet&query=crio&tailLines=0&boot=-1&pattern=foo",
            Ok(Some("ok")),
        );
        check("query=/foo.log", Ok(Some("ok")));
        check("query=a%5Cb", Ok(Some("ok")));
        check(
            "query=%20",
            Err("query: Invalid value: [\" \"]: may not be empty"),
        );
        check(
            "tailLines=5",
            Ok(Some("query: Required value: cannot be empty with options")),
        );
        check(
            "tailLines=a",
            Err("tailLines: Invalid value: \"a\": strconv.Atoi: parsing \"a\": invalid syntax"),
        );
        check(
            "boot=99999999999999999999",
            Err(
                "boot: Invalid value: \"99999999999999999999\": strconv.Atoi: parsing \
                 \"99999999999999999999\": value out of range",
            ),
        );
        check(
            "sinceTime=x&untilTime=y",
            Err("[sinceTime: Invalid value: \"x\": invalid time format, \
                 untilTime: Invalid value: \"y\": invalid time format]"),
        );
        check(
            "query=x&boot=1&tailLines=100001",
            Ok(Some(
                "[boot: Invalid value: 1: must be less than 1, \
                 tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive]",
            )),
        );
        check(
            "query=x&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
            Ok(Some(
                "untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`",
            )),
        );
        check(
            "query=/a&query=b",
            Ok(Some(
                "query: Invalid value: \"[/a], [b]\": cannot specify a file and service",
            )),
        );
        check(
            "query=/a&query=/b",
            Ok(Some(
                "query: Invalid value: [\"/a\",\"/b\"]: cannot specify more than one file",
            )),
        );
        check(
            "query=/a&boot=0",
            Ok(Some(
                "query: Invalid value: [\"/a\"]: cannot specify file with options",
            )),
        );
        check(
            "query=a;b%20c&query=--x=$(y)",
            Ok(Some(
                "[query: Invalid value: \"a;b c\": input contains unsupported characters, \
                 query: Invalid value: \"--x=$(y)\": input contains unsupported characters]",
            )),
        );
        check(
            "query=a&query=b&query=c&query=d&query=e",
            Ok(Some("query: Too many: 5: must have at most 4 items")),
        );
        let found = NodeLogQuery::parse("query=x&pattern=(")
            .unwrap()
            .unwrap()
            .problems();
        assert!(
            found[0].starts_with("pattern: Invalid value: \"(\": error parsing regexp: "),
            "{found:?}"
        );
        let long = format!("query={}", "x".repeat(257));
        let found = NodeLogQuery::parse(&long).unwrap().unwrap().problems();
        assert!(found[0].ends_with("length must be less than 256"), "{found:?}");
    }

    fn together_or_ok(problems: &[String]) -> String {
        if problems.is_empty() {
            "ok".to_owned()
        } else {
            together(problems)
        }
    }

    #[test]
    fn the_journal_is_asked_as_upstream_asks() {
        let check = |query: &str, expected: &[&str]| {
            let query = NodeLogQuery::parse(query).unwrap().unwrap();
            let services: Vec<&str> = query.services.iter().map(String::as_str).collect();
            let fixed = ["--utc", "--no-pager", "--output=short-precise"];
            assert_eq!(query.journal_arguments(&services), [&fixed, expected].concat());
        };
        check("query=kubelet", &["--unit=kubelet"]);
        check(
            "query=a&query=b&sinceTime=2023-08-01T08:05:09.5%2B02:00&untilTime=2023-10-11T00:00:00Z\
             &tailLines=10&boot=-1&pattern=foo%20.*",
            &[
                "--since=2023-8-1 8:5:9",
                "--until=2023-10-11 0:0:0",
                "--pager-end",
                "--lines=10",
                "--unit=a",
                "--unit=b",
                "--grep=foo .*",
                "--boot",
                "-1",
            ],
        );
    }

    proptest! {
        /// Whatever the query holds, only safe values reach the program, each behind its option.
        #[test]
        fn no_query_reaches_the_program_as_an_option(
            pairs in prop::collection::vec(
                (
                    prop_oneof![
                        3 => Just("query"), 1 => Just("boot"), 1 => Just("tailLines"), 1 => Just("sinceTime"),
                        1 => Just("untilTime"), 1 => Just("pattern")
                    ],
                    prop_oneof![
                        "[-a-z@.]{0,12}", "[-+]?[0-9]{1,22}", Just("2026-01-01T00:00:00Z".to_owned()), "\\PC{0,12}"
                    ],
                ),
                0..6,
            ),
        ) {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.extend_pairs(&pairs);
            let query = query.finish();
            if let Ok(Some(parsed)) = NodeLogQuery::parse(&query) && parsed.problems().is_empty() {
                let services: Vec<&str> = parsed.services.iter().map(String::as_str).collect();
                prop_assert!(services.len() <= MAX_SERVICES);
                let known = ["--utc", "--no-pager", "--output=short-precise", "--pager-end", "--boot"];
                let with_value = ["--since=", "--until=", "--lines=", "--unit=", "--grep="];
                for argument in parsed.journal_arguments(&services) {
                    let is_known = known.contains(&argument.as_str())
                        || with_value.iter().any(|prefix| argument.starts_with(prefix))
                        || argument.parse::<i64>().is_ok_and(|boot| boot < 1);
                    prop_assert!(is_known, "{argument}");
                }
            }
        }
    }
}
