//! `make conformance`: upstream's node e2e suite with a kubelet of choice, compared with what upstream's own kubelet passes on
//! such a machine. No retries.
//!
//! The suite brings its own control plane and starts the kubelet; this module brings a containerd with the images that specs
//! ask for, runs the suite, judges the result and keeps the logs. It fixes neither suite nor kubelet.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the suite is an edge: it runs real programs"
)]

mod interrupt;
mod machine;
mod report;
mod standins;
mod suite;
mod verdict;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::jiff::Timestamp;

use self::machine::Machine;
use self::report::{Case, Outcome};
use self::suite::{Selection, Suite};
pub use self::verdict::Summary;
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::process::{Process, tail};
use rubelet_testbed::programs::Program;
use rubelet_testbed::{Scope, scope, workspace_root};

/// Specs mostly wait, so that this is right for two cores too.
pub const DEFAULT_PROCS: u32 = 8;
/// What a run of all specs may take on a slow machine.
const DEADLINE: Duration = Duration::from_secs(5 * 3600);
const PROGRESS_EVERY: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// How much of the suite's output to show when it is all there is.
const LAST_WORDS: usize = 100;

/// What to run, with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only specs whose name matches this regular expression (Go's syntax).
    pub focus: Option<String>,
    /// Only specs that this file names, one a line; empty lines and lines with `#` in front do not count.
    pub list: Option<PathBuf>,
    /// The program in the kubelet's place; the word `upstream` means upstream's own.
    pub kubelet: PathBuf,
    /// How many specs run at a time.
    pub procs: u32,
}

/// Makes the images ahead of a run.
pub fn prepare() -> Result<()> {
    standins::archives().context("make the images").map(drop)
}

/// Runs the suite. An error means that it could not run; failing specs are in the summary.
pub fn run(options: &Options) -> Result<Summary> {
    let selection = selection(options)?;
    let kubelet = kubelet(&options.kubelet)?;
    let list = names(&workspace_root().join("testbed/conformance/upstream-pass.txt"))?;
    let archives = standins::archives().context("make the images")?;
    // In this order: a killed run's processes end, then its traces go; at the end the scope is torn down before the machine is
    // given back.
    interrupt::asked()?;
    scope::sweep();
    let _machine = Machine::take()?;
    let scope = Scope::new("conformance")?;

    let suite = Suite::prepare(&scope, &kubelet)?;
    let selected = suite.selected(&selection)?;
    check_selection(&selection, &selected)?;
    let on_list = selected.intersection(&list).count();
    eprintln!(
        "conformance: {} specs selected, {on_list} of them on the list of what upstream passes",
        selected.len()
    );

    let containerd = Containerd::start(&scope, Flavour::V2DebianRunc).context("start containerd")?;
    for archive in &archives {
        containerd
            .import(archive)
            .with_context(|| format!("import {}", archive.name()))?;
    }
    let artifacts = artifacts_dir()?;
    let start = Instant::now();
    let command = suite.run(&selection, options.procs, &containerd.socket(), &artifacts)?;
    let ginkgo = scope.spawn("ginkgo", command)?;
    let ended = follow(ginkgo, selected.len());
    keep_logs(&scope, &artifacts);
    let ended = ended?;
    let cases = match ended.cases(&artifacts) {
        Ok(cases) => cases,
        Err(problem) => vec![unreported(&problem, &artifacts)],
    };
    keep_failures(&cases, &artifacts)?;
    let summary = Summary {
        duration: start.elapsed(),
        artifacts: artifacts.clone(),
        ..verdict::judge(&selected, &list, &cases)
    };
    fs::write(artifacts.join("summary.txt"), format!("{summary}\n")).context("keep the summary")?;
    Ok(summary)
}

fn selection(options: &Options) -> Result<Selection> {
    match (&options.focus, &options.list) {
        (None, None) => Ok(Selection::All),
        (Some(focus), None) => Ok(Selection::Matching(focus.clone())),
        (None, Some(list)) => Ok(Selection::Named(names(list)?)),
        (Some(_), Some(_)) => bail!("give a focus or a list, not both"),
    }
}

fn check_selection(selection: &Selection, selected: &BTreeSet<String>) -> Result<()> {
    if let Selection::Named(wanted) = selection {
        let unknown: Vec<&str> = wanted.difference(selected).map(String::as_str).collect();
        if !unknown.is_empty() {
            bail!(
                "the suite does not run what the list names:\n  {}",
                unknown.join("\n  ")
            );
        }
    }
    if selected.is_empty() {
        bail!("no spec is selected");
    }
    Ok(())
}

fn kubelet(wanted: &Path) -> Result<PathBuf> {
    if wanted == Path::new("upstream") {
        return Program::Kubelet.path();
    }
    if !wanted.is_file() {
        bail!("{} is no program; build it first", wanted.display());
    }
    Ok(wanted.to_owned())
}

fn names(path: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("read the list {}", path.display()))?;
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect())
}

fn artifacts_dir() -> Result<PathBuf> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let dir = workspace_root().join("_artifacts/conformance").join(stamp);
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    fs::canonicalize(&dir).context("find the reports' directory")
}

/// How the suite came to its end.
enum End {
    /// By itself.
    Exit(ExitStatus),
    /// It could not start the kubelet or its own servers. It may wait for the kubelet's end then, which never comes.
    NeverBegan,
}

