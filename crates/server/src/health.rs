//! `/healthz` and the checks below it.
//!
//! Owns the texts; the agent knows whether the sync loop turns.

use http::StatusCode;

use crate::paths::Check;
use crate::response::{Answer, error_line, guarded_text, text};

/// What a client wants of the summary.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthQuery {
    pub(crate) verbose: bool,
    pub(crate) excluded: Vec<String>,
}

impl HealthQuery {
    pub(crate) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "verbose" => parsed.verbose = true,
                "exclude" => parsed.excluded.push(value.into_owned()),
                _ => {}
            }
        }
        parsed
    }
}

/// All checks together. Why one failed is withheld: the page needs no authentication.
pub(crate) fn summary(
    query: &HealthQuery,
    checks: &[Check],
    passes: impl Fn(Check) -> Result<(), String>,
) -> Answer {
    let mut lines = String::new();
    let mut failed = false;
    for check in checks {
        let name = check.name();
        if query.excluded.iter().any(|excluded| excluded == name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if let Err(reason) = passes(*check) {
            tracing::info!(check = name, reason, "A health check failed");
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            failed = true;
        } else {
            lines.push_str(&format!("[+]{name} ok\n"));
        }
    }
    let mut unknown: Vec<String> = query
        .excluded
        .iter()
        .filter(|excluded| checks.iter().all(|check| check.name() != *excluded))
        .map(|name| format!("{name:?}"))
        .collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {names}\n"
        ));
    }
    if failed {
        return error_line(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("{lines}healthz check failed"),
        );
    }
    if query.verbose {
        guarded_text(StatusCode::OK, format!("{lines}healthz check passed\n"))
    } else {
        guarded_text(StatusCode::OK, "ok")
    }
}

/// One check with its reason.
pub(crate) fn single(result: Result<(), String>) -> Answer {
    match result {
        Ok(()) => text(StatusCode::OK, "ok"),
        Err(reason) => error_line(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("internal server error: {reason}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An excluded check does not show; nothing else changes the answer.
        #[test]
        fn no_exclusion_upsets_it(
            query in "((verbose|exclude)(=(ping|log|syncloop|[a-z\"%]{0,4}))?&?){0,6}|\\PC{0,40}",
            failing in 0..Check::ALL.len(),
        ) {
            let asked = HealthQuery::parse(&query);
            let fails = |check: &Check| check.name() == Check::ALL[failing].name();
            let answer = summary(&asked, &Check::ALL, |check| match fails(&check) {
                true => Err("secret".to_owned()),
                false => Ok(()),
            });
            let is_excluded = asked.excluded.iter().any(|name| name == Check::ALL[failing].name());
            prop_assert_eq!(answer.status() == StatusCode::OK, is_excluded, "{}", query);
        }
    }
}
