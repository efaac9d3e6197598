//! `/debug/pprof/`: where rubelet spends its processor time.
//!
//! Owns the question, the headers and the texts, which are those of Go's `net/http/pprof`. The profile is made behind a port.
//! There is the one of the CPU; the others that a kubelet has are about Go's own runtime.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName, HeaderValue};
use rubelet_ports::CpuProfiler;

use crate::response::{Answer, error_line, guarded_text};
use crate::stopping::Stopping;

const DEFAULT_SECONDS: u64 = 30;
/// Go has no limit. Sampling costs the node a little, so that a profile ends after this time.
const MAX_SECONDS: u64 = 300;
const INDEX: &str =
    "profile: where rubelet spends CPU time; ?seconds=N, 30 where it is not given, 300 at most\n";
const NOT_BUILT: &str = "this rubelet cannot be profiled: it was built without the feature \"profile\"";
const NO_OTHER: &str = "rubelet has no such profile; there is /debug/pprof/profile, of the CPU";
/// Marks the text for `go tool pprof` as meant for people.
const FOR_PEOPLE: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-go-pprof"),
    HeaderValue::from_static("1"),
);

#[derive(Clone)]
pub(crate) struct Profiles {
    cpu: Option<Arc<dyn CpuProfiler>>,
}

impl Profiles {
    pub(crate) fn new(cpu: Option<Arc<dyn CpuProfiler>>) -> Self {
        Self { cpu }
    }

    /// The profile of this name, or a list of what there is. It ends early when the client goes or the server stops.
    pub(crate) async fn answer(&self, name: &str, query: &str, stopping: Stopping) -> Answer {
        let Some(cpu) = &self.cpu else {
            return refusal(StatusCode::NOT_IMPLEMENTED, NOT_BUILT);
        };
        match name {
            "" => guarded_text(StatusCode::OK, INDEX),
            "profile" => cpu_profile(cpu.as_ref(), seconds(query), stopping).await,
            _ => refusal(StatusCode::NOT_IMPLEMENTED, NO_OTHER),
        }
    }
}

async fn cpu_profile(cpu: &dyn CpuProfiler, seconds: u64, mut stopping: Stopping) -> Answer {
    if seconds > MAX_SECONDS {
        let message = format!("seconds: {seconds} is too long: must be at most {MAX_SECONDS}");
        return refusal(StatusCode::BAD_REQUEST, &message);
    }
    tracing::info!(seconds, "A CPU profile is taken");
    tokio::select! {
        biased;
        // A profile that is dropped has ended.
        () = stopping.begun() => refusal(StatusCode::SERVICE_UNAVAILABLE, "rubelet is stopping"),
        result = cpu.profile(Duration::from_secs(seconds)) => match result {
            Ok(profile) => attachment(profile),
            Err(error) => {
                let message = format!("Could not enable CPU profiling: {error}");
                refusal(StatusCode::INTERNAL_SERVER_ERROR, &message)
            }
        }
    }
}

/// A value that cannot be read or is not positive counts as absent.
fn seconds(query: &str) -> u64 {
    let asked = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "seconds");
    asked
        .and_then(|(_, value)| value.parse::<i64>().ok())
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|seconds| *seconds > 0)
        .unwrap_or(DEFAULT_SECONDS)
}

fn attachment(profile: Vec<u8>) -> Answer {
    let mut answer = guarded_text(StatusCode::OK, profile);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(
        CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment; filename=\"profile\""),
    );
    answer
}

fn refusal(status: StatusCode, message: &str) -> Answer {
    let mut answer = error_line(status, message);
    answer.headers_mut().insert(FOR_PEOPLE.0, FOR_PEOPLE.1);
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_as_go_reads_them() {
        let check = |query: &str, expected: u64| assert_eq!(seconds(query), expected, "{query}");
        check("", 30);
        check("seconds=5", 5);
        check("seconds=%2B5", 5);
        check("debug=1&seconds=7&seconds=8", 7);
        check("seconds=", 30);
        check("seconds=0", 30);
        check("seconds=-1", 30);
        check("seconds=1.5", 30);
        check("seconds=5s", 30);
        check("seconds=9223372036854775807", 9_223_372_036_854_775_807);
        check("seconds=9223372036854775808", 30);
    }

    proptest! {
        #[test]
        fn no_time_upsets_it(query in "(seconds=[-+0-9a-z.%]{0,22}&?){0,3}|\\PC{0,40}") {
            prop_assert!(seconds(&query) > 0, "{query}");
        }

        #[test]
        fn a_time_is_what_it_says(asked in 1..=i64::MAX) {
            prop_assert_eq!(seconds(&format!("seconds={asked}")), asked.unsigned_abs());
        }
    }
}
