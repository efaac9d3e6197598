//! The two forms that most of the kernel's files have: one number, and lines of a name and a number.
//!
//! Owns reading them from bytes, without a copy.

/// A number on its own. `max` is the largest one; a negative number, and anything else, is none.
#[must_use]
pub fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text == b"max" {
        return Some(u64::MAX);
    }
    digits(text)
}

pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The lines of a name and a number. What has another form is skipped.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let blank = line.iter().position(|byte| *byte == b' ')?;
        Some((&line[..blank], digits(line[blank + 1..].trim_ascii())?))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_of_one_number() {
        let check =
            |text: &str, expected: Option<u64>| assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        check("42\n", Some(42));
        check("0", Some(0));
        check("max\n", Some(u64::MAX));
        check("18446744073709551615\n", Some(u64::MAX));
        check("18446744073709551616\n", None);
        check("-1\n", None);
        check("", None);
        check("lots\n", None);
    }

    #[test]
    fn lines_of_a_name_and_a_number() {
        let found: Vec<_> = pairs(b"a 1\nodd\nb  2\nc x\n\nd 3").collect();
        assert_eq!(found, [(&b"a"[..], 1), (&b"b"[..], 2), (&b"d"[..], 3)]);
    }

    proptest! {
        #[test]
        fn no_text_upsets_them(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = number(&text);
            prop_assert!(pairs(&text).count() <= text.len());
        }
    }
}
