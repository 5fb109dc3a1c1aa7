//! Which events a plugin asks for, and which its runtime knows.

use super::{ConfigureRequest, ConfigureResponse, Event};

/// A set of events. Never say 0 to a runtime: it means every event there is, those to come included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventMask(i32);

/// The first version that knows `UPDATE_POD_SANDBOX` and what comes after it: of NRI, and of each
/// runtime.
const WIDER: [(&str, (u32, u32)); 2] = [("containerd", (2, 2)), ("cri-o", (1, 34))];
const WIDER_NRI: (u32, u32) = (0, 10);

// === impl EventMask ===

impl EventMask {
    /// Every event before NRI 0.10.
    const OLD: Self = Self(0x07ff);
    /// Every event since.
    const ALL: Self = Self(0x3fff);

    /// The set of these events.
    pub fn of(events: &[Event]) -> Self {
        let bit = |event: &Event| match *event {
            Event::Unknown => 0,
            event => 1 << (i32::from(event) - 1),
        };
        Self(events.iter().map(bit).fold(0, |mask, bit| mask | bit))
    }

    /// What the runtime that sent `request` knows. A bit that it does not know makes it close the
    /// plugin, so one whose version cannot be read is held for an old one.
    pub fn known_to(request: &ConfigureRequest) -> Self {
        // A build that does not know which it has says "0.0.0-unknown", and of a fork a date.
        let told = major_and_minor(&request.nri_version).filter(|version| *version > (0, 0));
        let wider = if let Some(version) = told {
            version >= WIDER_NRI
        } else {
            let least = WIDER.iter().find(|(name, _)| *name == request.runtime_name);
            let version = major_and_minor(&request.runtime_version);
            version.is_some_and(|version| least.is_some_and(|(_, least)| version >= *least))
        };
        if wider { Self::ALL } else { Self::OLD }
    }

    /// The events that both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn contains(self, event: Event) -> bool {
        self.and(Self::of(&[event])) != Self(0)
    }

    /// The answer to Configure. `None` for the empty set, which no answer can say.
    pub fn to_response(self) -> Option<ConfigureResponse> {
        let Self(events) = self;
        (events != 0).then_some(ConfigureResponse { events })
    }
}

/// The first two numbers of a version, which may begin with a `v` and go on in any way.
fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(runtime_name: &str, runtime_version: &str, nri_version: &str) -> EventMask {
        EventMask::known_to(&ConfigureRequest {
            runtime_name: runtime_name.to_owned(),
            runtime_version: runtime_version.to_owned(),
            nri_version: nri_version.to_owned(),
            ..ConfigureRequest::default()
        })
    }

    #[test]
    fn an_event_is_the_bit_before_its_number() {
        let mask = EventMask::of(&[Event::RunPodSandbox, Event::CreateContainer, Event::Unknown]);
        let events = mask.to_response().map(|response| response.events);
        assert_eq!(events, Some(0b1001));
        let last = EventMask::of(&[Event::ValidateContainerAdjustment]);
        assert_eq!(last.to_response().unwrap().events, 0x2000);
        assert!(mask.contains(Event::CreateContainer));
        assert!(!mask.contains(Event::StopPodSandbox));
        assert!(!mask.contains(Event::Unknown));
    }

    #[test]
    fn a_runtime_knows_the_events_of_its_version() {
        for (name, version, nri, events) in [
            ("containerd", "v1.7.24", "", 0x07ff),
            ("containerd", "1.7.24~ds1", "", 0x07ff),
            ("containerd", "v2.1.4", "", 0x07ff),
            ("containerd", "v2.2.0", "", 0x3fff),
            ("containerd", "2.2.0-rc.1", "", 0x3fff),
            ("containerd", "v3.0", "", 0x3fff),
            ("cri-o", "1.33.5", "", 0x07ff),
            ("cri-o", "1.34.0", "", 0x3fff),
            ("containerd", "v2.3.1", "0.12.0", 0x3fff),
            ("containerd", "2.3.1+unknown", "v0.12.0", 0x3fff),
            // What the runtime says of NRI itself goes before what its version tells.
            ("containerd", "v2.3.1", "v0.9.0", 0x07ff),
            ("some", "v9.9.9", "v0.10.0", 0x3fff),
            ("some", "v9.9.9", "", 0x07ff),
            ("containerd", "unknown", "", 0x07ff),
            ("containerd", "", "", 0x07ff),
            ("containerd", "v2", "", 0x07ff),
            // Where that is nothing, that version counts.
            ("containerd", "v2.3.7", "0.0.0-unknown", 0x3fff),
            (
                "containerd",
                "v2.3.7",
                "v0.0.0-20260101000000-0123456789ab",
                0x3fff,
            ),
            ("containerd", "v2.1.4", "0.0.0-unknown", 0x07ff),
            ("containerd", "v9.9.9", "devel", 0x3fff),
            ("some", "v9.9.9", "devel", 0x07ff),
        ] {
            let mask = known(name, version, nri);
            assert_eq!(mask, EventMask(events), "{name} {version} {nri}");
        }
    }

    #[test]
    fn what_the_runtime_does_not_know_is_not_asked_for() {
        let wanted = EventMask::of(&[Event::RunPodSandbox, Event::UpdatePodSandbox]);
        let old = wanted.and(known("containerd", "v1.7.0", ""));
        assert_eq!(old, EventMask::of(&[Event::RunPodSandbox]));
        let new = wanted.and(known("containerd", "v2.2.0", ""));
        assert_eq!(new, wanted);
    }

    #[test]
    fn no_event_is_no_answer() {
        assert_eq!(EventMask::of(&[]).to_response(), None);
    }
}
