//! The hash of the texts that identify an event, so that thousands of long events are remembered in little memory.
//!
//! Owns the hash function. It must not choose which texts identify an event: `correlate` does.

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// FNV-1a in 128 bits over all parts, each with its end marked.
pub(super) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a str>) -> u128 {
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let part = |hash: u128, text: &str| mix(text.bytes().fold(hash, mix), 0xff);
    parts.into_iter().fold(OFFSET, part)
}
