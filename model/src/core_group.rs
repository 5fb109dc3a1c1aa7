//! Groups of pods whose threads may run on one core at the same time.

use crate::{PodUid, excerpt};
use std::{fmt, sync::Arc};

/// With whom a pod may share a core.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CoreGroup {
    /// With whoever belongs to no group either.
    None,
    /// With pods that name the same group, which may be the one without a name, and whose class
    /// expels others as much.
    Shared { id: Arc<str>, expeller: bool },
    /// With nobody.
    Exclusive(PodUid),
}

// === impl CoreGroup ===

impl fmt::Display for CoreGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Shared { id, expeller } => {
                let shown = excerpt(id);
                let more = if shown.len() < id.len() { "…" } else { "" };
                let expeller = if *expeller { "-expeller" } else { "" };
                write!(f, "group {shown:?}{more}{expeller}")
            }
            Self::Exclusive(pod) => write!(f, "pod {pod} alone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_apart_by_all_that_makes_them() {
        let shared = |id: &str, expeller| CoreGroup::Shared {
            id: id.into(),
            expeller,
        };
        let pod = CoreGroup::Exclusive(PodUid::new("a").unwrap());
        let shown = |group: &CoreGroup| group.to_string();
        assert_eq!(shown(&CoreGroup::None), "none");
        assert_eq!(shown(&shared("", false)), "group \"\"");
        assert_eq!(shown(&shared("a", true)), "group \"a\"-expeller");
        assert_eq!(shown(&pod), "pod a alone");
        let long = format!("group \"{}\"…", "x".repeat(64));
        assert_eq!(shown(&shared(&"x".repeat(24 << 10), false)), long);
        // Upstream knows both by one name.
        assert_ne!(shared("a-expeller", false), shared("a", true));
        assert_ne!(shared("a", false), pod);
    }
}
