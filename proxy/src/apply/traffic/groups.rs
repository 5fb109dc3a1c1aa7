//! Class ids of control groups, which name the class by which a pod sends (`net_cls.classid`).
//!
//! A pod's own group has it and every group below: what is made there later has that of the group in which
//! it is made, and what was there before has none until it is given one. Ids are ours by the major number
//! of our queues; those of others are left.

use super::shape::{QDISC, Shape};
use koord_kernel::{
    cgroup::{ClassIds, MOST_BELOW, Names, Unseen, Walk, is_of_pod, kube_qos},
    netlink::{NetlinkError, traffic::Handle},
};
use koord_model::CgroupPath;
use std::io;
use thiserror::Error;
use tracing::debug;

/// That of a group that was given none.
const NONE: Handle = Handle::of_number(0);

/// Why pods are not known by their control groups.
#[derive(Debug, Error)]
pub enum GroupsError {
    #[error("packets cannot be told apart by control groups")]
    Filter(#[source] NetlinkError),
    #[error("control group {at} has the class id {id}, which is not ours")]
    Another { at: CgroupPath, id: Handle },
    #[error("class ids cannot be brought in line at control group {at}")]
    Id { at: CgroupPath, source: io::Error },
    #[error("what some groups below control group {at} send is not told apart: {why}")]
    Unseen { at: CgroupPath, why: Unseen },
    #[error("this control group and {} more at least are not as they should be", .more.len())]
    Several {
        #[source]
        first: Box<GroupsError>,
        more: Vec<GroupsError>,
    },
}

/// The class ids of groups, as [`ClassIds`] has them.
pub(super) trait Ids {
    fn of(&self, at: &CgroupPath) -> io::Result<Option<u32>>;
    fn set(&self, at: &CgroupPath, id: u32) -> io::Result<()>;
    fn below(&self, at: &CgroupPath, most: usize) -> io::Result<Names>;
}

// === impl GroupsError ===

impl GroupsError {
    /// What of it concerns a pod with this group: what is of all groups, or of this one, of one below it, or
    /// of one above it.
    pub fn about(&self, group: &CgroupPath) -> Option<&Self> {
        match self {
            Self::Filter(_) => Some(self),
            Self::Another { at, .. } | Self::Id { at, .. } | Self::Unseen { at, .. } => {
                (at.is_under(group) || group.is_under(at)).then_some(self)
            }
            Self::Several { first, more } => {
                let mut more = more.iter();
                let about = first.about(group);
                about.or_else(|| more.find_map(|it| it.about(group)))
            }
        }
    }

    /// All that failed, in its order; `None` if nothing did.
    fn of(failed: Vec<Self>) -> Option<Self> {
        let mut failed = failed.into_iter();
        let first = failed.next()?;
        let more: Vec<Self> = failed.collect();
        if more.is_empty() {
            return Some(first);
        }
        let first = Box::new(first);
        Some(Self::Several { first, more })
    }
}

// === impl ClassIds ===

impl Ids for ClassIds {
    fn of(&self, at: &CgroupPath) -> io::Result<Option<u32>> {
        self.of(at)
    }

    fn set(&self, at: &CgroupPath, id: u32) -> io::Result<()> {
        self.set(at, id)
    }

