//! Who else writes a setting, and what comes of it when they do.
//!
//! Kubelet, runtime and systemd write files of their own right and do not look at what is there.
//! They are written over again, with growing pauses when it goes on. Whoever else writes what we
//! have written means it, and two that mean it fight for ever: after three rounds within a minute
//! the setting is theirs for ten minutes, or until the policy changes.

use koord_model::{
    CgroupPath,
    Setting::{
        self, CpuIdle, CpuQuota, CpuShares, CpusetCpus, IoReadBps, IoReadIops, IoWeight,
        IoWriteBps, IoWriteIops, MemoryHigh, MemoryLimit, MemoryLow, MemoryMin, MemoryOomGroup,
    },
};
use std::time::Duration;
use tokio::time::Instant;

/// Rounds that are fought within [`SPELL`] before one stands back.
const ROUNDS: usize = 3;
const SPELL: Duration = Duration::from_secs(60);
/// How long a setting is left to a writer that nobody knows.
const TRUCE: Duration = Duration::from_secs(600);
/// Pauses double from this on, and are never longer than [`SPELL`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// Whose directory a control group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The root of all control groups.
    Root,
    Tier,
    Pod,
    /// A container's, or that of a sandbox.
    Container,
    HostApplication,
}

/// A writer beside us that a setting legitimately has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    Kubelet,
    Runtime,
    Systemd,
}

/// What each writes where, of the settings that are ours too.
const WRITERS: &[(Rival, &[Scope], &[Setting])] = &[
    (
        Rival::Kubelet,
        &[Scope::Tier, Scope::Pod],
        &[CpuShares, CpuQuota, MemoryLimit, MemoryMin, MemoryLow],
    ),
    (
        Rival::Runtime,
        &[Scope::Container],
        &[
            CpuShares,
            CpuQuota,
            CpusetCpus,
            MemoryLimit,
            MemoryMin,
            MemoryLow,
            MemoryHigh,
            MemoryOomGroup,
        ],
    ),
];

/// What systemd has properties for, and writes in its units when it loads them anew. Idleness is a
/// value of its `CPUWeight`.
const OF_UNITS: &[Setting] = &[
    CpuShares,
    CpuQuota,
    CpusetCpus,
    MemoryLimit,
    MemoryMin,
    MemoryLow,
    MemoryHigh,
    MemoryOomGroup,
    CpuIdle,
    IoReadBps,
    IoWriteBps,
    IoReadIops,
    IoWriteIops,
    IoWeight,
];

/// How often somebody else has written over a setting of ours, and until when we stand back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contest {
    /// The last rounds, oldest first.
    rounds: [Option<Instant>; ROUNDS],
    /// Pauses in a row.
    pauses: u32,
    pub until: Option<Instant>,
    pub rival: Option<Rival>,
}

// === impl Rival ===

impl Rival {
    /// Who else may write this setting of this directory; `None` if nobody is known to.
    pub fn of(at: &CgroupPath, scope: Scope, setting: Setting) -> Option<Self> {
        let named = WRITERS
            .iter()
            .find(|(_, scopes, settings)| scopes.contains(&scope) && settings.contains(&setting));
        let is_unit = || {
            let kinds = [".slice", ".scope", ".service"];
            let is = |name: &str| kinds.iter().any(|kind| name.ends_with(kind));
            at.file_name().is_some_and(is)
        };
        match named {
            Some((rival, ..)) => Some(*rival),
            None if OF_UNITS.contains(&setting) && is_unit() => Some(Self::Systemd),
            None => None,
        }
    }

    pub fn name(rival: Option<Self>) -> &'static str {
        match rival {
            Some(Self::Kubelet) => "kubelet",
            Some(Self::Runtime) => "runtime",
            Some(Self::Systemd) => "systemd",
            None => "unknown",
        }
    }
}

// === impl Contest ===

