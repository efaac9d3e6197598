//! Lifetimes of tokens, and when a token is renewed.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A token is renewed after this time at the latest.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The lifetime of a token by the API server's own clock, which may be less than the requested one.
pub(super) fn lifetime(answer: &TokenRequest, asked_seconds: i64) -> Duration {
    let status = answer.status.as_ref();
    let end = status.and_then(|status| status.expiration_timestamp.as_ref());
    if let (Some(Time(end)), Some(Time(created))) = (end, &answer.metadata.creation_timestamp)
        && end > created
    {
        let seconds = end.as_second() - created.as_second();
        return Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    }
    let given = answer.spec.as_ref().and_then(|spec| spec.expiration_seconds);
    let seconds = given.unwrap_or(asked_seconds);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// The age at which a token with this lifetime is renewed.
pub(super) fn renew_after(lifetime: Duration, jitter: Duration) -> Duration {
    let eighty_percent = lifetime / 5 * 4;
    eighty_percent.min(MAX_AGE).saturating_sub(jitter)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenRequestSpec, TokenRequestStatus};
    use k8s_openapi::jiff;

    use super::*;

    #[test]
    fn a_token_is_renewed_at_four_fifths_or_a_day() {
        let check = |lifetime: u64, jitter: u64, expected: u64| {
            let (lifetime, jitter) = (Duration::from_secs(lifetime), Duration::from_secs(jitter));
            assert_eq!(
                renew_after(lifetime, jitter),
                Duration::from_secs(expected),
                "{lifetime:?}"
            );
        };
        check(3600, 0, 2880);
        check(3605, 10, 2874);
        check(600, 10, 470);
        check(30 * 60 * 60, 0, 24 * 60 * 60);
        check(365 * 24 * 60 * 60, 10, 24 * 60 * 60 - 10);
        check(5, 10, 0);
        check(0, 0, 0);
    }

    #[test]
    fn a_life_is_counted_by_the_servers_clock() {
        let time = |seconds: i64| Time(jiff::Timestamp::from_second(seconds).unwrap());
        let check = |created: Option<i64>, end: i64, spec: Option<i64>, expected: u64| {
            let mut answer = TokenRequest::default();
            answer.metadata.creation_timestamp = created.map(time);
            answer.spec = Some(TokenRequestSpec {
                expiration_seconds: spec,
                ..TokenRequestSpec::default()
            });
            answer.status = Some(TokenRequestStatus {
                expiration_timestamp: Some(time(end)),
                token: None,
            });
            assert_eq!(
                lifetime(&answer, 3607),
                Duration::from_secs(expected),
                "{answer:?}"
            );
        };
        check(Some(1000), 1600, Some(3600), 600);
        check(None, 1600, Some(3600), 3600);
        check(None, 1600, None, 3607);
        check(Some(1600), 1600, Some(3600), 3600);
    }
}
