//! What is wrong with a configuration: one value per defect, each naming its field.

use std::fmt;

/// One defect: where it is, what stands there, and what is allowed instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `logging.vmodule[0].verbosity`.
    pub path: String,
    /// The bad value, short enough for a message; empty where the defect is a missing value.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            return write!(f, "{}: {}", self.path, self.allowed);
        }
        write!(
            f,
            "{}: {} is not allowed: {}",
            self.path, self.value, self.allowed
        )
    }
}

/// Problems as one text, a line each.
pub fn list_problems(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
