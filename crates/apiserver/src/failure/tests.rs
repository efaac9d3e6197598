use http::HeaderValue;
use tokio_rustls::rustls::AlertDescription;
use tokio_rustls::rustls::pki_types::ServerName;

use super::*;

#[test]
fn answers_have_their_kind_and_message() {
    let check =
        |code: u16, retry_after: Option<&'static str>, body: &str, kind: ApiErrorKind, message: &str| {
            let mut headers = HeaderMap::new();
            if let Some(value) = retry_after {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
            }
            let status = StatusCode::from_u16(code).unwrap();
            let found = from_answer(status, &headers, body.as_bytes(), None);
            assert_eq!(found, (kind, message.to_owned()), "{code} {body}");
        };
    let status = |reason: &str, message: &str| {
        format!(r#"{{"kind":"Status","reason":"{reason}","message":"{message}"}}"#)
    };
    let exists = status("AlreadyExists", "pods \\\"a\\\" already exists");
    check(
        409,
        None,
        &exists,
        ApiErrorKind::AlreadyExists,
        "pods \"a\" already exists",
    );
    check(
        409,
        None,
        &status("Conflict", "uid"),
        ApiErrorKind::Conflict,
        "uid",
    );
    check(
        401,
        None,
        &status("Unauthorized", "Unauthorized"),
        ApiErrorKind::Unauthorized,
        "Unauthorized",
    );
    check(
        403,
        None,
        &status("Forbidden", "no"),
        ApiErrorKind::Forbidden,
        "no",
    );
    check(
        404,
        None,
        &status("NotFound", "gone"),
        ApiErrorKind::NotFound,
        "gone",
    );
    check(
        404,
        None,
        "404 page not found\n",
        ApiErrorKind::NotFound,
        "404 Not Found: 404 page not found",
    );
    check(
        410,
        None,
        &status("Expired", "too old"),
        ApiErrorKind::Gone,
        "too old",
    );
    check(422, None, &status("Invalid", "bad"), ApiErrorKind::Invalid, "bad");
    check(
        400,
        None,
        &status("BadRequest", "bad"),
        ApiErrorKind::Invalid,
        "bad",
    );
    check(
        500,
        None,
        &status("InternalError", "etcd"),
        ApiErrorKind::ServerFailed,
        "etcd",
    );
    check(
        503,
        None,
        "",
        ApiErrorKind::ServerFailed,
        "503 Service Unavailable",
    );
    check(418, None, "<html>", ApiErrorKind::Malformed, "418 I'm a teapot");
    let busy = |seconds: Option<u64>| ApiErrorKind::Busy {
        retry_after: seconds.map(Duration::from_secs),
    };
    check(429, Some("7"), "", busy(Some(7)), "429 Too Many Requests");
    check(429, None, "", busy(None), "429 Too Many Requests");
    check(
        429,
        Some("Tue, 01 Jan 2030 00:00:00 GMT"),
        "",
        busy(None),
        "429 Too Many Requests",
    );
    check(503, Some("1"), "", busy(Some(1)), "503 Service Unavailable");
    let details = r#"{"kind":"Status","message":"later","details":{"retryAfterSeconds":3}}"#;
    check(429, None, details, busy(Some(3)), "later");
    let uid = r#"{"kind":"Status","reason":"Invalid","message":"m","details":{"causes":[{"field":"metadata.uid"}]}}"#;
    check(422, None, uid, ApiErrorKind::Conflict, "m");
    let other =
        r#"{"kind":"Status","reason":"Invalid","message":"m","details":{"causes":[{"field":"spec"}]}}"#;
    check(422, None, other, ApiErrorKind::Invalid, "m");
    // An object is never shown.
    let secret = r#"{"kind":"Secret","message":"x","data":{"password":"aHVudGVyMg=="}}"#;
    check(
        500,
        None,
        secret,
        ApiErrorKind::ServerFailed,
        "500 Internal Server Error",
    );
}

