//! The calls that the CRI front opens, and the one that a stop does not wait for. Everything else
//! passes as frames and is never looked at.

use koord_relay::{Claims, Tag};
use std::fmt;

/// The CRI versions whose calls are claimed. Their messages have the same field numbers.
const PACKAGES: [&str; 2] = ["runtime.v1", "runtime.v1alpha2"];

/// The one stream of CRI that the runtime never ends. Only v1 has it.
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

/// A claimed method of the runtime service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    UpdateContainerResources,
    UpdatePodSandboxResources,
}

// === impl Method ===

impl Method {
    pub const ALL: [Self; 9] = [
        Self::RunPodSandbox,
        Self::StopPodSandbox,
        Self::RemovePodSandbox,
        Self::CreateContainer,
        Self::StartContainer,
        Self::StopContainer,
        Self::RemoveContainer,
        Self::UpdateContainerResources,
        Self::UpdatePodSandboxResources,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::RunPodSandbox => "RunPodSandbox",
            Self::StopPodSandbox => "StopPodSandbox",
            Self::RemovePodSandbox => "RemovePodSandbox",
            Self::CreateContainer => "CreateContainer",
            Self::StartContainer => "StartContainer",
            Self::StopContainer => "StopContainer",
            Self::RemoveContainer => "RemoveContainer",
            Self::UpdateContainerResources => "UpdateContainerResources",
            Self::UpdatePodSandboxResources => "UpdatePodSandboxResources",
        }
    }

    /// Whether hooks have a say in it, or in what is written before it goes on; all others tell what becomes
    /// of pods and containers.
    pub(crate) fn is_decided_about(self) -> bool {
        matches!(
            self,
            Self::RunPodSandbox
                | Self::CreateContainer
                | Self::StartContainer
                | Self::UpdateContainerResources
                | Self::UpdatePodSandboxResources
        )
    }

    /// The table for the relay: what never ends, and with hooks every claimed path.
    pub(super) fn claims(hooks: bool) -> Claims {
        let claimed = hooks.then(Self::claimed).into_iter().flatten();
        Claims::new(claimed)
            .with_endless([EVENTS])
            .with_announcement(Self::UpdatePodSandboxResources.tag())
    }

    /// Every claimed path of every CRI version.
    fn claimed() -> impl Iterator<Item = (String, Tag)> {
        PACKAGES.into_iter().flat_map(|package| {
            Self::ALL.into_iter().map(move |method| {
                let path = format!("/{package}.RuntimeService/{}", method.name());
                (path, method.tag())
            })
        })
    }

    fn tag(self) -> Tag {
        Tag(self as u16)
    }

    /// The method that [`claims`](Self::claims) gave this tag.
    pub fn of(tag: Tag) -> Option<Self> {
        Self::ALL.get(usize::from(tag.0)).copied()
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_lead_back_to_their_method() {
        assert_eq!(Method::of(Tag(0)), Some(Method::RunPodSandbox));
        assert_eq!(Method::of(Tag(8)), Some(Method::UpdatePodSandboxResources));
        assert_eq!(Method::of(Tag(9)), None);
    }
    #[test]
    fn the_calls_of_both_versions_are_claimed_by_their_paths() {
        let claimed: Vec<(String, Tag)> = Method::claimed().collect();
        let claimed: Vec<(&str, u16)> =
            claimed.iter().map(|(path, tag)| (&**path, tag.0)).collect();
        assert_eq!(
            claimed,
            [
                ("/runtime.v1.RuntimeService/RunPodSandbox", 0),
                ("/runtime.v1.RuntimeService/StopPodSandbox", 1),
                ("/runtime.v1.RuntimeService/RemovePodSandbox", 2),
                ("/runtime.v1.RuntimeService/CreateContainer", 3),
                ("/runtime.v1.RuntimeService/StartContainer", 4),
                ("/runtime.v1.RuntimeService/StopContainer", 5),
                ("/runtime.v1.RuntimeService/RemoveContainer", 6),
                ("/runtime.v1.RuntimeService/UpdateContainerResources", 7),
                ("/runtime.v1.RuntimeService/UpdatePodSandboxResources", 8),
                ("/runtime.v1alpha2.RuntimeService/RunPodSandbox", 0),
                ("/runtime.v1alpha2.RuntimeService/StopPodSandbox", 1),
                ("/runtime.v1alpha2.RuntimeService/RemovePodSandbox", 2),
                ("/runtime.v1alpha2.RuntimeService/CreateContainer", 3),
                ("/runtime.v1alpha2.RuntimeService/StartContainer", 4),
                ("/runtime.v1alpha2.RuntimeService/StopContainer", 5),
                ("/runtime.v1alpha2.RuntimeService/RemoveContainer", 6),
                (
                    "/runtime.v1alpha2.RuntimeService/UpdateContainerResources",
                    7
                ),
                (
                    "/runtime.v1alpha2.RuntimeService/UpdatePodSandboxResources",
                    8
                ),
            ]
        );
    }
}
