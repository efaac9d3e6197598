//! The whole way of the static sources, from text to the pods that run: the same pods, or refused alike.

use anyhow::Result;
use rubelet_goldens::generate::{manifest, mutated_manifest};
use rubelet_manifest::{read_file, read_url};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, seeds};
use crate::oracle_pods::{GATES, prune};
use crate::yaml_text::yaml_text;

const CASES: u64 = 5_000;
const NODE: &str = "node-1";
const FILE: &str = "/manifests/a.yaml";
const URL: &str = "http://host/pods";

/// A question of the seed: a file or an answer over HTTP, JSON or YAML, good or not, one pod or a list.
fn question(seed: u64) -> Value {
    let pod = |seed: u64| {
        if seed.is_multiple_of(3) {
            mutated_manifest(seed)
        } else {
            manifest(seed)
        }
    };
    let is_list = seed.is_multiple_of(5);
    let document = if is_list {
        let items: Vec<Value> = (0..seed % 4).map(|number| pod(seed * 7 + number)).collect();
        json!({"apiVersion": "v1", "kind": "PodList", "items": items})
    } else {
        pod(seed)
    };
    // Upstream reads a list as JSON or YAML too, but only the first of several YAML documents of a single pod.
    let text = match seed.is_multiple_of(2) && !is_list {
        true => yaml_text(&document, seed),
        false => document.to_string(),
    };
    match is_list || seed.is_multiple_of(4) {
        true => json!({"text": text, "node": NODE, "url": URL}),
        false => json!({"text": text, "node": NODE, "file": FILE}),
    }
}

fn our_answer(question: &Value) -> Value {
    let text = question["text"].as_str().unwrap_or_default().as_bytes();
    let read = match question["file"].as_str() {
        Some(path) => read_file(text, path, NODE, &GATES),
        None => read_url(text, URL, NODE, &GATES),
    };
    match read {
        Ok(read) => comparable(json!({"ok": true, "pods": read.pods})),
        Err(_) => comparable(json!({"ok": false})),
    }
}

/// Known difference: a UID that the manifest does not give is made by another recipe. It must be there, and be the hash too.
fn comparable(mut answer: Value) -> Value {
    for pod in answer["pods"].as_array_mut().into_iter().flatten() {
        let metadata = &mut pod["metadata"];
        let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
        let is_made = uid.len() == 32 && uid.chars().all(|digit| digit.is_ascii_hexdigit());
        let hash = &mut metadata["annotations"]["kubernetes.io/config.hash"];
        assert_eq!(*hash, json!(uid), "the hash is the UID");
        if is_made {
            *hash = json!("made");
            metadata["uid"] = json!("made");
        }
    }
    prune(&mut answer);
    answer
}

#[test]
fn static_pods_become_the_same() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let all: Vec<u64> = seeds(CASES).collect();
    let mut differences = Differences::default();
    let mut pods = 0;
    for batch in all.chunks(2_000) {
        let questions: Vec<Value> = batch.iter().map(|seed| question(*seed)).collect();
        let answers = oracle.ask_all("pod.static", questions.clone())?;
        for ((seed, question), answer) in batch.iter().zip(&questions).zip(answers) {
            let upstream = comparable(answer?);
            pods += upstream["pods"].as_array().map_or(0, Vec::len);
            differences.compare(seed, question, &upstream, &our_answer(question));
        }
    }
    differences.assert_none();
    assert!(
        pods > all.len() / 20,
        "{pods} pods of {} questions prove little",
        all.len()
    );
    Ok(())
}
