//! From text to quantity, and the table of suffixes.

use std::str::FromStr;

use num_bigint::BigInt;

use super::decimal::Decimal;
use super::small::Small;
use super::{Amount, Format, NANO, Quantity};

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error(
        "{0:?} is not a quantity: a number with an optional suffix was expected, such as 500m, 1.5, 10Mi or 12e6"
    )]
    Format(String),
    #[error(
        "{0:?} is not a quantity: the suffix must be one of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or a decimal exponent"
    )]
    Suffix(String),
}

/// The digits an `i64` holds whatever they are.
const MAX_SMALL_DIGITS: i64 = 18;

struct Split<'a> {
    positive: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Without one digit a short quantity is zero, a long one an error.
    has_digits: bool,
}

struct Suffix {
    binary: bool,
    exponent: i32,
    format: Format,
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "0" {
            return Ok(Self::new(0, Format::DecimalSi));
        }
        let split = split(text).ok_or_else(|| ParseQuantityError::Format(text.to_owned()))?;
        let suffix = interpret(split.suffix).ok_or_else(|| ParseQuantityError::Suffix(text.to_owned()))?;
        match small(text, &split, &suffix) {
            Some(quantity) => Ok(quantity),
            None if split.has_digits => Ok(exact(&split, &suffix)),
            None => Err(ParseQuantityError::Format(text.to_owned())),
        }
    }
}

fn split(text: &str) -> Option<Split<'_>> {
    if text.is_empty() {
        return None;
    }
    let positive = !text.starts_with('-');
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |from: &str| from.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits(rest));
    let has_whole = !whole.is_empty();
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        significant => significant,
    };
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let after_letters = suffix.trim_start_matches(|letter: char| "eEinumkKMGTP".contains(letter));
    let after_sign = after_letters.strip_prefix(['-', '+']).unwrap_or(after_letters);
    let has_digits = has_whole || !fraction.is_empty();
    (digits(after_sign) == after_sign.len()).then_some(Split {
        positive,
        whole,
        fraction,
        suffix,
        has_digits,
    })
}

fn interpret(suffix: &str) -> Option<Suffix> {
    let decimal = |exponent| {
        Some(Suffix {
            binary: false,
            exponent,
            format: Format::DecimalSi,
        })
    };
    let binary = |exponent| {
        Some(Suffix {
            binary: true,
            exponent,
            format: Format::BinarySi,
        })
    };
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Upstream cuts the exponent to 32 bits.
            Some(Suffix {
                binary: false,
                exponent: exponent as i32,
                format: Format::DecimalExponent,
            })
        }
    }
}

/// The suffix of `10^exponent`; beyond the table upstream prints none, and so do we.
pub(super) fn decimal_suffix(exponent: i32, format: Format) -> String {
    if format == Format::DecimalExponent {
        return if exponent == 0 {
            String::new()
        } else {
            format!("e{exponent}")
        };
    }
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
    .to_owned()
}

/// The suffix of `1024^exponent`; beyond the table upstream prints none, and so do we.
pub(super) fn binary_suffix(exponent: i32) -> &'static str {
    match exponent {
        1 => "Ki",
        2 => "Mi",
        3 => "Gi",
        4 => "Ti",
        5 => "Pi",
        6 => "Ei",
        _ => "",
    }
}

/// The fast form, where upstream takes it.
fn small(text: &str, split: &Split<'_>, suffix: &Suffix) -> Option<Quantity> {
    let digits = (split.whole.len() + split.fraction.len()) as i64;
    let (precision, scale, factor) = if suffix.binary {
        let precision = 14 - split.whole.len() as i64 - i64::from(suffix.exponent) * 3 / 10;
        (
            if split.fraction.is_empty() { precision } else { -1 },
            0,
            1_i64 << suffix.exponent,
        )
    } else {
        (MAX_SMALL_DIGITS - digits, suffix.exponent, 1)
    };
    if precision < 0 {
        return None;
    }
    let scale = scale.wrapping_sub(split.fraction.len() as i32);
    if scale < NANO {
        return None;
    }
    let shifted = format!("{}{}", split.whole, split.fraction);
    let number: i64 = shifted.parse().ok()?;
    let value = number.checked_mul(factor)?;
    let value = if split.positive { value } else { -value };
    let verbatim = if suffix.binary {
        number & 7 != 0
    } else {
        scale % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0')
    };
    Some(Quantity {
        amount: Amount::Small(Small { value, scale }),
        format: suffix.format,
        text: verbatim.then(|| text.to_owned()),
    })
}

fn exact(split: &Split<'_>, suffix: &Suffix) -> Quantity {
    // Only digits are in there, and at least one.
    let mut unscaled: BigInt = format!("{}{}", split.whole, split.fraction)
        .parse()
        .unwrap_or_default();
    let mut scale = split.fraction.len() as i32;
    if suffix.binary {
        unscaled <<= suffix.exponent as u32;
    } else {
        scale = scale.wrapping_sub(suffix.exponent);
    }
    let mut amount = Decimal::new(unscaled, scale);
    if amount.signum() != 0 {
        amount = amount.rounded(NANO).0;
    }
    let mut format = suffix.format;
    if suffix.binary {
        let limit = Decimal::new(i64::MAX.into(), 0);
        if amount.compare(&limit).is_gt() {
            amount = limit;
        }
        if amount.signum() > 0 && amount.compare(&Decimal::new(1.into(), 0)).is_lt() {
            format = Format::DecimalSi;
        }
    }
    let amount = if split.positive { amount } else { amount.negated() };
    Quantity {
        amount: Amount::Exact(amount),
        format,
        text: None,
    }
}
