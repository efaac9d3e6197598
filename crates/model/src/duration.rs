//! Durations as Kubernetes' configuration writes them (`1m0s`, `1.5h`, `300ms`).
//!
//! Owns parsing and printing with the rules of Go's `time` package, because the text form is part of the wire. It is a
//! signed count of nanoseconds and never reads a clock.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A signed duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: {reason}")]
pub struct ParseDurationError {
    pub text: String,
    pub reason: &'static str,
}

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Saturates at the largest representable duration (about 292 years).
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MILLISECOND as i64))
    }

    /// Saturates at the largest representable duration (about 292 years).
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(SECOND as i64))
    }

    pub const fn from_mins(mins: i64) -> Self {
        Self(mins.saturating_mul(MINUTE as i64))
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whole milliseconds, cut towards zero.
    pub const fn as_millis(self) -> i64 {
        self.0 / MILLISECOND as i64
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / SECOND as f64
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The std form; `None` when negative.
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.0).ok().map(std::time::Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| ParseDurationError {
            text: text.to_owned(),
            reason,
        };
        let bytes = text.as_bytes();
        let (negative, mut rest) = match bytes.first() {
            Some(b'-') => (true, &bytes[1..]),
            Some(b'+') => (false, &bytes[1..]),
            _ => (false, bytes),
        };
        if rest == b"0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(fail("no number"));
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, remaining) = parse_part(rest).map_err(fail)?;
            rest = remaining;
            total = total
                .checked_add(part)
                .filter(|sum| *sum <= 1 << 63)
                .ok_or_else(|| fail("out of range"))?;
        }
        if negative {
            // 2^63 is the one magnitude that only fits when negative; wrapping turns it into i64::MIN.
            return Ok(Self((total as i64).wrapping_neg()));
        }
        i64::try_from(total).map(Self).map_err(|_| fail("out of range"))
    }
}

/// One `number unit` pair in nanoseconds, and what follows it.
fn parse_part(text: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    let digits = |from: &[u8]| from.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !matches!(text.first(), Some(b'.' | b'0'..=b'9')) {
        return Err("a number was expected");
    }
    let whole_len = digits(text);
    let mut whole: u64 = 0;
    for digit in &text[..whole_len] {
        whole = whole
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit - b'0')))
            .filter(|value| *value <= 1 << 63)
            .ok_or("out of range")?;
    }
    let mut rest = &text[whole_len..];
    let (mut fraction, mut divisor) = (0_u64, 1.0_f64);
    let mut fraction_len = 0;
    if rest.first() == Some(&b'.') {
        fraction_len = digits(&rest[1..]);
        (fraction, divisor) = parse_fraction(&rest[1..=fraction_len]);
        rest = &rest[1 + fraction_len..];
    }
    if whole_len == 0 && fraction_len == 0 {
        return Err("a number was expected");
    }
    let unit_len = rest
        .iter()
        .take_while(|byte| **byte != b'.' && !byte.is_ascii_digit())
        .count();
    let unit = unit_nanos(&rest[..unit_len])?;
    let mut nanos = whole
        .checked_mul(unit)
        .filter(|value| *value <= 1 << 63)
        .ok_or("out of range")?;
    if fraction > 0 {
        // The same float arithmetic as Go, so that long fractions round alike.
        nanos += (fraction as f64 * (unit as f64 / divisor)) as u64;
        if nanos > 1 << 63 {
            return Err("out of range");
        }
    }
    Ok((nanos, &rest[unit_len..]))
}

/// Digits after the dot; those that no longer fit are ignored, as in Go.
fn parse_fraction(digits: &[u8]) -> (u64, f64) {
    let (mut value, mut divisor) = (0_u64, 1.0_f64);
    for digit in digits {
        if value > (i64::MAX as u64) / 10 {
            break;
        }
        let next = value * 10 + u64::from(digit - b'0');
        if next > 1 << 63 {
            break;
        }
        value = next;
        divisor *= 10.0;
    }
    (value, divisor)
}

fn unit_nanos(unit: &[u8]) -> Result<u64, &'static str> {
    match unit {
        b"" => Err("the unit is missing (ns, us, ms, s, m or h)"),
        b"ns" => Ok(1),
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => Ok(MICROSECOND),
        b"ms" => Ok(MILLISECOND),
        b"s" => Ok(SECOND),
        b"m" => Ok(MINUTE),
        b"h" => Ok(HOUR),
        _ => Err("the unit is unknown (ns, us, ms, s, m or h)"),
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match magnitude {
            0 => f.write_str("0s"),
            1..MICROSECOND => write!(f, "{magnitude}ns"),
            MICROSECOND..MILLISECOND => write!(f, "{}µs", Fraction(magnitude, MICROSECOND)),
            MILLISECOND..SECOND => write!(f, "{}ms", Fraction(magnitude, MILLISECOND)),
            _ => {
                let (hours, rest) = (magnitude / HOUR, magnitude % HOUR);
                let (mins, secs) = (rest / MINUTE, rest % MINUTE);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || mins > 0 {
                    write!(f, "{mins}m")?;
                }
                write!(f, "{}s", Fraction(secs, SECOND))
            }
        }
    }
}

/// A number in units, printed as a decimal without trailing zeros.
struct Fraction(u64, u64);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / self.1, self.0 % self.1);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let width = self.1.ilog10() as usize;
        let digits = format!("{rest:0width$}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, nanos: Option<i64>) {
        assert_eq!(
            text.parse::<GoDuration>().ok().map(GoDuration::as_nanos),
            nanos,
            "{text:?}"
        );
    }

    #[test]
    fn parses_as_go_does() {
        check("0", Some(0));
        check("-0", Some(0));
        check("5s", Some(5_000_000_000));
        check("-5s", Some(-5_000_000_000));
        check("+5s", Some(5_000_000_000));
        check("1478s", Some(1_478_000_000_000));
        check("5.0s", Some(5_000_000_000));
        check("5.s", Some(5_000_000_000));
        check(".5s", Some(500_000_000));
        check("1.004s", Some(1_004_000_000));
        check("10ns", Some(10));
        check("12µs", Some(12_000));
        check("12μs", Some(12_000));
        check("-39h9m14.425s", Some(-140_954_425_000_000));
        check("0.9007199254740993h", Some(3_242_591_731_706));
        check("9223372036854775807ns", Some(i64::MAX));
        check("-9223372036854775808ns", Some(i64::MIN));
        check("9223372036854775808ns", None);
        check("9223372036.854775808s", None);
        check("3000000h", None);
        check("0.3333333333333333333h", Some(1_200_000_000_000));
        check("0.100000000000000000000h", Some(360_000_000_000));
        for bad in [
            "", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "1 s", "s1", "5ſ", "１s",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn prints_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (60_000_000_000, "1m0s"),
            (14_400_000_000_000, "4h0m0s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn printed_form_reads_back_below_the_precision_of_a_float(nanos in -(1_i64 << 52)..(1_i64 << 52)) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn any_text_gives_an_answer(text in "\\PC{0,24}") {
            let _ = text.parse::<GoDuration>();
        }

        #[test]
        fn any_duration_like_text_gives_an_answer(text in "[-+]?([0-9.]{0,25}(ns|us|ms|s|m|h|x)?){0,4}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
