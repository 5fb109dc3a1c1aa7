//! Groups of threads that share a part of the last-level cache and of the bandwidth to memory.

use crate::{PodUid, RangeError};
use std::{collections::BTreeMap, fmt, iter, sync::Arc};

/// The part of a cache from one percentage of it to a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheRange {
    start: u8,
    end: u8,
}

/// How much of the bandwidth to memory: 1 to 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bandwidth(u8);

/// A share for each cache: of those that are not named, what is said for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerCache<T> {
    pub all: T,
    pub each: BTreeMap<u32, T>,
}

/// What a group has. What is not said is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheShares {
    pub ranges: PerCache<CacheRange>,
    pub bandwidth: PerCache<Bandwidth>,
}

/// The classes of pods that share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheClass {
    /// `LSE` is treated as it.
    Lsr,
    Ls,
    Be,
}

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheClasses(u8);

/// The group of a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassGroup {
    pub class: CacheClass,
    pub shares: Arc<CacheShares>,
    /// The pod whose threads have a monitoring group of their own within it.
    pub monitored: Option<PodUid>,
}

/// The group that a pod's threads are in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CacheGroup {
    /// That of whoever is in no other.
    Root,
    Class(ClassGroup),
    /// One of its own.
    Pod {
        pod: PodUid,
        shares: Arc<CacheShares>,
        /// Where it is while the processor has no class left for it.
        otherwise: Option<Box<ClassGroup>>,
        /// For whose groups as many classes of the processor are left as are not there yet.
        yields_to: CacheClasses,
    },
}

// === impl CacheRange ===

impl CacheRange {
    pub const MAX: i64 = 100;
    pub const WHOLE: Self = Self { start: 0, end: 100 };

    /// The part from `start` percent of a cache to `end` percent.
    ///
    /// # Errors
    ///
    /// When `start` is outside 0 to 99, or `end` is not greater than `start` or above 100 ([`Self::MAX`]).
    pub fn new(start: i64, end: i64) -> Result<Self, RangeError> {
        let max = Self::MAX;
        Ok(Self {
            start: within("start", start, 0, max - 1)?,
            end: within("end", end, start + 1, max)?,
        })
    }

    pub fn start(self) -> u64 {
        self.start.into()
    }

    pub fn end(self) -> u64 {
        self.end.into()
    }
}

impl Default for CacheRange {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl fmt::Display for CacheRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}%", self.start, self.end)
    }
}

// === impl Bandwidth ===

impl Bandwidth {
    pub const MIN: i64 = 1;
    pub const MAX: i64 = 100;
    pub const WHOLE: Self = Self(100);

    /// So many percent of the bandwidth.
    ///
    /// # Errors
    ///
    /// When the percentage is outside 1 to 100 ([`Self::MIN`] to [`Self::MAX`]).
    pub fn new(percent: i64) -> Result<Self, RangeError> {
        within("percent", percent, Self::MIN, Self::MAX).map(Self)
    }

    pub fn percent(self) -> u64 {
        self.0.into()
    }
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

// === impl PerCache ===

impl<T: Copy> PerCache<T> {
    /// The same of every cache.
    pub fn all(all: T) -> Self {
        Self {
            all,
            each: BTreeMap::new(),
        }
    }

    pub fn of(&self, cache: u32) -> T {
        self.each.get(&cache).copied().unwrap_or(self.all)
    }
}

impl<T: fmt::Display> fmt::Display for PerCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)?;
        let mut each = self.each.iter();
        each.try_for_each(|(cache, share)| write!(f, " ({share} of {cache})"))
    }
}

// === impl CacheShares ===

impl fmt::Display for CacheShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cache {}, bandwidth {}", self.ranges, self.bandwidth)
    }
}

// === impl CacheClass ===

impl CacheClass {
    pub const ALL: [Self; 3] = [Self::Lsr, Self::Ls, Self::Be];

    /// The name of its group, which is Koordinator's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lsr => "LSR",
            Self::Ls => "LS",
            Self::Be => "BE",
        }
    }
}

// === impl CacheClasses ===

impl CacheClasses {
    pub fn iter(self) -> impl Iterator<Item = CacheClass> {
        let is_in = move |class: &CacheClass| self.0 & (1 << *class as u8) != 0;
        CacheClass::ALL.into_iter().filter(is_in)
    }
}

impl FromIterator<CacheClass> for CacheClasses {
    fn from_iter<I: IntoIterator<Item = CacheClass>>(classes: I) -> Self {
        let join = |all, class: CacheClass| all | 1 << class as u8;
        Self(classes.into_iter().fold(0, join))
    }
}

// === impl ClassGroup ===

impl ClassGroup {
    /// What is between a group and a monitoring group of it in the latter's path.
    pub const MONITORS: &'static str = "/mon_groups/";

    /// The monitoring group of the pod, by its path. It is called as a group of the pod's own is, so
    /// that a pod's counters are found by one name.
    pub fn monitor(&self) -> Option<String> {
        let pod = self.monitored.as_ref()?;
        let (group, within) = (self.class.name(), Self::MONITORS);
        Some(format!("{group}{within}koordlet-{pod}"))
    }

    fn names(&self) -> impl Iterator<Item = String> {
        iter::once(self.class.name().to_owned()).chain(self.monitor())
    }
}

// === impl CacheGroup ===

