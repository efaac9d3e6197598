//! Authentication by client certificate or bearer token, or as the anonymous user.
//!
//! Owns the order, which is upstream's: each authenticator is tried until one succeeds. Invalid credentials are refused even where
//! anonymous requests are allowed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use rubelet_ports::Clock;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::subject::Subject;
use super::tokens::{TokenReviews, TokenVerdict, bearer_token, websocket_token};
use super::user::User;
use crate::connection::Peer;

/// Checks certificates against the authorities in force, which a changed file replaces. `None` where none are configured.
pub(crate) type ClientAuthorities = watch::Receiver<Option<Arc<dyn ClientCertVerifier>>>;

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

pub(super) struct Authenticator {
    pub(super) anonymous: bool,
    pub(super) authorities: ClientAuthorities,
    /// Whether a certificate's subject may carry the user's UID.
    pub(super) certificate_uids: bool,
    /// `None` where tokens are not looked at.
    pub(super) tokens: Option<TokenReviews>,
    pub(super) clock: Arc<dyn Clock>,
}

/// The result of one authenticator.
enum Found {
    User(User),
    /// No credentials of that kind.
    Nothing,
    /// Credentials that do not hold, and why.
    Refused(String),
    /// Credentials that are not looked at now.
    NotReviewed,
}

/// Why there is no user.
pub(super) enum Unauthenticated {
    /// The credentials do not hold, for these reasons; no reason where there were none at all.
    Refused(Vec<String>),
    /// Too many token reviews are pending.
    NotReviewed,
}

impl Authenticator {
    /// The user, or why there is none.
    pub(super) async fn user(&self, headers: &HeaderMap, peer: &Peer) -> Result<User, Unauthenticated> {
        let mut refusals = Vec::new();
        let mut user = take(self.by_certificate(peer), &mut refusals)?;
        if let Some(tokens) = &self.tokens {
            if user.is_none() {
                let found = by_bearer_token(tokens, headers, peer.address).await;
                user = take(found, &mut refusals)?;
            }
            if user.is_none() {
                let found = by_websocket_token(tokens, headers, peer.address).await;
                user = take(found, &mut refusals)?;
            }
        }
        match user {
            Some(user) => Ok(user.authenticated()),
            None if self.anonymous && refusals.is_empty() => Ok(User::anonymous()),
            None => Err(Unauthenticated::Refused(refusals)),
        }
    }

    /// At every request, because certificates expire and authorities change while a connection is open.
    fn by_certificate(&self, peer: &Peer) -> Found {
        let authorities = self.authorities.borrow().clone();
        let (Some(authorities), Some((certificate, intermediates))) =
            (authorities, peer.certificates.split_first())
        else {
            return Found::Nothing;
        };
        let now = u64::try_from(self.clock.now().unix_seconds()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        if let Err(error) = authorities.verify_client_cert(certificate, intermediates, now) {
            return Found::Refused(format!("the client's certificate does not hold: {error}"));
        }
        let subject = rubelet_x509::subject(certificate).and_then(Subject::parse);
        let Some(subject) = subject.filter(|subject| !subject.common_name.is_empty()) else {
            return Found::Nothing;
        };
        let uid = match subject.uid() {
            _ if !self.certificate_uids => "",
            Ok(uid) => uid,
            Err(problem) => {
                return Found::Refused(format!("the client's certificate does not hold: {problem}"));
            }
        };
        let credential = format!("X509SHA256={}", hexadecimal(&Sha256::digest(certificate)));
        Found::User(User {
            uid: uid.to_owned(),
            extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential])]),
            name: subject.common_name,
            groups: subject.organizations,
        })
    }
}

/// The user, if there is one; a refusal is noted.
fn take(found: Found, refusals: &mut Vec<String>) -> Result<Option<User>, Unauthenticated> {
    match found {
        Found::User(user) => Ok(Some(user)),
        Found::Nothing => Ok(None),
        Found::Refused(reason) => {
            refusals.push(reason);
            Ok(None)
        }
        Found::NotReviewed => Err(Unauthenticated::NotReviewed),
    }
}

async fn by_bearer_token(tokens: &TokenReviews, headers: &HeaderMap, client: Option<IpAddr>) -> Found {
    match bearer_token(headers) {
        Some(token) => found(tokens.verdict(token, client).await),
        None => Found::Nothing,
    }
}

async fn by_websocket_token(tokens: &TokenReviews, headers: &HeaderMap, client: Option<IpAddr>) -> Found {
    match websocket_token(headers) {
        Ok(Some(token)) => found(tokens.verdict(&token, client).await),
        Ok(None) => Found::Nothing,
        Err(problem) => Found::Refused(problem.to_owned()),
    }
}

fn found(verdict: TokenVerdict) -> Found {
    match verdict {
        TokenVerdict::Known(user) => Found::User(Arc::unwrap_or_clone(user)),
        TokenVerdict::Unknown => Found::Refused("invalid bearer token".to_owned()),
        TokenVerdict::Failed(error) => Found::Refused(error.to_string()),
        TokenVerdict::NotAsked => Found::NotReviewed,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0x0f)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(*byte)])
        .collect()
}
