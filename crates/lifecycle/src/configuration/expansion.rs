//! `$(VAR)` in environment values, commands and arguments.
//!
//! Owns the syntax: `$$` is a dollar, an unknown variable stays as it is written.

/// The text with every reference replaced that `lookup` knows.
pub fn expand<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('$') {
        out.push_str(&rest[..position]);
        let after = &rest[position + 1..];
        let reference = after.strip_prefix('(').map(|inner| (inner, inner.find(')')));
        rest = match (after.chars().next(), reference) {
            (_, Some((inner, Some(end)))) => {
                let name = &inner[..end];
                match lookup(name) {
                    Some(value) => out.push_str(value),
                    None => out.extend(["$(", name, ")"]),
                }
                &inner[end + 1..]
            }
            (_, Some((inner, None))) => {
                out.push_str("$(");
                inner
            }
            (Some('$'), None) => {
                out.push('$');
                &after[1..]
            }
            (Some(other), None) => {
                out.push('$');
                out.push(other);
                &after[other.len_utf8()..]
            }
            (None, None) => {
                out.push('$');
                after
            }
        };
    }
    out.push_str(rest);
    out
}