impl CacheGroup {
    /// What it is called, as by Koordinator; the root's group has no name.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Root => None,
            Self::Class(group) => Some(group.class.name().to_owned()),
            Self::Pod { pod, .. } => Some(format!("koordlet-{pod}")),
        }
    }

    /// The groups that have to be there for it, those that take its place until the pod `is_in_own`
    /// among them.
    pub fn names(&self, is_in_own: bool) -> Vec<String> {
        match self {
            Self::Root => Vec::new(),
            Self::Class(group) => group.names().collect(),
            Self::Pod { otherwise, .. } => {
                let otherwise = otherwise.as_deref().filter(|_| !is_in_own);
                let otherwise = otherwise.into_iter().flat_map(ClassGroup::names);
                self.name().into_iter().chain(otherwise).collect()
            }
        }
    }
}

impl fmt::Display for CacheGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Class(group) => {
                write!(f, "{}: {}", group.class.name(), group.shares)?;
                match group.monitored {
                    Some(_) => f.write_str(", monitored"),
                    None => Ok(()),
                }
            }
            Self::Pod { pod, shares, .. } => write!(f, "koordlet-{pod}: {shares}"),
        }
    }
}

fn within(what: &'static str, value: i64, min: i64, max: i64) -> Result<u8, RangeError> {
    let in_range = u8::try_from(value).ok();
    let in_range = in_range.filter(|_| (min..=max).contains(&value));
    in_range.ok_or(RangeError {
        what,
        value: value.into(),
        min: min.into(),
        max: max.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_it_starts_and_within_the_cache() {
        let range = |start, end| match CacheRange::new(start, end) {
            Ok(range) => range.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(range(0, 100), "0-100%");
        assert_eq!(range(99, 100), "99-100%");
        assert_eq!(range(-1, 30), "start -1 is outside 0 to 99");
        assert_eq!(range(100, 100), "start 100 is outside 0 to 99");
        assert_eq!(range(30, 30), "end 30 is outside 31 to 100");
        assert_eq!(range(0, 101), "end 101 is outside 1 to 100");
        assert_eq!(range(0, 257), "end 257 is outside 1 to 100");
    }

    #[test]
    fn no_bandwidth_is_no_share() {
        let bandwidth = |percent| Bandwidth::new(percent).map_err(|error| error.to_string());
        assert_eq!(bandwidth(1).unwrap().percent(), 1);
        assert_eq!(bandwidth(100), Ok(Bandwidth::WHOLE));
        for (percent, expected) in [
            (0, "percent 0 is outside 1 to 100"),
            (101, "percent 101 is outside 1 to 100"),
        ] {
            assert_eq!(bandwidth(percent).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_cache_has_the_share_of_its_own_or_that_of_all() {
        let range = |start, end| CacheRange::new(start, end).unwrap();
        let ranges = PerCache {
            all: range(0, 30),
            each: [(1, range(50, 100))].into(),
        };
        assert_eq!(
            [0, 1, 2].map(|it| ranges.of(it)),
            [range(0, 30), range(50, 100), range(0, 30)]
        );
        let shares = CacheShares {
            ranges,
            ..CacheShares::default()
        };
        let expected = "cache 0-30% (50-100% of 1), bandwidth 100%";
        assert_eq!(shares.to_string(), expected);
    }

    #[test]
    fn groups_are_called_as_koordinator_calls_them() {
        let shares = Arc::new(CacheShares::default());
        let class = ClassGroup {
            class: CacheClass::Ls,
            shares: shares.clone(),
            monitored: None,
        };
        let pod = CacheGroup::Pod {
            pod: PodUid::new("5f2b8a9e").unwrap(),
            shares,
            otherwise: Some(Box::new(class.clone())),
            yields_to: CacheClasses::default(),
        };
        assert_eq!(CacheGroup::Root.names(true), [""; 0]);
        let class = CacheGroup::Class(class);
        assert_eq!([class.names(true), class.names(false)], [["LS"], ["LS"]]);
        assert_eq!(pod.names(true), ["koordlet-5f2b8a9e"]);
        assert_eq!(pod.names(false), ["koordlet-5f2b8a9e", "LS"]);
        let shown = "koordlet-5f2b8a9e: cache 0-100%, bandwidth 100%";
        assert_eq!(pod.to_string(), shown);
        assert_eq!(CacheGroup::Root.to_string(), "root");
        assert_eq!(CacheClass::ALL.map(CacheClass::name), ["LSR", "LS", "BE"]);
        let classes = CacheClasses::from_iter([CacheClass::Be, CacheClass::Lsr]);
        assert!(classes.iter().eq([CacheClass::Lsr, CacheClass::Be]));
    }

    #[test]
    fn a_monitoring_group_has_its_pods_name_within_that_of_its_class() {
        let pod = || PodUid::new("5f2b8a9e").unwrap();
        let class = ClassGroup {
            class: CacheClass::Be,
            shares: Arc::default(),
            monitored: Some(pod()),
        };
        let monitor = "BE/mon_groups/koordlet-5f2b8a9e";
        assert_eq!(class.monitor().as_deref(), Some(monitor));
        let own = CacheGroup::Pod {
            pod: pod(),
            shares: Arc::default(),
            otherwise: Some(Box::new(class.clone())),
            yields_to: CacheClasses::default(),
        };
        let class = CacheGroup::Class(class);
        let shown = "BE: cache 0-100%, bandwidth 100%, monitored";
        assert_eq!(class.to_string(), shown);
        assert_eq!(class.names(true), ["BE", monitor]);
        assert_eq!(own.names(true), ["koordlet-5f2b8a9e"]);
        assert_eq!(own.names(false), ["koordlet-5f2b8a9e", "BE", monitor]);
    }
}
