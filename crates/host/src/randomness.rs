//! Random numbers from the kernel.

use std::time::{SystemTime, UNIX_EPOCH};

use rubelet_ports::Randomness;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

#[derive(Clone, Copy, Debug, Default)]
pub struct HostRandomness;

impl Randomness for HostRandomness {
    fn number(&self) -> u64 {
        let mut bytes = [0_u8; 8];
        loop {
            match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
                Ok(length) if length == bytes.len() => return u64::from_ne_bytes(bytes),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return from_time(),
            }
        }
    }
}

/// Spreads retries on a kernel that gives no random bytes, as under some sandboxes. Secrets are not made from this port.
fn from_time() -> u64 {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let mixed = (u64::from(nanos) << 32) ^ u64::from(std::process::id());
    mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_differ_and_parts_stay_below_their_limit() {
        let numbers: BTreeSet<u64> = (0..100).map(|_| HostRandomness.number()).collect();
        assert_eq!(numbers.len(), 100);
        let limit = Duration::from_millis(20);
        assert!((0..100).all(|_| HostRandomness.part_of(limit) < limit));
        assert_eq!(HostRandomness.part_of(Duration::ZERO), Duration::ZERO);
    }
}
