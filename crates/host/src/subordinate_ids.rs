//! The subordinate ids of the user `kubelet`, for pods with user namespaces.
//!
//! Owns running `getsubids`. The caller checks its output.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

const USER: &str = "kubelet";
const PROGRAM: &str = "getsubids";
/// The program may ask another machine.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Error)]
pub enum SubordinateIdsError {
    #[error("/etc/passwd cannot be read")]
    Users(#[source] std::io::Error),
    #[error("{PROGRAM} cannot be run")]
    Run(#[source] std::io::Error),
    #[error("{PROGRAM} {arguments}: ended with {status}")]
    Failed { arguments: String, status: String },
    #[error("{PROGRAM} {arguments}: no answer within {} s", DEADLINE.as_secs())]
    TimedOut { arguments: String },
}

/// The output of `getsubids` for users and for groups; `None` when there is no such user or no such program.
///
/// # Errors
/// When the program exists and fails or does not answer in time.
pub fn subordinate_ids() -> Result<Option<(String, String)>, SubordinateIdsError> {
    let users = fs::read_to_string("/etc/passwd").map_err(SubordinateIdsError::Users)?;
    let has_user = users.lines().any(|line| line.split(':').next() == Some(USER));
    if !has_user {
        return Ok(None);
    }
    match (ask(&[USER])?, ask(&["-g", USER])?) {
        (Some(users), Some(groups)) => Ok(Some((users, groups))),
        (None, _) | (_, None) => Ok(None),
    }
}

fn ask(arguments: &[&str]) -> Result<Option<String>, SubordinateIdsError> {
    run(PROGRAM, arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<Option<String>, SubordinateIdsError> {
    let text = || arguments.join(" ");
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SubordinateIdsError::Run(error)),
    };
    let end = Instant::now() + DEADLINE;
    // A few lines fit into a pipe: the program does not wait for its reader.
    let status = loop {
        match child.try_wait().map_err(SubordinateIdsError::Run)? {
            Some(status) => break status,
            None if Instant::now() > end => {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(SubordinateIdsError::TimedOut { arguments: text() });
            }
            None => thread::sleep(PAUSE),
        }
    };
    if !status.success() {
        let (arguments, status) = (text(), status.to_string());
        return Err(SubordinateIdsError::Failed { arguments, status });
    }
    let mut output = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut output)
            .map_err(SubordinateIdsError::Run)?;
    }
    Ok(Some(output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_answer_fail_or_are_not_there() {
        let found = run("echo", &["0: kubelet 65536 65536"]);
        assert_eq!(found.ok().flatten().as_deref(), Some("0: kubelet 65536 65536\n"));
        assert!(matches!(
            run("false", &["x"]),
            Err(SubordinateIdsError::Failed { .. })
        ));
        assert!(matches!(run("rubelet-no-such-program", &[]), Ok(None)));
    }
}
