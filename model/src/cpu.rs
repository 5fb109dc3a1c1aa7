//! CPU time as the Kubernetes API, cgroup v1 and cgroup v2 count it, and the way between them.

use std::fmt;
use thiserror::Error;

/// A number outside the range of its type.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{what} {value} is outside {min} to {max}")]
pub struct RangeError {
    pub what: &'static str,
    pub value: i128,
    pub min: i128,
    pub max: i128,
}

/// Thousandths of a CPU, never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliCpu(pub u64);

/// Relative CPU weight of cgroup v1 (`cpu.shares`), 2 to 262,144.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuShares(u32);

/// Relative CPU weight of cgroup v2 (`cpu.weight`), 1 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuWeight(u16);

/// The length of a CFS period in microseconds, 1,000 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuPeriod(u32);

/// CPU time per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuQuota {
    /// Microseconds in each period. The kernel takes [`MIN_MICROS`](Self::MIN_MICROS) to
    /// [`MAX_MICROS`](Self::MAX_MICROS); a share told for another period may be less.
    Micros(u64),
    Unlimited,
}

/// CPU time that a group may save up in quiet periods and use beyond its quota in a busy one
/// (`cpu.cfs_burst_us`), in microseconds for a period of 100 ms unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuBurst(u64);

/// Group identity (`cpu.bvt_warp_ns` of Anolis and Alibaba Cloud kernels), −1 to 2: a higher
/// value runs before a lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bvt(i8);

pub(crate) fn check(
    what: &'static str,
    value: i128,
    min: i128,
    max: i128,
) -> Result<(), RangeError> {
    if value < min || value > max {
        return Err(RangeError {
            what,
            value,
            min,
            max,
        });
    }
    Ok(())
}

// === impl MilliCpu ===

impl MilliCpu {
    /// The weight that Kubernetes gives a request of this size: 1,024 for a CPU, at least 2.
    pub fn shares(self) -> CpuShares {
        let shares = u128::from(self.0) * 1024 / 1000;
        let clamped = shares.clamp(u128::from(CpuShares::MIN.0), u128::from(CpuShares::MAX.0));
        CpuShares(u32::try_from(clamped).expect("clamped to the range of shares"))
    }

    /// The quota that Kubernetes gives a limit of this size in a period of 100 ms: at least
    /// 1,000 µs; none at all for a limit of zero.
    pub fn quota(self) -> CpuQuota {
        match self.0.saturating_mul(100) {
            0 => CpuQuota::Unlimited,
            micros => CpuQuota::Micros(micros.clamp(CpuQuota::MIN_MICROS, CpuQuota::MAX_MICROS)),
        }
    }
}

// === impl CpuShares ===

impl CpuShares {
    pub const MIN: Self = Self(2);
    pub const MAX: Self = Self(262_144);
    /// What the kernel gives a new group.
    pub const DEFAULT: Self = Self(1_024);

