//! An `i64` times a power of ten: the fast half of a quantity. Every operation reports when the result does not fit.

use std::cmp::Ordering;

use super::decimal::Decimal;

/// `value * 10^scale`
#[derive(Clone, Copy, Debug)]
pub(super) struct Small {
    pub(super) value: i64,
    pub(super) scale: i32,
}

/// No `i64` but zero survives more decimal places than this.
const MAX_SHIFT: u32 = 19;

impl Small {
    pub(super) fn to_exact(self) -> Decimal {
        Decimal::new(self.value.into(), self.scale.wrapping_neg())
    }

    pub(super) fn negated(self) -> Self {
        Self {
            value: self.value.wrapping_neg(),
            scale: self.scale,
        }
    }

    /// The number in units of `10^scale`, rounded away from zero; `None` when it overflows.
    pub(super) fn at_scale(self, scale: i32) -> Option<i64> {
        if self.scale < scale {
            return Some(divide_away_from_zero(self.value, scale.abs_diff(self.scale)).0);
        }
        shift_up(self.value, self.scale.abs_diff(scale))
    }

    /// The same, with what upstream gives for an overflow: the low bits for common shifts, zero for the others.
    pub(super) fn at_scale_or_wrapped(self, scale: i32) -> i64 {
        self.at_scale(scale)
            .unwrap_or_else(|| match self.scale.abs_diff(scale) {
                places @ (1 | 2 | 3 | 6 | 9) if self.value != i64::MIN => {
                    self.value.wrapping_mul(10_i64.pow(places))
                }
                _ => 0,
            })
    }

    /// A minimum scale of `scale`, and whether that lost nothing.
    pub(super) fn rounded(self, scale: i32) -> (Self, bool) {
        if self.scale >= scale {
            return (self, true);
        }
        let (value, exact) = divide_away_from_zero(self.value, scale.abs_diff(self.scale));
        (Self { value, scale }, exact)
    }

    pub(super) fn checked_add(self, other: Self) -> Option<Self> {
        if other.value == 0 {
            return Some(self);
        }
        if self.value == 0 {
            return Some(other);
        }
        let scale = self.scale.min(other.scale);
        let left = shift_up(self.value, self.scale.abs_diff(scale))?;
        let right = shift_up(other.value, other.scale.abs_diff(scale))?;
        Some(Self {
            value: left.checked_add(right)?,
            scale,
        })
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        let shift = self.scale.abs_diff(other.scale);
        if self.value.signum() != other.value.signum() || self.value == 0 || shift == 0 {
            return self.value.cmp(&other.value);
        }
        if shift >= MAX_SHIFT {
            // Same sign: the one with the larger exponent has the larger magnitude.
            let by_scale = self.scale.cmp(&other.scale);
            return if self.value > 0 {
                by_scale
            } else {
                by_scale.reverse()
            };
        }
        let lift = |small: Self, base: i32| i128::from(small.value) * 10_i128.pow(small.scale.abs_diff(base));
        let base = self.scale.min(other.scale);
        lift(self, base).cmp(&lift(other, base))
    }

    /// Digits and an exponent that is a multiple of three; `None` when the digits do not fit.
    pub(super) fn canonical(self) -> Option<(String, i32)> {
        let (mut value, times) = remove_factors(self.value, 10);
        let mut exponent = self.scale.wrapping_add(times);
        let excess = exponent.rem_euclid(3);
        for _ in 0..excess {
            value = value.checked_mul(10)?;
        }
        exponent -= excess;
        Some((value.to_string(), exponent))
    }

    /// Digits and the power of 1024; `None` when the whole number does not fit.
    pub(super) fn canonical_base_1024(self) -> Option<(String, i32)> {
        let (value, exponent) = remove_factors(self.at_scale(0)?, 1024);
        Some((value.to_string(), exponent))
    }
}

fn shift_up(value: i64, places: u32) -> Option<i64> {
    if value == 0 || places == 0 {
        return Some(value);
    }
    if places >= MAX_SHIFT || value == i64::MIN {
        return None;
    }
    value.checked_mul(10_i64.pow(places))
}

fn divide_away_from_zero(value: i64, places: u32) -> (i64, bool) {
    if places >= MAX_SHIFT {
        return (value.signum(), value == 0);
    }
    let divisor = 10_i64.pow(places);
    let (quotient, remainder) = (value / divisor, value % divisor);
    (quotient + remainder.signum(), remainder == 0)
}

fn remove_factors(value: i64, base: i64) -> (i64, i32) {
    let (mut value, mut times) = (value, 0);
    while value != 0 && value % base == 0 {
        value /= base;
        times += 1;
    }
    (value, times)
}