impl Contest {
    /// Somebody wrote over our value, and we over theirs.
    pub fn round(&mut self, now: Instant, rival: Option<Rival>) {
        self.rounds.rotate_left(1);
        self.rounds[ROUNDS - 1] = Some(now);
        self.rival = rival;
        let first = self.rounds[0];
        if first.is_none_or(|first| now.duration_since(first) > SPELL) {
            self.pauses = 0;
            return;
        }
        let pause = match rival {
            None => TRUCE,
            Some(_) => SPELL.min(FIRST_PAUSE * 2_u32.saturating_pow(self.pauses)),
        };
        self.pauses += 1;
        self.until = Some(now + pause);
    }

    /// How long we stand back yet.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.checked_duration_since(now);
        left.filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legitimate_writers_are_known_by_place_and_setting() {
        for (at, scope, setting, writer) in [
            ("kubepods", Scope::Tier, CpuShares, "kubelet"),
            ("kubepods", Scope::Tier, Setting::CpuBvt, "unknown"),
            ("kubepods/pod1", Scope::Pod, CpuQuota, "kubelet"),
            ("kubepods", Scope::Tier, MemoryMin, "kubelet"),
            ("kubepods/pod1", Scope::Pod, MemoryOomGroup, "unknown"),
            (
                "a.slice/a-pod1.slice",
                Scope::Pod,
                MemoryOomGroup,
                "systemd",
            ),
            (
                "kubepods/pod1/c",
                Scope::Container,
                MemoryOomGroup,
                "runtime",
            ),
            ("kubepods/pod1", Scope::Pod, CpusetCpus, "unknown"),
            ("kubepods/pod1", Scope::Pod, CpuIdle, "unknown"),
            ("a.slice/a-pod1.slice", Scope::Pod, CpusetCpus, "systemd"),
            ("kubepods/pod1/c", Scope::Container, CpusetCpus, "runtime"),
            ("a.slice/c.scope", Scope::Container, MemoryLimit, "runtime"),
            ("a.slice/a-pod1.slice", Scope::Pod, CpuIdle, "systemd"),
            (
                "a.slice/a-pod1.slice",
                Scope::Pod,
                Setting::CpuBvt,
                "unknown",
            ),
            ("", Scope::Root, Setting::IoCostQos, "unknown"),
            ("kubepods/besteffort", Scope::Tier, IoReadBps, "unknown"),
            ("a.slice/a-be.slice", Scope::Tier, IoReadBps, "systemd"),
            ("host/nginx", Scope::HostApplication, CpusetCpus, "unknown"),
            (
                "system.slice/nginx.service",
                Scope::HostApplication,
                CpusetCpus,
                "systemd",
            ),
        ] {
            let path = CgroupPath::parse(at).unwrap();
            let rival = Rival::of(&path, scope, setting);
            assert_eq!(Rival::name(rival), writer, "{at} {setting}");
        }
    }

    /// How long each of these rounds, by second, makes us stand back.
    fn pauses(rival: Option<Rival>, seconds: &[u64]) -> Vec<u64> {
        let mut contest = Contest::default();
        let start = Instant::now();
        let pause = |second: &u64| {
            let now = start + Duration::from_secs(*second);
            contest.round(now, rival);
            contest.pause(now).unwrap_or_default().as_secs()
        };
        seconds.iter().map(pause).collect()
    }

    #[test]
    fn an_unknown_writer_has_its_way_after_three_rounds_in_a_minute() {
        assert_eq!(pauses(None, &[0, 30, 60]), [0, 0, 600]);
        assert_eq!(pauses(None, &[0, 30, 61, 92, 123]), [0, 0, 0, 0, 0]);
        assert_eq!(
            pauses(None, &[0, 1, 2, 602, 603, 604]),
            [0, 0, 600, 0, 0, 600]
        );
    }

    #[test]
    fn a_legitimate_writer_is_written_over_with_growing_pauses() {
        let kubelet = Some(Rival::Kubelet);
        let rounds = [0, 1, 2, 4, 8, 16, 32, 64, 124, 184];
        let grown = [0, 0, 2, 4, 8, 16, 32, 60, 0, 0];
        assert_eq!(pauses(kubelet, &rounds), grown);
    }
}
