//! Bearer tokens: where a request carries one, and the API server's review of it.
//!
//! Owns the review of tokens and how long its answer holds. A token must not be kept, logged or shown: the memory of answers
//! knows digests only, and a message of the API server is searched for the token.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use rubelet_ports::api::Reviewer;
use rubelet_ports::{Clock, LogThrottle};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::crypto::aws_lc_rs;

use super::pending_reviews::PendingReviews;
use super::remembered::{Answered, Key, Remembered, Worth};
use super::review::{Trouble, ask_patiently};
use super::user::User;
use crate::upgrade::is_websocket;

/// Answers about tokens that are remembered.
const TOKENS: usize = 4096;
const WEBSOCKET_TOKEN_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The API server's verdict about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenVerdict {
    Known(Arc<User>),
    Unknown,
    /// The review failed, with a reason or without. Never cached.
    Failed(Arc<str>),
    /// It was not asked, because too many reviews are pending. Never remembered.
    NotAsked,
}

pub(super) struct TokenReviews {
    reviewer: Arc<dyn Reviewer>,
    clock: Arc<dyn Clock>,
    keep_for: Duration,
    /// Drawn at the start, so that digests mean nothing elsewhere.
    salt: Key,
    remembered: Arc<Remembered<TokenVerdict>>,
    pending: PendingReviews,
    trouble: Arc<Trouble>,
    // Held for a comparison, never across an await.
    flood: Mutex<LogThrottle>,
}

impl TokenReviews {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>, clock: Arc<dyn Clock>, keep_for: Duration) -> Self {
        let mut salt = Key::default();
        // Without randomness no TLS handshake works either; the digest alone is still one-way.
        let _ = aws_lc_rs::default_provider().secure_random.fill(&mut salt);
        Self {
            reviewer,
            remembered: Remembered::new(Arc::clone(&clock), TOKENS),
            clock,
            keep_for,
            salt,
            pending: PendingReviews::default(),
            trouble: Arc::default(),
            flood: Mutex::default(),
        }
    }

    /// What is known of the token that a client at this address sent.
    pub(super) async fn verdict(&self, token: &str, client: Option<IpAddr>) -> TokenVerdict {
        let mut digest = Sha256::new();
        digest.update(self.salt);
        digest.update(token.as_bytes());
        let (reviewer, clock) = (Arc::clone(&self.reviewer), Arc::clone(&self.clock));
        let (keep_for, trouble) = (self.keep_for, Arc::clone(&self.trouble));
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let ask = |place| async move {
            // Free when the review is over, or when all who waited for it are gone.
            let _place = place;
            let answer = ask_patiently(clock.as_ref(), "review a token", || {
                reviewer.review_token(&review)
            });
            let (value, failure) = match answer.await {
                Ok(status) => (verdict(status, &review.spec.token), None),
                Err(error) => {
                    let failure: Arc<str> = error.to_string().into();
                    (TokenVerdict::Failed(Arc::clone(&failure)), Some(failure))
                }
            };
            trouble.note("Asking the API server about tokens", failure.as_ref());
            let (keep_for, worth) = match value {
                TokenVerdict::Known(_) => (keep_for, Worth::Grant),
                TokenVerdict::Unknown => (keep_for, Worth::Refusal),
                TokenVerdict::Failed(_) | TokenVerdict::NotAsked => (Duration::ZERO, Worth::Refusal),
            };
            Answered {
                value,
                keep_for,
                worth,
            }
        };
        let begin = || {
            let place = self.pending.begin(client);
            place.map(ask).ok_or(TokenVerdict::NotAsked)
        };
        let verdict = self.remembered.get(digest.finalize().into(), begin).await;
        if verdict == TokenVerdict::NotAsked {
            self.log_flood(client);
        }
        verdict
    }

    fn log_flood(&self, client: Option<IpAddr>) {
        let mut flood = self.flood.lock().unwrap_or_else(PoisonError::into_inner);
        if flood.is_due("", self.clock.moment()) {
            let client = client.map(|client| client.to_string()).unwrap_or_default();
            tracing::warn!(
                client,
                "Too many token reviews are pending; requests with further unknown tokens get 429"
            );
        }
    }
}

fn verdict(status: TokenReviewStatus, token: &str) -> TokenVerdict {
    if status.authenticated == Some(true) {
        return TokenVerdict::Known(Arc::new(status.user.unwrap_or_default().into()));
    }
    match status.error.filter(|error| !error.is_empty()) {
        Some(error) => TokenVerdict::Failed(error.replace(token, "[redacted]").into()),
        None => TokenVerdict::Unknown,
    }
}

