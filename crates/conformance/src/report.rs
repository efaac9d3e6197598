//! Reads what the suite reports: the JUnit file that it writes when it ends. Owns that format and no opinion about it.
//!
//! The writer escapes every `<` and `"` inside values, so looking for the tags as plain text is exact.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// How a spec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Passed,
    /// It asked to be skipped, or was not selected.
    Skipped,
    Failed,
}

/// One spec, or one set-up step of the suite.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    /// `It` for a spec, else the kind of step, such as `SynchronizedBeforeSuite`.
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    /// What failed, then all that the spec wrote. Empty unless it failed.
    pub(super) log: String,
}

impl Case {
    pub(super) fn is_spec(&self) -> bool {
        self.kind == "It"
    }
}

/// All cases of the file at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<Case>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("read the suite's report {}", path.display()))?;
    parse(&text).with_context(|| format!("understand the suite's report {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Case>> {
    if !text.contains("<testsuites") || !text.trim_end().ends_with("</testsuites>") {
        bail!("it is no complete JUnit report");
    }
    text.split("<testcase ").skip(1).map(case).collect()
}

/// `rest` begins right after `<testcase `.
fn case(rest: &str) -> Result<Case> {
    let (head, body) = rest.split_once('>').context("a test case's tag does not end")?;
    let body = body.split("</testcase>").next().unwrap_or_default();
    let title = attribute(head, "name").context("a test case has no name")?;
    let status = attribute(head, "status").with_context(|| format!("{title}: no status"))?;
    let (kind, name) = title
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .unwrap_or(("", &title));
    let outcome = match status.as_str() {
        "passed" => Outcome::Passed,
        "skipped" | "pending" => Outcome::Skipped,
        "failed" | "timedout" | "panicked" | "interrupted" | "aborted" => Outcome::Failed,
        other => bail!("{title}: unknown status {other:?}"),
    };
    let log = if outcome == Outcome::Failed {
        ["failure", "error", "system-err", "system-out"]
            .iter()
            .filter_map(|tag| element(body, tag))
            .collect::<Vec<_>>()
            .join("\n")
    } else {
        String::new()
    };
    Ok(Case {
        kind: kind.to_owned(),
        name: name.trim().to_owned(),
        outcome,
        seconds: attribute(head, "time")
            .and_then(|time| time.parse().ok())
            .unwrap_or(0.0),
        log,
    })
}

fn attribute(head: &str, name: &str) -> Option<String> {
    let start = format!("{name}=\"");
    // A blank or the beginning before it, so that `name` is not found in `classname`.
    let at = head
        .match_indices(&start)
        .map(|(at, _)| at)
        .find(|at| *at == 0 || head[..*at].ends_with(' '))?;
    let value = &head[at + start.len()..];
    Some(unescape(value.split('"').next()?))
}

fn element(body: &str, tag: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{tag}"))?;
    let (_, content) = rest.split_once('>')?;
    let (content, _) = content.split_once(&format!("</{tag}>"))?;
    Some(unescape(content)).filter(|text| !text.trim().is_empty())
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        match after
            .split_once(';')
            .and_then(|(entity, tail)| Some((character(entity)?, tail)))
        {
            Some((character, tail)) => {
                plain.push(character);
                rest = tail;
            }
            None => {
                plain.push('&');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

fn character(entity: &str) -> Option<char> {
    match entity {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(case: &str, kind: &str, name: &str, outcome: Outcome, log: &str) {
        let text = format!("<?xml version=\"1.0\"?>\n<testsuites tests=\"1\">\n{case}\n</testsuites>");
        let cases = parse(&text).unwrap();
        assert_eq!(cases.len(), 1);
        assert_eq!((cases[0].kind.as_str(), cases[0].name.as_str()), (kind, name));
        assert_eq!((cases[0].outcome, cases[0].log.as_str()), (outcome, log));
    }

    #[test]
    fn cases_are_read() {
        check(
            r#"<testcase name="[It] [sig-node] Pods a &#34;quoted&#34; &lt;b&gt; [NodeConformance]" classname="E2eNode Suite" status="passed" time="1.5"></testcase>"#,
            "It",
            r#"[sig-node] Pods a "quoted" <b> [NodeConformance]"#,
            Outcome::Passed,
            "",
        );
        check(
            r#"<testcase name="[It] x" classname="name=" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>"#,
            "It",
            "x",
            Outcome::Skipped,
            "",
        );
        check(
            "<testcase name=\"[It] x\" status=\"timedout\" time=\"9\"><failure message=\"\" type=\"timedout\">no &amp;&#xA;more</failure>\
             <system-err>line &#39;1&#39;</system-err></testcase>",
            "It",
            "x",
            Outcome::Failed,
            "no &\nmore\nline '1'",
        );
        check(
            r#"<testcase name="[SynchronizedBeforeSuite]" status="panicked" time="1"><error message="" type="panicked">why</error></testcase>"#,
            "SynchronizedBeforeSuite",
            "",
            Outcome::Failed,
            "why",
        );
    }

    #[test]
    fn half_a_report_is_no_report() {
        for text in [
            "",
            "<testsuites>",
            "<testsuites><testcase name=\"[It] x\" status=\"odd\"></testcase></testsuites>",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
