//! `$(VAR)` in environment values, commands and arguments.
//!
//! Owns the syntax: `$$` is a dollar, an unknown variable stays as it is written.

/// The text with every reference replaced that `lookup` knows.
pub fn expand<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v str>) -> String {
    let expanded = expand_bytes(text, |name| lookup(name).map(str::as_bytes));
    // Text between references is cut at ASCII characters only, so that it stays text.
    String::from_utf8_lossy(&expanded).into_owned()
}

/// The same where values may be no text, as those of a Secret.
pub fn expand_bytes<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v [u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..position]);
        let after = &rest[position + 1..];
        let reference = after.strip_prefix('(').map(|inner| (inner, inner.find(')')));
        rest = match (after.chars().next(), reference) {
            (_, Some((inner, Some(end)))) => {
                let name = &inner[..end];
                match lookup(name) {
                    Some(value) => out.extend_from_slice(value),
                    None => out.extend_from_slice(format!("$({name})").as_bytes()),
                }
                &inner[end + 1..]
            }
            (_, Some((inner, None))) => {
                out.extend_from_slice(b"$(");
                inner
            }
            (Some('$'), None) => {
                out.push(b'$');
                &after[1..]
            }
            (Some(other), None) => {
                out.push(b'$');
                out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                &after[other.len_utf8()..]
            }
            (None, None) => {
                out.push(b'$');
                after
            }
        };
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
