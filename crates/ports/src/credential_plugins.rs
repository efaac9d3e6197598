//! Programs that know credentials for registries.
//!
//! Owns the shape of one run: text in, text out, with a deadline. What the texts mean is not known here. Both are secret: they appear in no
//! `Debug` and in no error. A program's stderr may be secret too and is dropped.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

/// One run of a plugin.
#[derive(Clone)]
pub struct PluginCall {
    /// The program, in the directory of plugins.
    pub name: String,
    pub args: Vec<String>,
    /// Beside the environment of the agent; these win.
    pub env: Vec<(String, String)>,
    /// What the program reads.
    pub input: Vec<u8>,
    /// It is killed after this time, with everything that it started.
    pub deadline: Duration,
    /// More than this is no answer.
    pub max_output_bytes: usize,
}

impl fmt::Debug for PluginCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PluginCall")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why a run gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFailure {
    /// A message for users, e.g. `exit status: 1`, without the program's output.
    pub reason: String,
}

#[async_trait]
pub trait CredentialPlugins: Send + Sync {
    /// Runs a plugin and gives what it wrote. Dropping the future ends the program.
    async fn run(&self, call: PluginCall) -> Result<Vec<u8>, PluginFailure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_printed() {
        let call = PluginCall {
            name: "ecr".to_owned(),
            args: Vec::new(),
            env: vec![("KEY".to_owned(), "hidden".to_owned())],
            input: b"hidden".to_vec(),
            deadline: Duration::ZERO,
            max_output_bytes: 0,
        };
        assert_eq!(format!("{call:?}"), "PluginCall { name: \"ecr\", .. }");
    }
}
