//! What queues there are to be on an interface, and what is to be done where there are others.
//!
//! The classes 1:2, 1:3 and 1:4 are those of Koordinator: of what is the system's, of LS pods and of BE
//! pods. Above each of the last two stands one with what is kept for the whole class and its limit, so
//! that a pod with a limit of its own is beside the others of its class and within it.

use koord_kernel::netlink::traffic::{Class, Filter, Handle, Htb};
use koord_model::{CgroupPath, NetPriority, NetQueues, NetRate, NetShare, PodQueue};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

pub(super) const QDISC: Handle = minor(0);
const TOTAL: Handle = minor(1);
const SYSTEM: Handle = minor(2);
const LATENCY_SENSITIVE: Handle = minor(3);
const BEST_EFFORT: Handle = minor(4);
const ALL_LATENCY_SENSITIVE: Handle = minor(5);
const ALL_BEST_EFFORT: Handle = minor(6);
/// From here on numbers are those of pods.
pub(super) const FIRST_OF_PODS: u16 = 0x10;

/// What is sent by no filter goes to the system's. Nothing asks for a quantum to be worked out, so the
/// number for it says whose the whole is: `koor`.
pub(super) const HTB: Htb = Htb {
    default: 2,
    rate_to_quantum: u32::from_be_bytes(*b"koor"),
};

/// Bytes in a second of a class for which nothing is kept: the kernel takes none that has nothing.
const LEAST: NetRate = NetRate::of_bytes(1_000);
/// Bytes of a frame, which may always be sent at once.
const FRAME: u64 = 1_600;
/// Frames are handed over many at a time, and a timer is late: what a rate gives in a millisecond may
/// be sent at once too.
const BURSTS_A_SECOND: u64 = 1_000;
/// Between these a class sends in its turn what its limit gives in a millisecond.
const QUANTUM: (u64, u64) = (FRAME, 200_000);

/// What queues there are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Each after the one above it.
    classes: Vec<Class>,
    filters: BTreeMap<IpAddr, Handle>,
    /// Where the groups of pods are known, each with all below it.
    groups: BTreeMap<CgroupPath, Handle>,
    /// There may be more, of pods of which something is not known yet, but nothing that is sent from these.
    kept_but: Option<BTreeSet<IpAddr>>,
}

/// A pod with addresses of its own, or with a group by which it is known.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub uid: &'a str,
    pub queue: PodQueue,
    pub addresses: &'a [IpAddr],
    /// Its own, where groups have class ids.
    pub group: Option<&'a CgroupPath>,
}

/// What there is on an interface below a qdisc of ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) classes: Vec<Class>,
    pub(super) filters: Vec<Filter>,
    /// There is a filter of ours that knows groups.
    pub(super) knows_groups: bool,
}

/// One thing to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Put(Class),
    Remove(Handle),
    Add(IpAddr, Handle),
    Redirect(Filter, Handle),
    Withdraw(Filter),
    KnowGroups,
}

const fn minor(minor: u16) -> Handle {
    Handle::new(1, minor)
}

/// Of the filter that knows groups: whoever has addresses of its own is known by them first.
pub(super) const GROUP_PRIORITY: u16 = 3;

/// Filters of one priority are of one protocol.
pub(super) fn priority(source: IpAddr) -> u16 {
    match source {
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 2,
    }
}

// === impl Shape ===