    /// A weight as cgroup v1 counts it.
    ///
    /// # Errors
    ///
    /// When the number is outside 2 to 262,144 ([`Self::MIN`] to [`Self::MAX`]).
    pub fn new(shares: i64) -> Result<Self, RangeError> {
        let (min, max) = (Self::MIN.0.into(), Self::MAX.0.into());
        check("cpu.shares", shares.into(), min, max)?;
        Ok(Self(u32::try_from(shares).expect("checked")))
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

// === impl CpuWeight ===

impl CpuWeight {
    /// What the kernel gives a new group.
    pub const DEFAULT: Self = Self(100);

    /// A weight as cgroup v2 counts it.
    ///
    /// # Errors
    ///
    /// When the number is outside 1 to 10,000.
    pub fn new(weight: i64) -> Result<Self, RangeError> {
        check("cpu.weight", weight.into(), 1, 10_000)?;
        Ok(Self(u16::try_from(weight).expect("checked")))
    }

    pub fn get(self) -> u16 {
        self.0
    }
}

// === impl CpuPeriod ===

impl CpuPeriod {
    /// What Kubernetes uses unless the kubelet is told otherwise.
    pub const DEFAULT: Self = Self(100_000);

    /// A period of so many microseconds.
    ///
    /// # Errors
    ///
    /// When the number is outside 1,000 to 1,000,000.
    pub fn new(micros: i64) -> Result<Self, RangeError> {
        check("cpu.cfs_period_us", micros.into(), 1_000, 1_000_000)?;
        Ok(Self(u32::try_from(micros).expect("checked")))
    }

    pub fn micros(self) -> u32 {
        self.0
    }
}

// === impl CpuQuota ===

impl CpuQuota {
    /// The least that the kernel takes.
    pub const MIN_MICROS: u64 = 1_000;
    /// The most that the kernel takes (`max_cfs_runtime`, 2⁴⁴ − 1 µs, since 5.8; tried on 6.18).
    pub const MAX_MICROS: u64 = (1 << 44) - 1;

    /// Reads a quota in microseconds as CRI and cgroup v1 write it: negative is unlimited.
    ///
    /// # Errors
    ///
    /// When the number is 0 to 999 or above 2⁴⁴ − 1: one that is not negative is [`Self::MIN_MICROS`] to
    /// [`Self::MAX_MICROS`].
    pub fn from_micros(micros: i64) -> Result<Self, RangeError> {
        let Ok(micros) = u64::try_from(micros) else {
            return Ok(Self::Unlimited);
        };
        check(
            "cpu.cfs_quota_us",
            micros.into(),
            Self::MIN_MICROS.into(),
            Self::MAX_MICROS.into(),
        )?;
        Ok(Self::Micros(micros))
    }

    /// The same share of a CPU in a period of another length than 100 ms, rounded down: what was
    /// not more than another share is so in any period. `None` if that is less than the kernel
    /// takes.
    pub fn in_period(self, period: CpuPeriod) -> Option<Self> {
        let Self::Micros(micros) = self else {
            return Some(self);
        };
        let scaled = u128::from(micros) * u128::from(period.0) / u128::from(CpuPeriod::DEFAULT.0);
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        (scaled >= Self::MIN_MICROS).then(|| Self::Micros(scaled.min(Self::MAX_MICROS)))
    }

    /// The same share of a CPU in a period of 100 ms, where `self` is for one of another length.
    /// Rounded up, so that [`in_period`](Self::in_period) gives back what it was; of a period
    /// longer than 100 ms as closely as whole microseconds can.
    #[must_use]
    pub fn of_period(self, period: CpuPeriod) -> Self {
        let Self::Micros(micros) = self else {
            return self;
        };
        let scaled = u128::from(micros) * u128::from(CpuPeriod::DEFAULT.0);
        let scaled = scaled.div_ceil(u128::from(period.0));
        Self::Micros(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// As CRI and cgroup v1 write it: −1 is unlimited.
    pub fn as_i64(self) -> i64 {
        match self {
            Self::Unlimited => -1,
            Self::Micros(micros) => i64::try_from(micros).unwrap_or(i64::MAX),
        }
    }
}

// === impl CpuBurst ===

impl CpuBurst {
    pub const NONE: Self = Self(0);

    /// `percent` of the time that a quota of 100 ms gives, and never more than that time: the kernel
    /// refuses a burst above the quota. Without a quota there is nothing to save up.
    pub fn of_quota(quota: CpuQuota, percent: u32) -> Self {
        match quota {
            CpuQuota::Micros(micros) => {
                let part = u128::from(micros) * u128::from(percent) / 100;
                Self(u64::try_from(part).unwrap_or(u64::MAX).min(micros))
            }
            CpuQuota::Unlimited => Self::NONE,
        }
    }

    /// So many microseconds.
    ///
    /// # Errors
    ///
    /// When the number is above 2⁴⁴ − 1 ([`CpuQuota::MAX_MICROS`]).
    pub fn from_micros(micros: u64) -> Result<Self, RangeError> {
        let max = CpuQuota::MAX_MICROS.into();
        check("cpu.cfs_burst_us", micros.into(), 0, max)?;
        Ok(Self(micros))
    }

    pub fn micros(self) -> u64 {
        self.0
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = self.0.saturating_add(other.0);
        Self(sum.min(CpuQuota::MAX_MICROS))
    }

    /// The same part of a period of another length than 100 ms, rounded down as a quota is.
    #[must_use]
    pub fn in_period(self, period: CpuPeriod) -> Self {
        let scaled = u128::from(self.0) * u128::from(period.0) / u128::from(CpuPeriod::DEFAULT.0);
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        Self(scaled.min(CpuQuota::MAX_MICROS))
    }

    /// The same part of a period of 100 ms, where `self` is for one of another length; rounded up as
    /// a quota is.
    #[must_use]
    pub fn of_period(self, period: CpuPeriod) -> Self {
        let scaled = u128::from(self.0) * u128::from(CpuPeriod::DEFAULT.0);
        let scaled = scaled.div_ceil(u128::from(period.0));
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// As much of it as goes with a quota.
    #[must_use]
    pub fn within(self, quota: CpuQuota) -> Self {
        match quota {
            CpuQuota::Micros(micros) => Self(self.0.min(micros)),
            CpuQuota::Unlimited => self,
        }
    }
}

// === impl Bvt ===

impl Bvt {
    /// This value, as the kernel's file takes it.
    ///
    /// # Errors
    ///
    /// When the value is outside −1 to 2.
    pub fn new(value: i64) -> Result<Self, RangeError> {
        check("cpu.bvt_warp_ns", value.into(), -1, 2)?;
        Ok(Self(i8::try_from(value).expect("checked")))
    }

    pub fn get(self) -> i8 {
        self.0
    }
}

macro_rules! display_number {
    ($($type:ty),+) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

display_number!(MilliCpu, CpuShares, CpuWeight, CpuPeriod, CpuBurst, Bvt);

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Micros(micros) => micros.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_part_of_a_quota_and_never_more() {
        for (quota_us, percent, burst_us) in [
            (50_000, 50, 25_000),
            (50_000, 100, 50_000),
            (50_000, 1_000, 50_000),
            (1_001, 50, 500),
            (u64::MAX, 10_000, u64::MAX),
        ] {
            let burst = CpuBurst::of_quota(CpuQuota::Micros(quota_us), percent);
            assert_eq!(burst.micros(), burst_us, "{quota_us} {percent}");
        }
        let unlimited = CpuBurst::of_quota(CpuQuota::Unlimited, 100);
        assert_eq!(unlimited, CpuBurst::NONE);
    }

    #[test]
    fn a_burst_is_scaled_to_a_period_as_its_quota_is() {
        let period = CpuPeriod::new(20_000).unwrap();
        let burst = CpuBurst::from_micros(25_001).unwrap();
        assert_eq!(burst.in_period(period).micros(), 5_000);
        assert_eq!(burst.in_period(period).of_period(period).micros(), 25_000);
        assert_eq!(burst.within(CpuQuota::Micros(3)).micros(), 3);
        assert_eq!(burst.within(CpuQuota::Unlimited), burst);
        assert_eq!(burst.and(burst).micros(), 50_002);
        let error = CpuBurst::from_micros(1 << 44).unwrap_err();
        assert_eq!(error.what, "cpu.cfs_burst_us");
    }

    #[test]
    fn shares_follow_the_kubernetes_formula() {
        for (milli, shares) in [
            (0, 2),
            (1, 2),
            (2, 2),
            (100, 102),
            (500, 512),
            (1000, 1024),
            (1001, 1025),
            (1_000_000, 262_144),
        ] {
            assert_eq!(MilliCpu(milli).shares().get(), shares, "{milli}m");
        }
        assert_eq!(MilliCpu(u64::MAX).shares(), CpuShares::MAX);
    }

    #[test]
    fn quota_has_a_floor_and_zero_is_no_limit() {
        assert_eq!(MilliCpu(0).quota(), CpuQuota::Unlimited);
        assert_eq!(MilliCpu(1).quota(), CpuQuota::Micros(1_000));
        assert_eq!(MilliCpu(500).quota(), CpuQuota::Micros(50_000));
        assert_eq!(
            MilliCpu(u64::MAX).quota(),
            CpuQuota::Micros(17_592_186_044_415)
        );
    }

    #[test]
    fn quota_is_read_as_cri_writes_it() {
        assert_eq!(CpuQuota::from_micros(-1), Ok(CpuQuota::Unlimited));
        assert_eq!(CpuQuota::from_micros(50_000), Ok(CpuQuota::Micros(50_000)));
        let error = CpuQuota::from_micros(999).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cpu.cfs_quota_us 999 is outside 1000 to 17592186044415"
        );
    }

    fn period(micros: i64) -> CpuPeriod {
        CpuPeriod::new(micros).unwrap()
    }

    #[test]
    fn a_quota_keeps_its_share_in_another_period() {
        for (quota, micros, scaled) in [
            (50_000, 20_000, Some(10_000)),
            (50_000, 100_000, Some(50_000)),
            (50_000, 1_000_000, Some(500_000)),
            (50_009, 10_000, Some(5_000)),
            (5_000, 20_000, Some(1_000)),
            (4_999, 20_000, None),
            (1_000, 99_999, None),
            (17_592_186_044_415, 1_000_000, Some(17_592_186_044_415)),
        ] {
            let scaled = scaled.map(CpuQuota::Micros);
            let in_period = CpuQuota::Micros(quota).in_period(period(micros));
            assert_eq!(in_period, scaled, "{quota} in {micros}");
        }
        let unlimited = CpuQuota::Unlimited;
        assert_eq!(unlimited.in_period(period(1_000)), Some(unlimited));
    }

    #[test]
    fn a_quota_of_another_period_comes_back_as_it_was() {
        assert_eq!(
            CpuQuota::Micros(5_000).of_period(period(10_000)),
            CpuQuota::Micros(50_000)
        );
        // 1,000 in 33,333 is 3,000.03 in 100,000.
        for (quota, micros, scaled) in [
            (1_000, 33_333, 3_001),
            (1_001, 99_999, 1_002),
            (1_000, 1_000_000, 100),
        ] {
            let quota = CpuQuota::Micros(quota);
            let there = quota.of_period(period(micros));
            assert_eq!(there, CpuQuota::Micros(scaled));
            assert_eq!(there.in_period(period(micros)), Some(quota));
        }
        let unlimited = CpuQuota::Unlimited;
        assert_eq!(unlimited.of_period(period(10_000)), unlimited);
    }

    #[test]
    fn ranges_are_the_kernels() {
        assert!(CpuShares::new(1).is_err() && CpuShares::new(262_145).is_err());
        assert!(CpuWeight::new(0).is_err() && CpuWeight::new(10_001).is_err());
        assert!(Bvt::new(-2).is_err() && Bvt::new(3).is_err());
        assert_eq!(Bvt::new(-1).unwrap().get(), -1);
        assert!(CpuPeriod::new(999).is_err() && CpuPeriod::new(1_000_001).is_err());
    }
}
