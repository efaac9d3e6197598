//! Why there is no session, as an answer to the client.
//!
//! Owns the form of the answer: upstream's two forms of an error, and the advice to retry later.

use std::fmt::Display;

use http::StatusCode;
use rubelet_ports::{RuntimeError, RuntimeErrorKind};

use crate::response::{Answer, error_line, text, too_many};

/// Why there is no session.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// Whether it is written as the plain HTTP library writes errors.
    pub(super) as_line: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: String) -> Self {
        Self {
            status,
            message,
            as_line: false,
        }
    }

    pub(super) fn bad_request(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn internal(error: &dyn Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    /// The runtime's streaming server cannot be reached or refuses.
    pub(super) fn line(message: String) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message,
            as_line: true,
        }
    }

    pub(super) fn of_runtime(error: &RuntimeError) -> Self {
        let status = match error.kind() {
            RuntimeErrorKind::NotFound => StatusCode::NOT_FOUND,
            RuntimeErrorKind::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }

    pub(super) fn answer(self) -> Answer {
        if self.as_line {
            error_line(self.status, &self.message)
        } else if self.status == StatusCode::TOO_MANY_REQUESTS {
            too_many(self.message)
        } else {
            text(self.status, self.message)
        }
    }
}
