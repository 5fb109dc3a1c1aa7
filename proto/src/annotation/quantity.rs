//! Kubernetes quantities: `500m`, `1.5Gi`, `12e6`.

use super::{
    error::Misfit,
    json::{self, Decode},
};
use koord_model::excerpt;
use std::str::FromStr;
use thiserror::Error;

/// An amount, exact to 10⁻⁹; finer parts were rounded away from zero, as Kubernetes does.
///
/// The range is that of a signed 64-bit number of units on both sides. Kubernetes cuts larger
/// amounts down to it without a word; here they are an error, since no resource of a pod is that
/// large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Why a text is no quantity.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum QuantityError {
    #[error(
        "{text:?} is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"
    )]
    Malformed { text: String },
    #[error("{text:?} is outside -{MAX} to {MAX}, or has too many digits")]
    OutOfRange { text: String },
    #[error("amount {amount} is outside 0 to {MAX}")]
    Negative { amount: String },
}

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const MAX: i64 = i64::MAX;
const MAX_NANOS: i128 = MAX as i128 * NANOS_PER_UNIT;

/// A suffix is a factor `2^binary · 10^decimal`.
struct Scale {
    binary: u32,
    decimal: i64,
}

// === impl Quantity ===

impl Quantity {
    /// What is written where one is expected.
    pub(crate) const SAID: &'static str =
        "a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi";

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// Whole units, rounded away from zero: Kubernetes' `Value()`.
    pub fn value(self) -> i64 {
        let units = div_away_from_zero(self.nanos, NANOS_PER_UNIT);
        i64::try_from(units).expect("the range of a quantity is that of i64")
    }

    /// Thousandths, rounded away from zero: Kubernetes' `MilliValue()`, which beyond the range is the most
    /// that there is, here [`u64::MAX`].
    ///
    /// # Errors
    ///
    /// When the amount is below zero, by however little.
    pub fn unsigned_milli_value(self) -> Result<u64, QuantityError> {
        let thousandths = div_away_from_zero(self.nanos, NANOS_PER_UNIT / 1_000);
        match u64::try_from(thousandths) {
            Ok(thousandths) => Ok(thousandths),
            Err(_) if self.nanos < 0 => Err(self.negative()),
            Err(_) => Ok(u64::MAX),
        }
    }

    /// [`value`](Self::value) for amounts that cannot be below zero: 0 to 2⁶³ − 1 units.
    ///
    /// # Errors
    ///
    /// When the amount is below zero, by however little.
    pub fn unsigned_value(self) -> Result<u64, QuantityError> {
        u64::try_from(self.value()).map_err(|_| self.negative())
    }

    fn negative(self) -> QuantityError {
        let nanos = self.nanos.unsigned_abs();
        let per_unit = NANOS_PER_UNIT.unsigned_abs();
        let fraction = format!(".{:09}", nanos % per_unit);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        QuantityError::Negative {
            amount: format!("-{}{fraction}", nanos / per_unit),
        }
    }
}

fn div_away_from_zero(dividend: i128, divisor: i128) -> i128 {
    let rest = (dividend % divisor).signum();
    dividend / divisor + rest
}

/// Cuts digits off the front.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn scale(suffix: &str) -> Option<Scale> {
    let decimal = |decimal| Scale { binary: 0, decimal };
    let binary = |binary| Scale { binary, decimal: 0 };
    Some(match suffix {
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
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let number = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            // More than a thousand places in either direction make no difference.
            let magnitude = number.parse().unwrap_or(1_000_i64).min(1_000);
            let negative = exponent.starts_with('-');
            decimal(if negative { -magnitude } else { magnitude })
        }
    })
}

/// `digits · 2^binary · 10^decimal` in nanos, rounded up; `None` beyond 128 bits.
fn nanos(digits: i128, scale: &Scale) -> Option<i128> {
    let amount = digits.checked_mul(1 << scale.binary)?;
    let places = scale.decimal + 9;
    let power = 10_i128.checked_pow(u32::try_from(places.unsigned_abs()).ok()?);
    match power {
        _ if amount == 0 => Some(0),
        Some(power) if places >= 0 => amount.checked_mul(power),
        Some(power) => Some(div_away_from_zero(amount, power)),
        None if places >= 0 => None,
        None => Some(1),
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed {
            text: excerpt(text),
        };
        let out_of_range = || QuantityError::OutOfRange {
            text: excerpt(text),
        };

        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, rest) = digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let mut scale = scale(suffix).ok_or_else(malformed)?;

        let fraction = fraction.trim_end_matches('0');
        scale.decimal -= i64::try_from(fraction.len()).map_err(|_| out_of_range())?;
        let amount = whole
            .bytes()
            .chain(fraction.bytes())
            .try_fold(0_i128, |amount, digit| {
                amount.checked_mul(10)?.checked_add((digit - b'0').into())
            })
            .and_then(|amount| nanos(amount, &scale))
            .filter(|nanos| *nanos <= MAX_NANOS)
            .ok_or_else(out_of_range)?;
        let negative = text.starts_with('-');
        Ok(Self {
            nanos: if negative { -amount } else { amount },
        })
    }
}

