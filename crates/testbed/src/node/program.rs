//! Which program is the kubelet under test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::{Program, workspace_root};

/// Names another kubelet for the end-to-end tests: `upstream`, or a program's path.
const CHOICE: &str = "RUBELET_TEST_KUBELET";

/// A kubelet to test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// Ours, by its path.
    Rubelet(PathBuf),
    /// Upstream's, of the test bed.
    Upstream,
}

impl Kubelet {
    /// What the environment chooses, else rubelet as the checkout has it, built if need be.
    pub fn chosen() -> Result<Self> {
        Self::of_the_environment().map_or_else(Self::built, Ok)
    }

    /// What the environment chooses, else this program, which is ours.
    pub fn chosen_or(rubelet: &str) -> Self {
        Self::of_the_environment().unwrap_or_else(|| Self::Rubelet(rubelet.into()))
    }

    fn of_the_environment() -> Option<Self> {
        match std::env::var(CHOICE).as_deref() {
            Ok("upstream") => Some(Self::Upstream),
            Ok(path) if !path.is_empty() => Some(Self::Rubelet(path.into())),
            _ => None,
        }
    }

    /// Rubelet as the checkout has it, whatever the environment says.
    pub fn built() -> Result<Self> {
        static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}"))) {
            Ok(path) => Ok(Self::Rubelet(path.clone())),
            Err(problem) => bail!("{problem}"),
        }
    }

    /// The program's path.
    pub fn path(&self) -> Result<PathBuf> {
        match self {
            Self::Rubelet(path) => Ok(path.clone()),
            Self::Upstream => Program::Kubelet.path(),
        }
    }

    /// Whether this is ours: some tests ask more of it than of upstream's.
    pub fn is_rubelet(&self) -> bool {
        matches!(self, Self::Rubelet(_))
    }
}

/// Builds the program with the features that the tests' own build has, so that no crate is compiled twice.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace_root())
        .args(["build", "--workspace", "--bin", "rubelet", "--test", "e2e"])
        .arg("--message-format=json-render-diagnostics")
        .output()
        .context("run cargo")?;
    if !output.status.success() {
        bail!("build rubelet: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "rubelet" && message["profile"]["test"] == false)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo told of no program")
}
