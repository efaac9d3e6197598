//! Mutations of a corpus entry: a few small changes, as a fuzzer makes them.

use rubelet_sim::dice::Dice;

/// Bytes and numbers at which readers of formats go wrong.
const INTERESTING: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\"",
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b" ",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\xc3\xa9",
    b"\xf0\x9f\x98\x80",
    b"null",
    b"true",
    b"-1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1e400",
    b"9999-12-31T23:59:59Z",
    b"0000-01-01T00:00:00Z",
    b"\\u0000",
    b"\\ud800",
];
const MAX_CHANGES: usize = 4;
/// Repetitions make an input longer; this is where that ends.
const MAX_BYTES: usize = 16 * 1024;

/// A changed copy of `entry`; parts may come from `other`.
pub(crate) fn mutated(entry: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = entry.to_vec();
    for _ in 0..=dice.below(MAX_CHANGES) {
        change(&mut bytes, other, dice);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let end = at + dice.below(bytes.len() - at + 1);
    match dice.below(7) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = dice.number().to_le_bytes()[0];
            }
        }
        2 => {
            bytes.drain(at..end);
        }
        3 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(end..end, part);
        }
        4 => {
            let token = INTERESTING[dice.below(INTERESTING.len())];
            bytes.splice(at..at, token.iter().copied());
        }
        5 => {
            let token = INTERESTING[dice.below(INTERESTING.len())];
            bytes.splice(at..end, token.iter().copied());
        }
        _ => {
            let from = dice.below(other.len() + 1);
            bytes.splice(at..end, other[from..].iter().copied());
        }
    }
}