impl End {
    fn cases(&self, artifacts: &Path) -> Result<Vec<Case>> {
        match self {
            Self::Exit(status) => report::read(&artifacts.join("junit_01.xml"))
                .with_context(|| format!("the suite ended with {status}")),
            Self::NeverBegan => bail!("the suite could not start the kubelet or its own servers"),
        }
    }
}

/// A suite that leaves no report failed as a whole.
fn unreported(problem: &anyhow::Error, artifacts: &Path) -> Case {
    Case {
        kind: format!("{problem:#}"),
        name: String::new(),
        outcome: Outcome::Failed,
        seconds: 0.0,
        log: tail(&artifacts.join("ginkgo.log"), LAST_WORDS),
    }
}

/// Waits for the end of the suite and tells of its progress.
fn follow(mut ginkgo: Process, selected: usize) -> Result<End> {
    let start = Instant::now();
    let mut told = start;
    while ginkgo.check_running().is_ok() {
        if interrupt::asked()? {
            bail!("interrupted");
        }
        if start.elapsed() > DEADLINE {
            bail!("the suite did not end in {} hours", DEADLINE.as_secs() / 3600);
        }
        if told.elapsed() > PROGRESS_EVERY {
            told = Instant::now();
            let progress = Progress::read(ginkgo.log());
            if progress.never_began {
                return Ok(End::NeverBegan);
            }
            eprintln!(
                "conformance: {} of {selected} specs done, {} failed so far",
                progress.done, progress.failed
            );
        }
        std::thread::sleep(POLL);
    }
    ginkgo.wait(POLL).map(End::Exit)
}

/// What the suite's output tells while it runs.
#[derive(Debug, PartialEq)]
struct Progress {
    done: usize,
    failed: usize,
    never_began: bool,
}

impl Progress {
    fn read(log: &Path) -> Self {
        let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Self::of(&text.unwrap_or_default())
    }

    /// Each spec that ends has one bullet, with the word behind it if it failed.
    fn of(text: &str) -> Self {
        let is_failed = |line: &&str| line.starts_with('•') && line.contains("[FAILED]");
        Self {
            done: text.matches('•').count(),
            failed: text.lines().filter(is_failed).count(),
            never_began: text
                .lines()
                .any(|line| line.starts_with("[SynchronizedBeforeSuite] [FAILED]")),
        }
    }
}

fn keep_logs(scope: &Scope, artifacts: &Path) {
    for entry in fs::read_dir(scope.dir().join("logs"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Err(problem) = fs::copy(entry.path(), artifacts.join(entry.file_name())) {
            eprintln!("conformance: cannot keep {}: {problem}", entry.path().display());
        }
    }
}

/// One file for each failed spec or step, named after it.
fn keep_failures(cases: &[Case], artifacts: &Path) -> Result<()> {
    let dir = artifacts.join("failed");
    for (number, case) in cases
        .iter()
        .filter(|case| case.outcome == Outcome::Failed)
        .enumerate()
    {
        fs::create_dir_all(&dir)?;
        let text = format!(
            "[{}] {}\nfailed after {:.1} s\n\n{}\n",
            case.kind, case.name, case.seconds, case.log
        );
        fs::write(
            dir.join(format!("{:03}-{}.log", number + 1, file_name(case))),
            text,
        )
        .context("keep a failed spec's log")?;
    }
    Ok(())
}

fn file_name(case: &Case) -> String {
    let title = if case.name.is_empty() {
        &case.kind
    } else {
        &case.name
    };
    let words: String = title
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                ' '
            }
        })
        .collect();
    let name = words.split_whitespace().collect::<Vec<_>>().join("-");
    name.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_sorted() {
        let list = names(&workspace_root().join("testbed/conformance/upstream-pass.txt")).unwrap();
        assert_eq!(list.len(), 420);
        assert!(list.iter().all(|name| name.contains("[NodeConformance]")));
    }

    #[test]
    fn named_specs_must_exist() {
        let wanted = Selection::Named(["a".to_owned(), "b".to_owned()].into());
        let problem = check_selection(&wanted, &["a".to_owned()].into())
            .unwrap_err()
            .to_string();
        assert!(problem.ends_with("\n  b"), "{problem}");
        assert!(check_selection(&wanted, &["a".to_owned(), "b".to_owned()].into()).is_ok());
        assert!(check_selection(&Selection::All, &BTreeSet::new()).is_err());
    }

    #[test]
    fn progress_is_read_from_the_output() {
        let check = |text: &str, done, failed, never_began| {
            assert_eq!(
                Progress::of(text),
                Progress {
                    done,
                    failed,
                    never_began
                },
                "{text}"
            );
        };
        check("", 0, 0, false);
        check(
            "SS••S•\n---\n• [FAILED] [4.2 seconds]\n[sig-node] x\n  [FAILED] why\n••",
            6,
            1,
            false,
        );
        check("[SynchronizedBeforeSuite] [FAILED] [123.4 seconds]\n", 0, 0, true);
    }

    #[test]
    fn failures_get_readable_file_names() {
        let case = Case {
            kind: "It".to_owned(),
            name: "[sig-node] Pods should: \"run\" / stop".to_owned(),
            outcome: Outcome::Failed,
            seconds: 0.0,
            log: String::new(),
        };
        assert_eq!(file_name(&case), "sig-node-Pods-should-run-stop");
        assert_eq!(
            file_name(&Case {
                name: String::new(),
                kind: "AfterSuite".to_owned(),
                ..case
            }),
            "AfterSuite"
        );
    }
}
