//! Upstream's node e2e suite as a program: the directory that it runs in, the words on its command line, what it selects.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::report::{self, Outcome};
use rubelet_testbed::programs::Program;
use rubelet_testbed::{Scope, workspace_root};

/// Found in the name of every spec, before the spec's own words.
const SUITE: &str = "E2eNode Suite";
const FOCUS: &str = r"\[NodeConformance\]";
const SKIP: &str = r"\[Serial\]|\[Slow\]|\[Flaky\]|\[Disruptive\]|\[Feature:";
const LABEL: &str = "NodeConformance";
/// Only lets the suite talk to the API server that it starts itself on the loopback interface.
const TOKEN: &str = "conformance";
/// Far above what a slow machine needs; a suite that hangs must end.
const TIMEOUT: &str = "4h";

/// Which specs to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Selection {
    All,
    /// A regular expression in Go's syntax.
    Matching(String),
    /// Exact names.
    Named(BTreeSet<String>),
}

impl Selection {
    /// Options of the test framework, without the prefix that its two programs want differently.
    fn options(&self) -> Vec<String> {
        let focus = match self {
            Self::All => vec![FOCUS.to_owned()],
            Self::Matching(expression) => vec![expression.clone()],
            Self::Named(names) => names
                .iter()
                .map(|name| format!("^{SUITE} {}$", quoted(name)))
                .collect(),
        };
        let mut options: Vec<String> = focus.into_iter().map(|focus| format!("focus={focus}")).collect();
        options.push(format!("label-filter={LABEL}"));
        options.push(format!("skip={SKIP}"));
        options
    }
}

/// The suite, ready to run with one kubelet.
pub(super) struct Suite {
    dir: PathBuf,
    program: PathBuf,
    path: OsString,
}

impl Suite {
    /// Lays out the suite's directory in the scope. The suite starts the `kubelet` that lies beside it.
    pub(super) fn prepare(scope: &Scope, kubelet: &Path) -> Result<Self> {
        let dir = scope.path("suite");
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).context("create the suite's directory")?;
        fs::create_dir_all(dir.join("tmp"))?;
        let program = dir.join("e2e_node.test");
        // A copy: the suite looks for its neighbours where its own file really is.
        fs::copy(Program::NodeE2e.path()?, &program).context("copy the suite")?;
        let kubelet =
            fs::canonicalize(kubelet).with_context(|| format!("find the kubelet {}", kubelet.display()))?;
        symlink(kubelet, dir.join("kubelet")).context("link the kubelet")?;
        link_programs(&bin)?;
        Ok(Self {
            dir,
            program,
            path: bin.into(),
        })
    }

    /// Asks the suite itself which specs a selection means, without running any.
    pub(super) fn selected(&self, selection: &Selection) -> Result<BTreeSet<String>> {
        let reports = self.dir.join("selection");
        let mut command = self.command(&self.program);
        command.arg("--ginkgo.dry-run").args(
            selection
                .options()
                .iter()
                .map(|option| format!("--ginkgo.{option}")),
        );
        let output = command
            .arg(format!("--report-dir={}", reports.display()))
            .output()
            .context("ask the suite for its specs")?;
        if !output.status.success() {
            bail!(
                "the suite does not take the selection: {}",
                last_lines(&output.stdout, &output.stderr)
            );
        }
        let cases = report::read(&reports.join("junit_01.xml"))?;
        let chosen = cases
            .into_iter()
            .filter(|case| case.is_spec() && case.outcome == Outcome::Passed);
        Ok(chosen.map(|case| case.name).collect())
    }

    /// The command that runs a selection and writes reports and logs to `reports`.
    pub(super) fn run(
        &self,
        selection: &Selection,
        procs: u32,
        runtime_socket: &Path,
        reports: &Path,
    ) -> Result<Command> {
        let config = workspace_root().join("testbed/conformance/kubelet.yaml");
        let mut command = self.command(&Program::Ginkgo.path()?);
        command
            .arg(format!("--procs={procs}"))
            .args(["--keep-going", "--no-color", "--timeout", TIMEOUT]);
        command
            .args(selection.options().iter().map(|option| format!("--{option}")))
            .arg(&self.program)
            .arg("--");
        command.arg(format!(
            "--container-runtime-endpoint=unix://{}",
            runtime_socket.display()
        ));
        command
            .arg(format!("--node-name={}", node_name()?))
            .arg(format!("--bearer-token={TOKEN}"));
        command.args(["--prepull-images=false", "--restart-kubelet=true"]);
        command.arg(format!("--report-dir={}", reports.display()));
        command.arg(format!(
            "--kubelet-config-file={}",
            fs::canonicalize(config)?.display()
        ));
        // The suite asks for a cgroup that would swallow every process of the machine.
        command.arg("--kubelet-flags=--system-cgroups=");
        Ok(command)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.dir)
            .env("PATH", &self.path)
            .env("TMPDIR", self.dir.join("tmp"));
        // Would send the suite to another cluster, another registry.
        command
            .env_remove("KUBECONFIG")
            .env_remove("KUBE_TEST_REPO")
            .env_remove("KUBE_TEST_REPO_LIST");
        command
    }
}

/// Links to every program on the path but `systemd-run`: the suite would start the kubelet through it, and needs systemd then.
fn link_programs(bin: &Path) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    for dir in std::env::split_paths(&path) {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_name() != "systemd-run" {
                // The first directory on the path wins.
                let _ = symlink(entry.path(), bin.join(entry.file_name()));
            }
        }
    }
    if bin.join("mount").exists() {
        Ok(())
    } else {
        bail!("there is no mount program on the PATH")
    }
}

fn node_name() -> Result<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").context("read the machine's name")?;
    Ok(name.trim().to_lowercase())
}

/// A text as a regular expression that matches it alone.
fn quoted(text: &str) -> String {
    let mut expression = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}

fn last_lines(stdout: &[u8], stderr: &[u8]) -> String {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(stdout),
        String::from_utf8_lossy(stderr)
    );
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selection: &Selection, focus: &[&str]) {
        let options = selection.options();
        let found: Vec<&str> = options
            .iter()
            .filter_map(|option| option.strip_prefix("focus="))
            .collect();
        assert_eq!(found, focus);
        assert!(options.iter().any(|option| option.starts_with("skip=")));
    }

    #[test]
    fn selections_become_options() {
        check(&Selection::All, &[r"\[NodeConformance\]"]);
        check(&Selection::Matching("Probing|Pods".to_owned()), &["Probing|Pods"]);
        check(
            &Selection::Named(["[sig-node] a (b) $1".to_owned(), "x".to_owned()].into()),
            &[r"^E2eNode Suite \[sig-node\] a \(b\) \$1$", "^E2eNode Suite x$"],
        );
    }
}
