//! Kinds and messages of failed calls.
//!
//! Owns the kind of each failure and its message. A wrong authority, an expired certificate, a wrong name and a wrong clock each have a
//! message of their own. Of a server's answer only the `Status` message is kept, never the content of an object.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::jiff::Timestamp;
use rubelet_ports::api::ApiErrorKind;
use serde::Deserialize;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{CertificateError, Error as TlsError, InvalidMessage, OtherError};

use crate::call::segment;
use crate::dial::{DialError, GIVEN_UP};

const MAX_MESSAGE_BYTES: usize = 1024;

/// The prefix of an alert in messages of rustls.
const ALERT: &str = "received fatal alert: ";

/// The error of this type that is the cause, or the cause of the cause.
pub(crate) fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref::<T>())
}

/// An error and its causes. An IO error passes over what it wraps when it is asked for its cause, so this looks inside.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| {
        let error: &'a (dyn StdError + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match wrapped {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => error.source(),
        }
    })
}

/// No answer: which kind, and why.
pub(crate) fn from_transport(error: &(dyn StdError + 'static), server: &str) -> (ApiErrorKind, String) {
    if let Some(tls) = find::<TlsError>(error) {
        let message = match find::<Arc<DialError>>(error).map(AsRef::as_ref) {
            Some(DialError::ProxyTls { proxy, .. }) => tls_words(tls, &format!("the proxy {proxy}")),
            _ => tls_words(tls, server),
        };
        return (ApiErrorKind::Tls, message);
    }
    if find::<hyper::Error>(error).is_some_and(hyper::Error::is_timeout) {
        let message = format!("the connection to {server} went silent: no answer to a ping");
        return (ApiErrorKind::Unreachable, message);
    }
    let last = match find::<Arc<DialError>>(error).map(AsRef::as_ref) {
        Some(error @ DialError::TimedOut) => error.to_string(),
        _ => chain(error).last().map_or(String::new(), ToString::to_string),
    };
    // Of a failure after the handshake, HTTP/2 passes on only the message.
    if let Some(alert) = last.strip_prefix(ALERT) {
        return (ApiErrorKind::Tls, alert_words(alert));
    }
    (
        ApiErrorKind::Unreachable,
        format!("cannot reach {server}: {last}"),
    )
}

/// Whether it is about one call and not about the connection, or about a connection that we gave up ourselves.
pub(crate) fn leaves_connection_alone(error: &(dyn StdError + 'static)) -> bool {
    let is_one_stream = find::<h2::Error>(error).is_some_and(h2::Error::is_reset);
    is_one_stream || chain(error).any(|error| error.to_string() == GIVEN_UP)
}

fn tls_words(error: &TlsError, server: &str) -> String {
    match error {
        TlsError::InvalidCertificate(error) => certificate_words(error, server),
        TlsError::AlertReceived(alert) => alert_words(&format!("{alert:?}")),
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
            format!("{server} does not speak TLS; is its port right?")
        }
        error => format!("no TLS connection to {server}: {error}"),
    }
}

/// By rustls' name of the alert.
fn alert_words(alert: &str) -> String {
    match alert {
        "CertificateExpired" => "the API server says that our client certificate expired".to_owned(),
        "UnknownCA" => {
            "the API server does not know the authority that signed our client certificate".to_owned()
        }
        "BadCertificate"
        | "UnsupportedCertificate"
        | "CertificateRevoked"
        | "CertificateUnknown"
        | "CertificateRequired"
        | "AccessDenied" => format!("the API server does not accept our client certificate ({alert})"),
        alert => format!("the API server ended the TLS connection ({alert})"),
    }
}

fn certificate_words(error: &CertificateError, server: &str) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {server} is not signed by an authority that we trust; \
             is certificate-authority in the kubeconfig the right one?"
        ),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the certificate of {server} expired at {}; this node's clock says {}",
            spell(*not_after),
            spell(*time)
        ),
        CertificateError::Expired => {
            format!("the certificate of {server} expired, or this node's clock is ahead")
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the certificate of {server} is valid only from {}; this node's clock says {} and may be behind",
            spell(*not_before),
            spell(*time)
        ),
        CertificateError::NotValidYet => {
            format!("the certificate of {server} is not valid yet, or this node's clock is behind")
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the certificate of {server} is not for {}, but for {}; see server and tls-server-name in the kubeconfig",
            expected.to_str(),
            presented.join(", ")
        ),
        CertificateError::NotValidForName => format!("the certificate of {server} is for another name"),
        CertificateError::Other(OtherError(problem)) => {
            format!("the certificate of {server} is not accepted: {problem}")
        }
        error => format!("the certificate of {server} is not accepted: {error}"),
    }
}

fn spell(time: UnixTime) -> String {
    spell_time(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

pub(crate) fn spell_time(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| format!("{time:?}"), |time| time.to_string())
}

/// The parts of `Status` that describe a failure.
#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    code: u16,
    details: Option<Details>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    retry_after_seconds: Option<u64>,
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Deserialize)]
struct Cause {
    #[serde(default)]
    field: String,
}

