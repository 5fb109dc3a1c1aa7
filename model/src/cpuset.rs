//! Sets of CPU numbers in the kernel's list format (`0-3,8`).

use crate::excerpt;
use std::{fmt, str::FromStr};
use thiserror::Error;

/// The highest CPU number taken: `NR_CPUS` of the largest distribution kernels is 8,192.
pub const MAX_CPU: u32 = 8_191;

/// A set of CPUs. May be empty; what empty means is said by the type that holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet(
    // Bit n of word n / 64; no trailing zero words, so that equality is that of the sets.
    Vec<u64>,
);

/// The CPUs that a control group may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CpusetCpus {
    /// Whatever the parent may use: in CRI the empty string.
    All,
    Only(CpuSet),
}

/// Why a text is no CPU list.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CpuSetError {
    #[error("{part:?} is no CPU number or range")]
    Malformed { part: String },
    #[error("CPU range {first}-{last} runs backwards")]
    Backwards { first: u32, last: u32 },
    #[error("CPU {cpu} is above {MAX_CPU}, the highest that a kernel knows")]
    TooHigh { cpu: u64 },
}

// === impl CpuSet ===

impl CpuSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a CPU by its number.
    ///
    /// # Errors
    ///
    /// When the number is above 8,191 ([`MAX_CPU`]); the set stays as it is.
    pub fn insert(&mut self, cpu: u32) -> Result<(), CpuSetError> {
        if cpu > MAX_CPU {
            return Err(CpuSetError::TooHigh { cpu: cpu.into() });
        }
        let word = (cpu / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (cpu % 64);
        Ok(())
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0
            .get((cpu / 64) as usize)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..=MAX_CPU)
            .take(self.0.len() * 64)
            .filter(|cpu| self.contains(*cpu))
    }

    pub fn union(&self, other: &Self) -> Self {
        let length = self.0.len().max(other.0.len());
        Self::from_words((0..length).map(|i| self.word(i) | other.word(i)))
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let length = self.0.len().min(other.0.len());
        Self::from_words((0..length).map(|i| self.word(i) & other.word(i)))
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        (0..self.0.len()).all(|i| self.word(i) & !other.word(i) == 0)
    }

    /// Adds valid CPUs a word at a time: a list may repeat the widest range thousands of times.
    fn insert_range(&mut self, first: u32, last: u32) {
        let (low, high) = ((first / 64) as usize, (last / 64) as usize);
        if high >= self.0.len() {
            self.0.resize(high + 1, 0);
        }
        for (index, word) in self.0.iter_mut().enumerate().take(high + 1).skip(low) {
            let mut mask = u64::MAX;
            if index == low {
                mask &= u64::MAX << (first % 64);
            }
            if index == high {
                mask &= u64::MAX >> (63 - last % 64);
            }
            *word |= mask;
        }
    }

    fn word(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    fn from_words(words: impl Iterator<Item = u64>) -> Self {
        let mut words: Vec<u64> = words.collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        Self(words)
    }
}

fn number(part: &str) -> Result<u32, CpuSetError> {
    // Whoever creates a pod may have written it: it must not fill a log.
    let malformed = || CpuSetError::Malformed {
        part: excerpt(part),
    };
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let cpu: u64 = part.parse().map_err(|_| malformed())?;
    match u32::try_from(cpu) {
        Ok(cpu) if cpu <= MAX_CPU => Ok(cpu),
        _ => Err(CpuSetError::TooHigh { cpu }),
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list format; white space around parts is allowed, as the kernel and
    /// Koordinator allow it. The empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let mut set = Self::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.split(',').map(str::trim) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first.trim())?, number(last.trim())?),
                None => {
                    let cpu = number(part)?;
                    (cpu, cpu)
                }
            };
            if first > last {
                return Err(CpuSetError::Backwards { first, last });
            }
            set.insert_range(first, last);
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|cpu| *cpu == last + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

// === impl CpusetCpus ===

impl fmt::Display for CpusetCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(cpus) => cpus.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_printed_in_their_shortest_form() {
        for (text, shortest) in [
            ("", ""),
            ("0", "0"),
            ("1,0", "0-1"),
            ("0-3,2-5,7", "0-5,7"),
            (" 0 - 1 , 63,64 \n", "0-1,63-64"),
            ("8191", "8191"),
        ] {
            assert_eq!(set(text).to_string(), shortest, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_by_name() {
        for text in [
            ",", "0,", "a", "-1", "1-", "0x1", "+1", "1--2", "0-1-2", "\u{663}",
        ] {
            assert!(
                matches!(text.parse::<CpuSet>(), Err(CpuSetError::Malformed { .. })),
                "{text:?}"
            );
        }
        assert_eq!(
            "3-1".parse::<CpuSet>(),
            Err(CpuSetError::Backwards { first: 3, last: 1 })
        );
        assert_eq!(
            "0-4294967296".parse::<CpuSet>(),
            Err(CpuSetError::TooHigh { cpu: 4_294_967_296 })
        );
        assert!("0-8192".parse::<CpuSet>().is_err());
    }

    #[test]
    fn ranges_reach_over_words_to_the_last_bit() {
        for (text, length) in [
            ("63-64", 2),
            ("0-63", 64),
            ("64-127", 64),
            ("1-190", 190),
            ("5-5", 1),
            ("0-8191", 8_192),
        ] {
            assert_eq!(set(text).len(), length, "{text}");
            assert_eq!(set(text).to_string(), text.replace("5-5", "5"));
        }
        assert_eq!(
            set("0-8191,".repeat(30_000).trim_end_matches(',')).len(),
            8_192
        );
    }

    #[test]
    fn an_error_shows_the_beginning_only() {
        let part = "x".repeat(64);
        assert_eq!(
            "x".repeat(200_000).parse::<CpuSet>(),
            Err(CpuSetError::Malformed { part })
        );
    }

    #[test]
    fn sets_with_high_cpus_removed_equal_small_ones() {
        let low = set("0-1,100").intersection(&set("0-3"));
        assert_eq!(low, set("0-1"));
        assert_eq!(low.len(), 2);
    }

    #[test]
    fn subset_and_union_follow_set_theory() {
        assert!(set("1,3").is_subset(&set("0-3")));
        assert!(!set("1,4").is_subset(&set("0-3")));
        assert!(CpuSet::new().is_subset(&set("0")));
        assert!(!set("100").is_subset(&set("0")));
        assert_eq!(set("0-1").union(&set("64")), set("0-1,64"));
    }
}
