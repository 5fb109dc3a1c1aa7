//! What a group may have of caches and of the way to memory, as the kernel writes it.
//!
//! A line is for one resource: `L3:0=7ff;1=7ff`, masks of ways in hexadecimal, or `MB:0=100;1=100`, in
//! percent on Intel and in eighths of GB/s on AMD. The kernel aligns the names with spaces and ends
//! no line with a semicolon; it takes lines in any order, and only those that are to change.

use std::{collections::BTreeMap, fmt};

/// A resource that a processor can share out, of those that we write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Ways of the third-level cache.
    L3,
    /// The same where code and data are apart.
    L3Code,
    L3Data,
    /// Bandwidth to memory.
    Mb,
}

/// What each cache gives, by the cache's number.
pub type Shares = BTreeMap<u32, u64>;

/// The lines of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata(pub BTreeMap<Resource, Shares>);

// === impl Resource ===

impl Resource {
    pub const ALL: &[Self] = &[Self::L3, Self::L3Code, Self::L3Data, Self::Mb];

    /// Its name in `schemata`, and that of its folder in `info`.
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "L3",
            Self::L3Code => "L3CODE",
            Self::L3Data => "L3DATA",
            Self::Mb => "MB",
        }
    }

    fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|resource| resource.name() == name)
    }

    fn parse(self, value: &str) -> Option<u64> {
        match self {
            Self::Mb => value.parse().ok(),
            Self::L3 | Self::L3Code | Self::L3Data => u64::from_str_radix(value, 16).ok(),
        }
    }
}

// === impl Schemata ===

impl Schemata {
    /// Reads what the kernel shows. Lines of resources that are not ours are left out; `None` if one
    /// of ours is not in the format.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, values) = line.split_once(':')?;
            let Some(resource) = Resource::named(name.trim()) else {
                continue;
            };
            let values = values.trim().split(';').filter(|value| !value.is_empty());
            let share = |value: &str| {
                let (cache, share) = value.split_once('=')?;
                Some((cache.trim().parse().ok()?, resource.parse(share.trim())?))
            };
            lines.insert(resource, values.map(share).collect::<Option<Shares>>()?);
        }
        Some(Self(lines))
    }

    /// What of these shares a group does not have, as far as the kernel knows resource and cache.
    #[must_use]
    pub fn beyond(&self, held: &Self) -> Self {
        let differing = |(resource, shares): (&Resource, &Shares)| {
            let held = held.0.get(resource)?;
            let shares = shares.iter().filter(|(cache, share)| {
                let held = held.get(cache);
                held.is_some_and(|held| held != *share)
            });
            let shares: Shares = shares.map(|(cache, share)| (*cache, *share)).collect();
            (!shares.is_empty()).then_some((*resource, shares))
        };
        Self(self.0.iter().filter_map(differing).collect())
    }

    /// The same without the lines of other resources than these.
    pub(super) fn of_resources(&self, these: &Self) -> Self {
        let lines = self.0.iter();
        let lines = lines.filter(|(resource, _)| these.0.contains_key(resource));
        let owned = lines.map(|(resource, shares)| (*resource, shares.clone()));
        Self(owned.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (resource, shares) in &self.0 {
            write!(f, "{}:", resource.name())?;
            for (index, (cache, share)) in shares.iter().enumerate() {
                let separator = if index == 0 { "" } else { ";" };
                match resource {
                    Resource::Mb => write!(f, "{separator}{cache}={share}")?,
                    _ => write!(f, "{separator}{cache}={share:x}")?,
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemata(lines: &[(Resource, &[(u32, u64)])]) -> Schemata {
        let lines = lines.iter();
        Schemata(
            lines
                .map(|(resource, shares)| (*resource, shares.iter().copied().collect()))
                .collect(),
        )
    }

    #[test]
    fn what_kernels_show_is_read() {
        // As 6.1 shows two sockets, with MB aligned to L3, and with code and data apart.
        let plain = "    MB:0=100;1= 50\n    L3:0=7ff;1=00f\n";
        let expected = schemata(&[
            (Resource::Mb, &[(0, 100), (1, 50)]),
            (Resource::L3, &[(0, 0x7ff), (1, 0xf)]),
        ]);
        assert_eq!(Schemata::parse(plain), Some(expected));
        let apart = "L3CODE:0=7ff\nL3DATA:0=001\nSMBA:0=2048\n";
        let expected = schemata(&[
            (Resource::L3Code, &[(0, 0x7ff)]),
            (Resource::L3Data, &[(0, 1)]),
        ]);
        assert_eq!(Schemata::parse(apart), Some(expected));
    }

    #[test]
    fn what_is_no_schemata_is_refused() {
        for text in ["L3", "L3:0", "L3:a=1", "L3:0=xyz", "MB:0=ff", "L3:0=-1"] {
            assert_eq!(Schemata::parse(text), None, "{text}");
        }
        assert_eq!(Schemata::parse("\n"), Some(Schemata::default()));
    }

    #[test]
    fn what_is_written_is_what_kernels_read() {
        let text = schemata(&[
            (Resource::L3, &[(0, 0x3c), (1, 0x7ff)]),
            (Resource::Mb, &[(0, 30), (1, 100)]),
        ]);
        assert_eq!(text.to_string(), "L3:0=3c;1=7ff\nMB:0=30;1=100\n");
    }

    #[test]
    fn only_what_differs_and_is_there_is_left_to_write() {
        let held = schemata(&[
            (Resource::L3, &[(0, 0x7ff), (1, 0x7ff)]),
            (Resource::Mb, &[(0, 100)]),
        ]);
        let wanted = schemata(&[
            (Resource::L3, &[(0, 0x7ff), (1, 0xf), (2, 0xf)]),
            (Resource::L3Data, &[(0, 1)]),
            (Resource::Mb, &[(0, 100)]),
        ]);
        let expected = schemata(&[(Resource::L3, &[(1, 0xf)])]);
        assert_eq!(wanted.beyond(&held), expected);
        assert!(held.beyond(&held).is_empty());
    }
}
