//! Points in time as log files and clients write them.
//!
//! Owns reading RFC 3339 strictly, and writing it.

use k8s_openapi::jiff;
use rubelet_model::Timestamp;

const SECONDS_END: usize = "2006-01-02T15:04:05".len();
const FRACTION_DIGITS: usize = 9;

/// A text taken apart, each part still a text.
struct Parts<'a> {
    /// Up to the second.
    seconds: &'a str,
    /// Digits after the point; at most nine matter.
    fraction: &'a str,
    /// `Z` or a distance such as `+02:00`.
    offset: &'a str,
}

fn parts(text: &str) -> Option<Parts<'_>> {
    let (seconds, rest) = text.split_at_checked(SECONDS_END)?;
    let shape_is_right =
        seconds
            .bytes()
            .zip("0000-00-00T00:00:00".bytes())
            .all(|(byte, shape)| match shape {
                b'0' => byte.is_ascii_digit(),
                shape => byte == shape,
            });
    let (fraction, offset) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            (&rest[..end], &rest[end..])
        }
        None => ("", rest),
    };
    let offset_is_right = offset == "Z"
        || matches!(offset.as_bytes(), [b'+' | b'-', a, b, b':', c, d]
            if [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()));
    let has_digits = !rest.starts_with('.') || !fraction.is_empty();
    (shape_is_right && offset_is_right && has_digits).then_some(Parts {
        seconds,
        fraction: &fraction[..fraction.len().min(FRACTION_DIGITS)],
        offset,
    })
}

/// The instant, unless the text is none.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let Parts {
        seconds,
        fraction,
        offset,
    } = parts(text)?;
    let point = if fraction.is_empty() { "" } else { "." };
    let instant: jiff::Timestamp = format!("{seconds}{point}{fraction}{offset}").parse().ok()?;
    let nanos = i64::try_from(instant.as_nanosecond()).unwrap_or(if instant.as_second() < 0 {
        i64::MIN
    } else {
        i64::MAX
    });
    Some(Timestamp::from_unix_nanos(nanos))
}

/// In UTC, as short as the instant allows.
pub(crate) fn format(instant: Timestamp) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(instant.unix_nanos()))
        .map(|instant| instant.to_string())
        .unwrap_or_default()
}

/// The same instant in the same zone, always with nine digits.
pub(crate) fn with_nanoseconds(text: &str) -> Option<String> {
    let Parts {
        seconds,
        fraction,
        offset,
    } = parts(text)?;
    let offset = if matches!(offset, "+00:00" | "-00:00") {
        "Z"
    } else {
        offset
    };
    Some(format!("{seconds}.{fraction:0<FRACTION_DIGITS$}{offset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_strictly() {
        let check = |text: &str, expected: Option<i64>| {
            assert_eq!(parse(text).map(Timestamp::unix_nanos), expected, "{text}");
        };
        check("1970-01-01T00:00:01Z", Some(1_000_000_000));
        check("1970-01-01T00:00:01.5Z", Some(1_500_000_000));
        check("1970-01-01T00:00:00.000000001Z", Some(1));
        check("1970-01-01T00:00:00.0000000019Z", Some(1));
        check("1970-01-01T02:00:00+02:00", Some(0));
        check("1969-12-31T23:59:59Z", Some(-1_000_000_000));
        check("9999-01-01T00:00:00Z", Some(i64::MAX));
        for wrong in [
            "",
            "1970-01-01",
            "1970-01-01 00:00:00Z",
            "1970-01-01t00:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+0200",
            "1970-13-01T00:00:00Z",
            "1970-01-01T00:00:00Zx",
            "äääääääääääääääääää",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn times_are_written_and_read_again() {
        let check = |nanos: i64, expected: &str| {
            let instant = Timestamp::from_unix_nanos(nanos);
            assert_eq!(format(instant), expected);
            assert_eq!(parse(expected), Some(instant));
        };
        check(0, "1970-01-01T00:00:00Z");
        check(1_500_000_000, "1970-01-01T00:00:01.5Z");
    }

    #[test]
    fn times_are_written_with_nine_digits() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(with_nanoseconds(text).as_deref(), expected, "{text}");
        };
        check("2016-10-20T18:39:20Z", Some("2016-10-20T18:39:20.000000000Z"));
        check(
            "2016-10-20T18:39:20.57606443Z",
            Some("2016-10-20T18:39:20.576064430Z"),
        );
        check(
            "2016-10-20T18:39:20.1+02:00",
            Some("2016-10-20T18:39:20.100000000+02:00"),
        );
        check(
            "2016-10-20T18:39:20.1+00:00",
            Some("2016-10-20T18:39:20.100000000Z"),
        );
        check("soon", None);
    }
}
