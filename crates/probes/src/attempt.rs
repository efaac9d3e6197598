//! Running a probe once.
//!
//! Owns what an answer means, and the texts of its events. Nothing is counted here. Each attempt ends: requests
//! have the probe's timeout, commands have it at the runtime and a little more here, in case the runtime hangs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_model::GoDuration;
use rubelet_model::message::output;
use rubelet_model::observation::ContainerId;
use rubelet_ports::{
    Clock, ConnectError, Dialer, GrpcHealth, HttpAnswer, HttpCallError, RuntimeError, RuntimeErrorKind,
    RuntimeWriter, within,
};
use tokio::sync::Semaphore;

use crate::course::Verdict;
use crate::spec::Action;

/// Tries of a probe that errors on the node's side, as upstream repeats it.
const MAX_TRIES: usize = 3;
/// Commands that are being started. Starting one is work for the processors; more at a time make none of them faster.
const COMMANDS_STARTING: usize = 8;
/// The same for commands of probes that took longer than [`COMMAND_PATIENCE`] last time: probes that hang again and again delay
/// only each other.
const SLOW_COMMANDS_STARTING: usize = 4;
/// A command that takes longer does not count as starting any more, and delays no other.
const COMMAND_PATIENCE: Duration = Duration::from_millis(500);
/// How long a runtime may take beyond a command's timeout to report that it timed out.
const RUNTIME_MARGIN: Duration = Duration::from_secs(10);

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Success,
    /// Passed, with a warning that becomes an event.
    Warning(String),
    Failure(String),
    /// Nothing is known of the container: the fault may be ours.
    Error {
        /// The state that upstream's event names.
        would_be: &'static str,
        message: String,
    },
}

impl Finding {
    /// `None`: it does not count.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Success | Self::Warning(_) => Some(Verdict::Success),
            Self::Failure(_) => Some(Verdict::Failure),
            Self::Error { .. } => None,
        }
    }
}

/// What attempts are made with.
pub(crate) struct Attempts {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) runtime: Arc<dyn RuntimeWriter>,
    starting: Semaphore,
    slow_starting: Semaphore,
}

/// Whether a probe's last command took longer than commands that only start do.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    is_slow: bool,
}

impl Attempts {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        dialer: Arc<dyn Dialer>,
        runtime: Arc<dyn RuntimeWriter>,
    ) -> Self {
        Self {
            clock,
            dialer,
            runtime,
            starting: Semaphore::new(COMMANDS_STARTING),
            slow_starting: Semaphore::new(SLOW_COMMANDS_STARTING),
        }
    }

    /// Runs the probe, and repeats it when it errors on the node's side.
    pub(crate) async fn run(
        &self,
        action: &Result<Action, String>,
        id: &ContainerId,
        pace: &mut Pace,
    ) -> Finding {
        let action = match action {
            Ok(action) => action,
            // Another try would not find the port either.
            Err(problem) => return unknown(problem.clone()),
        };
        let mut finding = self.once(action, id, pace).await;
        for _ in 1..MAX_TRIES {
            if finding.verdict().is_some() {
                break;
            }
            finding = self.once(action, id, pace).await;
        }
        finding
    }

    async fn once(&self, action: &Action, id: &ContainerId, pace: &mut Pace) -> Finding {
        match action {
            Action::Exec { command, timeout } => self.exec(id, command, *timeout, pace).await,
            Action::Http(call) => of_http(self.dialer.http_get(call).await),
            Action::Tcp(call) => match self.dialer.connect(call).await {
                Ok(()) => Finding::Success,
                Err(ConnectError::Failed { message }) => Finding::Failure(message),
                Err(ConnectError::NoPlace { message }) => no_place(message),
            },
            Action::Grpc(call) => match self.dialer.grpc_health(call).await {
                GrpcHealth::Serving => Finding::Success,
                GrpcHealth::Unhealthy { message } => Finding::Failure(message),
                GrpcHealth::NoPlace { message } => no_place(message),
            },
        }
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
        pace: &mut Pace,
    ) -> Finding {
        let starting = if pace.is_slow {
            &self.slow_starting
        } else {
            &self.starting
        };
        // The semaphores are never closed; without a place the command is run all the same.
        let place = starting.acquire().await.ok();
        let call = self
            .runtime
            .exec_sync(id.as_str(), command.to_vec(), Some(timeout));
        let call = async {
            match select(call, self.clock.sleep(COMMAND_PATIENCE)).await {
                Either::Left((result, _)) => {
                    pace.is_slow = false;
                    result
                }
                Either::Right(((), call)) => {
                    pace.is_slow = true;
                    drop(place);
                    call.await
                }
            }
        };
        let timed_out = || Finding::Failure(timeout_words(command, timeout));
        let limit = timeout.saturating_add(RUNTIME_MARGIN);
        match within(self.clock.as_ref(), limit, call).await {
            Ok(Ok(answer)) if answer.exit_code == 0 => Finding::Success,
            // Stdout first, then stderr: the runtime does not report their order.
            Ok(Ok(answer)) => Finding::Failure(output(&[&answer.stdout, &answer.stderr])),
            Ok(Err(error)) if error.kind() == RuntimeErrorKind::DeadlineExceeded => timed_out(),
            Ok(Err(error)) => unknown(grpc_error_text(&error)),
            Err(_) => timed_out(),
        }
    }
}

