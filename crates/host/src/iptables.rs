//! The packet filter by way of the programs `iptables` and `ip6tables`.
//!
//! Owns the command lines and what exit codes mean. Each call runs a program of its own with a deadline; one that hangs is
//! killed. It decides nothing about chains.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::packet_filter::{
    FilterChain, IpFamily, PacketFilterError, PacketFilterErrorKind, PacketFilterReader, PacketFilterWriter,
    RulePosition,
};
use tokio::process::Command;

/// Waiting for the lock of the filter, as upstream.
const LOCK_WAIT_SECONDS: &str = "5";
/// Longer than the wait for the lock.
const DEADLINE: Duration = Duration::from_secs(15);
/// The operation failed: there is no such chain or rule, or there is one already.
const FAILED: i32 = 1;
/// Another program holds the lock.
const RESOURCE_PROBLEM: i32 = 4;
/// What is kept of a program's complaint.
const MAX_MESSAGE_BYTES: usize = 1000;

/// Both programs; looked up in `PATH` unless a path is given.
#[derive(Clone, Debug)]
pub struct Iptables {
    v4: PathBuf,
    v6: PathBuf,
}

impl Default for Iptables {
    fn default() -> Self {
        Self::new("iptables", "ip6tables")
    }
}

enum Answer {
    Done,
    Failed(String),
}

impl Iptables {
    #[must_use]
    pub fn new(v4: impl Into<PathBuf>, v6: impl Into<PathBuf>) -> Self {
        Self {
            v4: v4.into(),
            v6: v6.into(),
        }
    }

    async fn run(
        &self,
        operation: &str,
        chain: FilterChain,
        rule: &[&str],
    ) -> Result<Answer, PacketFilterError> {
        let program = match chain.family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        };
        let error = |kind, message: String| PacketFilterError { chain, kind, message };
        let mut command = Command::new(program);
        command
            .args([
                "-w",
                LOCK_WAIT_SECONDS,
                operation,
                chain.name,
                "-t",
                chain.table.as_str(),
            ])
            .args(rule)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = match tokio::time::timeout(DEADLINE, command.output()).await {
            Err(_) => {
                let message = format!("{} has not ended within {DEADLINE:?}", program.display());
                return Err(error(PacketFilterErrorKind::TimedOut, message));
            }
            Ok(Err(problem)) => {
                let kind = match problem.kind() {
                    io::ErrorKind::NotFound => PacketFilterErrorKind::NotInstalled,
                    _ => PacketFilterErrorKind::Other,
                };
                return Err(error(kind, format!("{}: {problem}", program.display())));
            }
            Ok(Ok(output)) => output,
        };
        let message = complaint(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(Answer::Done),
            Some(FAILED) => Ok(Answer::Failed(message)),
            Some(RESOURCE_PROBLEM) => Err(error(PacketFilterErrorKind::Busy, message)),
            _ => Err(error(
                PacketFilterErrorKind::Other,
                format!("{}: {message}", output.status),
            )),
        }
    }

    async fn has(
        &self,
        operation: &str,
        chain: FilterChain,
        rule: &[&str],
    ) -> Result<bool, PacketFilterError> {
        Ok(match self.run(operation, chain, rule).await? {
            Answer::Done => true,
            Answer::Failed(_) => false,
        })
    }
}

fn complaint(stderr: &[u8]) -> String {
    let end = stderr.len().min(MAX_MESSAGE_BYTES);
    String::from_utf8_lossy(&stderr[..end]).trim().to_owned()
}

#[async_trait]
impl PacketFilterReader for Iptables {
    async fn has_chain(&self, chain: FilterChain) -> Result<bool, PacketFilterError> {
        self.has("-S", chain, &[]).await
    }

    async fn has_rule(&self, chain: FilterChain, rule: &[&str]) -> Result<bool, PacketFilterError> {
        self.has("-C", chain, rule).await
    }
}

#[async_trait]
impl PacketFilterWriter for Iptables {
    async fn create_chain(&self, chain: FilterChain) -> Result<(), PacketFilterError> {
        match self.run("-N", chain, &[]).await? {
            Answer::Done => Ok(()),
            // Either the chain exists, or it cannot be made: check which.
            Answer::Failed(message) => match self.has_chain(chain).await? {
                true => Ok(()),
                false => Err(PacketFilterError {
                    chain,
                    kind: PacketFilterErrorKind::Other,
                    message,
                }),
            },
        }
    }

    async fn add_rule(
        &self,
        chain: FilterChain,
        position: RulePosition,
        rule: &[&str],
    ) -> Result<(), PacketFilterError> {
        let operation = match position {
            RulePosition::First => "-I",
            RulePosition::Last => "-A",
        };
        match self.run(operation, chain, rule).await? {
            Answer::Done => Ok(()),
            Answer::Failed(message) => Err(PacketFilterError {
                chain,
                kind: PacketFilterErrorKind::Other,
                message,
            }),
        }
    }
}
