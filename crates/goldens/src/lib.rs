//! Goldens: upstream's answers to a fixed corpus of questions, kept in `testbed/goldens`.
//!
//! They let the crates that own the code be checked against upstream without Go. This crate owns the corpus and the files;
//! the crates' own tests compare. Upstream's wording is left out on purpose: an answer keeps whether a value is accepted,
//! how many problems it has, and what it becomes.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "goldens are files"
)]

mod configurations;
mod credentials;
pub mod generate;
mod pods;
mod proxies;
mod statuses;
mod values;

pub use configurations::{configuration, field_values};
pub use statuses::{STATUS_OPS, status_question, without_moments};

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use rubelet_testbed::oracle::Oracle;
use rubelet_testbed::workspace_root;

/// One golden file: an operation, its questions, and how an answer is cut down to what is kept.
pub(crate) struct Set {
    file: &'static str,
    op: &'static str,
    questions: Vec<Value>,
    keep: fn(Value) -> Value,
}

impl Set {
    fn new(file: &'static str, op: &'static str, questions: Vec<Value>) -> Self {
        Self {
            file,
            op,
            questions,
            keep: without_wording,
        }
    }
}

/// Where the goldens are kept.
pub fn goldens_dir() -> PathBuf {
    workspace_root().join("testbed/goldens")
}

/// Asks the oracle the whole corpus and writes one file per set.
pub fn write_goldens(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for (file, text) in render_goldens()? {
        let path = dir.join(file);
        fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
        eprintln!("goldens: {file}, {} lines", text.lines().count());
    }
    Ok(())
}

/// Every golden file's name and the text that the oracle gives for it today.
pub fn render_goldens() -> Result<Vec<(&'static str, String)>> {
    let mut oracle = Oracle::start()?;
    sets()
        .into_iter()
        .map(|set| Ok((set.file, render(&mut oracle, set)?)))
        .collect()
}

fn sets() -> Vec<Set> {
    let mut all = values::sets();
    all.extend(configurations::sets());
    all.extend(credentials::sets());
    all.extend(statuses::sets());
    all.extend(pods::sets());
    all.extend(proxies::sets());
    all
}

fn render(oracle: &mut Oracle, set: Set) -> Result<String> {
    let answers = oracle.ask_all(set.op, set.questions.clone())?;
    let mut text = String::new();
    for (question, answer) in set.questions.into_iter().zip(answers) {
        // A table is one answer, but one line per row shows what changed between two versions.
        match answer.with_context(|| format!("{question}"))? {
            Value::Array(rows) if question.is_null() => {
                for row in rows {
                    push_line(&mut text, &json!({"op": set.op, "row": row}));
                }
            }
            output => push_line(
                &mut text,
                &json!({"op": set.op, "input": question, "output": (set.keep)(output)}),
            ),
        }
    }
    Ok(text)
}

fn push_line(text: &mut String, line: &Value) {
    text.push_str(&line.to_string());
    text.push('\n');
}

/// Replaces upstream's error texts by their number.
fn without_wording(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => count_texts(fields),
        // The list of what is wrong with a name.
        Value::Array(texts) => return json!({"ok": texts.is_empty()}),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    answer
}

fn count_texts(fields: &mut Map<String, Value>) {
    fields.remove("error");
    for (texts, count) in [("errors", "problems"), ("strictErrors", "strictProblems")] {
        if let Some(Value::Array(list)) = fields.remove(texts) {
            fields.insert(count.to_owned(), list.len().into());
        }
    }
}
