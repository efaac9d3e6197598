//! Readers for the small text forms that flags are written in, with the rules of Go's strconv and encoding/csv.
//!
//! Pure functions from text to value; they know nothing of flags.

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// An integer as Go's `strconv.ParseInt` with base 0 reads it: `0x`, `0o`, `0b` and a leading `0` choose the base, and then
/// underscores may stand between digits.
pub(super) fn integer(text: &str, lowest: i64, highest: i64) -> Result<i64, String> {
    let syntax = || "must be an integer".to_owned();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits, prefixed) = split_base(digits);
    let digits = without_underscores(digits, prefixed).ok_or_else(syntax)?;
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(syntax());
    }
    let out_of_range = || format!("must be between {lowest} and {highest}");
    let magnitude = i128::from_str_radix(&digits, radix).map_err(|_| out_of_range())?;
    let value = if negative { -magnitude } else { magnitude };
    i64::try_from(value)
        .ok()
        .filter(|value| (lowest..=highest).contains(value))
        .ok_or_else(out_of_range)
}

/// Base, the digits, and whether a prefix chose the base.
fn split_base(text: &str) -> (u32, &str, bool) {
    let Some(rest) = text.strip_prefix('0').filter(|rest| !rest.is_empty()) else {
        return (10, text, false);
    };
    match rest.as_bytes().first() {
        Some(b'x' | b'X') => (16, &rest[1..], true),
        Some(b'o' | b'O') => (8, &rest[1..], true),
        Some(b'b' | b'B') => (2, &rest[1..], true),
        _ => (8, rest, true),
    }
}

/// The digits alone; an underscore may stand between digits or after the base prefix, never double or last.
fn without_underscores(digits: &str, prefixed: bool) -> Option<String> {
    if digits.ends_with('_') || digits.contains("__") || (!prefixed && digits.starts_with('_')) {
        return None;
    }
    Some(digits.replace('_', ""))
}

/// A log level: decimal digits that fit 31 bits.
pub(super) fn level(text: &str) -> Result<u32, String> {
    let well_formed = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if well_formed {
        text.parse::<u32>().ok()
    } else {
        None
    };
    value
        .filter(|value| i32::try_from(*value).is_ok())
        .ok_or_else(|| format!("must be an integer between 0 and {}", i32::MAX))
}

/// One record of comma-separated values with double-quote quoting; an empty text is an empty record.
pub(super) fn csv(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut rest = text.trim_start_matches(['\n']).trim_start_matches("\r\n");
    if rest.is_empty() {
        return Err("has no values".to_owned());
    }
    let mut fields = Vec::new();
    loop {
        let (field, remaining) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted_field(quoted)?
        } else {
            bare_field(rest)?
        };
        fields.push(field);
        match remaining.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

/// A field up to the comma or the end of the line.
fn bare_field(text: &str) -> Result<(String, &str), String> {
    let end = text.find([',', '\n']).unwrap_or(text.len());
    let field = &text[..end];
    if field.contains('"') {
        return Err("has a double quote inside an unquoted value".to_owned());
    }
    let line_ends = !text[end..].starts_with(',');
    let field = if line_ends {
        field.strip_suffix('\r').unwrap_or(field)
    } else {
        field
    };
    Ok((field.to_owned(), &text[end..]))
}

/// A field whose opening quote is already taken; two quotes stand for one.
fn quoted_field(text: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let Some(end) = rest.find('"') else {
            return Err("has a double quote that is never closed".to_owned());
        };
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None if rest.is_empty() || rest.starts_with([',', '\n']) || rest.starts_with("\r\n") => {
                return Ok((field, rest));
            }
            None => return Err("has text after a closing double quote".to_owned()),
        }
    }
}

/// `key<separator>value` pairs separated by commas, trimmed; empty parts are skipped.
pub(super) fn pairs(text: &str, separator: char) -> Result<Vec<(String, String)>, String> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(|part| pair(part, separator))
        .collect()
}

/// One `key<separator>value`, trimmed.
pub(super) fn pair(text: &str, separator: char) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once(separator)
        .ok_or_else(|| format!("has {text:?} where key{separator}value is expected"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
