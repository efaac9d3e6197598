//! Tokens that were already in a volume when rubelet started.
//!
//! Owns which of them answer a question. Pure: the file is read elsewhere. The claims are not verified: the file lies in a volume of the
//! very pod that the token is for, so a token that the pod forged harms the pod alone.

use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::token_claims::TokenClaims;
use rubelet_ports::TokenQuestion;
use thiserror::Error;

/// A token from a volume that is still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) age: Duration,
    /// The requested lifetime, from which the renewal is counted.
    pub(super) lifetime: Duration,
    /// Until the API server no longer accepts it.
    pub(super) remaining: Duration,
}

/// Why a file does not answer a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotHeld {
    #[error("the file holds no service account token")]
    NoToken,
    #[error("the token is bound to another pod")]
    OtherPod,
    #[error("the token is of another service account")]
    OtherAccount,
    #[error("the token is for another audience")]
    OtherAudience,
    #[error("the token lives longer than what is asked for")]
    OtherLife,
    #[error("the token is not valid at this time of the node's clock")]
    NotValid,
}

/// Judges the content of a file.
pub(super) fn judge(content: &str, question: &TokenQuestion, now: Timestamp) -> Result<Held, NotHeld> {
    let claims = TokenClaims::read(content).ok_or(NotHeld::NoToken)?;
    let is_bound = claims
        .pod
        .as_ref()
        .is_some_and(|pod| pod.name == question.pod_name && pod.uid == question.pod_uid);
    if !is_bound {
        return Err(NotHeld::OtherPod);
    }
    if !is_of_account(&claims, question) {
        return Err(NotHeld::OtherAccount);
    }
    // A question without an audience means the API server's own, which the node does not know.
    let is_for_audience = match question.audiences.as_slice() {
        [] => !claims.audiences.is_empty(),
        audiences => claims.audiences == audiences,
    };
    if !is_for_audience {
        return Err(NotHeld::OtherAudience);
    }
    let seconds = |from: i64, to: i64| {
        to.checked_sub(from)
            .and_then(|seconds| u64::try_from(seconds).ok())
    };
    let period = |from: i64, to: i64| seconds(from, to).map(Duration::from_secs);
    // An extended token is valid for up to a year, and is still to be renewed within the requested lifetime. The API server may
    // give less than that, and never more.
    let asked_end = claims.warn_after.unwrap_or(claims.expires_at);
    let lifetime = period(claims.issued_at, asked_end).ok_or(NotHeld::NotValid)?;
    let is_longer = lifetime > rubelet_model::period(question.expiration_seconds);
    if is_longer || asked_end > claims.expires_at {
        return Err(NotHeld::OtherLife);
    }
    let now = now.unix_seconds();
    // A token of the future shows that the node's clock is behind: the age of the token is unknown then.
    let age = period(claims.issued_at, now).ok_or(NotHeld::NotValid)?;
    let remaining = period(now, claims.expires_at).filter(|remaining| !remaining.is_zero());
    let is_early = claims.not_before.is_some_and(|start| start > now);
    match remaining {
        Some(remaining) if !is_early => Ok(Held {
            age,
            lifetime,
            remaining,
        }),
        _ => Err(NotHeld::NotValid),
    }
}

