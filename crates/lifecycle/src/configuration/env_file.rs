//! Variables from a file: `NAME='value'` lines as a shell reads them, and nothing more of a shell.
//!
//! Owns the syntax, which is upstream's. The caller finds and reads the file.

/// Larger files are not read.
pub const LIMIT_BYTES: u64 = 1 << 20;
/// A line may not be longer, as upstream reads it.
const MAX_LINE_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvFileError {
    #[error("line {0}: missing '='")]
    NoEqualsSign(usize),
    #[error("line {0}: empty variable name")]
    NoName(usize),
    #[error("line {0}: whitespace before '=' is not allowed")]
    SpaceBeforeEqualsSign(usize),
    #[error("line {0}: the value must be enclosed in single quotes")]
    NotQuoted(usize),
    #[error("line {0}: unexpected content after the closing quote")]
    AfterQuote(usize),
    #[error("line {0}: the single quote is not closed")]
    NotClosed(usize),
    #[error("line {0} is longer than {MAX_LINE_BYTES} bytes")]
    TooLong(usize),
    #[error("the file is not UTF-8 text")]
    NotText,
}

const BLANKS: [char; 2] = [' ', '\t'];

/// The value of `key`; empty when the file does not have it. What comes after it is not looked at.
pub fn value_of(content: &[u8], key: &str) -> Result<String, EnvFileError> {
    let content = std::str::from_utf8(content).map_err(|_| EnvFileError::NotText)?;
    let mut lines = Lines::new(content);
    while let Some((number, line)) = lines.next()? {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(EnvFileError::NoEqualsSign(number))?;
        let trimmed = name.trim_end_matches(BLANKS);
        if trimmed.is_empty() {
            return Err(EnvFileError::NoName(number));
        }
        if trimmed != name {
            return Err(EnvFileError::SpaceBeforeEqualsSign(number));
        }
        if value.starts_with(BLANKS) {
            // As in a shell, the variable is empty and the rest something else.
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let Some(rest) = value.strip_prefix('\'') else {
            return Err(EnvFileError::NotQuoted(number));
        };
        let value = quoted(&mut lines, number, rest)?;
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

/// The rest of a value up to its closing quote, which may be on a later line.
fn quoted<'a>(lines: &mut Lines<'a>, first: usize, rest: &'a str) -> Result<String, EnvFileError> {
    let (mut value, mut rest, mut number) = (String::new(), rest, first);
    loop {
        if let Some((end, after)) = rest.split_once('\'') {
            value.push_str(end);
            let after = after.trim_start_matches(BLANKS);
            if !after.is_empty() && !after.starts_with('#') {
                return Err(EnvFileError::AfterQuote(number));
            }
            return Ok(value);
        }
        value.push_str(rest);
        value.push('\n');
        (number, rest) = lines.next()?.ok_or(EnvFileError::NotClosed(first))?;
    }
}

/// Lines with their numbers; a carriage return before the end of a line belongs to the end.
struct Lines<'a> {
    rest: &'a str,
    number: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            number: 0,
        }
    }

    fn next(&mut self) -> Result<Option<(usize, &'a str)>, EnvFileError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        if line.len() >= MAX_LINE_BYTES {
            return Err(EnvFileError::TooLong(self.number));
        }
        Ok(Some((self.number, line.strip_suffix('\r').unwrap_or(line))))
    }
}
