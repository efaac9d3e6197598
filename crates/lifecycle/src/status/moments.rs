//! `Timestamp` to `metav1.Time`.
//!
//! Owns the conversion and the precision: the API server keeps whole seconds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_model::Timestamp;

/// The API's form, to the nanosecond. The range of ours lies within the API's.
pub(crate) fn api_time(at: Timestamp) -> Time {
    Time(jiff::Timestamp::from_nanosecond(i128::from(at.unix_nanos())).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// Cuts the fraction of a second, as the API server would.
pub(super) fn to_whole_seconds(time: &mut Time) {
    // Seconds round down as text does: 0.5 s before the epoch is 23:59:59, not midnight.
    let seconds = time.0.as_nanosecond().div_euclid(1_000_000_000);
    let whole = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    if let Some(whole) = whole {
        time.0 = whole;
    }
}