/// The host name was not looked up: that says nothing of the container.
fn no_place(message: String) -> Finding {
    if is_on(Bug::LookupsBlamed) {
        return Finding::Failure(message);
    }
    unknown(message)
}

/// Nothing is known of the container.
fn unknown(message: String) -> Finding {
    Finding::Error {
        would_be: "unknown",
        message,
    }
}

fn of_http(result: Result<HttpAnswer, HttpCallError>) -> Finding {
    match result {
        Ok(HttpAnswer {
            status: 200..=299, ..
        }) => Finding::Success,
        Ok(HttpAnswer {
            status: 300..=399,
            body,
        }) => Finding::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&body)
        )),
        // The body of a failure may hold what only the pod's owner should see.
        Ok(HttpAnswer { status, .. }) => {
            Finding::Failure(format!("HTTP probe failed with statuscode: {status}"))
        }
        Err(HttpCallError::NoAnswer { message, .. }) => Finding::Failure(message),
        Err(HttpCallError::BrokenBody { message }) => Finding::Error {
            would_be: "failure",
            message,
        },
        Err(HttpCallError::NoPlace { message }) => no_place(message),
    }
}

fn timeout_words(command: &[String], timeout: Duration) -> String {
    let timeout = GoDuration::from_nanos(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
    format!(
        "command timed out: {:?} timed out after {timeout}",
        command.join(" ")
    )
}

/// The error as Go's gRPC client writes it, which upstream's events show.
fn grpc_error_text(error: &RuntimeError) -> String {
    use RuntimeErrorKind as Kind;
    let code = match error.kind() {
        Kind::Unknown => "Unknown",
        Kind::NotFound => "NotFound",
        Kind::AlreadyExists => "AlreadyExists",
        Kind::Unimplemented => "Unimplemented",
        Kind::DeadlineExceeded => "DeadlineExceeded",
        Kind::Unavailable => "Unavailable",
        Kind::InvalidArgument => "InvalidArgument",
        Kind::FailedPrecondition => "FailedPrecondition",
        Kind::PermissionDenied => "PermissionDenied",
        Kind::ResourceExhausted | Kind::MessageTooLarge => "ResourceExhausted",
        Kind::Cancelled => "Canceled",
        Kind::Internal => "Internal",
        // These are errors of our own client, not of the runtime.
        Kind::MalformedAnswer | Kind::UnsupportedVersion => return error.to_string(),
    };
    match error.message() {
        "" => error.to_string(),
        message => format!("rpc error: code = {code} desc = {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_their_meaning() {
        let check = |result: Result<(u16, &str), HttpCallError>, expected: Finding| {
            let answer = result.map(|(status, body)| HttpAnswer {
                status,
                body: body.as_bytes().to_vec(),
            });
            assert_eq!(of_http(answer), expected);
        };
        check(Ok((200, "")), Finding::Success);
        check(Ok((299, "")), Finding::Success);
        check(
            Ok((302, "moved")),
            Finding::Warning("Probe terminated redirects, Response body: moved".to_owned()),
        );
        check(
            Ok((404, "secret")),
            Finding::Failure("HTTP probe failed with statuscode: 404".to_owned()),
        );
        check(
            Ok((199, "")),
            Finding::Failure("HTTP probe failed with statuscode: 199".to_owned()),
        );
        check(
            Err(HttpCallError::NoAnswer {
                message: "Get: EOF".to_owned(),
                spoke_plain_http: false,
            }),
            Finding::Failure("Get: EOF".to_owned()),
        );
        check(
            Err(HttpCallError::BrokenBody {
                message: "unexpected EOF".to_owned(),
            }),
            Finding::Error {
                would_be: "failure",
                message: "unexpected EOF".to_owned(),
            },
        );
    }

    #[test]
    fn words_are_upstream_s() {
        let command = ["sleep".to_owned(), "10".to_owned()];
        assert_eq!(
            timeout_words(&command, Duration::from_secs(1)),
            "command timed out: \"sleep 10\" timed out after 1s"
        );
        let error = RuntimeError::new("ExecSync", "", RuntimeErrorKind::NotFound, "no such container");
        assert_eq!(
            grpc_error_text(&error),
            "rpc error: code = NotFound desc = no such container"
        );
    }
}
