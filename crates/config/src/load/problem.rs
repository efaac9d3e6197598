//! What keeps a node from starting: every problem of every source, together.

use std::fmt;
use std::path::PathBuf;

use crate::flags::FlagProblem;
use crate::gates::GateProblem;
use crate::kubelet_configuration::{DecodeErrors, Problem};

/// One problem with the settings.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoadProblem {
    #[error("{0}")]
    Flag(FlagProblem),
    #[error("{source_name}: {problem}")]
    Gate {
        source_name: &'static str,
        problem: GateProblem,
    },
    /// A value in a file that does not fit its field; the name is empty when the drop-ins together brought it about.
    #[error("{}{problem}", prefix(file))]
    InFile { file: String, problem: Problem },
    /// A file that could not be read as a configuration at all.
    #[error("{0}")]
    NotAConfiguration(DecodeErrors),
    #[error("{}: cannot be read: {reason}", file.display())]
    Unreadable { file: PathBuf, reason: String },
    #[error("{0}")]
    Setting(Problem),
}

impl LoadProblem {
    /// Whether this is about the field at `path` or one that it is part of.
    pub(super) fn covers(&self, path: &str) -> bool {
        let Self::InFile { problem, .. } = self else {
            return false;
        };
        path.strip_prefix(problem.path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// One problem per wrong value, or the one reason why the file is none of ours.
    pub(super) fn from_decoding(errors: DecodeErrors) -> Vec<Self> {
        match errors {
            DecodeErrors::Fields {
                source_name,
                problems,
                readable: _,
            } => problems
                .into_iter()
                .map(|problem| Self::InFile {
                    file: source_name.clone(),
                    problem,
                })
                .collect(),
            errors @ (DecodeErrors::Syntax { .. }
            | DecodeErrors::Kind { .. }
            | DecodeErrors::Duplicates { .. }) => {
                vec![Self::NotAConfiguration(errors)]
            }
        }
    }
}

fn prefix(file: &str) -> String {
    if file.is_empty() {
        String::new()
    } else {
        format!("{file}: ")
    }
}

/// Why no settings could be made: at least one problem, in the order the sources are read.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadError {
    pub problems: Vec<LoadProblem>,
}

impl LoadError {
    pub(super) fn from_flags(problems: Vec<FlagProblem>) -> Self {
        Self {
            problems: problems.into_iter().map(LoadProblem::Flag).collect(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => write!(f, "1 problem with the settings:")?,
            count => write!(f, "{count} problems with the settings:")?,
        }
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "\n  {}. {problem}", index + 1)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}
