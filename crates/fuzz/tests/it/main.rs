//! The targets on the kept corpus, and on mutations of it that a seed decides.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test reads its corpus"
)]

mod mutate;

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rubelet_fuzz::{TARGETS, Target};
use rubelet_sim::dice::Dice;

use mutate::mutated;

/// A few seconds for all targets in a debug build.
const MUTATIONS: usize = 4_000;

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let dir = fuzz_dir().join("corpus").join(target.name);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut entries: Vec<_> = files
        .map(|file| file.unwrap())
        .map(|file| {
            let bytes = std::fs::read(file.path()).unwrap();
            (file.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    entries.sort();
    assert!(!entries.is_empty(), "{}: no entry", dir.display());
    entries
}

fn run(target: &Target, origin: &str, bytes: &[u8]) {
    let outcome = catch_unwind(|| (target.run)(bytes));
    assert!(
        outcome.is_ok(),
        "target {}, {origin}: {}",
        target.name,
        bytes.escape_ascii()
    );
}

#[test]
fn the_kept_corpus_holds() {
    for target in TARGETS {
        for (name, bytes) in corpus(target) {
            run(target, &name, &bytes);
        }
    }
}

#[test]
fn mutations_of_the_corpus_hold() {
    for target in TARGETS {
        let entries = corpus(target);
        let mut dice = Dice::new(0, target.name);
        for turn in 0..MUTATIONS {
            let (name, bytes) = &entries[dice.below(entries.len())];
            let (_, other) = &entries[dice.below(entries.len())];
            let bytes = mutated(bytes, other, &mut dice);
            run(target, &format!("mutation {turn} of {name}"), &bytes);
        }
    }
}

#[test]
fn every_target_has_its_program_and_every_corpus_its_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let files = |dir: &str| -> BTreeSet<String> {
        let files = std::fs::read_dir(fuzz_dir().join(dir)).unwrap();
        let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
        files.map(|file| stem(file.unwrap().path())).collect()
    };
    assert_eq!(files("fuzz_targets"), names);
    assert_eq!(files("corpus"), names);
}
