//! The policy on crates from outside: licences, bans with reasons, one version of each in the program.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata};

use crate::layers::reachable_ids;

/// Licences that go together with Apache-2.0 in a binary we hand out.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "OpenSSL",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that must not come in, not even through another, and why.
const BANNED: [(&str, &str); 9] = [
    ("cgroups-rs", "drags old dependencies for a dozen files"),
    ("libcgroups", "drags heavy dependencies for a dozen files"),
    ("native-tls", "one TLS stack: rustls"),
    (
        "openssl-sys",
        "one TLS stack: rustls; no C library to patch on nodes",
    ),
    (
        "prometheus-client",
        "appends _total to counters and so breaks upstream's metric names",
    ),
    (
        "ring",
        "one crypto provider: aws-lc-rs (ring lacks key types that pod certificates need)",
    ),
    ("serde_yaml", "deprecated"),
    ("serde_yml", "deprecated"),
    ("chrono", "k8s-openapi uses jiff; one time library"),
];

/// Crates that the program may hold twice, and why.
const KNOWN_DUPLICATES: [(&str, &str); 2] = [
    (
        "base64",
        "tonic 0.14 is still on 0.22, hyper-util and pem on 0.23; small, and gone when tonic moves",
    ),
    (
        "untrusted",
        "aws-lc-rs 1 is still on 0.7, rustls-webpki on 0.9; a few hundred lines",
    ),
];

/// Crates whose licence is not on the list.
pub(crate) fn check_licences(metadata: &Metadata) -> Vec<String> {
    let unfit = metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(is_allowed));
    unfit
        .map(|package| {
            format!(
                "{} {}: licence {:?} is not allowed",
                package.name, package.version, package.license
            )
        })
        .collect()
}

/// Evaluates an SPDX expression (`OR`, `AND`, parentheses; the old `/` means `OR`).
fn is_allowed(expression: &str) -> bool {
    let expression = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = expression.split_whitespace().collect();
    let mut position = 0;
    any_of(&words, &mut position) && position == words.len()
}

fn any_of(words: &[&str], position: &mut usize) -> bool {
    let mut allowed = all_of(words, position);
    while words.get(*position) == Some(&"OR") {
        *position += 1;
        // Not `||`: both sides must be read.
        allowed |= all_of(words, position);
    }
    allowed
}

fn all_of(words: &[&str], position: &mut usize) -> bool {
    let mut allowed = one(words, position);
    while words.get(*position) == Some(&"AND") {
        *position += 1;
        allowed &= one(words, position);
    }
    allowed
}

fn one(words: &[&str], position: &mut usize) -> bool {
    if words.get(*position) == Some(&"(") {
        *position += 1;
        let allowed = any_of(words, position);
        *position += 1;
        return allowed;
    }
    let mut licence = (*words.get(*position).unwrap_or(&"")).to_owned();
    *position += 1;
    if words.get(*position) == Some(&"WITH") {
        licence = format!("{licence} WITH {}", words.get(*position + 1).unwrap_or(&""));
        *position += 2;
    }
    LICENCES.contains(&licence.as_str())
}

/// Banned crates and crates that come from elsewhere than the registry or this checkout.
pub(crate) fn check_bans(metadata: &Metadata) -> Vec<String> {
    let kinds = [
        DependencyKind::Normal,
        DependencyKind::Build,
        DependencyKind::Development,
    ];
    let ours = metadata.workspace_packages();
    let built: BTreeSet<_> = ours
        .iter()
        .flat_map(|package| reachable_ids(metadata, &package.id, &kinds))
        .collect();
    let mut problems = Vec::new();
    for package in built.into_iter().map(|id| &metadata[id]) {
        if let Some((name, reason)) = BANNED.iter().find(|(name, _)| package.name.as_str() == *name) {
            problems.push(format!("{name} is banned: {reason}"));
        }
        if let Some(source) = package.source.as_ref().filter(|source| !source.is_crates_io()) {
            problems.push(format!("{} comes from {source}", package.name));
        }
    }
    problems
}

/// Crates that the program holds in more than one version.
pub(crate) fn check_duplicates(metadata: &Metadata) -> Result<Vec<String>> {
    let program = metadata
        .workspace_packages()
        .into_iter()
        .find(|package| package.name.as_str() == "rubelet");
    let program = program.context("the workspace has no package rubelet")?;
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for id in reachable_ids(metadata, &program.id, &[DependencyKind::Normal]) {
        versions
            .entry(metadata[id].name.as_str())
            .or_default()
            .insert(metadata[id].version.to_string());
    }
    let known = |name: &str| KNOWN_DUPLICATES.iter().any(|(known, _)| *known == name);
    let mut problems: Vec<String> = versions
        .iter()
        .filter(|(name, versions)| versions.len() > 1 && !known(name))
        .map(|(name, versions)| format!("the program holds {name} in versions {versions:?}"))
        .collect();
    for (name, _) in KNOWN_DUPLICATES {
        if versions.get(name).is_none_or(|versions| versions.len() < 2) {
            problems.push(format!("{name} is listed as a known duplicate but is none"));
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn licence_expressions_are_evaluated() {
        let check =
            |expression: &str, allowed: bool| assert_eq!(is_allowed(expression), allowed, "{expression}");
        check("MIT", true);
        check("MIT/Apache-2.0", true);
        check("GPL-3.0-only", false);
        check("GPL-3.0-only OR MIT", true);
        check("MIT AND GPL-3.0-only", false);
        check("(MIT OR GPL-2.0-only) AND ISC", true);
        check("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", true);
        check("MIT AND (GPL-2.0-only OR AGPL-3.0)", false);
        check("", false);
        check("MIT MIT", false);
    }
}
