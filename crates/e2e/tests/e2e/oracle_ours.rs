//! Our own answers in the oracle's terms, and how two answers are compared. Used by the tests named `oracle_*`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rubelet_config::kubelet_configuration::{
    DropIn, HostFacts, KubeletConfiguration, apply_defaults, decode, merge_drop_ins, validate,
    validate_on_host,
};
use rubelet_config::load::Files;
use rubelet_config::{FeatureGates, Gate};
use serde_json::{Value, json};

/// A seeded source of choices; the same seed gives the same choices on every machine.
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The seeds of one run: as many as usual or as `RUBELET_ORACLE_CASES` asks for, from 0 or from `RUBELET_SEED` to look elsewhere.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("RUBELET_SEED").unwrap_or(0);
    first..first + number("RUBELET_ORACLE_CASES").unwrap_or(usual)
}

/// Collects what differs, and fails with everything at once: seed, input and both answers.
#[derive(Default)]
pub(crate) struct Differences {
    asked: usize,
    found: Vec<String>,
}

impl Differences {
    pub(crate) fn compare(
        &mut self,
        seed: impl std::fmt::Display,
        input: &Value,
        upstream: &Value,
        ours: &Value,
    ) {
        self.asked += 1;
        if upstream != ours {
            self.found
                .push(format!("seed {seed}: {input}\n    {}", describe(upstream, ours)));
        }
    }

    pub(crate) fn assert_none(self) {
        let shown: Vec<&str> = self.found.iter().take(40).map(String::as_str).collect();
        let count = self.found.len();
        assert!(
            count == 0,
            "{count} of {} answers differ, for example:\n{}",
            self.asked,
            shown.join("\n")
        );
    }
}

/// The fields that differ, for objects too long to read.
fn describe(upstream: &Value, ours: &Value) -> String {
    match (upstream, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            let differing = names
                .into_iter()
                .filter(|name| left.get(*name) != right.get(*name));
            let lines = differing.map(|name| {
                let side = |object: &serde_json::Map<String, Value>| {
                    object.get(name).cloned().unwrap_or(json!("(absent)"))
                };
                format!("{name}: {}", describe(&side(left), &side(right)))
            });
            lines.collect::<Vec<_>>().join("; ")
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            let differing = pairs.filter(|(_, (left, right))| left != right);
            let lines = differing.map(|(at, (left, right))| format!("[{at}] {}", describe(left, right)));
            lines.collect::<Vec<_>>().join("; ")
        }
        _ => format!("upstream {}, ours {}", short(upstream), short(ours)),
    }
}

/// A whole configuration beside "refused" would fill the screen.
fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 200 {
        text
    } else {
        text.chars().take(200).chain("…".chars()).collect()
    }
}

/// Whether we accept a configuration, and what it becomes; the same for upstream is `upstream_verdict`.
pub(crate) fn our_verdict(text: &str) -> Value {
    let Some((configuration, gates)) = read(text) else {
        return json!({"decoded": false});
    };
    let mut problems = validate(&configuration, &gates);
    problems.extend(validate_on_host(&configuration, HostFacts { cgroup_v2: true }));
    json!({"decoded": true, "problems": problems.len(), "config": configuration.to_configz()})
}

fn read(text: &str) -> Option<(KubeletConfiguration, FeatureGates)> {
    let mut configuration = decode(text.as_bytes(), "generated").ok()?.configuration;
    let gates = FeatureGates::from_values(&configuration.feature_gates).ok()?;
    apply_defaults(&mut configuration, &gates);
    Some((configuration, gates))
}

/// A file and its drop-ins, merged; `None` when one of them is refused.
pub(crate) fn our_merge(texts: &[String]) -> Option<Value> {
    let (file, drop_ins) = texts.split_first()?;
    let (base, _) = read(file)?;
    let drop_ins: Vec<DropIn> = drop_ins
        .iter()
        .map(|text| DropIn {
            source_name: "drop-in".to_owned(),
            bytes: text.clone().into_bytes(),
        })
        .collect();
    let mut merged = merge_drop_ins(&base, &drop_ins).ok()?.configuration;
    let gates = FeatureGates::from_values(&merged.feature_gates).ok()?;
    apply_defaults(&mut merged, &gates);
    Some(merged.to_configz())
}

/// Upstream's answers to `config.decode` and `config.validate`, in the form of `our_verdict`.
pub(crate) fn upstream_verdict(decoded: &Value, validated: &Value) -> Value {
    if decoded["ok"] != true {
        assert_eq!(validated["stage"], "decode", "{validated}");
        return json!({"decoded": false});
    }
    let problems = validated["errors"].as_array().map_or(0, Vec::len);
    json!({"decoded": true, "problems": problems, "config": decoded["config"]})
}

/// The states that a value of `--feature-gates` changes, in the form of the oracle's `gates.set`.
pub(crate) fn our_gates(values: &BTreeMap<String, bool>) -> Value {
    let Ok(gates) = FeatureGates::from_values(values) else {
        return json!({"ok": false});
    };
    let changed: BTreeMap<&str, bool> = Gate::all()
        .iter()
        .map(|info| (info.name, gates.enabled(info.gate), info.switch.default_value()))
        .filter_map(|(name, now, default)| (now != default).then_some((name, now)))
        .collect();
    json!({"ok": true, "changed": changed})
}

/// The machine's files, as the program itself reads them.
pub(crate) struct RealFiles;

impl Files for RealFiles {
    fn current_dir(&self) -> io::Result<PathBuf> {
        std::env::current_dir()
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(file)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(std::fs::symlink_metadata(path)?.is_dir())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }
}
