//! From the CPU shares of cgroup v1, which Kubernetes and CRI speak, to the weights of cgroup v2.
//!
//! Two curves are about, and a node uses the one its runtimes and its kubelet were built with: ours
//! has to be the same, or our pods weigh more or less than their neighbours.

use koord_model::{CpuShares, CpuWeight};

/// How shares become a weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightCurve {
    /// A line from (2, 1) to (262,144, 10,000): runc before 1.3.2, crun before 1.23 and Koordinator
    /// v1.8. A request of one CPU gets 39, less than the kernel's default of 100.
    #[default]
    Linear,
    /// A curve through (2, 1), (1,024, 100) and (262,144, 10,000): later runc and crun.
    Quadratic,
}

// === impl WeightCurve ===

impl WeightCurve {
    pub const ALL: &[Self] = &[Self::Linear, Self::Quadratic];

    /// The curve that turns these shares into this weight; `None` if none does, or both do.
    pub fn detect(shares: CpuShares, weight: CpuWeight) -> Option<Self> {
        let fits = |curve: &Self| curve.weight(shares) == weight;
        match (fits(&Self::Linear), fits(&Self::Quadratic)) {
            (true, false) => Some(Self::Linear),
            (false, true) => Some(Self::Quadratic),
            _ => None,
        }
    }

    pub fn weight(self, shares: CpuShares) -> CpuWeight {
        let weight = match self {
            Self::Linear => 1 + (i64::from(shares.get()) - 2) * 9_999 / 262_142,
            Self::Quadratic => quadratic(shares),
        };
        CpuWeight::new(weight).expect("both curves end at the ends of the range of weights")
    }

    /// The least shares that become this weight, which there are for every weight: neither curve
    /// rises by more than one from one number of shares to the next.
    pub fn shares(self, weight: CpuWeight) -> CpuShares {
        let (mut least, mut most) = (CpuShares::MIN, CpuShares::MAX);
        while least < most {
            let middle = i64::from(least.get()).midpoint(most.get().into());
            let middle = CpuShares::new(middle).expect("between two numbers of shares");
            if self.weight(middle) < weight {
                let next = i64::from(middle.get()) + 1;
                least = CpuShares::new(next).expect("the middle is below the most");
            } else {
                most = middle;
            }
        }
        least
    }
}

/// `ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups: in floating point as there, so that
/// rounding is the same.
fn quadratic(shares: CpuShares) -> i64 {
    if shares == CpuShares::MIN {
        return 1;
    }
    if shares == CpuShares::MAX {
        return 10_000;
    }
    let log = f64::from(shares.get()).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the curve lies between 1 and 10,000"
    )]
    let weight = 10_f64.powf(exponent).ceil() as i64;
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(shares: i64) -> CpuShares {
        CpuShares::new(shares).unwrap()
    }

    fn weight(weight: i64) -> CpuWeight {
        CpuWeight::new(weight).unwrap()
    }

    #[test]
    fn both_curves_give_the_weights_of_their_runtimes() {
        for (given, linear, quadratic) in [
            (2, 1, 1),
            (3, 1, 2),
            (102, 4, 17),
            (512, 20, 59),
            (1_024, 39, 100),
            (2_048, 79, 174),
            (10_240, 391, 639),
            (262_143, 9_999, 10_000),
            (262_144, 10_000, 10_000),
        ] {
            let given = shares(given);
            assert_eq!(WeightCurve::Linear.weight(given), weight(linear), "{given}");
            assert_eq!(
                WeightCurve::Quadratic.weight(given),
                weight(quadratic),
                "{given}"
            );
        }
    }

    #[test]
    fn every_weight_comes_from_some_shares() {
        for curve in [WeightCurve::Linear, WeightCurve::Quadratic] {
            for number in 1..=10_000 {
                let weight = weight(number);
                assert_eq!(curve.weight(curve.shares(weight)), weight, "{curve:?}");
            }
        }
        assert_eq!(WeightCurve::Linear.shares(weight(39)), shares(999));
        assert_eq!(WeightCurve::Linear.shares(weight(1)), shares(2));
    }

    #[test]
    fn a_curve_is_known_by_a_pair_that_only_it_gives() {
        let detect = |s, w| WeightCurve::detect(shares(s), weight(w));
        assert_eq!(detect(1_024, 39), Some(WeightCurve::Linear));
        assert_eq!(detect(1_024, 100), Some(WeightCurve::Quadratic));
        assert_eq!(detect(2, 1), None);
        assert_eq!(detect(1_024, 40), None);
    }
}
