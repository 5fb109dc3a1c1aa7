//! What groups had before our first values, noted on the groups themselves: so it comes back after a
//! restart too, and goes with its group.
//!
//! One note has all settings of a group, a line each: the setting, what was there before, what we wrote
//! last, and the value of ours that this replaced, if one did. By these it is known whether a value is ours
//! still: a note is made before the write, so whoever finds it after a kill does not know which of the two
//! is there. The older one stays in it until the next note, because to take it out is a write too.

use super::{Cgroups, Generation, Note, ReadError, table};
use koord_model::{
    CgroupPath, CpuQuota, CpuShares, CpuWeight, CpusetCpus, MemoryLimit, Setting, Value,
};
use std::{collections::BTreeSet, io, ops::RangeInclusive};
use tracing::{debug, warn};

/// A setting of ours in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    pub before: Before,
    /// What we wrote last, or are writing.
    pub ours: Value,
    /// What of ours it replaces: that may be there still.
    pub former: Option<Value>,
}

/// What was there before us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    Value(Value),
    /// The group was not idle and had these shares, which the kernel forgot; `None` if they could not be
    /// read.
    Awake {
        shares: Option<Value>,
    },
}

/// The note that all of it is in.
const NOTE: Note = Note::Originals;

/// The quotas that there are, each counted for 100 ms.
const QUOTAS_US: RangeInclusive<u64> = CpuQuota::MIN_MICROS / 10..=CpuQuota::MAX_MICROS * 100;

/// In the place of a value that cannot be known.
const UNKNOWN: &str = "?";

// === impl Original ===

impl Original {
    /// Of a first value of ours.
    pub fn new(before: Before, ours: Value) -> Self {
        Self {
            before,
            ours,
            former: None,
        }
    }

    /// Every value that is there by us, the likeliest first: also what a set of CPUs is on its way from one
    /// to the next, see [`apply`](Cgroups::apply).
    pub fn ours(&self) -> impl Iterator<Item = Value> + use<> {
        let (ours, former) = (self.ours.clone(), self.former.clone());
        let replaced = [former.clone(), Some(self.before.value())];
        let on_the_way = replaced.into_iter().flatten().filter_map({
            let ours = ours.clone();
            move |old| table::widened(&old, &ours).filter(|it| *it != ours)
        });
        [Some(ours), former].into_iter().flatten().chain(on_the_way)
    }

    pub fn setting(&self) -> Setting {
        self.ours.setting()
    }
}

// === impl Before ===