impl Decode for Quantity {
    /// A string, a number, or `null` for zero; white space inside the quotes is dropped.
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        *self = match json.as_bytes().first() {
            Some(b'n') => Self::default(),
            Some(b'"') => json::string(json)?.trim().parse()?,
            Some(b'-' | b'0'..=b'9') => json.parse()?,
            _ => return Err(json::wrong_type(Self::SAID, json)),
        };
        Ok(())
    }
}

/// Takes in an object of amounts, each by the name of its resource. Every amount is checked, also of
/// resources that nobody here asks for: one that is no quantity spoils the annotation upstream.
pub(super) fn take_amounts<T: Default>(
    amounts: &mut T,
    json: &str,
    take: impl Fn(&mut T, &str, Quantity) -> Result<(), Misfit>,
) -> Result<(), Misfit> {
    if json::is_null(json) {
        *amounts = T::default();
        return Ok(());
    }
    json::for_each_member(json, |name, value| {
        let mut amount = Quantity::default();
        amount.decode(value)?;
        take(amounts, name, amount)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn every_suffix_has_its_factor() {
        const UNIT: i128 = 1_000_000_000;
        for (text, nanos) in [
            ("0", 0),
            ("1", UNIT),
            ("+1", UNIT),
            ("1.", UNIT),
            (".5", 500_000_000),
            ("2000m", 2 * UNIT),
            ("1500u", 1_500_000),
            ("1n", 1),
            ("3k", 3_000 * UNIT),
            ("3M", 3_000_000 * UNIT),
            ("3G", 3_000_000_000 * UNIT),
            ("3T", 3_000_000_000_000 * UNIT),
            ("3P", 3_000_000_000_000_000 * UNIT),
            ("3E", 3_000_000_000_000_000_000 * UNIT),
            ("1Ki", 1_024 * UNIT),
            ("1.5Mi", 1_572_864 * UNIT),
            ("2Gi", 2_147_483_648 * UNIT),
            ("1Ti", 1_099_511_627_776 * UNIT),
            ("1Pi", 1_125_899_906_842_624 * UNIT),
            ("1Ei", 1_152_921_504_606_846_976 * UNIT),
            ("12e6", 12_000_000 * UNIT),
            ("12E+2", 1_200 * UNIT),
            ("5e-1", 500_000_000),
        ] {
            assert_eq!(quantity(text).nanos, nanos, "{text}");
        }
    }

    #[test]
    fn rounding_goes_away_from_zero() {
        assert_eq!(quantity("0.1").value(), 1);
        assert_eq!(quantity("-0.1").value(), -1);
        assert_eq!(quantity("1.0001").value(), 2);
        assert_eq!(quantity("0.0000000001"), quantity("1n"));
        assert_eq!(quantity("1e-2000"), quantity("1n"));
        assert_eq!(
            quantity("1.0000000000000000000000000000000000000000").value(),
            1
        );
        assert_eq!(quantity("0e99999999999999999999"), Quantity::default());
    }

    #[test]
    fn the_range_ends_at_63_bits() {
        assert_eq!(quantity("9223372036854775807").value(), i64::MAX);
        assert_eq!(quantity("-9223372036854775807").value(), -i64::MAX);
        for text in [
            "9223372036854775808",
            "10E",
            "8Ei",
            "1e19",
            "1e99999999999999999999",
        ] {
            let error = QuantityError::OutOfRange { text: text.into() };
            assert_eq!(text.parse::<Quantity>(), Err(error));
        }
        let long = "9".repeat(1_000);
        let error = QuantityError::OutOfRange {
            text: "9".repeat(64),
        };
        assert_eq!(long.parse::<Quantity>(), Err(error));
    }

    #[test]
    fn what_kubernetes_refuses_is_refused() {
        for text in [
            "", ".", "-", "+", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i",
            "-3.01e-", "1e", "1e+", "1e1.5", "1e1k", " 1", "1 ", "1 k", "0x10", "1_000", "--1",
            "1KiB", "1K", "\u{663}", "1\0",
        ] {
            let error = QuantityError::Malformed { text: text.into() };
            assert_eq!(text.parse::<Quantity>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_negative_amount_is_told_as_such() {
        let told = |text: &str| quantity(text).unsigned_value().unwrap_err().to_string();
        assert_eq!(
            told("-1500m"),
            "amount -1.5 is outside 0 to 9223372036854775807"
        );
        assert_eq!(
            told("-2k"),
            "amount -2000 is outside 0 to 9223372036854775807"
        );
        let amount = "-0.001".to_owned();
        let negative = Err(QuantityError::Negative { amount });
        assert_eq!(quantity("-1m").unsigned_value(), negative);
        assert_eq!(quantity("0.5").unsigned_value(), Ok(1));
        assert_eq!(quantity("-1m").unsigned_milli_value(), negative);
    }

    #[test]
    fn thousandths_are_rounded_away_from_zero_and_cut_to_their_range() {
        for (text, thousandths) in [
            ("500m", 500),
            ("2", 2_000),
            ("1.0001", 1_001),
            ("9223372036854775807", u64::MAX),
        ] {
            assert_eq!(
                quantity(text).unsigned_milli_value(),
                Ok(thousandths),
                "{text}"
            );
        }
    }
}