impl Shape {
    pub fn of<'a>(queues: &NetQueues, members: impl Iterator<Item = Member<'a>>) -> Self {
        let mut shape = Self {
            classes: of_node(queues),
            filters: BTreeMap::new(),
            groups: BTreeMap::new(),
            kept_but: None,
        };
        let is_known = |it: &Member<'_>| !it.addresses.is_empty() || it.group.is_some();
        let mut members: Vec<_> = members.filter(is_known).collect();
        // Of two that come to the same number, or have the same address, always the same is first.
        members.sort_by_key(|member| member.uid);
        let mut taken = BTreeSet::new();
        for Member {
            uid,
            queue,
            addresses,
            group,
        } in members
        {
            let mut class = of_class(queue.priority);
            if queue.egress != NetRate::NONE
                && let Some(number) = number(uid, queue.priority, &taken)
            {
                taken.insert(number);
                class = minor(number);
                shape.classes.push(of_pod(queues, queue, class));
            }
            if let Some(group) = group {
                shape.groups.insert(group.clone(), class);
            }
            if class == SYSTEM {
                // Has it anyway.
                continue;
            }
            for address in addresses {
                shape.filters.entry(*address).or_insert(class);
            }
        }
        shape
    }

    /// The same, where what is there beside it stays, but for what is sent from `known`.
    #[must_use]
    pub fn keeping_others(self, known: BTreeSet<IpAddr>) -> Self {
        Self {
            kept_but: Some(known),
            ..self
        }
    }

    pub(super) fn keeps_others(&self) -> bool {
        self.kept_but.is_some()
    }

    fn keeps(&self, source: IpAddr) -> bool {
        let kept_but = self.kept_but.as_ref();
        kept_but.is_some_and(|known| !known.contains(&source))
    }

    /// Whether anybody is known by a group.
    pub(super) fn knows_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The class of what is sent from a group and from those below it, if that is said of this one.
    pub(super) fn of_group(&self, group: &CgroupPath) -> Option<Handle> {
        self.groups.get(group).copied()
    }
}

/// The class of pods without a limit of their own.
fn of_class(priority: NetPriority) -> Handle {
    match priority {
        NetPriority::System => SYSTEM,
        NetPriority::LatencySensitive => LATENCY_SENSITIVE,
        NetPriority::BestEffort => BEST_EFFORT,
    }
}

fn of_node(queues: &NetQueues) -> Vec<Class> {
    let NetQueues {
        total,
        system,
        latency_sensitive,
        best_effort,
    } = *queues;
    let whole = NetShare {
        min: total,
        max: total,
    };
    let mut classes = vec![
        inner(TOTAL, Handle::ROOT, whole),
        leaf(SYSTEM, TOTAL, system, NetPriority::System),
    ];
    for (priority, above, share) in [
        (
            NetPriority::LatencySensitive,
            ALL_LATENCY_SENSITIVE,
            latency_sensitive,
        ),
        (NetPriority::BestEffort, ALL_BEST_EFFORT, best_effort),
    ] {
        classes.push(inner(above, TOTAL, share));
        classes.push(leaf(
            of_class(priority),
            above,
            borrowing(share.max),
            priority,
        ));
    }
    classes
}

fn of_pod(queues: &NetQueues, queue: PodQueue, class: Handle) -> Class {
    let (above, most) = match queue.priority {
        NetPriority::System => (TOTAL, queues.system.max),
        NetPriority::LatencySensitive => (ALL_LATENCY_SENSITIVE, queues.latency_sensitive.max),
        NetPriority::BestEffort => (ALL_BEST_EFFORT, queues.best_effort.max),
    };
    let share = borrowing(queue.egress.within(most));
    leaf(class, above, share, queue.priority)
}

/// Has what the class above has, up to this.
fn borrowing(max: NetRate) -> NetShare {
    NetShare { min: LEAST, max }
}

/// A class with others below it. The kernel takes no other quantum and priority for it once it has them.
fn inner(handle: Handle, parent: Handle, share: NetShare) -> Class {
    class((handle, parent), share, (QUANTUM.0, 0))
}

fn leaf(handle: Handle, parent: Handle, share: NetShare, priority: NetPriority) -> Class {
    let quantum = share.max.bytes() / BURSTS_A_SECOND;
    let quantum = quantum.clamp(QUANTUM.0, QUANTUM.1);
    let priority = u32::from(priority.rank()) + 1;
    class((handle, parent), share, (quantum, priority))
}

