//! From gRPC's failures to the port's.
//!
//! Owns which status becomes which kind. The runtime's own statuses keep their meaning; what the transport reports is
//! `Unavailable`, as in upstream's client, whatever layer noticed it first.

use std::error::Error;

use rubelet_ports::RuntimeErrorKind as Kind;
use tonic::{Code, Status, TimeoutExpired};

/// Where a failure comes from, and its message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The runtime itself answered so: the connection works.
    pub(crate) from_runtime: bool,
}

pub(crate) fn failure(status: &Status) -> Failure {
    // Statuses that tonic makes of transport errors keep the error as their source, those from the wire have none.
    match status.source() {
        Some(source) if has_timed_out(source) => Failure {
            kind: Kind::DeadlineExceeded,
            message: String::new(),
            from_runtime: false,
        },
        Some(source) => Failure {
            kind: Kind::Unavailable,
            message: innermost(source),
            from_runtime: false,
        },
        None => Failure {
            kind: kind(status.code(), status.message()),
            message: status.message().to_owned(),
            from_runtime: true,
        },
    }
}

/// Whether the request never left this process: the connection was found dead before anything was written to it. Making
/// such a call again is safe whatever it does, and Go's gRPC does so too.
pub(crate) fn never_sent(status: &Status) -> bool {
    let is_canceled = |error: &(dyn Error + 'static)| {
        error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_canceled)
    };
    status
        .source()
        .is_some_and(|source| chain(source).any(is_canceled))
}

fn kind(code: Code, message: &str) -> Kind {
    match code {
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::Unimplemented => Kind::Unimplemented,
        Code::DeadlineExceeded => Kind::DeadlineExceeded,
        Code::Unavailable => Kind::Unavailable,
        Code::InvalidArgument => Kind::InvalidArgument,
        Code::FailedPrecondition | Code::Aborted => Kind::FailedPrecondition,
        Code::PermissionDenied | Code::Unauthenticated => Kind::PermissionDenied,
        // tonic reports a message above the limit as out of range, Go's gRPC as exhausted; only the texts differ from other errors of these codes.
        Code::OutOfRange if message.contains("message length too large") => Kind::MessageTooLarge,
        Code::ResourceExhausted if message.contains("larger than max") => Kind::MessageTooLarge,
        Code::ResourceExhausted => Kind::ResourceExhausted,
        Code::Cancelled => Kind::Cancelled,
        Code::OutOfRange => Kind::InvalidArgument,
        Code::Internal | Code::DataLoss => Kind::Internal,
        Code::Unknown | Code::Ok => Kind::Unknown,
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn has_timed_out(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(<dyn Error>::is::<TimeoutExpired>)
}

/// The first cause: the layers above it only add "transport error".
fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_own_statuses_keep_their_meaning() {
        let check = |code, message: &str, expected| {
            let seen = failure(&Status::new(code, message));
            assert_eq!(
                seen,
                Failure {
                    kind: expected,
                    message: message.to_owned(),
                    from_runtime: true
                }
            );
        };
        check(Code::NotFound, "no such container", Kind::NotFound);
        check(Code::AlreadyExists, "name in use", Kind::AlreadyExists);
        check(Code::Unimplemented, "unknown method", Kind::Unimplemented);
        check(
            Code::DeadlineExceeded,
            "timeout 1s exceeded",
            Kind::DeadlineExceeded,
        );
        check(Code::Unavailable, "shutting down", Kind::Unavailable);
        check(Code::InvalidArgument, "", Kind::InvalidArgument);
        check(Code::OutOfRange, "", Kind::InvalidArgument);
        check(Code::FailedPrecondition, "", Kind::FailedPrecondition);
        check(Code::Aborted, "", Kind::FailedPrecondition);
        check(Code::PermissionDenied, "", Kind::PermissionDenied);
        check(Code::Unauthenticated, "", Kind::PermissionDenied);
        check(Code::ResourceExhausted, "", Kind::ResourceExhausted);
        check(
            Code::ResourceExhausted,
            "grpc: received message larger than max (17 vs. 16)",
            Kind::MessageTooLarge,
        );
        check(
            Code::OutOfRange,
            "Error, decoded message length too large: found 17",
            Kind::MessageTooLarge,
        );
        check(Code::Cancelled, "", Kind::Cancelled);
        check(Code::Internal, "", Kind::Internal);
        check(Code::DataLoss, "", Kind::Internal);
        check(Code::Unknown, "failed to create containerd task", Kind::Unknown);
    }

    #[test]
    fn what_the_transport_reports_is_unavailable() {
        let error = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the pipe broke");
        let seen = failure(&Status::from_error(Box::new(error)));
        assert_eq!(
            (seen.kind, seen.message.as_str(), seen.from_runtime),
            (Kind::Unavailable, "the pipe broke", false)
        );
        let seen = failure(&Status::from_error(Box::new(TimeoutExpired(()))));
        assert_eq!((seen.kind, seen.from_runtime), (Kind::DeadlineExceeded, false));
    }
}
