//! Prometheus' text format, version 0.0.4: how a page is spelled.
//!
//! Owns numbers and escapes. Numbers are spelled as upstream's library spells them: the end of a bucket is a label, and a dashboard
//! that asks for `le="2.592e+06"` must find it.

use std::fmt::Write as _;

use rubelet_model::Timestamp;

const NANOS_PER_MILLI: i64 = 1_000_000;

/// The two lines above the samples of a family.
pub fn push_head(text: &mut String, name: &str, kind: &str, help: &str) {
    text.push_str("# HELP ");
    text.push_str(name);
    text.push(' ');
    push_escaped(text, help, false);
    text.push_str("\n# TYPE ");
    text.push_str(name);
    text.push(' ');
    text.push_str(kind);
    text.push('\n');
}

/// A help text, or the value of a label.
pub fn push_escaped(text: &mut String, plain: &str, in_quotes: bool) {
    for character in plain.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if in_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

/// The shortest form that reads back as the same number, with an exponent below 1e-4 and from 1e6 on.
pub fn push_number(text: &mut String, value: f64) {
    if value.is_nan() {
        return text.push_str("NaN");
    }
    if value.is_infinite() {
        return text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    }
    if value == 0.0 {
        return text.push('0');
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Writing to a string does not fail.
    let _ = if (-4..6).contains(&exponent) {
        write!(text, "{value}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(text, "{digits}e{sign}{:02}", exponent.abs())
    };
}

/// The end of a sample: its value, and when it was taken where that is not now.
pub(crate) fn push_value(text: &mut String, value: f64, taken_at: Option<Timestamp>) {
    text.push(' ');
    push_number(text, value);
    if let Some(taken_at) = taken_at {
        // Writing to a string does not fail.
        let _ = write!(text, " {}", taken_at.unix_nanos().div_euclid(NANOS_PER_MILLI));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_upstreams_are() {
        let check = |value: f64, expected: &str| {
            let mut text = String::new();
            push_number(&mut text, value);
            assert_eq!(text, expected);
        };
        check(0.0, "0");
        check(-0.0, "0");
        check(1.0, "1");
        check(-1.0, "-1");
        check(0.005, "0.005");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(0.000_012_5, "1.25e-05");
        check(124.5, "124.5");
        check(604_800.0, "604800");
        check(999_999.0, "999999");
        check(1_000_000.0, "1e+06");
        check(1_048_576.0, "1.048576e+06");
        check(2_592_000.0, "2.592e+06");
        check(-31_104_000.0, "-3.1104e+07");
        check(1.7e300, "1.7e+300");
        check(1_763_309_100.25, "1.76330910025e+09");
        check(18_446_744_073_709_551_615.0, "1.8446744073709552e+19");
        check(f64::INFINITY, "+Inf");
        check(f64::NEG_INFINITY, "-Inf");
        check(f64::NAN, "NaN");
    }

    #[test]
    fn a_sample_may_have_a_time() {
        let mut text = String::new();
        push_value(
            &mut text,
            1.5,
            Some(Timestamp::from_unix_nanos(1_763_495_289_123_999_999)),
        );
        push_value(&mut text, 2.0, None);
        assert_eq!(text, " 1.5 1763495289123\n 2\n");
    }

    #[test]
    fn names_cannot_break_a_line() {
        let mut text = String::new();
        push_head(&mut text, "a", "gauge", "A \\ and\na \"line\".");
        push_escaped(&mut text, "x\"y\\z\n", true);
        assert_eq!(
            text,
            "# HELP a A \\\\ and\\na \"line\".\n# TYPE a gauge\nx\\\"y\\\\z\\n"
        );
    }
}
