//! An exact decimal of any length: the slow half of a quantity.
//!
//! Exponents come from untrusted text and may be in the billions, so nothing here builds a power of ten without a bound.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// `unscaled * 10^-scale`
#[derive(Clone, Debug)]
pub(super) struct Decimal {
    unscaled: BigInt,
    scale: i32,
}

/// Numbers further apart than this many decimal places are never brought to one scale.
const MAX_SHIFT: i64 = 4096;

impl Decimal {
    pub(super) fn new(unscaled: BigInt, scale: i32) -> Self {
        Self { unscaled, scale }
    }

    pub(super) fn signum(&self) -> i32 {
        match self.unscaled.sign() {
            Sign::Minus => -1,
            Sign::NoSign => 0,
            Sign::Plus => 1,
        }
    }

    pub(super) fn negated(&self) -> Self {
        Self {
            unscaled: -&self.unscaled,
            scale: self.scale,
        }
    }

    /// Rounded away from zero to `10^exponent`, and whether that lost nothing.
    pub(super) fn rounded(&self, exponent: i32) -> (Self, bool) {
        let target = exponent.wrapping_neg();
        let shift = i64::from(target) - i64::from(self.scale);
        if self.signum() == 0 {
            return (Self::new(BigInt::ZERO, target), true);
        }
        if shift > MAX_SHIFT {
            // Already far coarser than asked for: the value is the same, only the spelling is shorter.
            return (self.clone(), true);
        }
        if shift >= 0 {
            return (Self::new(&self.unscaled * power_of_ten(shift), target), true);
        }
        if -shift > self.digits() {
            return (Self::new(self.signum().into(), target), false);
        }
        let divisor = power_of_ten(-shift);
        let quotient = &self.unscaled / &divisor;
        let exact = &quotient * &divisor == self.unscaled;
        let quotient = if exact { quotient } else { quotient + self.signum() };
        (Self::new(quotient, target), exact)
    }

    /// The number in units of `10^exponent`, rounded up, cut to 64 bits like upstream.
    pub(super) fn at_scale(&self, exponent: i32) -> i64 {
        let difference = i64::from(self.scale) + i64::from(exponent);
        if difference <= 0 {
            // 10^64 is a multiple of 2^64: nothing is left in the low bits.
            if difference <= -64 {
                return 0;
            }
            return low_bits(&(&self.unscaled * power_of_ten(-difference)));
        }
        if self.unscaled < BigInt::from(i64::MAX) && difference < 19 {
            let (value, divisor) = (low_bits(&self.unscaled), 10_i64.pow(difference as u32));
            return value / divisor + i64::from(value % divisor != 0);
        }
        if difference > self.digits() {
            return if self.signum() > 0 { 1 } else { 0 };
        }
        let divisor = power_of_ten(difference);
        let quotient = &self.unscaled / &divisor;
        let exact = &quotient * &divisor == self.unscaled;
        let floor = if !exact && self.signum() < 0 {
            quotient - 1
        } else {
            quotient
        };
        low_bits(&floor).wrapping_add(i64::from(!exact))
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let (coarse, fine) = if self.scale < other.scale {
            (self, other)
        } else {
            (other, self)
        };
        let shift = i64::from(fine.scale) - i64::from(coarse.scale);
        if coarse.signum() == 0 {
            return fine.clone();
        }
        if shift > MAX_SHIFT && fine.digits() < shift {
            // Thousands of digits apart: the finer number cannot be seen beside the coarser one.
            return coarse.clone();
        }
        Self::new(
            &coarse.unscaled * power_of_ten(shift) + &fine.unscaled,
            fine.scale,
        )
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_sign = self.signum().cmp(&other.signum());
        if by_sign != Ordering::Equal || self.signum() == 0 {
            return by_sign;
        }
        let by_magnitude = self.leading_place().cmp(&other.leading_place());
        if by_magnitude != Ordering::Equal {
            return if self.signum() > 0 {
                by_magnitude
            } else {
                by_magnitude.reverse()
            };
        }
        let shift = i64::from(self.scale) - i64::from(other.scale);
        // Equal leading places bound the shift by the number of digits that are really there.
        if shift >= 0 {
            self.unscaled.cmp(&(&other.unscaled * power_of_ten(shift)))
        } else {
            (&self.unscaled * power_of_ten(-shift)).cmp(&other.unscaled)
        }
    }

    pub(super) fn to_f64(&self) -> f64 {
        // A decimal literal is always a valid float, if need be an infinite one.
        format!("{}e{}", self.unscaled, -i64::from(self.scale))
            .parse()
            .unwrap_or(f64::NAN)
    }

    /// Digits and an exponent that is a multiple of three.
    pub(super) fn canonical(&self) -> (String, i32) {
        let digits = self.unscaled.to_string();
        let trimmed = digits.trim_end_matches('0');
        let removed = (digits.len() - trimmed.len()) as i32;
        let exponent = self.scale.wrapping_neg().wrapping_add(removed);
        let excess = exponent.rem_euclid(3);
        (
            format!("{trimmed}{}", "0".repeat(excess as usize)),
            exponent - excess,
        )
    }

    /// Digits and the power of 1024 of a whole number.
    pub(super) fn canonical_base_1024(&self) -> (String, i32) {
        let mut amount = self.rounded(0).0.unscaled;
        let mut exponent = 0;
        while amount.sign() != Sign::NoSign && amount.trailing_zeros().is_some_and(|zeros| zeros >= 10) {
            amount >>= 10_u32;
            exponent += 1;
        }
        (amount.to_string(), exponent)
    }

    /// An upper bound of the number of decimal digits, exact to one.
    fn digits(&self) -> i64 {
        self.unscaled.bits() as i64 * 31 / 100 + 1
    }

    /// The decimal place of the first digit.
    fn leading_place(&self) -> i64 {
        self.unscaled.magnitude().to_string().len() as i64 - i64::from(self.scale)
    }
}

fn power_of_ten(exponent: i64) -> BigInt {
    BigInt::from(10).pow(exponent as u32)
}

fn low_bits(number: &BigInt) -> i64 {
    let low = number.iter_u64_digits().next().unwrap_or(0) as i64;
    if number.sign() == Sign::Minus {
        low.wrapping_neg()
    } else {
        low
    }
}
