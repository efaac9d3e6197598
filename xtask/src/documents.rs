//! `docs/compatibility.md` names the tests that prove its rows as `path/to/file.rs#test`: each must exist, and what works has one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const TABLE: &str = "docs/compatibility.md";

/// Rows whose tests do not exist, or that claim to work without a test.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| format!("read {TABLE}"))?;
    Ok(problems(&text, &|path| fs::read_to_string(root.join(path)).ok()))
}

fn problems(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let references: Vec<&str> = line.split('`').filter(|word| word.contains(".rs#")).collect();
        let claims_to_work = line.split('|').any(|cell| cell.trim() == "works");
        if claims_to_work && references.is_empty() {
            problems.push(format!("{TABLE}:{}: a row that works names no test", index + 1));
        }
        for reference in references {
            let (path, name) = reference.split_once('#').unwrap_or((reference, ""));
            let exists = read(path).is_some_and(|source| defines_test(&source, name));
            if !exists {
                problems.push(format!("{TABLE}:{}: there is no test {reference}", index + 1));
            }
        }
    }
    problems
}

fn defines_test(source: &str, name: &str) -> bool {
    let is_definition = |line: &str| {
        let rest = line.trim_start().trim_start_matches("async ").strip_prefix("fn ");
        rest.and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('))
    };
    // Scenarios run on every containerd, by the tests that have a bed for them.
    let has_tests = ["test]", "::test(", "proptest!", "scenarios!["]
        .iter()
        .any(|mark| source.contains(mark));
    has_tests && source.lines().any(is_definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: &[&str]) {
        let read = |path: &str| {
            (path == "a.rs").then(|| "#[tokio::test]\nasync fn good() {}\nfn goodbye() {}".to_owned())
        };
        assert_eq!(problems(line, &read), expect);
    }

    #[test]
    fn named_tests_must_exist() {
        check("| x | works | `a.rs#good` |", &[]);
        check(
            "| x | works | `a.rs#goo` |",
            &["docs/compatibility.md:1: there is no test a.rs#goo"],
        );
        check(
            "| x | partial | `b.rs#good` |",
            &["docs/compatibility.md:1: there is no test b.rs#good"],
        );
        check(
            "| x | works | |",
            &["docs/compatibility.md:1: a row that works names no test"],
        );
        check("| x | not yet | |", &[]);
        check("prose about `a.rs#nothing`", &[]);
    }
}
