//! API objects: whatever Go's encoder writes is decoded, and no field is lost or changed on the way.

use anyhow::{Context, Result, ensure};
use rubelet_apiserver::fuzz::{KINDS, Kind};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Map, Value, json};

use crate::oracle_ours::{Differences, seeds};

/// Of each kind.
const OBJECTS: u64 = 300;

/// Go reads both texts, its own and ours: which fields say the same as an absent one is its decision.
#[test]
fn every_object_that_go_writes_is_read_whole() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    for kind in KINDS {
        let texts = objects(&mut oracle, kind)?;
        let ours = texts.iter().map(|text| (kind.reread)(text.as_bytes()));
        let ours: Vec<Result<Vec<u8>, _>> = ours.collect();
        let upstream = read_by_go(&mut oracle, texts.iter().map(String::as_bytes))?;
        let written = ours.iter().map(|text| text.as_deref().unwrap_or(b"{}"));
        let read = read_by_go(&mut oracle, written)?;
        for (((seed, upstream), ours), read) in seeds(OBJECTS).zip(upstream).zip(&ours).zip(read) {
            let upstream = comparable(upstream?);
            let ours = match (ours, read) {
                (Err(error), _) => json!(format!("not decoded: {error}")),
                (Ok(_), Err(error)) => json!(format!("not decoded by Go: {error}")),
                (Ok(_), Ok(read)) => comparable(read),
            };
            differences.compare(seed, &json!(kind.name), &upstream, &ours);
        }
    }
    differences.assert_none();
    Ok(())
}

fn objects(oracle: &mut Oracle, kind: &Kind) -> Result<Vec<String>> {
    let question = |seed| json!({"apiVersion": kind.api_version, "kind": kind.name, "seed": seed});
    let answers = oracle.ask_all("object", seeds(OBJECTS).map(question).collect())?;
    let text = |answer: Result<Value>| {
        let answer = answer.with_context(|| format!("an object of kind {}", kind.name))?;
        let text = answer["text"].as_str().context("an answer without a text")?;
        ensure!(text.contains("\"metadata\":{"), "{} without metadata", kind.name);
        Ok(text.to_owned())
    };
    answers.into_iter().map(text).collect()
}

fn read_by_go<'a>(oracle: &mut Oracle, texts: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Result<Value>>> {
    let question = |text| json!({"text": String::from_utf8_lossy(text)});
    let answers = oracle.ask_all("object.again", texts.map(question).collect())?;
    let read = |answer: Result<Value>| {
        let answer = answer?;
        let text = answer["text"].as_str().context("an answer without a text")?;
        Ok(serde_json::from_str(text)?)
    };
    Ok(answers.into_iter().map(read).collect())
}

/// Maps with entries that Go may write as `null`: that is an empty entry, not an absent one.
const MAPS: [&str; 3] = ["data", "binaryData", "extra"];

/// Required bytes, which Go may write as `null` too. Elsewhere an empty text is a value of its own.
const BYTES: [&str; 2] = ["request", "stubPKCS10Request"];

/// An object without the three differences that are known and mean nothing to a node: `managedFields` are skipped in all metadata,
/// what Go writes as `null` may be empty, and the type of the one required reference that Go may write as `null` has no such value
/// (the plugin of that volume was removed from Kubernetes).
fn comparable(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_absent =
                |name: &str, field: &Value| is_empty(field) || BYTES.contains(&name) && field == "";
            let fields = fields.into_iter().filter(|(name, field)| !is_absent(name, field));
            let fields = fields.map(|(name, field)| {
                let field = match (name.as_str(), field) {
                    ("metadata", Value::Object(metadata)) => without(metadata, "managedFields"),
                    ("scaleIO", Value::Object(volume)) if volume.get("secretRef") == Some(&json!({})) => {
                        without(volume, "secretRef")
                    }
                    (name, Value::Object(map)) if MAPS.contains(&name) => with_nulls(map),
                    (_, field) => comparable(field),
                };
                (name, field)
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(entries) => entries.into_iter().map(comparable).collect(),
        other => other,
    }
}

fn is_empty(field: &Value) -> bool {
    field.is_null() || field.as_array().is_some_and(Vec::is_empty)
}

fn without(mut fields: Map<String, Value>, name: &str) -> Value {
    fields.remove(name);
    comparable(Value::Object(fields))
}

fn with_nulls(map: Map<String, Value>) -> Value {
    let entry = |(key, value): (String, Value)| {
        let value = if is_empty(&value) || value == "" {
            Value::Null
        } else {
            value
        };
        (key, value)
    };
    Value::Object(map.into_iter().map(entry).collect())
}