impl Before {
    /// The value that would have it so again.
    pub fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Awake { .. } => Value::CpuIdle(false),
        }
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// What is noted on a group; nothing if nothing is. A line of a setting that we do not know is another
    /// version's and passed over. So is one whose values no file takes: it is nobody's of ours, and what it
    /// says to be there before us would be refused each time.
    ///
    /// # Errors
    ///
    /// When it cannot be read now.
    pub fn originals(&self, at: &CgroupPath) -> Result<Vec<Original>, ReadError> {
        let noted = self.tree.note(self.any_controller(), at, NOTE);
        match noted {
            Ok(text) => Ok(self.read_lines(at, &text)),
            // A group that takes no notes of values.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
            Err(source) => Err(self.unreadable(at, None, NOTE.name(), source)),
        }
    }

    /// Notes this on a group in the place of what was. Whether there is nothing more to be done: of a group that
    /// takes no such notes nothing is known after a restart, and what cannot be noted now may be later.
    pub fn note_originals(&self, at: &CgroupPath, originals: &[Original]) -> bool {
        let lines = originals.iter().filter_map(|it| self.line(it));
        let text: String = lines.collect();
        let noted = self.tree.set_note(self.any_controller(), at, NOTE, &text);
        match noted {
            Ok(()) => true,
            Err(error) => {
                debug!(cgroup = %at, %error, "what was there before cannot be noted");
                error.kind() == io::ErrorKind::Unsupported
            }
        }
    }

    /// Whether a group has these shares that nobody has given any, or that is idle no more, for which the
    /// kernel forgets what it had (`sched_group_set_idle` of Linux 5.15).
    pub fn is_kernels_default(&self, shares: CpuShares) -> bool {
        match self.generation(Setting::CpuShares) {
            Some(Generation::V2) => self.terms().curve.weight(shares) == CpuWeight::DEFAULT,
            _ => shares == CpuShares::DEFAULT,
        }
    }

    fn read_lines(&self, at: &CgroupPath, text: &str) -> Vec<Original> {
        let (mut originals, mut odd) = (Vec::new(), BTreeSet::new());
        for line in text.lines() {
            let (name, values) = line.split_once(' ').unwrap_or((line, ""));
            let Some(setting) = Setting::ALL.iter().find(|it| it.name() == name) else {
                continue;
            };
            match self.original(*setting, values) {
                Some(original) => originals.push(original),
                None => {
                    odd.insert(setting.name());
                }
            }
        }
        if !odd.is_empty() {
            let settings = Vec::from_iter(odd).join(", ");
            warn!(cgroup = %at, settings, "what is noted of these was noted by others, and is passed over");
        }
        originals
    }

    fn line(&self, original: &Original) -> Option<String> {
        let setting = original.setting();
        let before = match &original.before {
            Before::Value(value) => self.word(value)?,
            Before::Awake { shares: None } => UNKNOWN.to_owned(),
            Before::Awake {
                shares: Some(shares),
            } => self.word(shares)?,
        };
        let ours = self.word(&original.ours)?;
        let former = original.former.as_ref().and_then(|it| self.word(it));
        let former = former.map_or_else(String::new, |word| format!(" {word}"));
        Some(format!("{setting} {before} {ours}{former}\n"))
    }

    fn original(&self, setting: Setting, values: &str) -> Option<Original> {
        let mut words = values.split(' ');
        let (before, ours) = (words.next()?, words.next()?);
        let former = words.next().and_then(|it| self.of_word(setting, it));
        let ours = self.of_word(setting, ours)?;
        let before = match (&ours, before) {
            (Value::CpuIdle(true), UNKNOWN) => Before::Awake { shares: None },
            (Value::CpuIdle(true), shares) => Before::Awake {
                shares: Some(self.of_word(Setting::CpuShares, shares)?),
            },
            (_, value) => Before::Value(self.of_word(setting, value)?),
        };
        Some(Original {
            former,
            ..Original::new(before, ours)
        })
    }

    /// A value as its file shows it, which is a word for all that are noted.
    fn word(&self, value: &Value) -> Option<String> {
        let generation = self.generation(value.setting())?;
        Some(match value {
            Value::MemoryLimit(MemoryLimit::Unlimited) => "max".to_owned(),
            Value::CpusetCpus(CpusetCpus::All) => "all".to_owned(),
            Value::CpusetCpus(CpusetCpus::Only(cpus)) if cpus.is_empty() => "none".to_owned(),
            value => Some(table::render(value, generation, self.terms()))
                .filter(|word| !word.is_empty() && !word.contains(char::is_whitespace))?,
        })
    }

    fn of_word(&self, setting: Setting, word: &str) -> Option<Value> {
        let generation: Generation = self.generation(setting)?;
        Some(match (setting, word) {
            (Setting::MemoryLimit, "max") => MemoryLimit::Unlimited.into(),
            (Setting::CpusetCpus, "all") => CpusetCpus::All.into(),
            (Setting::CpusetCpus, "none") => CpusetCpus::Only(Default::default()).into(),
            (setting, word) => table::parse(setting, generation, word, self.terms())
                .filter(|value| self.can_be(value, generation))?,
        })
    }

    /// Whether the kernel may have held a value.
    fn can_be(&self, value: &Value, generation: Generation) -> bool {
        match value {
            // Is noted for a period of 100 ms, and was one of 1 ms to 1 s.
            Value::CpuQuota(CpuQuota::Micros(micros)) => QUOTAS_US.contains(micros),
            value => table::settle(value, generation, self.terms()).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Controller, Tree as _},
        fake::FakeTree,
    };
    use koord_model::{Bvt, CpuBurst};
    use rustix::io::Errno;

    const BOTH: [Generation; 2] = [Generation::V1, Generation::V2];

    fn group(generation: Generation) -> (FakeTree, Cgroups, CgroupPath) {
        let tree = FakeTree::new(generation, 4);
        let at = CgroupPath::parse("kubepods/pod1").unwrap();
        tree.make(&at);
        (tree.clone(), Cgroups::over(tree), at)
    }

    fn value(before: impl Into<Value>, ours: impl Into<Value>) -> Original {
        Original::new(Before::Value(before.into()), ours.into())
    }

    fn idle(shares: Option<u32>) -> Original {
        let shares = shares.map(|it| CpuShares::new(it.into()).unwrap().into());
        Original::new(Before::Awake { shares }, Value::CpuIdle(true))
    }

    fn of_every_kind() -> Vec<Original> {
        let cpus = |text: &str| CpusetCpus::Only(text.parse().unwrap());
        let high = Value::MemoryHigh;
        vec![
            value(CpuQuota::Unlimited, CpuQuota::Micros(50_000)),
            value(CpuBurst::NONE, CpuBurst::from_micros(20_000).unwrap()),
            value(CpusetCpus::All, cpus("0-1,3")),
            value(cpus(""), cpus("0")),
            value(MemoryLimit::Unlimited, MemoryLimit::Bytes(1 << 30)),
            value(
                high(MemoryLimit::Unlimited),
                high(MemoryLimit::Bytes(1 << 29)),
            ),
            value(Bvt::default(), Bvt::new(-1).unwrap()),
            // The least weight is the least shares by each curve.
            value(CpuShares::MIN, CpuShares::MIN),
            idle(Some(2)),
            idle(None),
        ]
    }

    #[test]
    fn what_is_noted_of_a_group_is_read_again() {
        for generation in BOTH {
            let (_, cgroups, at) = group(generation);
            assert_eq!(cgroups.originals(&at).unwrap(), []);
            cgroups.note_originals(&at, &of_every_kind());
            assert_eq!(cgroups.originals(&at).unwrap(), of_every_kind());
            cgroups.note_originals(&at, &[]);
            assert_eq!(cgroups.originals(&at).unwrap(), []);
        }
    }

    #[test]
    fn the_note_has_a_line_for_each_setting_in_the_words_of_its_file() {
        let (tree, cgroups, at) = group(Generation::V1);
        let noted = || tree.note(Controller::Cpu, &at, NOTE).unwrap();
        cgroups.note_originals(&at, &of_every_kind());
        assert_eq!(
            noted(),
            "cpu.cfs_quota_us -1 50000\ncpu.cfs_burst_us 0 20000\ncpuset.cpus all 0-1,3\n\
             cpuset.cpus none 0\nmemory.limit_in_bytes max 1073741824\n\
             memory.high max 536870912\ncpu.bvt_warp_ns 0 -1\ncpu.shares 2 2\ncpu.idle 2 1\n\
             cpu.idle ? 1\n"
        );
        cgroups.note_originals(&at, &[]);
        assert_eq!(noted(), "");
    }

    #[test]
    fn while_a_write_is_under_way_the_value_that_it_replaces_is_ours_too() {
        let quota = |micros| Value::from(CpuQuota::Micros(micros));
        for generation in BOTH {
            let (tree, cgroups, at) = group(generation);
            let first = value(CpuQuota::Micros(30_000), CpuQuota::Micros(70_000));
            let next = Original {
                former: Some(quota(50_000)),
                ..first.clone()
            };
            for (original, note, ours) in [
                (first, "cpu.cfs_quota_us 30000 70000\n", vec![quota(70_000)]),
                (
                    next,
                    "cpu.cfs_quota_us 30000 70000 50000\n",
                    vec![quota(70_000), quota(50_000)],
                ),
            ] {
                assert!(original.ours().eq(ours));
                let original = [original];
                cgroups.note_originals(&at, &original);
                assert_eq!(tree.note(Controller::Cpu, &at, NOTE).unwrap(), note);
                assert_eq!(cgroups.originals(&at).unwrap(), original);
            }
        }
    }

    #[test]
    fn what_a_set_of_cpus_is_on_its_way_is_ours_too() {
        let cpus = |text: &str| Value::from(CpusetCpus::Only(text.parse().unwrap()));
        let all = |before: &str, ours: &str, former: Option<&str>| -> Vec<String> {
            let original = Original {
                former: former.map(cpus),
                ..value(cpus(before), cpus(ours))
            };
            original.ours().map(|it| it.to_string()).collect()
        };
        // Within what was there it is written at once.
        assert_eq!(all("0-3", "0-1", None), ["0-1"]);
        assert_eq!(all("0-1", "2-3", None), ["2-3", "0-3"]);
        assert_eq!(all("0-3", "1-2", Some("0-1")), ["1-2", "0-1", "0-2"]);
    }

    #[test]
    fn lines_that_are_not_in_the_format_are_passed_over() {
        let (tree, cgroups, at) = group(Generation::V1);
        let text =
            "cpu.new 1 2\ncpu.shares\ncpu.shares 2\ncpu.shares x 2\n\ncpu.shares 512 2 later\n";
        tree.set_note(Controller::Cpu, &at, NOTE, text).unwrap();
        let shares = CpuShares::new(512).unwrap();
        assert_eq!(
            cgroups.originals(&at).unwrap(),
            [value(shares, CpuShares::MIN)]
        );
    }

    #[test]
    fn lines_whose_values_no_file_takes_are_passed_over() {
        for (generation, line) in [
            (Generation::V1, "cpu.shares 0 512"),
            (Generation::V1, "cpu.shares 1024 999999999"),
            (Generation::V1, "cpu.idle 999999999 1"),
            // 1 ms of each second is 100 µs of 100 ms.
            (Generation::V1, "cpu.cfs_quota_us 99 50000"),
            (Generation::V1, "cpu.cfs_quota_us 1759218604441501 50000"),
            (Generation::V1, "cpu.cfs_burst_us 17592186044416 0"),
            // Less than a page.
            (Generation::V1, "memory.limit_in_bytes 0 1073741824"),
            (Generation::V1, "memory.limit_in_bytes max 4095"),
            (Generation::V2, "cpu.shares 0 20"),
            (Generation::V2, "cpu.shares 10001 20"),
        ] {
            let (tree, cgroups, at) = group(generation);
            let text = format!("{line}\ncpu.cfs_quota_us 100 1759218604441500\n");
            tree.set_note(Controller::Cpu, &at, NOTE, &text).unwrap();
            let micros = CpuQuota::Micros;
            let expected = value(micros(100), micros(1_759_218_604_441_500));
            assert_eq!(cgroups.originals(&at).unwrap(), [expected], "{line}");
        }
    }

    #[test]
    fn what_is_noted_on_a_group_that_others_may_write_to_is_not_believed() {
        let (tree, cgroups, at) = group(Generation::V2);
        assert!(cgroups.note_originals(&at, &of_every_kind()));
        tree.give_away(&at);
        assert_eq!(cgroups.originals(&at).unwrap(), []);
        let refused = tree.set_note(Controller::Cpu, &at, NOTE, "cpu.shares 512 2\n");
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(
            cgroups.note_originals(&at, &of_every_kind()),
            "nothing is owed"
        );
    }

    #[test]
    fn that_a_note_cannot_be_read_now_is_no_answer_and_that_none_is_taken_is() {
        let (tree, cgroups, at) = group(Generation::V2);
        tree.fail_notes(Some(Errno::IO));
        assert!(cgroups.originals(&at).is_err());
        let (_, cgroups, at) = {
            let tree = FakeTree::new(Generation::V2, 4).without_notes();
            let at = CgroupPath::parse("kubepods/pod1").unwrap();
            tree.make(&at);
            (tree.clone(), Cgroups::over(tree), at)
        };
        cgroups.note_originals(&at, &of_every_kind());
        assert_eq!(cgroups.originals(&at).unwrap(), []);
    }
}
