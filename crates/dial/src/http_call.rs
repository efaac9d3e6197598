//! A GET with its redirects.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, LOCATION, REFERER, TRAILER, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, Version};
use http_body_util::Empty;
use rubelet_ports::{BODY_LIMIT_BYTES, HttpAnswer, HttpCall, HttpCallError, HttpScheme};

use crate::exchange::{self, Head};
use crate::redirect::Place;
use crate::socket::Sockets;
use crate::tls::AnyCertificate;
use crate::{before, deadline};

const MAX_REDIRECTS: usize = 10;

const TOO_LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const BODY_TOO_LATE: &str =
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";

/// Why no answer came; the address is added by the caller, who knows it.
struct Problem {
    message: String,
    spoke_plain_http: bool,
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self {
            message,
            spoke_plain_http: false,
        }
    }
}

impl Problem {
    fn at(self, url: &str) -> HttpCallError {
        HttpCallError::NoAnswer {
            message: format!("Get {url:?}: {}", self.message),
            spoke_plain_http: self.spoke_plain_http,
        }
    }
}

pub(crate) async fn get(
    sockets: &Sockets<'_>,
    tls: &AnyCertificate,
    call: &HttpCall,
) -> Result<HttpAnswer, HttpCallError> {
    let deadline = deadline(call.timeout);
    let first = Place {
        scheme: call.scheme,
        host: call.host.clone(),
        port: call.port,
        target: call.target.clone(),
    };
    let headers = header_map(call).map_err(|message| Problem::from(message).at(&first.url()))?;
    let mut request = Asked {
        place: first,
        headers,
        host_header: call.host_header.clone(),
    };
    let mut redirects = 0;
    loop {
        let head = match before(deadline, ask(sockets, tls, &request)).await {
            Some(Ok(head)) => head,
            Some(Err(problem)) => return Err(problem.at(&request.place.url())),
            None => return Err(too_late(sockets, &request.place)),
        };
        let Some((location, next)) = request.redirected(&head)? else {
            return read(head, deadline).await;
        };
        if next.place.host != call.host {
            // Another host is another server's health: that much of an answer is enough.
            return read(head, deadline).await;
        }
        redirects += 1;
        if redirects >= MAX_REDIRECTS {
            let message = format!("stopped after {MAX_REDIRECTS} redirects");
            return Err(Problem::from(message).at(&location));
        }
        request = next;
    }
}

fn too_late(sockets: &Sockets<'_>, place: &Place) -> HttpCallError {
    let url = place.url();
    match sockets.no_place(&place.host) {
        Some(problem) => HttpCallError::NoPlace {
            message: format!("Get {url:?}: {problem}"),
        },
        None => Problem::from(TOO_LATE.to_owned()).at(&url),
    }
}

async fn read(head: Head, deadline: Option<tokio::time::Instant>) -> Result<HttpAnswer, HttpCallError> {
    let status = head.status.as_u16();
    match before(deadline, head.body.read(BODY_LIMIT_BYTES)).await {
        Some(Ok(body)) => Ok(HttpAnswer { status, body }),
        Some(Err(message)) => Err(HttpCallError::BrokenBody {
            message: if message == "EOF" {
                "unexpected EOF".to_owned()
            } else {
                message
            },
        }),
        None => Err(HttpCallError::BrokenBody {
            message: BODY_TOO_LATE.to_owned(),
        }),
    }
}

/// One request of a call: the first or one after a redirect.
struct Asked {
    place: Place,
    headers: HeaderMap,
    host_header: Option<String>,
}

impl Asked {
    /// The next request, with the redirect as it was written; `None` when the answer is no redirect.
    fn redirected(&self, head: &Head) -> Result<Option<(String, Self)>, HttpCallError> {
        let is_redirect = matches!(
            head.status,
            StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT
        );
        let location = head.headers.get(LOCATION).filter(|_| is_redirect);
        let Some(location) = location.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        else {
            return Ok(None);
        };
        if location.is_empty() {
            return Ok(None);
        }
        let (place, names_its_host) = self
            .place
            .follow(&location)
            .map_err(|message| Problem::from(message).at(&self.place.url()))?;
        let mut headers = self.headers.clone();
        let leaves_tls = self.place.scheme == HttpScheme::Https && place.scheme == HttpScheme::Http;
        if let (false, Ok(from)) = (leaves_tls, HeaderValue::from_str(&self.place.url())) {
            headers.insert(REFERER, from);
        }
        let next = Self {
            place,
            headers,
            host_header: self.host_header.clone().filter(|_| !names_its_host),
        };
        Ok(Some((location, next)))
    }

    fn host(&self) -> String {
        self.host_header.clone().unwrap_or_else(|| self.place.authority())
    }

    fn http1(&self) -> Result<Request<Empty<Bytes>>, String> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::try_from(&self.place.target).map_err(|error| error.to_string())?;
        let host = HeaderValue::from_str(&self.host()).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.extend(self.headers.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        Ok(request)
    }

    fn http2(&self) -> Result<Request<()>, String> {
        let uri = Uri::builder()
            .scheme(self.place.scheme.as_str())
            .authority(self.host())
            .path_and_query(&self.place.target)
            .build()
            .map_err(|error| error.to_string())?;
        let mut request = Request::new(());
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

async fn ask(sockets: &Sockets<'_>, tls: &AnyCertificate, asked: &Asked) -> Result<Head, Problem> {
    let place = &asked.place;
    let stream = sockets.connect(&place.host, place.port).await?;
    if place.scheme == HttpScheme::Http {
        return Ok(exchange::http1(Box::new(stream), asked.http1()?).await?);
    }
    let encrypted = tls.connect(&place.host, stream).await;
    let (stream, is_h2) = encrypted.map_err(|failure| Problem {
        message: failure.message,
        spoke_plain_http: failure.spoke_plain_http,
    })?;
    let head = if is_h2 {
        exchange::http2(Box::new(stream), asked.http2()?).await
    } else {
        exchange::http1(Box::new(stream), asked.http1()?).await
    };
    Ok(head?)
}

/// What the pod wants to be sent, without what belongs to the connection.
fn header_map(call: &HttpCall) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in &call.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("net/http: invalid header field name {name:?}"))?;
        let mut value = HeaderValue::from_str(value.trim())
            .map_err(|_| format!("net/http: invalid header field value for {name:?}"))?;
        value.set_sensitive(true);
        if parsed == USER_AGENT && map.contains_key(USER_AGENT) {
            continue;
        }
        let is_our_own = [CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING, HOST].contains(&parsed);
        if !is_our_own {
            map.append(parsed, value);
        }
    }
    Ok(map)
}
