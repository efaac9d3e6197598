//! `/debug/flags/v`: how much rubelet logs, changed while it runs.
//!
//! Owns the reading of the number and the texts, which are upstream's. What the number means is the log's.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};
use hyper::body::Incoming;

use crate::body::{self, Unreadable};
use crate::response::{Answer, guarded_text};

/// A number needs no more.
const BODY_LIMIT_BYTES: usize = 1024;

/// Puts a verbosity in force.
pub type SetVerbosity = dyn Fn(u32) + Send + Sync;

pub(crate) async fn answer(method: &Method, body: Incoming, set: &SetVerbosity) -> Answer {
    if method != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned());
    }
    let body = match body::read(body, BODY_LIMIT_BYTES).await {
        Ok(body) => body,
        Err(Unreadable { status, why }) => {
            return plain(status, format!("error reading request body: {why}"));
        }
    };
    let asked = String::from_utf8_lossy(&body);
    match level(&asked) {
        Ok(level) => {
            set(level);
            tracing::info!(verbosity = level, "The verbosity was changed over HTTP");
            plain(
                StatusCode::OK,
                format!("successfully set klog.logging.verbosity to {asked}"),
            )
        }
        Err(problem) => plain(StatusCode::BAD_REQUEST, problem),
    }
}

fn level(text: &str) -> Result<u32, String> {
    use std::num::IntErrorKind::PosOverflow;
    let bad = |why: &str| format!("strconv.ParseUint: parsing {text:?}: {why}");
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad("invalid syntax"));
    }
    text.parse()
        .map_err(|error: std::num::ParseIntError| match error.kind() {
            PosOverflow => bad("value out of range"),
            _ => bad("invalid syntax"),
        })
}

fn plain(status: StatusCode, text: String) -> Answer {
    let mut answer = guarded_text(status, text);
    let plain = HeaderValue::from_static("text/plain");
    answer.headers_mut().insert(CONTENT_TYPE, plain);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_upstream_reads_them() {
        let check = |text: &str, expected: Result<u32, &str>| {
            assert_eq!(level(text), expected.map_err(str::to_owned), "{text}");
        };
        check("0", Ok(0));
        check("10", Ok(10));
        check("", Err("strconv.ParseUint: parsing \"\": invalid syntax"));
        check("+1", Err("strconv.ParseUint: parsing \"+1\": invalid syntax"));
        check("4 ", Err("strconv.ParseUint: parsing \"4 \": invalid syntax"));
        check(
            "4294967296",
            Err("strconv.ParseUint: parsing \"4294967296\": value out of range"),
        );
    }
}
