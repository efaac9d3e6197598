//! Answers: the body, and the two forms of plain text that upstream's libraries give.
//!
//! Owns headers and line ends of error texts, because clients see them; the content of an answer is the caller's.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use tokio::sync::mpsc;

use crate::connection_phase::ConnectionPhase;
use crate::metrics::RequestInHand;

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NOSNIFF: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-content-type-options"),
    HeaderValue::from_static("nosniff"),
);

pub(crate) type Answer = Response<Body>;

/// What happens on a connection after HTTP has ended there. It has its end of the connection already.
pub(crate) type Takeover = BoxFuture<'static, ()>;

/// What is sent: something that is there already, or pieces as they come. The connection counts as busy until it is dropped.
pub(crate) struct Body {
    content: Content,
    busy: Option<Arc<ConnectionPhase>>,
    takeover: Option<Takeover>,
    counting: Option<RequestInHand>,
}

enum Content {
    Whole(Bytes),
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self {
            content: Content::Whole(bytes.into()),
            busy: None,
            takeover: None,
            counting: None,
        }
    }

    /// Ends when the sender is dropped; the sender fails once the client has gone.
    pub(crate) fn pieces(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self {
            content: Content::Pieces(receiver),
            busy: None,
            takeover: None,
            counting: None,
        }
    }

    /// Nothing more over HTTP: the connection is handed over.
    pub(crate) fn handing_over(takeover: Takeover) -> Self {
        Self {
            content: Content::Whole(Bytes::new()),
            busy: None,
            takeover: Some(takeover),
            counting: None,
        }
    }

    pub(crate) fn take_takeover(&mut self) -> Option<Takeover> {
        self.takeover.take()
    }

    /// The request counts as in hand until this answer is over, or the session that follows it.
    pub(crate) fn counting(mut self, in_hand: RequestInHand) -> Self {
        match self.takeover.take() {
            Some(takeover) => {
                let counted = async move {
                    takeover.await;
                    drop(in_hand);
                };
                self.takeover = Some(Box::pin(counted));
            }
            None => self.counting = Some(in_hand),
        }
        self
    }

    /// Reports to the connection when this answer is over.
    pub(crate) fn occupying(mut self, phase: Arc<ConnectionPhase>) -> Self {
        self.busy = Some(phase);
        self
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(phase) = &self.busy {
            phase.answer_ended();
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { content, busy, .. } = &mut *self;
        let piece = match content {
            Content::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Content::Pieces(receiver) => {
                let piece = ready!(receiver.poll_recv(context));
                match (&piece, busy) {
                    (Some(_), Some(phase)) => phase.piece_given(),
                    // The end goes out behind the last piece and never in one record with it: a reader in Go gets both at
                    // once then, and the API server's copy of logs to a WebSocket drops a piece that comes with the end.
                    (None, Some(phase)) => ready!(phase.poll_flushed(context)),
                    (_, None) => {}
                }
                piece
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Pieces(_) => SizeHint::default(),
        }
    }
}

fn answer(status: StatusCode, content_type: Option<HeaderValue>, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    if let Some(content_type) = content_type {
        answer.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    answer
}

/// Plain text as it is.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(status, Some(PLAIN), Body::whole(text))
}

/// Plain text whose kind browsers must not guess.
pub(crate) fn guarded_text(status: StatusCode, content: impl Into<Bytes>) -> Answer {
    let mut answer = text(status, content);
    answer.headers_mut().insert(NOSNIFF.0, NOSNIFF.1);
    answer
}

/// An error as the plain HTTP library writes it: guarded, with a line end.
pub(crate) fn error_line(status: StatusCode, message: &str) -> Answer {
    guarded_text(status, format!("{message}\n"))
}

/// No path of this server.
pub(crate) fn unknown_path() -> Answer {
    error_line(StatusCode::NOT_FOUND, "404 page not found")
}

/// A path below a known one that is not known itself.
pub(crate) fn unknown_below() -> Answer {
    text(StatusCode::NOT_FOUND, "404: Page Not Found")
}

pub(crate) fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// There is no room for one more.
pub(crate) fn too_many(message: String) -> Answer {
    // Upstream's advice, in seconds.
    const LATER: HeaderValue = HeaderValue::from_static("60");
    let mut answer = text(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(RETRY_AFTER, LATER);
    answer
}

/// There will be room for one more in a moment.
pub(crate) fn too_many_for_now() -> Answer {
    // The text and the seconds are those of upstream's request filters.
    const SOON: HeaderValue = HeaderValue::from_static("1");
    let message = "Too many requests, please try again later.";
    let mut answer = error_line(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(RETRY_AFTER, SOON);
    answer
}

pub(crate) fn unauthorized() -> Answer {
    text(StatusCode::UNAUTHORIZED, "Unauthorized")
}

pub(crate) fn json(bytes: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, Some(JSON), Body::whole(bytes))
}

/// A page of metrics. No name on it needs to be escaped; the content type announces that to clients that accept escaping.
pub(crate) fn metrics_text(page: Body) -> Answer {
    let kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    answer(StatusCode::OK, Some(HeaderValue::from_static(kind)), page)
}

pub(crate) fn guarded_json(bytes: impl Into<Bytes>) -> Answer {
    let mut answer = json(bytes);
    answer.headers_mut().insert(NOSNIFF.0, NOSNIFF.1);
    answer
}

/// Pieces of a log, of no declared type.
pub(crate) fn stream(receiver: mpsc::Receiver<Bytes>) -> Answer {
    answer(StatusCode::OK, None, Body::pieces(receiver))
}

/// A path as it stands in a header or a link, escaped as Go's `net/url` does.
pub(crate) fn escaped_path(path: &str) -> PercentEncode<'_> {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'/')
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~')
        .remove(b'$')
        .remove(b'&')
        .remove(b'+')
        .remove(b',')
        .remove(b':')
        .remove(b';')
        .remove(b'=')
        .remove(b'@');
    utf8_percent_encode(path, KEPT)
}

/// A path as it stands in a header, with the request's query.
pub(crate) fn location(path: &str, query: &str) -> String {
    let path = escaped_path(path);
    if query.is_empty() {
        path.to_string()
    } else {
        format!("{path}?{query}")
    }
}

/// A text for an HTML page, escaped as Go's `html` package does.
pub(crate) fn escaped_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

/// Sends the client to another path of this server.
pub(crate) fn redirect(method: &Method, location: &str) -> Answer {
    let Ok(target) = HeaderValue::from_str(location) else {
        return unknown_path();
    };
    let mut answer = if method == Method::GET {
        let escaped = escaped_html(location);
        let link = format!("<a href=\"{escaped}\">Temporary Redirect</a>.\n\n");
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        answer(StatusCode::TEMPORARY_REDIRECT, Some(html), Body::whole(link))
    } else {
        answer(StatusCode::TEMPORARY_REDIRECT, None, Body::whole(Bytes::new()))
    };
    answer.headers_mut().insert(LOCATION, target);
    answer
}