fn is_of_account(claims: &TokenClaims, question: &TokenQuestion) -> bool {
    let (namespace, account) = (&question.namespace, &question.service_account);
    claims.namespace == *namespace
        && claims.service_account.name == *account
        // The account of now is not known; one without a UID is none of the API server's.
        && !claims.service_account.uid.is_empty()
        && claims.subject == format!("system:serviceaccount:{namespace}:{account}")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;

    const YEAR: i64 = 365 * 24 * 3600;

    fn question() -> TokenQuestion {
        TokenQuestion {
            namespace: "n".to_owned(),
            service_account: "account".to_owned(),
            audiences: Vec::new(),
            expiration_seconds: 3607,
            pod_name: "pod-p".to_owned(),
            pod_uid: "p".to_owned(),
        }
    }

    /// Issued at 1000 for 3607 s.
    fn claims() -> Value {
        json!({
            "aud": ["api"], "exp": 4607, "iat": 1000, "nbf": 1000, "sub": "system:serviceaccount:n:account",
            "kubernetes.io": {
                "namespace": "n", "pod": {"name": "pod-p", "uid": "p"},
                "serviceaccount": {"name": "account", "uid": "u"},
            },
        })
    }

    fn check(change: impl Fn(&mut Value, &mut TokenQuestion), now: i64, expected: Result<[u64; 3], NotHeld>) {
        let (mut claims, mut question) = (claims(), question());
        change(&mut claims, &mut question);
        let content = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let found = judge(&content, &question, Timestamp::from_unix_seconds(now));
        let found = found.map(|held| [held.age, held.lifetime, held.remaining].map(|one| one.as_secs()));
        assert_eq!(found, expected, "{claims} at {now}");
    }

    #[test]
    fn a_token_answers_the_question_that_it_was_issued_for() {
        check(|_, _| {}, 1000, Ok([0, 3607, 3607]));
        check(|_, _| {}, 2000, Ok([1000, 3607, 2607]));
        check(|_, _| {}, 4606, Ok([3606, 3607, 1]));
        // The API server gave less than what was asked for.
        check(
            |_, question| question.expiration_seconds = 7200,
            2000,
            Ok([1000, 3607, 2607]),
        );
        let with_audience = |claims: &mut Value, question: &mut TokenQuestion| {
            claims["aud"] = json!(["vault"]);
            question.audiences = vec!["vault".to_owned()];
        };
        check(with_audience, 2000, Ok([1000, 3607, 2607]));
    }

    #[test]
    fn an_extended_token_is_renewed_as_if_it_were_not() {
        let extended = |claims: &mut Value, _: &mut TokenQuestion| {
            claims["exp"] = json!(1000 + YEAR);
            claims["kubernetes.io"]["warnafter"] = json!(4607);
        };
        check(extended, 2000, Ok([1000, 3607, 31_535_000]));
        // Beyond the requested lifetime it is overdue, and the API server still accepts it.
        check(extended, 5000, Ok([4000, 3607, 31_532_000]));
        let without_mark = |claims: &mut Value, _: &mut TokenQuestion| claims["exp"] = json!(1000 + YEAR);
        check(without_mark, 2000, Err(NotHeld::OtherLife));
    }

    #[test]
    fn a_token_of_something_else_answers_nothing() {
        type Change = fn(&mut Value, &mut TokenQuestion);
        let changes: [(Change, NotHeld); 13] = [
            (|_, question| question.pod_uid = "q".to_owned(), NotHeld::OtherPod),
            (
                |_, question| question.pod_name = "q".to_owned(),
                NotHeld::OtherPod,
            ),
            (
                |claims, _| claims["kubernetes.io"]["pod"] = Value::Null,
                NotHeld::OtherPod,
            ),
            (
                |_, question| question.namespace = "o".to_owned(),
                NotHeld::OtherAccount,
            ),
            (
                |_, question| question.service_account = "o".to_owned(),
                NotHeld::OtherAccount,
            ),
            (|claims, _| claims["sub"] = json!("admin"), NotHeld::OtherAccount),
            (
                |claims, _| claims["kubernetes.io"]["serviceaccount"]["uid"] = json!(""),
                NotHeld::OtherAccount,
            ),
            (|claims, _| claims["aud"] = json!([]), NotHeld::OtherAudience),
            (
                |_, question| question.audiences = vec!["vault".to_owned()],
                NotHeld::OtherAudience,
            ),
            (
                |_, question| question.expiration_seconds = 3606,
                NotHeld::OtherLife,
            ),
            (
                |claims, _| claims["kubernetes.io"]["warnafter"] = json!(4608),
                NotHeld::OtherLife,
            ),
            (|claims, _| claims["exp"] = json!(999), NotHeld::NotValid),
            (|claims, _| claims["nbf"] = json!(2001), NotHeld::NotValid),
        ];
        for (change, expected) in changes {
            check(change, 2000, Err(expected));
        }
        check(|_, _| {}, 4607, Err(NotHeld::NotValid));
        check(|_, _| {}, 999, Err(NotHeld::NotValid));
        check(|_, _| {}, i64::MIN / 1_000_000_000, Err(NotHeld::NotValid));
        let bounds = |claims: &mut Value, _: &mut TokenQuestion| {
            claims["iat"] = json!(i64::MIN);
            claims["exp"] = json!(i64::MAX);
        };
        check(bounds, 2000, Err(NotHeld::NotValid));
        let found = judge("secret-1", &question(), Timestamp::EPOCH);
        assert_eq!(found, Err(NotHeld::NoToken));
    }
}