    fn below(&self, at: &CgroupPath, most: usize) -> io::Result<Names> {
        self.below(at, most)
    }
}

/// Brings the ids of all groups in line, a group before those below it, and says whether any was written.
/// What fails for one keeps it from no other. Without a shape none of ours stays in or below a group of
/// pods.
pub(super) fn bring_ids(ids: &impl Ids, shape: Option<&Shape>) -> Result<bool, GroupsError> {
    let mut brought = Brought::default();
    let mut pods = Vec::new();
    let root = (CgroupPath::root(), None);
    brought.bring(ids, shape, (root, MOST_OF_NODE), Some(&mut pods));
    // What one of them has below it takes nothing from the others.
    for pod in pods {
        brought.bring(ids, shape, (pod, MOST_BELOW), None);
    }
    match GroupsError::of(brought.failed) {
        Some(error) => Err(error),
        None => Ok(brought.is_written),
    }
}

/// Groups that are no pod's, which none but the node's own makes.
const MOST_OF_NODE: usize = 1 << 16;

/// Failures below one group that are told one by one: a container may have very many groups.
const MOST_TOLD: usize = 16;

/// What became of groups.
#[derive(Default)]
struct Brought {
    is_written: bool,
    failed: Vec<GroupsError>,
}

/// A group and the class of those above it.
type Within = (CgroupPath, Option<Handle>);

// === impl Brought ===

impl Brought {
    /// Brings a group in line and those below it, without those of `pods`, which are left to be brought.
    fn bring(
        &mut self,
        ids: &impl Ids,
        shape: Option<&Shape>,
        ((top, above), most): (Within, usize),
        mut pods: Option<&mut Vec<Within>>,
    ) {
        let told = self.failed.len() + MOST_TOLD;
        let mut walk = Walk::from(top.clone(), above, most);
        while let Some((group, above)) = walk.step() {
            if let Some(pods) = pods.as_deref_mut()
                && is_of_pod(&group)
            {
                pods.push((group, above));
                continue;
            }
            let class = shape.and_then(|shape| shape.of_group(&group)).or(above);
            let is_long = |error: &io::Error| error.kind() == io::ErrorKind::InvalidFilename;
            let given = match wanted(&group, class, shape) {
                Some(wanted) => give(ids, &group, wanted),
                None => Ok(false),
            };
            let failed = match given {
                Ok(is_new) => {
                    self.is_written |= is_new;
                    None
                }
                // So are those below it.
                Err(GroupsError::Id { source, .. }) if is_long(&source) => {
                    walk.miss(Unseen::Long);
                    continue;
                }
                Err(error) => Some(error),
            };
            let unlisted = match ids.below(&group, walk.room()) {
                Ok(below) => {
                    walk.enter(group, below, class);
                    None
                }
                Err(source) => Some(GroupsError::Id { at: group, source }),
            };
            let room = told.saturating_sub(self.failed.len());
            self.failed
                .extend(failed.into_iter().chain(unlisted).take(room));
        }
        // Odd names outside of pods are none of a pod's.
        let is_told = |why: &Unseen| is_of_pod(&top) || matches!(why, Unseen::Many { .. });
        if let Some(why) = walk.unseen().filter(is_told) {
            self.failed.push(GroupsError::Unseen { at: top, why });
        }
    }
}

/// What a group is to have; `None` where nothing is known of it, or it is no pod's.
fn wanted(group: &CgroupPath, class: Option<Handle>, shape: Option<&Shape>) -> Option<Handle> {
    let is_known = !shape.is_some_and(Shape::keeps_others);
    let has_none = is_known && kube_qos(group).is_some();
    class.or_else(|| has_none.then_some(NONE))
}

fn give(ids: &impl Ids, group: &CgroupPath, wanted: Handle) -> Result<bool, GroupsError> {
    let failed = |source| GroupsError::Id {
        at: group.clone(),
        source,
    };
    let Some(held) = ids.of(group).map_err(failed)?.map(Handle::of_number) else {
        return Ok(false);
    };
    let may_change = held == NONE || held.major() == QDISC.major();
    if held == wanted || (wanted == NONE && !may_change) {
        return Ok(false);
    }
    if !may_change {
        let at = group.clone();
        return Err(GroupsError::Another { at, id: held });
    }
    ids.set(group, wanted.number()).map_err(failed)?;
    debug!(cgroup = %group, old = %held, new = %wanted, "class id written");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{super::shape::Member, *};
    use koord_model::{NetPriority, NetQueues, NetRate, NetShare, PodQueue};
    use std::{cell::RefCell, collections::BTreeMap};

    /// Groups that are made as the kernel makes them: with the id of the one above.
    #[derive(Default)]
    struct Groups(RefCell<BTreeMap<CgroupPath, u32>>);

    impl Groups {
        fn make(&self, parent: &CgroupPath, name: &str) -> CgroupPath {
            let group = parent.join(name).unwrap();
            let id = self.held(parent);
            self.0.borrow_mut().insert(group.clone(), id);
            group
        }

        fn held(&self, at: &CgroupPath) -> u32 {
            self.0.borrow().get(at).copied().unwrap_or(0)
        }

        fn ids<const N: usize>(&self, groups: [&CgroupPath; N]) -> [u32; N] {
            groups.map(|group| self.held(group))
        }
    }

    impl Ids for Groups {
        fn of(&self, at: &CgroupPath) -> io::Result<Option<u32>> {
            Ok(Some(self.held(at)))
        }

        fn set(&self, at: &CgroupPath, id: u32) -> io::Result<()> {
            self.0.borrow_mut().insert(at.clone(), id);
            Ok(())
        }

        fn below(&self, at: &CgroupPath, most: usize) -> io::Result<Names> {
            let groups = self.0.borrow();
            // No name sorts before this one.
            let under = groups.range(at.join(" ").unwrap()..);
            let under = under.map(|(group, _)| group);
            let under = under.take_while(|group| group.is_under(at));
            let below = under.filter(|it| it.parent().as_ref() == Some(at));
            let mut below = below.filter_map(CgroupPath::file_name).map(str::to_owned);
            Ok(Names {
                names: below.by_ref().take(most).collect(),
                are_more: below.next().is_some(),
                others: 0,
            })
        }
    }

    /// Pods that are known by these groups.
    fn shape(pods: &[(&CgroupPath, NetPriority)]) -> Shape {
        let whole = NetRate::of_bytes(125_000_000);
        let share = NetShare {
            min: NetRate::NONE,
            max: whole,
        };
        let queues = NetQueues {
            total: whole,
            system: share,
            latency_sensitive: share,
            best_effort: share,
        };
        let members = pods.iter().map(|&(group, priority)| Member {
            uid: group.as_str(),
            queue: PodQueue {
                priority,
                egress: NetRate::NONE,
            },
            addresses: &[],
            group: Some(group),
        });
        Shape::of(&queues, members)
    }

    /// Those of the classes 1:3 and 1:4, and another's: 10:1.
    const LS: u32 = 0x1_0003;
    const BE: u32 = 0x1_0004;
    const ANOTHERS: u32 = 0x10_0001;

    #[test]
    fn each_pod_is_told_of_what_fails_of_its_own_groups() {
        let ids = Groups::default();
        let kubepods = ids.make(&CgroupPath::root(), "kubepods");
        let pods = ["poduid-1", "poduid-2", "poduid-3"].map(|name| ids.make(&kubepods, name));
        let [whole, own, below] = &pods;
        ids.set(own, ANOTHERS).unwrap();
        let container = ids.make(below, "container-1");
        ids.set(&container, ANOTHERS).unwrap();
        let wanted = pods.each_ref().map(|it| (it, NetPriority::BestEffort));
        let refused = bring_ids(&ids, Some(&shape(&wanted))).unwrap_err();
        assert!(refused.about(whole).is_none(), "{refused}");
        for (pod, group) in [(own, own), (below, &container)] {
            let told = refused.about(pod).map(ToString::to_string);
            let another = format!("control group {group} has the class id 10:1, which is not ours");
            assert_eq!(told, Some(another));
        }
        // Of what is below one that cannot be listed nothing is known.
        let at = kubepods.clone();
        let source = io::ErrorKind::Interrupted.into();
        assert!(GroupsError::Id { at, source }.about(whole).is_some());
    }

    #[test]
    fn a_pod_with_very_many_groups_takes_nothing_from_the_others() {
        let ids = Groups::default();
        let kubepods = ids.make(&CgroupPath::root(), "kubepods");
        let pods = ["poduid-1", "poduid-2", "poduid-3"].map(|name| ids.make(&kubepods, name));
        let [first, many, odd] = &pods;
        let containers = [first, many, odd].map(|pod| ids.make(pod, "container-1"));
        for number in 0..4_096 {
            ids.make(many, &number.to_string());
        }
        for number in 0..100 {
            let group = ids.make(odd, &number.to_string());
            ids.set(&group, ANOTHERS).unwrap();
        }
        let wanted = pods.each_ref().map(|it| (it, NetPriority::BestEffort));
        let refused = bring_ids(&ids, Some(&shape(&wanted))).unwrap_err();
        assert_eq!(ids.ids([&containers[0], &containers[2]]), [BE; 2]);
        assert!(refused.about(first).is_none(), "{refused}");
        let told = refused.about(many).map(ToString::to_string);
        let unseen = "what some groups below control group /kubepods/poduid-2 send is not told apart: \
                      there are more than 4096";
        assert_eq!(told.as_deref(), Some(unseen));
        // Of those that each fail not all are told.
        let told = refused.to_string();
        let several = "this control group and 16 more at least are not as they should be";
        assert_eq!(told, several);
    }

    #[test]
    fn groups_of_pods_have_the_id_of_their_class_and_those_of_others_stay() {
        let ids = Groups::default();
        let kubepods = ids.make(&CgroupPath::root(), "kubepods");
        let pod = ids.make(&kubepods, "poduid-1");
        let early = ids.make(&pod, "container-1");
        let other = ids.make(&kubepods, "poduid-2");
        ids.set(&other, ANOTHERS).unwrap();
        let service = ids.make(&CgroupPath::root(), "service");
        ids.set(&service, BE).unwrap();

        // What is there already has the id too, and what is made later has it from the beginning.
        let best_effort = shape(&[(&pod, NetPriority::BestEffort)]);
        assert!(bring_ids(&ids, Some(&best_effort)).unwrap());
        let late = ids.make(&early, "below");
        let of_pod = [&pod, &early, &late];
        assert_eq!(ids.ids(of_pod), [BE; 3]);
        assert!(!bring_ids(&ids, Some(&best_effort)).unwrap());
        ids.set(&early, 0).unwrap();
        assert!(bring_ids(&ids, Some(&best_effort)).unwrap());
        assert_eq!(ids.ids(of_pod), [BE; 3]);

        // One that is another's is named, and keeps no other from its own.
        let class = NetPriority::LatencySensitive;
        let both = shape(&[(&other, class), (&pod, class)]);
        let refused = bring_ids(&ids, Some(&both)).unwrap_err();
        assert!(
            matches!(&refused, GroupsError::Another { at, .. } if *at == other),
            "{refused}"
        );
        assert_eq!(ids.ids(of_pod), [LS; 3]);

        // As long as something is unknown of a pod, it keeps what it has.
        let in_part = shape(&[]).keeping_others(Default::default());
        assert!(!bring_ids(&ids, Some(&in_part)).unwrap());
        assert_eq!(ids.ids(of_pod), [LS; 3]);
        assert!(bring_ids(&ids, None).unwrap());
        assert_eq!(ids.ids(of_pod), [0; 3]);
        assert_eq!(ids.ids([&other, &service]), [ANOTHERS, BE]);
        assert!(!bring_ids(&ids, None).unwrap());
    }
}
