//! JSON text as Go writes it, byte by byte, for hashes that have to be upstream's.

/// A JSON string as Go writes it: characters that mean something in HTML or JavaScript are escaped too.
#[must_use]
pub fn go_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                json.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_escaped_as_go_escapes_them() {
        let check = |text: &str, expected: &str| assert_eq!(go_json(text), expected, "{text:?}");
        check("plain ü", "\"plain ü\"");
        check("\"\\\n\t", r#""\"\\\n\t""#);
        check("<a&b>\u{2028}\u{1}", r#""\u003ca\u0026b\u003e\u2028\u0001""#);
    }
}