#[test]
fn long_messages_are_cut_between_letters() {
    let message = "é".repeat(2000);
    let body = format!(r#"{{"kind":"Status","message":"{message}"}}"#);
    let (_, shown) = from_answer(StatusCode::FORBIDDEN, &HeaderMap::new(), body.as_bytes(), None);
    assert!(shown.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8() && shown.ends_with('…'));
}

#[test]
fn errors_inside_a_watch_have_their_kind() {
    let gone = br#"{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}"#;
    assert_eq!(
        from_watch_error(gone),
        (ApiErrorKind::Gone, "too old resource version".to_owned())
    );
    let (kind, _) = from_watch_error(b"{}");
    assert_eq!(kind, ApiErrorKind::Malformed);
}

#[test]
fn tls_failures_say_what_is_wrong() {
    let check = |error: TlsError, expected: &str| {
        let wrapped = Arc::new(DialError::Tls(io::Error::new(io::ErrorKind::InvalidData, error)));
        let (kind, message) = from_transport(&wrapped, "https://api:6443");
        assert_eq!(kind, ApiErrorKind::Tls);
        assert!(message.contains(expected), "{message}");
    };
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let bad = |error| TlsError::InvalidCertificate(error);
    check(
        bad(CertificateError::UnknownIssuer),
        "certificate-authority in the kubeconfig",
    );
    check(
        bad(CertificateError::ExpiredContext {
            time: at(1_000_000_000),
            not_after: at(0),
        }),
        "expired at 1970-01-01T00:00:00Z; this node's clock says 2001-09-09T01:46:40Z",
    );
    check(
        bad(CertificateError::NotValidYetContext {
            time: at(0),
            not_before: at(1_000_000_000),
        }),
        "clock says 1970-01-01T00:00:00Z and may be behind",
    );
    check(
        bad(CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("api").unwrap(),
            presented: vec!["DnsName(\"other\")".to_owned()],
        }),
        "is not for api, but for",
    );
    check(
        TlsError::AlertReceived(AlertDescription::CertificateExpired),
        "our client certificate expired",
    );
    check(
        TlsError::AlertReceived(AlertDescription::BadCertificate),
        "does not accept our client certificate",
    );
    check(
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType),
        "does not speak TLS",
    );
}

#[test]
fn an_alert_is_understood_by_its_words_too() {
    let alert = TlsError::AlertReceived(AlertDescription::CertificateExpired);
    let error = io::Error::new(io::ErrorKind::InvalidData, alert.to_string());
    let (kind, message) = from_transport(&error, "https://api:6443");
    assert_eq!(kind, ApiErrorKind::Tls);
    assert_eq!(message, "the API server says that our client certificate expired");
}

#[test]
fn no_connection_names_the_server_and_the_cause() {
    let refused = io::Error::from_raw_os_error(111);
    let error = Arc::new(DialError::Connect(Box::new(refused)));
    let (kind, message) = from_transport(&error, "https://api:6443");
    assert_eq!(kind, ApiErrorKind::Unreachable);
    assert_eq!(
        message,
        "cannot reach https://api:6443: Connection refused (os error 111)"
    );
    let (_, message) = from_transport(&Arc::new(DialError::TimedOut), "https://api:6443");
    assert_eq!(
        message,
        "cannot reach https://api:6443: no connection within 10 s"
    );
}

#[test]
fn bad_json_is_told_without_its_content() {
    let error = serde_json::from_str::<u8>("\"hunter2\"").unwrap_err();
    assert_eq!(
        describe_decode_error(&error),
        "has another form at line 1 column 9"
    );
}

#[test]
fn a_path_names_its_object() {
    let check = |method: Method, path: &str, expected: Option<(&str, &str)>| {
        let found = AskedObject::of(&method, path);
        assert_eq!(
            found.map(|object| (object.resource, object.name)),
            expected,
            "{path}"
        );
    };
    check(
        Method::PATCH,
        "/api/v1/namespaces/d/pods/web/status",
        Some(("pods", "web")),
    );
    check(Method::GET, "/api/v1/nodes/n", Some(("nodes", "n")));
    check(Method::GET, "/api/v1/namespaces/d", Some(("namespaces", "d")));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
    check(Method::PUT, lease, Some(("leases", "n")));
    check(Method::GET, "/api/v1/namespaces/d/pods", None);
    check(
        Method::GET,
        "/apis/certificates.k8s.io/v1/clustertrustbundles",
        None,
    );
    check(Method::POST, "/api/v1/namespaces/d/serviceaccounts/a/token", None);
    check(Method::GET, "/healthz", None);
}

#[test]
fn only_a_status_about_the_object_says_that_it_is_not_there() {
    let object = AskedObject::of(&Method::PATCH, "/api/v1/namespaces/d/pods/web/status");
    let check = |body: &str, object: Option<AskedObject<'_>>, expected: ApiErrorKind| {
        let (kind, _) = from_answer(StatusCode::NOT_FOUND, &HeaderMap::new(), body.as_bytes(), object);
        assert_eq!(kind, expected, "{body}");
    };
    let about = |reason: &str, details: &str| {
        format!(r#"{{"kind":"Status","reason":"{reason}","code":404,"details":{details}}}"#)
    };
    let web = about("NotFound", r#"{"kind":"pods","name":"web"}"#);
    check(&web, object, ApiErrorKind::NotFound);
    for other in [
        about("NotFound", r#"{"kind":"pods","name":"other"}"#),
        about("NotFound", r#"{"kind":"secrets","name":"web"}"#),
        // A webhook refuses with the code that it likes.
        about("NotFound", "{}"),
        about("", r#"{"kind":"pods","name":"web"}"#),
        r#"{"kind":"Status","reason":"NotFound"}"#.to_owned(),
        "<html>404</html>".to_owned(),
        "404 page not found".to_owned(),
        String::new(),
    ] {
        check(&other, object, ApiErrorKind::ServerFailed);
        check(&other, None, ApiErrorKind::NotFound);
    }
}
