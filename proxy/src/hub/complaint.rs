//! Which complaints about pods and the node are written to the log, and which are held back.
//!
//! A pod is decided about several times and complained about once; so is the node, once for each
//! policy. A pod author can cause as many complaints as they like, so the rate of each kind is
//! limited. Only what was written counts as said: a line that was held back comes when the pod is
//! decided about again and there is room.

use crate::log::RateLimited;
use koord_model::PodUid;
use std::{collections::HashSet, time::Instant};

/// Complaints that are remembered; with more pods in trouble some lines come again.
const MAX_SAID: usize = 1024;

/// What was complained about, and how often.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    rate: RateLimited,
    /// Pod (none is the node), hook, key.
    said: HashSet<(Option<PodUid>, &'static str, &'static str)>,
}

// === impl Complaints ===

impl Complaints {
    /// Whether a line about what this hook found in this key of the pod, or without one of the
    /// node's policy, is written at `now`; if so, how many of its kind were held back since the
    /// last one.
    pub(super) fn about(
        &mut self,
        pod: Option<&PodUid>,
        hook: &'static str,
        key: &'static str,
        now: Instant,
    ) -> Option<u64> {
        let complaint = (pod.cloned(), hook, key);
        if self.said.contains(&complaint) {
            return None;
        }
        let suppressed = self.rate.permit(hook, key, now)?;
        if self.said.len() >= MAX_SAID {
            self.said.clear();
        }
        self.said.insert(complaint);
        Some(suppressed)
    }

    /// There is another policy, and what is wrong with it has not been said.
    pub(super) fn forget_node(&mut self) {
        self.said.retain(|(pod, ..)| pod.is_some());
    }

    /// Whether a line about this owner and setting, of whatever pod, is written at `now`; if so, how
    /// many of its kind were held back since the last one.
    pub(super) fn permit(
        &mut self,
        owner: &'static str,
        setting: &'static str,
        now: Instant,
    ) -> Option<u64> {
        self.rate.permit(owner, setting, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn uid(number: usize) -> PodUid {
        PodUid::new(&format!("uid-{number}")).unwrap()
    }

    #[test]
    fn a_pod_is_complained_about_once_and_the_second_look_costs_nobody_a_line() {
        let mut complaints = Complaints::default();
        let now = Instant::now();
        let mut about = |pod| complaints.about(Some(&uid(pod)), "Hook", "key", now);
        assert_eq!(about(1), Some(0));
        for _ in 0..10 {
            assert_eq!(about(1), None);
        }
        // Four of five lines are left.
        assert_eq!([2, 3, 4, 5].map(about), [Some(0); 4]);
    }

    #[test]
    fn a_line_that_was_held_back_comes_when_there_is_room() {
        let mut complaints = Complaints::default();
        let start = Instant::now();
        for pod in 1..=5 {
            assert_eq!(
                complaints.about(Some(&uid(pod)), "Hook", "key", start),
                Some(0)
            );
        }
        assert_eq!(complaints.about(Some(&uid(6)), "Hook", "key", start), None);
        assert_eq!(complaints.about(Some(&uid(7)), "Hook", "key", start), None);
        let later = start + Duration::from_secs(10);
        assert_eq!(
            complaints.about(Some(&uid(6)), "Hook", "key", later),
            Some(2)
        );
        assert_eq!(complaints.about(Some(&uid(6)), "Hook", "key", later), None);
        assert_eq!(complaints.about(Some(&uid(7)), "Hook", "key", later), None);
        let last = later + Duration::from_secs(10);
        assert_eq!(
            complaints.about(Some(&uid(7)), "Hook", "key", last),
            Some(1)
        );
    }

    #[test]
    fn the_node_is_complained_about_once_for_each_policy() {
        let mut complaints = Complaints::default();
        let now = Instant::now();
        assert_eq!(complaints.about(Some(&uid(1)), "Hook", "key", now), Some(0));
        assert_eq!(complaints.about(None, "Hook", "key", now), Some(0));
        assert_eq!(complaints.about(None, "Hook", "key", now), None);
        complaints.forget_node();
        assert_eq!(complaints.about(None, "Hook", "key", now), Some(0));
        assert_eq!(complaints.about(Some(&uid(1)), "Hook", "key", now), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut complaints = Complaints::default();
        let mut now = Instant::now();
        for pod in 0..3 * MAX_SAID {
            now += Duration::from_secs(10);
            assert!(
                complaints
                    .about(Some(&uid(pod)), "Hook", "key", now)
                    .is_some()
            );
            assert!(complaints.said.len() <= 1024);
        }
    }
}
