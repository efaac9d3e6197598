//! Drop-in files: each is laid over the configuration as a JSON merge patch, in the order given.
//!
//! Owns the merge. Objects merge key by key, so `evictionHard` of a drop-in adds to the one before; lists are replaced;
//! null removes. The loader finds the files and their order.

use serde_json::{Map, Value};

use super::decode::{DecodeErrors, Warning, check_kind, read_document, take_type_meta, warnings};
use super::node::Node;
use super::problem::Problem;
use super::schema::{Field, KeyMatch, Walk};
use super::types::KubeletConfiguration;

/// A drop-in file: its name for messages, and its bytes.
#[derive(Clone, Debug)]
pub struct DropIn {
    pub source_name: String,
    pub bytes: Vec<u8>,
}

/// The result of all drop-ins. Removed fields are unset: defaults have to be applied again.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    pub configuration: KubeletConfiguration,
    pub warnings: Vec<Warning>,
}

/// A drop-in with what is wrong with its own values.
struct Patch {
    source_name: String,
    value: Value,
    problems: Vec<Problem>,
}

/// Lays the drop-ins over `base`, the first one first.
pub fn merge_drop_ins(base: &KubeletConfiguration, drop_ins: &[DropIn]) -> Result<Merged, DecodeErrors> {
    let mut found = Vec::new();
    let mut patches = Vec::new();
    for drop_in in drop_ins {
        let (patch, mut notes) = read_patch(drop_in)?;
        found.append(&mut notes);
        patches.push(patch);
    }
    let mut merged = base.published().to_json();
    for patch in &patches {
        merge_patch(&mut merged, &patch.value);
    }
    let mut root = Node::from(merged);
    let mut walk = Walk::new(KeyMatch::IgnoreCase);
    take_type_meta(&mut root, &mut walk);
    let mut configuration = KubeletConfiguration::default();
    configuration.read(&root, &mut walk);
    if walk.problems.is_empty() {
        return Ok(Merged {
            configuration,
            warnings: found,
        });
    }
    let mut sources: Vec<&str> = walk
        .problems
        .iter()
        .filter_map(|problem| origin(&patches, problem))
        .collect();
    sources.dedup();
    Err(DecodeErrors::Fields {
        source_name: sources.join(", "),
        problems: walk.problems,
        readable: Box::new(configuration),
    })
}

/// The last drop-in that has this very problem.
fn origin<'a>(patches: &'a [Patch], problem: &Problem) -> Option<&'a str> {
    patches
        .iter()
        .rev()
        .find(|patch| patch.problems.contains(problem))
        .map(|patch| patch.source_name.as_str())
}

fn read_patch(drop_in: &DropIn) -> Result<(Patch, Vec<Warning>), DecodeErrors> {
    let source_name = &drop_in.source_name;
    let document = read_document(&drop_in.bytes, source_name)?;
    if !document.duplicates.is_empty() {
        // Unlike the main file, a drop-in is read strictly.
        return Err(DecodeErrors::Duplicates {
            source_name: source_name.clone(),
            paths: document.duplicates,
        });
    }
    check_kind(&document.root, source_name)?;
    let mut walk = Walk::new(KeyMatch::IgnoreCase);
    let mut root = document.root.clone();
    take_type_meta(&mut root, &mut walk);
    KubeletConfiguration::default().read(&root, &mut walk);
    let notes = warnings(&document, &walk, source_name);
    let value = Value::from(root);
    Ok((
        Patch {
            source_name: source_name.clone(),
            value,
            problems: walk.problems,
        },
        notes,
    ))
}

/// RFC 7386, with one quirk kept: inside a list that replaces a list, nulls stay.
fn merge_patch(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
            continue;
        }
        match target.get_mut(key) {
            Some(current @ Value::Object(_)) if value.is_object() => merge_patch(current, value),
            Some(Value::Object(_)) => {
                target.insert(key.clone(), value.clone());
            }
            Some(_) | None => {
                target.insert(key.clone(), without_nulls(value));
            }
        }
    }
}

/// Objects lose their null fields at every depth.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(_, field)| !field.is_null())
                .map(|(key, field)| (key.clone(), without_nulls(field)))
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
