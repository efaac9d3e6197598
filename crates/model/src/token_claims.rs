//! What a service account token says of itself.
//!
//! Owns the reading of the claims that the API server puts into a bound token. Nothing here verifies a signature: claims are good to
//! recognise a token, never to trust its bearer. No part of a token gets into an error.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// An object by name and UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ClaimedObject {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub uid: String,
}

/// The claims of a token; times are seconds since 1970 by the API server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    pub audiences: Vec<String>,
    /// `system:serviceaccount:<namespace>:<name>`
    pub subject: String,
    pub issued_at: i64,
    pub not_before: Option<i64>,
    pub expires_at: i64,
    /// Where the API server has extended the token's life: when the life ends that was asked for.
    pub warn_after: Option<i64>,
    pub namespace: String,
    pub service_account: ClaimedObject,
    /// The pod that the token is bound to.
    pub pod: Option<ClaimedObject>,
}

#[derive(Deserialize)]
struct Payload {
    aud: Audiences,
    sub: String,
    iat: i64,
    nbf: Option<i64>,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

/// One audience may be written without a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    serviceaccount: ClaimedObject,
    pod: Option<ClaimedObject>,
    warnafter: Option<i64>,
}

impl TokenClaims {
    /// `None` for anything but a signed token with the API server's claims.
    #[must_use]
    pub fn read(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let is_encoded = |part: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !part.is_empty() && part.bytes().all(is_allowed)
        };
        if parts.next().is_some() || !is_encoded(header) || !is_encoded(signature) {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let payload: Payload = serde_json::from_slice(&payload).ok()?;
        let Kubernetes {
            namespace,
            serviceaccount,
            pod,
            warnafter,
        } = payload.kubernetes;
        Some(Self {
            audiences: match payload.aud {
                Audiences::One(one) => vec![one],
                Audiences::Many(many) => many,
            },
            subject: payload.sub,
            issued_at: payload.iat,
            not_before: payload.nbf,
            expires_at: payload.exp,
            warn_after: warnafter,
            namespace,
            service_account: serviceaccount,
            pod,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn payload() -> Value {
        json!({
            "aud": ["https://kubernetes.default.svc"], "exp": 4600, "iat": 1000, "iss": "https://kubernetes.default.svc",
            "jti": "b1", "nbf": 1000, "sub": "system:serviceaccount:n:account",
            "kubernetes.io": {
                "namespace": "n", "node": {"name": "node", "uid": "u-node"}, "pod": {"name": "pod-p", "uid": "p"},
                "serviceaccount": {"name": "account", "uid": "u-account"},
            },
        })
    }

    fn token(payload: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
    }

    fn object(name: &str, uid: &str) -> ClaimedObject {
        ClaimedObject {
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    #[test]
    fn claims_are_those_of_the_api_server() {
        let expected = TokenClaims {
            audiences: vec!["https://kubernetes.default.svc".to_owned()],
            subject: "system:serviceaccount:n:account".to_owned(),
            issued_at: 1000,
            not_before: Some(1000),
            expires_at: 4600,
            warn_after: None,
            namespace: "n".to_owned(),
            service_account: object("account", "u-account"),
            pod: Some(object("pod-p", "p")),
        };
        assert_eq!(TokenClaims::read(&token(&payload())), Some(expected.clone()));

        let mut extended = payload();
        extended["aud"] = json!("vault");
        extended["kubernetes.io"]["warnafter"] = json!(4607);
        let expected = TokenClaims {
            audiences: vec!["vault".to_owned()],
            warn_after: Some(4607),
            ..expected
        };
        assert_eq!(TokenClaims::read(&token(&extended)), Some(expected));
    }

    #[test]
    fn anything_else_is_no_token() {
        let check = |text: &str| assert_eq!(TokenClaims::read(text), None, "{text}");
        for text in ["", "secret-1", "a.b", "a.b.c", "..", "e30.e30.c2ln"] {
            check(text);
        }
        let good = token(&payload());
        check(&format!("{good}\n"));
        check(&format!("{good}.x"));
        check(&format!(" {good}"));
        check(good.trim_end_matches("c2ln"));
        for field in ["aud", "exp", "iat", "sub", "kubernetes.io"] {
            let mut without = payload();
            without.as_object_mut().unwrap().remove(field);
            check(&token(&without));
            let mut wrong = payload();
            wrong[field] = json!({"a": 1.5});
            check(&token(&wrong));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*", payload in "\\PC*") {
            let _ = TokenClaims::read(&text);
            let _ = TokenClaims::read(&format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload)));
        }
    }
}
