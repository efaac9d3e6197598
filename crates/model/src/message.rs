//! How long a text may be on its way to a status, an event or a wait.
//!
//! Owns the limits and the cut. Such texts come from containers, runtimes and people's objects, and may have megabytes.

/// The longest message of a status or an event, and what is kept of a command's output: upstream's limit for exec probes.
pub const MAX_MESSAGE_BYTES: usize = 10 * 1024;
/// What is kept of one wait. `rubelet why` shows those of all pods in one answer.
pub const MAX_WAIT_BYTES: usize = 1024;

const CUT: char = '…';

/// The message, cut where it is too long for a status or an event.
#[must_use]
pub fn bounded(message: impl Into<String>) -> String {
    let mut message = message.into();
    bound(&mut message, MAX_MESSAGE_BYTES);
    message
}

/// Cuts a text that has more bytes than that, never within a character, and frees the rest.
pub fn bound(message: &mut String, limit_bytes: usize) {
    if message.len() <= limit_bytes {
        return;
    }
    let end = limit_bytes.saturating_sub(CUT.len_utf8());
    message.truncate(message.floor_char_boundary(end));
    message.push(CUT);
    message.shrink_to_fit();
}

/// The first [`MAX_MESSAGE_BYTES`] of what a command printed, one output after the other.
#[must_use]
pub fn output(outputs: &[&[u8]]) -> String {
    // One byte more shows whether the cut is within a character.
    let room = MAX_MESSAGE_BYTES + 1;
    let mut kept = Vec::new();
    for part in outputs {
        kept.extend_from_slice(&part[..part.len().min(room - kept.len())]);
    }
    if kept.len() == room {
        let is_inside = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
        let mut end = MAX_MESSAGE_BYTES;
        while end > MAX_MESSAGE_BYTES - 3 && is_inside(kept[end]) {
            end -= 1;
        }
        kept.truncate(end);
    }
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    // Bytes that are no text take more room as text.
    text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_short_and_between_characters() {
        let check = |text: &str, limit_bytes: usize, expected: &str| {
            let mut cut = text.to_owned();
            bound(&mut cut, limit_bytes);
            assert_eq!(cut, expected, "{text:?} to {limit_bytes}");
        };
        check("", 0, "");
        check("abcdef", 6, "abcdef");
        check("abcdefg", 6, "abc…");
        check("ééé", 6, "ééé");
        check("éééé", 6, "é…");
        check("abcdef", 2, "…");
        let mut long = "é".repeat(8 << 20);
        bound(&mut long, MAX_MESSAGE_BYTES);
        assert!(long.len() <= MAX_MESSAGE_BYTES && long.capacity() < 2 * MAX_MESSAGE_BYTES);
        assert_eq!(bounded("whole"), "whole");
    }

    #[test]
    fn outputs_are_kept_from_their_beginning() {
        assert_eq!(output(&[b"out", b"err"]), "outerr");
        assert_eq!(output(&[&[b'x'; 20_000], b"err"]), "x".repeat(MAX_MESSAGE_BYTES));
        assert_eq!(
            output(&[&[b'x'; 10_000], &[b'y'; 20_000]]).len(),
            MAX_MESSAGE_BYTES
        );
        for shift in 0..4 {
            let text = "x".repeat(shift) + &"𝄞".repeat(5000);
            let kept = output(&[text.as_bytes()]);
            assert!(text.starts_with(&kept), "{shift}");
            assert!(kept.len() > MAX_MESSAGE_BYTES - 4 && kept.len() <= MAX_MESSAGE_BYTES);
        }
        let kept = output(&[&[0xff; 20_000]]);
        assert!(kept.len() <= MAX_MESSAGE_BYTES && kept.chars().all(|letter| letter == '\u{fffd}'));
    }
}
