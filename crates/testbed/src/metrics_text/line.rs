//! One line of a page.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::{Kind, Sample};

pub(super) enum Line {
    Help { name: String, help: String },
    Type { name: String, kind: Kind },
    Sample(Sample),
}

pub(super) fn read(text: &str) -> Result<Line> {
    if let Some(rest) = text.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').context("HELP without a text")?;
        return Ok(Line::Help {
            name: metric_name(name)?,
            help: unescaped(help, false)?,
        });
    }
    if let Some(rest) = text.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').context("TYPE without a type")?;
        return Ok(Line::Type {
            name: metric_name(name)?,
            kind: Kind::parse(kind)?,
        });
    }
    ensure!(!text.starts_with('#'), "a comment that is neither HELP nor TYPE");
    sample(text).map(Line::Sample)
}

fn metric_name(name: &str) -> Result<String> {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    let is_good = name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit());
    ensure!(is_good, "{name:?} is no name of a metric");
    Ok(name.to_owned())
}

fn label_name(name: &str) -> Result<String> {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_good = name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit());
    ensure!(
        is_good && !name.starts_with("__"),
        "{name:?} is no name of a label"
    );
    Ok(name.to_owned())
}

fn unescaped(text: &str, in_quotes: bool) -> Result<String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(match characters.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some('"') if in_quotes => '"',
                other => bail!("a backslash before {other:?}"),
            }),
            other => plain.push(other),
        }
    }
    Ok(plain)
}

fn sample(text: &str) -> Result<Sample> {
    let name_end = text.find(['{', ' ']).context("a sample without a value")?;
    let (name, mut rest) = text.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = read_labels(inside, &mut labels)?;
    }
    let rest = rest.strip_prefix(' ').context("no blank before the value")?;
    let (value, time) = match rest.split_once(' ') {
        Some((value, time)) => (value, Some(time)),
        None => (rest, None),
    };
    let time_ms = time.map(|time| time.parse().with_context(|| format!("{time:?} is no time")));
    Ok(Sample {
        name: metric_name(name)?,
        labels,
        value: number(value)?,
        time_ms: time_ms.transpose()?,
    })
}

/// Returns what follows the closing brace.
fn read_labels<'a>(mut rest: &'a str, labels: &mut BTreeMap<String, String>) -> Result<&'a str> {
    loop {
        let (name, after) = rest.split_once("=\"").context("a label without a value")?;
        let end = closing_quote(after).context("a label whose value does not end")?;
        let value = unescaped(&after[..end], true)?;
        let before = labels.insert(label_name(name)?, value);
        ensure!(before.is_none(), "label {name} stands there twice");
        rest = &after[end + 1..];
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        rest = rest.strip_prefix(',').context("labels are not apart")?;
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            '"' if !is_escaped => return Some(at),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// As the format's own library writes numbers.
pub(super) fn number(text: &str) -> Result<f64> {
    match text {
        "+Inf" => return Ok(f64::INFINITY),
        "-Inf" => return Ok(f64::NEG_INFINITY),
        "NaN" => return Ok(f64::NAN),
        _ => {}
    }
    let has_digits_only = text
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e'));
    ensure!(has_digits_only, "{text:?} is no number");
    text.parse().with_context(|| format!("{text:?} is no number"))
}
