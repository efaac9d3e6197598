//! `/stats/summary`.
//!
//! Owns the question: methods, and the one parameter in the query or in a form. The summary itself is made behind a port.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use hyper::body::Incoming;
use rubelet_ports::{NodeStatistics, SummaryExtent};

use crate::body;
use crate::response::{Answer, json, text, unknown_below, wrong_method};

const FORM: &str = "application/x-www-form-urlencoded";
/// More than any form with one parameter has.
const FORM_BYTES: usize = 64 << 10;
const SHORT: &str = "only_cpu_and_memory";

pub(crate) async fn answer(
    statistics: &dyn NodeStatistics,
    rest: &str,
    head: &Parts,
    form: Incoming,
) -> Answer {
    if rest != "summary" {
        return unknown_below();
    }
    if head.method != Method::GET && head.method != Method::POST {
        return wrong_method("GET, POST");
    }
    let form = if head.method == Method::POST && has_form(&head.headers) {
        match body::read(form, FORM_BYTES).await {
            Ok(form) => form,
            Err(unreadable) => return text(unreadable.status, unreadable.why),
        }
    } else {
        Bytes::new()
    };
    let extent = extent(head.uri.query().unwrap_or_default(), &form);
    match statistics.summary(extent).await {
        Ok(summary) => json(Bytes::from_owner(summary)),
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Internal Error: {error}"),
        ),
    }
}

fn has_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case(FORM)
}

/// The short form is asked for by exactly one value, which is exactly `true`.
pub(crate) fn extent(query: &str, form: &[u8]) -> SummaryExtent {
    let fields = form_urlencoded::parse(form).chain(form_urlencoded::parse(query.as_bytes()));
    let values: Vec<_> = fields
        .filter(|(name, _)| name == SHORT)
        .map(|(_, value)| value)
        .collect();
    match values.as_slice() {
        [value] if value == "true" => SummaryExtent::CpuAndMemory,
        _ => SummaryExtent::Everything,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_short_form_is_asked_for_exactly() {
        let check = |query: &str, form: &str, is_short: bool| {
            let found = extent(query, form.as_bytes()) == SummaryExtent::CpuAndMemory;
            assert_eq!(found, is_short, "{query:?} {form:?}");
        };
        check("", "", false);
        check("only_cpu_and_memory=true", "", true);
        check("x=1&only_cpu_and_memory=true", "", true);
        check("", "only_cpu_and_memory=true", true);
        check("only_cpu_and_memory=tr%75e", "", true);
        check("only_cpu_and_memory=True", "", false);
        check("only_cpu_and_memory=1", "", false);
        check("only_cpu_and_memory", "", false);
        check("only_cpu_and_memory=true&only_cpu_and_memory=true", "", false);
        check("only_cpu_and_memory=true", "only_cpu_and_memory=true", false);
    }

    #[test]
    fn a_form_has_its_type() {
        let check = |kind: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(has_form(&headers), expected, "{kind}");
        };
        check("application/x-www-form-urlencoded", true);
        check("Application/X-WWW-Form-Urlencoded; charset=utf-8", true);
        check("application/json", false);
        assert!(!has_form(&HeaderMap::new()));
    }
}