fn class(
    (handle, parent): (Handle, Handle),
    NetShare { min, max }: NetShare,
    (quantum, priority): (u64, u32),
) -> Class {
    let ceil = max.bytes().max(1);
    let rate = min.max(LEAST).bytes().min(ceil);
    let burst = |rate: u64| Class::burst_of(FRAME + rate / BURSTS_A_SECOND, rate);
    Class {
        handle,
        parent,
        rate,
        ceil,
        burst: burst(rate),
        ceil_burst: burst(ceil),
        quantum: u32::try_from(quantum).unwrap_or(u32::MAX),
        priority,
    }
}

/// The number of a pod's own class, which follows from who it is (FNV-1a), or the next one that is free:
/// nobody has to remember it. Each class of pods has numbers of its own, because the kernel cannot move a
/// class from below one to below another.
pub(super) fn number(uid: &str, priority: NetPriority, taken: &BTreeSet<u16>) -> Option<u16> {
    const COUNT: u16 = (u16::MAX - FIRST_OF_PODS) / 3;
    let hash = uid.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let first = u16::try_from(hash % u32::from(COUNT)).ok()?;
    let begin = FIRST_OF_PODS + u16::from(priority.rank()) * COUNT;
    let from_first = (first..COUNT).chain(0..first);
    from_first
        .map(|number| begin + number)
        .find(|number| !taken.contains(number))
}

/// Classes below others than those where they belong.
fn misplaced(held: &Held, shape: &Shape) -> BTreeSet<Handle> {
    let belongs: BTreeMap<Handle, Handle> = shape
        .classes
        .iter()
        .map(|class| (class.handle, class.parent))
        .collect();
    let misplaced = held.classes.iter().filter(|there| {
        let parent = belongs.get(&there.handle);
        parent.is_some_and(|parent| *parent != there.parent)
    });
    misplaced.map(|there| there.handle).collect()
}

/// What is to be done where there is `held`. Nothing is sent to a class that is not there yet, or not
/// there any more.
pub(super) fn steps(held: &Held, shape: &Shape) -> Vec<Step> {
    let misplaced = misplaced(held, shape);
    let ours = held.filters.iter();
    let ours = ours.filter(|it| it.priority == priority(it.source));
    // The kernel removes no class to which something is sent.
    let (in_the_way, filters): (Vec<&Filter>, Vec<&Filter>) =
        ours.partition(|it| misplaced.contains(&it.class));
    let mut steps: Vec<Step> = in_the_way.iter().map(|it| Step::Withdraw(**it)).collect();
    for class in &shape.classes {
        if misplaced.contains(&class.handle) {
            steps.push(Step::Remove(class.handle));
            steps.push(Step::Put(*class));
        } else if !held.classes.contains(class) {
            steps.push(Step::Put(*class));
        }
    }
    let mut met = BTreeSet::new();
    for filter in filters {
        let source = filter.source;
        match shape.filters.get(&source) {
            Some(class) if met.insert(source) => {
                if filter.class != *class {
                    steps.push(Step::Redirect(*filter, *class));
                }
            }
            _ if shape.keeps(source) => {}
            _ => steps.push(Step::Withdraw(*filter)),
        }
    }
    let missing = shape
        .filters
        .iter()
        .filter(|(source, _)| !met.contains(*source));
    steps.extend(missing.map(|(source, class)| Step::Add(*source, *class)));
    if shape.knows_groups() && !held.knows_groups {
        steps.push(Step::KnowGroups);
    }
    let wanted: BTreeSet<Handle> = shape.classes.iter().map(|class| class.handle).collect();
    // The kernel lists those of all queues of an interface, which may have more than ours.
    let there = held.classes.iter().map(|class| class.handle);
    let there: BTreeSet<Handle> = there
        .filter(|class| class.major() == QDISC.major())
        .collect();
    // Those that may be left over are below others, and have the larger numbers.
    let left = there.iter().rev();
    let left = left.filter(|class| !shape.keeps_others() && !wanted.contains(*class));
    steps.extend(left.map(|class| Step::Remove(*class)));
    steps
}
