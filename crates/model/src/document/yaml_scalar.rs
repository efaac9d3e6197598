//! What an unquoted YAML scalar means: null, boolean, number or text.
//!
//! The rules are those of YAML 1.1 as Kubernetes reads it, so `yes` and `on` are booleans, `0o17` and `017` are octal and
//! `1_000` is a number. Getting one wrong would turn a working file into a different one.

use serde_json::Number;

use super::node::Node;

/// Above this the JSON form of a number has an exponent, and is no integer any more.
const MAX_PLAIN_FLOAT: f64 = 1e21;

pub(crate) fn resolve(text: &str) -> Result<Node, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Node::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Node::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Node::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => {
            return Err(format!("{text} has no place in a document"));
        }
        _ => {}
    }
    let number = match text.as_bytes().first() {
        Some(b'.') => is_float(text)
            .then(|| text.parse().ok())
            .flatten()
            .and_then(float),
        Some(b'0'..=b'9' | b'+' | b'-') => numeric(text),
        Some(_) | None => None,
    };
    Ok(number.map_or_else(|| Node::Text(text.to_owned()), Node::Number))
}

/// A key as text; `None` for what cannot be one.
pub(crate) fn key(node: &Node) -> Option<String> {
    match node {
        Node::Text(text) => Some(text.clone()),
        Node::Bool(flag) => Some(flag.to_string()),
        Node::Number(number) => Some(number.to_string()),
        Node::Null | Node::List(_) | Node::Map(_) => None,
    }
}

fn numeric(text: &str) -> Option<Number> {
    if is_date(text) {
        return None;
    }
    let plain = text.replace('_', "");
    if let Some(number) = integer(&plain) {
        return Some(number);
    }
    if is_float(&plain) {
        plain.parse().ok().and_then(float)
    } else {
        None
    }
}

fn integer(plain: &str) -> Option<Number> {
    let (negative, digits) = match plain.as_bytes().first()? {
        b'-' => (true, &plain[1..]),
        b'+' => (false, &plain[1..]),
        _ => (false, plain),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // A second sign would pass the number parser.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        let value = -i128::from(magnitude);
        return i64::try_from(value).ok().map(Number::from);
    }
    Some(magnitude.into())
}

/// Whole floats are integers once they are written as JSON.
fn float(value: f64) -> Option<Number> {
    if value.is_finite() && value.fract() == 0.0 && value.abs() < MAX_PLAIN_FLOAT {
        if value < 0.0 && value >= i64::MIN as f64 {
            return Some((value as i64).into());
        }
        if value >= 0.0 && value < u64::MAX as f64 {
            return Some((value as u64).into());
        }
    }
    Number::from_f64(value)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !digits.is_empty() && all_digits(digits)
    });
    mantissa_fits && exponent_fits
}

/// `2026-01-31` and longer stay text.
fn is_date(text: &str) -> bool {
    let year = text.bytes().take_while(u8::is_ascii_digit).count();
    year == 4 && text.as_bytes().get(4) == Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn words_mean_what_the_shared_reader_says() {
        for (text, expected) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("yes", json!(true)),
            ("off", json!(false)),
            ("yEs", json!("yEs")),
            ("10", json!(10)),
            ("+10", json!(10)),
            ("-10", json!(-10)),
            ("1_000", json!(1000)),
            ("0x1F", json!(31)),
            ("017", json!(15)),
            ("0o17", json!(15)),
            ("0b101", json!(5)),
            ("-0b101", json!(-5)),
            ("08", json!(8)),
            ("1.0", json!(1)),
            ("1e3", json!(1000)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("1.", json!(1)),
            ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
            ("1e999", json!("1e999")),
            ("1.2.3", json!("1.2.3")),
            ("10s", json!("10s")),
            ("-", json!("-")),
            ("+", json!("+")),
            ("--1", json!("--1")),
            ("0x", json!("0x")),
            ("0x-1", json!("0x-1")),
            (".", json!(".")),
            ("._5", json!("._5")),
            ("2026-01-31", json!("2026-01-31")),
            ("5%", json!("5%")),
        ] {
            assert_eq!(Value::from(resolve(text).unwrap()), expected, "{text:?}");
        }
        assert!(resolve(".inf").is_err());
    }
}
