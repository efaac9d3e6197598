//! The table of pod fields in `docs/compatibility.md`: a row for every field that the API's types have, and no other row.
//!
//! The names are what the types themselves tell a deserializer, so that a field which comes with a new version of the API is
//! missed here until somebody has said what becomes of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Container, Lifecycle, PodSecurityContext, PodSpec, SecurityContext};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

const DOCUMENT: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- pod fields: begin -->";
const END: &str = "<!-- pod fields: end -->";
/// What may become of a field.
const STATES: [&str; 5] = ["honoured", "partial", "refused", "coming", "not the kubelet's"];
/// These are proven by a test.
const PROVEN: [&str; 2] = ["honoured", "partial"];

/// Whoever wants to be read from this learns nothing, and tells the names of its fields.
struct Names<'a>(&'a Cell<&'static [&'static str]>);

#[derive(Debug)]
struct Nothing;

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing to read")
    }
}

impl std::error::Error for Nothing {}

impl serde::de::Error for Nothing {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Nothing;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Nothing> {
        Err(Nothing)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Nothing> {
        self.0.set(fields);
        Err(Nothing)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn names_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let names: Cell<&'static [&'static str]> = Cell::new(&[]);
    // It cannot succeed; what counts is what it asked for.
    let _ = T::deserialize(Names(&names));
    names.get()
}

/// Every field as the table names it.
fn wanted() -> Vec<String> {
    let types = [
        ("PodSpec", names_of::<PodSpec>()),
        ("Container", names_of::<Container>()),
        ("PodSecurityContext", names_of::<PodSecurityContext>()),
        ("SecurityContext", names_of::<SecurityContext>()),
        ("Lifecycle", names_of::<Lifecycle>()),
    ];
    types
        .iter()
        .flat_map(|(name, fields)| fields.iter().map(move |field| format!("{name}.{field}")))
        .collect()
}

pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("read {DOCUMENT}"))?;
    Ok(problems(&text, &wanted()))
}

fn problems(text: &str, wanted: &[String]) -> Vec<String> {
    let table = text
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END))
        .map(|(table, _)| table);
    let Some(table) = table else {
        return vec![format!("{DOCUMENT}: no table between {BEGIN} and {END}")];
    };
    let mut problems = Vec::new();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').splitn(3, '|').map(str::trim).collect();
        let [field, state, words] = cells.as_slice() else {
            problems.push(format!("{DOCUMENT}: not three cells: {line}"));
            continue;
        };
        let field = field.trim_matches('`');
        *rows.entry(field).or_default() += 1;
        if !STATES.contains(state) {
            problems.push(format!("{DOCUMENT}: {field}: {state:?} is none of {STATES:?}"));
        }
        if PROVEN.contains(state) && !words.contains(".rs#") {
            problems.push(format!("{DOCUMENT}: {field} is {state} and names no test"));
        }
        if words.is_empty() {
            problems.push(format!("{DOCUMENT}: {field}: nothing is said about it"));
        }
    }
    for field in wanted {
        match rows.remove(field.as_str()) {
            Some(1) => {}
            Some(count) => problems.push(format!("{DOCUMENT}: {field} has {count} rows")),
            None => problems.push(format!("{DOCUMENT}: {field} has no row")),
        }
    }
    problems.extend(
        rows.into_keys()
            .map(|field| format!("{DOCUMENT}: there is no field {field}")),
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_tell_their_fields() {
        let all = wanted();
        for field in ["PodSpec.hostUsers", "Container.lifecycle", "Lifecycle.stopSignal"] {
            assert!(all.iter().any(|one| one == field), "no {field} in {all:?}");
        }
    }

    #[test]
    fn tables_are_checked() {
        let wanted = ["A.x".to_owned(), "A.y".to_owned()];
        let check = |rows: &str, expected: &[&str]| {
            let text = format!("before\n{BEGIN}\n| field | today | words |\n|---|---|---|\n{rows}{END}\n");
            assert_eq!(problems(&text, &wanted), expected, "{rows}");
        };
        check(
            "| `A.x` | honoured | `t.rs#test` |\n| `A.y` | coming | later |\n",
            &[],
        );
        check(
            "| `A.x` | honoured | nothing |\n| `A.y` | fine | x |\n| `A.z` | coming |  |\n",
            &[
                "docs/compatibility.md: A.x is honoured and names no test",
                "docs/compatibility.md: A.y: \"fine\" is none of [\"honoured\", \"partial\", \"refused\", \"coming\", \"not the kubelet's\"]",
                "docs/compatibility.md: A.z: nothing is said about it",
                "docs/compatibility.md: there is no field A.z",
            ],
        );
        check(
            "| `A.x` | coming | x |\n| `A.x` | coming | x |\n",
            &[
                "docs/compatibility.md: A.x has 2 rows",
                "docs/compatibility.md: A.y has no row",
            ],
        );
        assert_eq!(problems("none", &wanted).len(), 1);
    }
}
