//! How much faster this node's CPUs are than those of the slowest model in the cluster.

use super::{
    error::{AnnotationError, Misfit},
    json,
};
use crate::keys::annotation::CPU_NORMALIZATION_RATIO;
use std::fmt;
use thiserror::Error;

/// A ratio above zero, exact to 10⁻⁶. A quota counts CPUs of the slowest model; here it is
/// divided by the ratio where that is above one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuNormalizationRatio {
    millionths: u64,
}

/// Why a text is no ratio.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NormalizationError {
    #[error("{text} is no decimal number of up to six places")]
    Malformed { text: String },
    #[error("{text} is outside 0.000001 to 1000")]
    OutOfRange { text: String },
}

const ONE: u64 = 1_000_000;
const PLACES: usize = 6;
const MAX: u64 = 1_000 * ONE;

// === impl CpuNormalizationRatio ===

impl CpuNormalizationRatio {
    /// Reads the annotation. Koordinator writes two decimals, and `-1` where there is no ratio, which is
    /// `None`.
    ///
    /// # Errors
    ///
    /// When the text is no decimal number of 1 to 9 digits and up to 6 places, or the number is neither −1
    /// nor 0.000001 to 1,000.
    pub fn parse(text: &str) -> Result<Option<Self>, AnnotationError> {
        let millionths = match text.strip_prefix('-') {
            Some(positive) if millionths(positive) == Some(ONE) => return Ok(None),
            Some(positive) => millionths(positive).map(|_| 0),
            None => millionths(text),
        };
        let shown = || json::shown(text);
        let ratio = millionths
            .ok_or_else(|| NormalizationError::Malformed { text: shown() })
            .and_then(|millionths| match millionths {
                1..=MAX => Ok(Some(Self { millionths })),
                _ => Err(NormalizationError::OutOfRange { text: shown() }),
            });
        ratio.map_err(|error| Misfit::from(error).of(CPU_NORMALIZATION_RATIO))
    }

    /// Whether quotas change at all.
    pub fn is_above_one(self) -> bool {
        self.millionths > ONE
    }

    /// `micros` divided by the ratio, rounded up; a ratio up to one leaves it as it is.
    pub fn scale_down(self, micros: u64) -> u64 {
        if !self.is_above_one() {
            return micros;
        }
        let scaled = (u128::from(micros) * u128::from(ONE)).div_ceil(self.millionths.into());
        u64::try_from(scaled).expect("dividing by more than one makes it smaller")
    }
}

impl fmt::Display for CpuNormalizationRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:06}", self.millionths % ONE);
        let fraction = fraction.trim_end_matches('0');
        write!(f, "{}.{fraction:0<2}", self.millionths / ONE)
    }
}

fn millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let lengths = (1..=9).contains(&whole.len()) && fraction.len() <= PLACES;
    if !lengths || !digits(whole) || !digits(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<PLACES$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(text: &str) -> CpuNormalizationRatio {
        CpuNormalizationRatio::parse(text).unwrap().unwrap()
    }

    #[test]
    fn a_quota_is_divided_and_rounded_up() {
        assert_eq!(ratio("1.20").scale_down(50_000), 41_667);
        assert_eq!(ratio("1.10").scale_down(110_000), 100_000);
        assert_eq!(ratio("2").scale_down(1_001), 501);
        assert_eq!(ratio("1.00").scale_down(50_000), 50_000);
        assert_eq!(ratio("0.80").scale_down(50_000), 50_000);
        assert_eq!(
            ratio("1.50").scale_down(u64::MAX),
            12_297_829_382_473_034_410
        );
    }

    #[test]
    fn minus_one_means_that_there_is_none() {
        for text in ["-1", "-1.00"] {
            assert_eq!(CpuNormalizationRatio::parse(text).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_ratio_is_refused() {
        for (text, reason) in [
            ("", "\"\" is no decimal number of up to six places"),
            ("fast", "\"fast\" is no decimal number of up to six places"),
            (
                "1.2.3",
                "\"1.2.3\" is no decimal number of up to six places",
            ),
            (".5", "\".5\" is no decimal number of up to six places"),
            ("NaN", "\"NaN\" is no decimal number of up to six places"),
            ("+Inf", "\"+Inf\" is no decimal number of up to six places"),
            (
                "1.1234567",
                "\"1.1234567\" is no decimal number of up to six places",
            ),
            ("0.00", "\"0.00\" is outside 0.000001 to 1000"),
            ("-2", "\"-2\" is outside 0.000001 to 1000"),
            ("1000.01", "\"1000.01\" is outside 0.000001 to 1000"),
        ] {
            let error = CpuNormalizationRatio::parse(text).unwrap_err();
            assert_eq!(error.key, "node.koordinator.sh/cpu-normalization-ratio");
            let source = std::error::Error::source(&error.reason).unwrap();
            assert_eq!(source.to_string(), reason, "{text:?}");
        }
    }

    #[test]
    fn it_is_printed_with_at_least_two_decimals() {
        for (text, printed) in [("1", "1.00"), ("1.2", "1.20"), ("1.125", "1.125")] {
            assert_eq!(ratio(text).to_string(), printed);
        }
    }
}