impl Status {
    /// Whether it means that this object does not exist. In a `Status` the kind is the resource: `pods`.
    fn is_absence_of(&self, object: &AskedObject<'_>) -> bool {
        let is_named =
            |details: &Details| details.kind == object.resource && segment(&details.name) == object.name;
        self.reason == "NotFound" && self.details.as_ref().is_some_and(is_named)
    }

    /// A patch whose UID is not that of the object is an attempt to change it for the server; for us it is another object.
    fn is_about_uid(&self) -> bool {
        let mut causes = self.details.iter().flat_map(|details| &details.causes);
        self.reason == "Invalid" && causes.any(|cause| cause.field == "metadata.uid")
    }
}

/// The object that a request is about, as its path names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AskedObject<'a> {
    resource: &'a str,
    name: &'a str,
}

impl<'a> AskedObject<'a> {
    /// None for a collection. A creation is about none either: it may lack its namespace, or what the new object refers to.
    pub(crate) fn of(method: &Method, path: &'a str) -> Option<Self> {
        let mut segments = path.trim_start_matches('/').split('/');
        let version_segments = match segments.next() {
            Some("api") => 1,
            Some("apis") => 2,
            Some(_) | None => return None,
        };
        let rest: Vec<&str> = segments.skip(version_segments).collect();
        let rest = match rest.as_slice() {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        match rest {
            [resource, name, ..] if method != Method::POST => Some(Self { resource, name }),
            _ => None,
        }
    }
}

/// An answer that is a failure. A 404 of a proxy does not mean that the object is gone.
pub(crate) fn from_answer(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    object: Option<AskedObject<'_>>,
) -> (ApiErrorKind, String) {
    let parsed = serde_json::from_slice::<Status>(body)
        .ok()
        .filter(|status| status.kind == "Status");
    let message = match &parsed {
        Some(status) if !status.message.is_empty() => shorten(&status.message),
        _ => plain_text(status, body),
    };
    let retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .or_else(|| parsed.as_ref()?.details.as_ref()?.retry_after_seconds)
        .map(Duration::from_secs);
    if parsed.as_ref().is_some_and(Status::is_about_uid) {
        return (ApiErrorKind::Conflict, message);
    }
    if status == StatusCode::NOT_FOUND
        && let Some(object) = object
        && !parsed
            .as_ref()
            .is_some_and(|status| status.is_absence_of(&object))
    {
        return (ApiErrorKind::ServerFailed, message);
    }
    let reason = parsed.as_ref().map_or("", |status| status.reason.as_str());
    (kind_of(status.as_u16(), reason, retry_after), message)
}

/// A failure in the middle of a watch.
pub(crate) fn from_watch_error(body: &[u8]) -> (ApiErrorKind, String) {
    let status = serde_json::from_slice::<Status>(body).unwrap_or_default();
    let after = status.details.and_then(|details| details.retry_after_seconds);
    let kind = kind_of(status.code, &status.reason, after.map(Duration::from_secs));
    let message = if status.message.is_empty() {
        "the watch ended with an error".to_owned()
    } else {
        shorten(&status.message)
    };
    (kind, message)
}

fn kind_of(code: u16, reason: &str, retry_after: Option<Duration>) -> ApiErrorKind {
    match code {
        401 => ApiErrorKind::Unauthorized,
        403 => ApiErrorKind::Forbidden,
        404 => ApiErrorKind::NotFound,
        409 if reason == "AlreadyExists" => ApiErrorKind::AlreadyExists,
        409 => ApiErrorKind::Conflict,
        410 => ApiErrorKind::Gone,
        400 | 405 | 406 | 413 | 415 | 422 => ApiErrorKind::Invalid,
        429 => ApiErrorKind::Busy { retry_after },
        503 if retry_after.is_some() => ApiErrorKind::Busy { retry_after },
        500..=599 => ApiErrorKind::ServerFailed,
        _ => ApiErrorKind::Malformed,
    }
}

/// Something between us and the server answered: its first line, if it is one.
fn plain_text(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let first = text.lines().next().unwrap_or("").trim();
    let is_words = !first.is_empty() && !first.starts_with(['{', '[', '<']);
    let reason = status.canonical_reason().unwrap_or("unknown status");
    if is_words {
        return format!("{} {reason}: {}", status.as_u16(), shorten(first));
    }
    format!("{} {reason}", status.as_u16())
}

fn shorten(text: &str) -> String {
    if text.len() <= MAX_MESSAGE_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_MESSAGE_BYTES);
    format!("{}…", &text[..end])
}

/// What is wrong with JSON, without any of its content.
pub(crate) fn describe_decode_error(error: &serde_json::Error) -> String {
    let problem = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "is no JSON",
        serde_json::error::Category::Data => "has another form",
        serde_json::error::Category::Eof => "is cut off",
    };
    format!("{problem} at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests;
