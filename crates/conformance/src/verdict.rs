//! Compares a run with the list of what upstream's kubelet passes. Pure: cases and names in, verdict out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::report::{Case, Outcome};

/// What a run showed. Names are full spec names.
#[derive(Debug, Default)]
pub struct Summary {
    /// On the list and passed.
    pub passed: Vec<String>,
    /// On the list and failed.
    pub failed: Vec<String>,
    /// On the list and selected, but skipped itself or never started.
    pub not_run: Vec<String>,
    /// Passed although upstream did not pass it here.
    pub passed_beside: Vec<String>,
    /// Failed, as upstream did here. Does not count.
    pub failed_beside: Vec<String>,
    /// Steps of the suite itself that failed, such as starting the kubelet.
    pub failed_steps: Vec<String>,
    pub duration: Duration,
    /// Where the reports and logs are.
    pub artifacts: PathBuf,
}

impl Summary {
    /// Whether every selected spec of the list passed.
    pub fn is_success(&self) -> bool {
        self.failed.is_empty() && self.not_run.is_empty() && self.failed_steps.is_empty()
    }
}

/// `selected` are the specs that the run was asked for; `list` is what upstream passes.
pub(super) fn judge(selected: &BTreeSet<String>, list: &BTreeSet<String>, cases: &[Case]) -> Summary {
    let mut outcomes: BTreeMap<&str, Outcome> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.is_spec()) {
        // A name that occurs twice counts as its worst.
        let outcome = outcomes.entry(&case.name).or_insert(case.outcome);
        *outcome = case.outcome.max(*outcome);
    }
    let mut summary = Summary {
        failed_steps: cases
            .iter()
            .filter(|case| !case.is_spec() && case.outcome == Outcome::Failed)
            .map(|case| case.kind.clone())
            .collect(),
        ..Summary::default()
    };
    for name in selected {
        let place = match (list.contains(name), outcomes.get(name.as_str())) {
            (true, Some(Outcome::Passed)) => &mut summary.passed,
            (true, Some(Outcome::Failed)) => &mut summary.failed,
            (true, Some(Outcome::Skipped) | None) => &mut summary.not_run,
            (false, Some(Outcome::Passed)) => &mut summary.passed_beside,
            (false, Some(Outcome::Failed)) => &mut summary.failed_beside,
            (false, Some(Outcome::Skipped) | None) => continue,
        };
        place.push(name.clone());
    }
    summary
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, names) in [
            ("failed before or after the specs", &self.failed_steps),
            ("failed beside the list (does not count)", &self.failed_beside),
            ("passed beside the list", &self.passed_beside),
            ("not run although on the list", &self.not_run),
            ("FAILED although on the list", &self.failed),
        ] {
            if !names.is_empty() {
                writeln!(out, "{title}:")?;
                names.iter().try_for_each(|name| writeln!(out, "  {name}"))?;
            }
        }
        writeln!(out, "reports and logs: {}", self.artifacts.display())?;
        let [passed, failed, not_run] = [&self.passed, &self.failed, &self.not_run].map(Vec::len);
        let [passed_beside, failed_beside] = [&self.passed_beside, &self.failed_beside].map(Vec::len);
        let seconds = self.duration.as_secs();
        write!(
            out,
            "{passed} passed, {failed} failed, {not_run} not run of {} on the list; \
             beside it {passed_beside} passed, {failed_beside} failed; {} min {} s",
            passed + failed + not_run,
            seconds / 60,
            seconds % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn case(kind: &str, name: &str, outcome: Outcome) -> Case {
        Case {
            kind: kind.to_owned(),
            name: name.to_owned(),
            outcome,
            seconds: 0.0,
            log: String::new(),
        }
    }

    #[test]
    fn every_selected_spec_has_one_place() {
        let selected = names(&["a", "b", "c", "d", "x", "y", "z"]);
        let list = names(&["a", "b", "c", "d", "not selected"]);
        let cases = [
            case("It", "a", Outcome::Passed),
            case("It", "b", Outcome::Passed),
            case("It", "b", Outcome::Failed),
            case("It", "c", Outcome::Skipped),
            case("It", "x", Outcome::Passed),
            case("It", "y", Outcome::Failed),
            case("It", "z", Outcome::Skipped),
            case("It", "not selected", Outcome::Skipped),
        ];
        let summary = judge(&selected, &list, &cases);
        assert_eq!(summary.passed, ["a"]);
        assert_eq!(summary.failed, ["b"]);
        assert_eq!(summary.not_run, ["c", "d"]);
        assert_eq!(summary.passed_beside, ["x"]);
        assert_eq!(summary.failed_beside, ["y"]);
        assert!(!summary.is_success());
        let text = summary.to_string();
        assert!(
            text.ends_with(
                "1 passed, 1 failed, 2 not run of 4 on the list; beside it 1 passed, 1 failed; 0 min 0 s"
            ),
            "{text}"
        );
    }

    #[test]
    fn only_what_upstream_passes_decides() {
        let list = names(&["a"]);
        let check = |cases: &[Case], success: bool| {
            assert_eq!(
                judge(&names(&["a", "y"]), &list, cases).is_success(),
                success,
                "{cases:?}"
            );
        };
        check(
            &[case("It", "a", Outcome::Passed), case("It", "y", Outcome::Failed)],
            true,
        );
        check(
            &[
                case("It", "a", Outcome::Passed),
                case("SynchronizedAfterSuite", "", Outcome::Failed),
            ],
            false,
        );
        check(&[case("It", "a", Outcome::Skipped)], false);
        check(&[], false);
    }
}
