//! Resource quantities (`500m`, `1Gi`, `12e6`), exact as Kubernetes defines them.
//!
//! Owns parsing, the canonical text, comparison, addition, subtraction and the rounding of `value` and `milli_value`. Small
//! numbers are an `i64` with a decimal exponent, everything else an exact decimal; which of the two a quantity is shows in
//! how it overflows, so the split follows upstream's. It knows nothing about resource names.

mod decimal;
mod parse;
mod small;

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use decimal::Decimal;
pub use parse::ParseQuantityError;
use small::Small;

/// Decimal exponents that have a name in upstream's API.
pub const NANO: i32 = -9;
pub const MILLI: i32 = -3;

/// How a quantity is printed: with which family of suffixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

#[derive(Clone, Debug)]
enum Amount {
    Small(Small),
    Exact(Decimal),
}

/// An exact amount and the way it is printed. Equality and order go by the amount alone.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text it was read from, where upstream keeps that instead of the canonical form.
    text: Option<String>,
}

impl Quantity {
    pub const fn new(value: i64, format: Format) -> Self {
        Self::scaled(value, 0, format)
    }

    pub const fn from_millis(millis: i64, format: Format) -> Self {
        Self::scaled(millis, MILLI, format)
    }

    /// `value * 10^scale`
    pub const fn scaled(value: i64, scale: i32, format: Format) -> Self {
        Self {
            amount: Amount::Small(Small { value, scale }),
            format,
            text: None,
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.signum() == 0
    }

    pub fn signum(&self) -> i32 {
        match &self.amount {
            Amount::Small(small) => small.value.signum() as i32,
            Amount::Exact(exact) => exact.signum(),
        }
    }

    /// Whole units, rounded up; wraps or is zero where the number does not fit, as upstream.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// Thousandths, rounded up; wraps or is zero where the number does not fit, as upstream.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(MILLI)
    }

    pub fn scaled_value(&self, scale: i32) -> i64 {
        match &self.amount {
            Amount::Small(small) => small.at_scale_or_wrapped(scale),
            Amount::Exact(exact) => exact.at_scale(scale),
        }
    }

    /// The amount when it is a whole number that fits, without any rounding.
    pub fn as_i64(&self) -> Option<i64> {
        match &self.amount {
            Amount::Small(small) if small.scale >= 0 => small.at_scale(0),
            Amount::Small(_) | Amount::Exact(_) => None,
        }
    }

    pub fn to_f64_approximate(&self) -> f64 {
        match &self.amount {
            Amount::Small(small) if small.scale == 0 => small.value as f64,
            Amount::Small(small) => small.value as f64 * 10_f64.powi(small.scale),
            Amount::Exact(exact) => exact.to_f64(),
        }
    }

    /// Rounds away from zero to a multiple of `10^scale`; true when nothing was lost.
    pub fn round_up(&mut self, scale: i32) -> bool {
        match &mut self.amount {
            Amount::Small(small) if small.scale >= scale => true,
            Amount::Small(small) => {
                let (rounded, exact) = small.rounded(scale);
                *small = rounded;
                self.text = None;
                exact
            }
            Amount::Exact(exact) => {
                let (rounded, lossless) = exact.rounded(scale);
                *exact = rounded;
                self.text = None;
                lossless
            }
        }
    }

    /// Zero takes over the other's format.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, false);
    }

    /// Zero takes over the other's format.
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, true);
    }

    fn combine(&mut self, other: &Self, negate: bool) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        if let (Amount::Small(left), Amount::Small(right)) = (&self.amount, &other.amount) {
            let right = if negate { right.negated() } else { *right };
            if let Some(sum) = left.checked_add(right) {
                self.amount = Amount::Small(sum);
                return;
            }
        }
        let right = other.amount.to_exact();
        let right = if negate { right.negated() } else { right };
        self.amount = Amount::Exact(self.amount.to_exact().plus(&right));
    }

    pub fn negate(&mut self) {
        self.text = None;
        match &mut self.amount {
            Amount::Small(small) => *small = small.negated(),
            Amount::Exact(exact) => *exact = exact.negated(),
        }
    }

    /// The canonical text: no fraction, the largest suffix that keeps the number whole.
    pub fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        if self.format == Format::BinarySi
            && let Some(text) = self.canonical_binary()
        {
            return text;
        }
        let format = match self.format {
            Format::DecimalExponent => Format::DecimalExponent,
            Format::BinarySi | Format::DecimalSi => Format::DecimalSi,
        };
        let (digits, exponent) = match &self.amount {
            Amount::Small(small) => small.canonical().unwrap_or_else(|| small.to_exact().canonical()),
            Amount::Exact(exact) => exact.canonical(),
        };
        format!("{digits}{}", parse::decimal_suffix(exponent, format))
    }

    /// `None` below 1024 and for fractions: those print as decimals.
    fn canonical_binary(&self) -> Option<String> {
        let bound = Self::new(1024, Format::BinarySi);
        let mut negative_bound = bound.clone();
        negative_bound.negate();
        if *self > negative_bound && *self < bound {
            return None;
        }
        let (digits, exponent) = match &self.amount {
            Amount::Small(small) => {
                let (rounded, exact) = small.rounded(0);
                if !exact {
                    return None;
                }
                rounded
                    .canonical_base_1024()
                    .unwrap_or_else(|| rounded.to_exact().canonical_base_1024())
            }
            Amount::Exact(exact) => {
                let (rounded, lossless) = exact.rounded(0);
                if !lossless {
                    return None;
                }
                rounded.canonical_base_1024()
            }
        };
        Some(format!("{digits}{}", parse::binary_suffix(exponent)))
    }
}

impl Amount {
    fn to_exact(&self) -> Decimal {
        match self {
            Self::Small(small) => small.to_exact(),
            Self::Exact(exact) => exact.clone(),
        }
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::new(0, Format::DecimalSi)
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.amount, &other.amount) {
            (Amount::Small(left), Amount::Small(right)) => left.compare(*right),
            (left, right) => left.to_exact().compare(&right.to_exact()),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.trim().parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
