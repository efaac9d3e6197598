//! Chance that a seed decides.
//!
//! Owns one small generator. Every part of the simulation has its own dice made from the seed and the part's name, so that
//! a change in one part leaves the luck of the others as it was.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rubelet_ports::Randomness;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, for seeds and for comparing traces.
#[must_use]
pub fn hash_bytes(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

/// The beginning of a hash.
#[must_use]
pub const fn hash_start() -> u64 {
    FNV_OFFSET
}

/// A sequence of numbers that only its seed decides (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    #[must_use]
    pub fn new(seed: u64, part: &str) -> Self {
        Self {
            state: hash_bytes(
                FNV_OFFSET ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                part.as_bytes(),
            ),
        }
    }

    /// Dice for a part of their own: these here roll on as if nothing had been.
    #[must_use]
    pub fn aside(&self, part: &str) -> Self {
        Self {
            state: hash_bytes(self.state, part.as_bytes()),
        }
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`; zero when the limit is zero.
    pub fn below(&mut self, limit: usize) -> usize {
        match limit {
            0 => 0,
            limit => usize::try_from(self.number() % limit as u64).unwrap_or(0),
        }
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high.saturating_sub(low) + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.number() % 100 < percent
    }

    /// True in `share` of 10,000 cases.
    pub fn per_myriad(&mut self, share: u64) -> bool {
        self.number() % 10_000 < share
    }

    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1000, high * 1000))
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// Dice that several parts share. All of them run on one thread, so that the lock is never waited for.
#[derive(Clone, Debug)]
pub struct SharedDice(Arc<Mutex<Dice>>);

impl SharedDice {
    #[must_use]
    pub fn new(seed: u64, part: &str) -> Self {
        Self(Arc::new(Mutex::new(Dice::new(seed, part))))
    }

    pub fn with<T>(&self, roll: impl FnOnce(&mut Dice) -> T) -> T {
        roll(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Randomness for SharedDice {
    fn number(&self) -> u64 {
        self.with(Dice::number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_luck() {
        let roll = |seed, part| {
            let mut dice = Dice::new(seed, part);
            (0..8).map(|_| dice.number()).collect::<Vec<_>>()
        };
        assert_eq!(roll(1, "a"), roll(1, "a"));
        assert_ne!(roll(1, "a"), roll(2, "a"));
        assert_ne!(roll(1, "a"), roll(1, "b"));
        let mut dice = Dice::new(1, "a");
        let mut aside = dice.aside("c");
        assert_ne!(aside.number(), dice.aside("d").number());
        assert_eq!(dice.number(), roll(1, "a")[0]);
    }

    #[test]
    fn numbers_stay_in_their_limits() {
        let mut dice = Dice::new(7, "limits");
        let mut seen = [false; 5];
        for _ in 0..500 {
            seen[dice.below(5)] = true;
            assert!((3..=9).contains(&dice.between(3, 9)));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(dice.below(0), 0);
        assert!(!dice.percent(0) && dice.percent(100));
    }
}