/// The token of the `Authorization` header.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = value.split(' ');
    let scheme = parts.next()?;
    let token = parts.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The token that a WebSocket client put among its subprotocols, because browsers cannot set headers.
pub(super) fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    if !is_websocket(headers) {
        return Ok(None);
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        protocols(headers).partition(|protocol| protocol.starts_with(WEBSOCKET_TOKEN_PREFIX));
    let encoded = match tokens[..] {
        [] => return Ok(None),
        [token] => token.trim_start_matches(WEBSOCKET_TOKEN_PREFIX),
        _ => return Err("multiple base64.bearer.authorization tokens specified"),
    };
    let token = BASE64_URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(token).map_err(|_| "invalid base64.bearer.authorization token")?;
    match (token.is_empty(), others.is_empty()) {
        (true, _) => Ok(None),
        (false, true) => Err("missing additional subprotocol"),
        (false, false) => Ok(Some(token)),
    }
}

/// The subprotocols that others may see, as the header lists them.
pub(crate) fn protocols_without_token(headers: &HeaderMap) -> String {
    let kept: Vec<&str> = protocols(headers)
        .filter(|protocol| !protocol.starts_with(WEBSOCKET_TOKEN_PREFIX))
        .collect();
    kept.join(",")
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| {
            let name: http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        lines.collect()
    }

    #[test]
    fn a_bearer_token_is_found_where_upstream_finds_it() {
        let check = |value: &str, expected: Option<&str>| {
            assert_eq!(
                bearer_token(&headers(&[("authorization", value)])),
                expected,
                "{value:?}"
            );
        };
        check("Bearer abc", Some("abc"));
        check("bearer abc", Some("abc"));
        check("BEARER abc more", Some("abc"));
        check("  Bearer abc", Some("abc"));
        check("Bearer  abc", None);
        check("Bearer", None);
        check("Basic abc", None);
        check("", None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }

    #[test]
    fn a_token_among_subprotocols_is_found_and_hidden() {
        let encoded = format!(
            "{WEBSOCKET_TOKEN_PREFIX}{}",
            BASE64_URL_SAFE_NO_PAD.encode("t0ken")
        );
        let check = |upgrade: &str, protocols: &str, expected: Result<Option<&str>, &str>| {
            let headers = headers(&[
                ("connection", "Upgrade"),
                ("upgrade", upgrade),
                ("sec-websocket-protocol", protocols),
            ]);
            let found = websocket_token(&headers);
            assert_eq!(
                found.as_ref().map(Option::as_deref),
                expected.as_ref().copied(),
                "{protocols}"
            );
            assert!(!protocols_without_token(&headers).contains("bearer"));
        };
        check("websocket", "v4.channel.k8s.io", Ok(None));
        check(
            "WebSocket",
            &format!("v4.channel.k8s.io, {encoded}"),
            Ok(Some("t0ken")),
        );
        check("SPDY/3.1", &format!("v4.channel.k8s.io, {encoded}"), Ok(None));
        check("websocket", &encoded, Err("missing additional subprotocol"));
        check(
            "websocket",
            &format!("{encoded},{encoded},x"),
            Err("multiple base64.bearer.authorization tokens specified"),
        );
        check(
            "websocket",
            &format!("x,{WEBSOCKET_TOKEN_PREFIX}%%%"),
            Err("invalid base64.bearer.authorization token encoding"),
        );
        check(
            "websocket",
            &format!("x,{WEBSOCKET_TOKEN_PREFIX}_w"),
            Err("invalid base64.bearer.authorization token"),
        );
        check("websocket", &format!("x,{WEBSOCKET_TOKEN_PREFIX}"), Ok(None));
        let several = headers(&[("sec-websocket-protocol", &format!("a, {encoded},b"))]);
        assert_eq!(protocols_without_token(&several), "a,b");
    }

    #[test]
    fn a_reviews_words_never_show_the_token() {
        let refused = TokenReviewStatus {
            authenticated: Some(false),
            error: Some("no such token: t0ken".to_owned()),
            ..TokenReviewStatus::default()
        };
        assert_eq!(
            verdict(refused, "t0ken"),
            TokenVerdict::Failed("no such token: [redacted]".into())
        );
        assert_eq!(verdict(TokenReviewStatus::default(), "t"), TokenVerdict::Unknown);
        let known = TokenReviewStatus {
            authenticated: Some(true),
            user: Some(UserInfo {
                username: Some("me".to_owned()),
                ..UserInfo::default()
            }),
            ..TokenReviewStatus::default()
        };
        let user = User {
            name: "me".to_owned(),
            ..User::default()
        };
        assert_eq!(verdict(known, "t"), TokenVerdict::Known(Arc::new(user)));
    }
}
