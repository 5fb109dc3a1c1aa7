//! Traffic control (`linux/pkt_sched.h`, `linux/pkt_cls.h`): queueing disciplines of the kind `htb`,
//! their classes, and filters that send packets to a class: of the kind `u32` by their source address, of
//! the kind `cgroup` by the control group of who sends them.

mod filter;
#[cfg(test)]
mod tests;

pub use self::filter::{Filter, GroupFilter};

use super::message::{
    ACK, Attributes, CREATE, DUMP, EXCLUSIVE, REPLACE, Request, attribute, text, u32_at, u64_at,
};
use std::fmt;

const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_CLASS: u16 = 40;
const DELETE_CLASS: u16 = 41;
const GET_CLASS: u16 = 42;

/// `TCA_…`, of all three.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// `TCA_HTB_…`.
const HTB_PARAMETERS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;

const HTB: &str = "htb";
const HTB_VERSION: u32 = 3;
/// Frames are those of Ethernet: the kernel works out by itself how long one takes.
const ETHERNET: u8 = 1;
/// `struct tcmsg`.
const FIXED: usize = 20;
/// Nanoseconds of a unit in which the kernel counts how long a burst may last.
const TICK: u128 = 64;

/// Who a qdisc or class is: a major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u32);

/// A queueing discipline of some kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// The number of its interface.
    pub link: u32,
    /// Zero of one that the kernel has put there by itself.
    pub handle: Handle,
    pub parent: Handle,
    pub kind: String,
    /// Of one of the kind `htb`.
    pub htb: Option<Htb>,
}

/// What one of the kind `htb` is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Htb {
    /// The minor number of the class that has what no filter sends elsewhere.
    pub default: u32,
    /// What a rate is divided by for the quantum of a class that says none.
    pub rate_to_quantum: u32,
}

/// A class of an `htb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    pub handle: Handle,
    pub parent: Handle,
    /// Bytes in a second that it has for sure; the kernel refuses none at all.
    pub rate: u64,
    /// Bytes in a second that it has at most.
    pub ceil: u64,
    /// How long it may send at each of the two, as the kernel counts it.
    pub burst: u32,
    pub ceil_burst: u32,
    /// Bytes that it sends in its turn, beside others of its priority.
    pub quantum: u32,
    /// The least goes first.
    pub priority: u32,
}

// === impl Handle ===

impl Handle {
    /// The parent of what is an interface's own.
    pub const ROOT: Self = Self(u32::MAX);

    pub const fn new(major: u16, minor: u16) -> Self {
        Self(((major as u32) << 16) | minor as u32)
    }

    /// The one that a number stands for, as a group's class id does.
    pub const fn of_number(number: u32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub fn major(self) -> u16 {
        low(self.0 >> 16)
    }

    pub fn minor(self) -> u16 {
        low(self.0)
    }

    /// Whether somebody has given it: the kernel's own have none.
    pub fn is_given(self) -> bool {
        self.0 != 0
    }
}

/// As `tc` writes it.
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.0 >> 16, self.minor());
        match (*self, minor) {
            (Self::ROOT, _) => f.write_str("root"),
            (_, 0) => write!(f, "{major:x}:"),
            _ => write!(f, "{major:x}:{minor:x}"),
        }
    }
}

// === impl Qdisc ===

impl Qdisc {
    /// Asks for those of all interfaces.
    pub fn dump() -> Request {
        Request::new(GET_QDISC, DUMP, &fixed(0, 0, 0, 0), &Attributes::default())
    }

    /// What a dump says; `None` of anything else.
    pub fn read(kind: u16, payload: &[u8]) -> Option<Self> {
        let (fixed, attributes) = split(payload).filter(|_| kind == NEW_QDISC)?;
        let kind = text(attribute(attributes, KIND)?)?.to_owned();
        let options = attribute(attributes, OPTIONS).filter(|_| kind == HTB);
        let init = options.and_then(|options| attribute(options, HTB_INIT));
        Some(Self {
            link: u32_at(fixed, 4)?,
            handle: Handle(u32_at(fixed, 8)?),
            parent: Handle(u32_at(fixed, 12)?),
            kind,
            htb: init.and_then(Htb::read),
        })
    }

    /// Makes an interface's own one of the kind `htb`, where it has none but the kernel's.
    pub fn add_htb(link: u32, handle: Handle, htb: Htb) -> Request {
        let Htb {
            default,
            rate_to_quantum,
        } = htb;
        let init = [HTB_VERSION, rate_to_quantum, default, 0, 0].map(u32::to_ne_bytes);
        let options = Attributes::default().with(HTB_INIT, init.as_flattened());
        let attributes = of_kind(HTB).with_nested(OPTIONS, &options);
        let fixed = fixed(link, handle.0, Handle::ROOT.0, 0);
        Request::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, &fixed, &attributes)
    }

    /// Removes an interface's own one, if it has this handle, with its classes and filters.
    pub fn delete(link: u32, handle: Handle) -> Request {
        let fixed = fixed(link, handle.0, Handle::ROOT.0, 0);
        Request::new(DELETE_QDISC, ACK, &fixed, &Attributes::default())
    }
}

// === impl Htb ===

impl Htb {
    fn read(init: &[u8]) -> Option<Self> {
        Some(Self {
            rate_to_quantum: u32_at(init, 4)?,
            default: u32_at(init, 8)?,
        })
    }
}

// === impl Class ===

impl Class {
    /// Asks for those of an interface.
    pub fn dump(link: u32) -> Request {
        Request::new(
            GET_CLASS,
            DUMP,
            &fixed(link, 0, 0, 0),
            &Attributes::default(),
        )
    }

    /// What a dump says of a class of an `htb`; `None` of anything else.
    pub fn read(kind: u16, payload: &[u8]) -> Option<Self> {
        let (fixed, attributes) = split(payload).filter(|_| kind == NEW_CLASS)?;
        if text(attribute(attributes, KIND)?)? != HTB {
            return None;
        }
        let options = attribute(attributes, OPTIONS)?;
        let parameters = attribute(options, HTB_PARAMETERS)?;
        let number = |at| u32_at(parameters, at);
        // Where it does not fit into the number of old.
        let large = |kind| attribute(options, kind).and_then(|payload| u64_at(payload, 0));
        Some(Self {
            handle: Handle(u32_at(fixed, 8)?),
            parent: Handle(u32_at(fixed, 12)?),
            rate: large(HTB_RATE64).or_else(|| number(8).map(u64::from))?,
            ceil: large(HTB_CEIL64).or_else(|| number(20).map(u64::from))?,
            burst: number(24)?,
            ceil_burst: number(28)?,
            quantum: number(32)?,
            priority: number(40)?,
        })
    }

    /// Makes it, or gives the one that is there other numbers.
    pub fn put(&self, link: u32) -> Request {
        let Self {
            rate,
            ceil,
            burst,
            ceil_burst,
            quantum,
            priority,
            ..
        } = *self;
        let mut parameters = Vec::new();
        parameters.extend(rate_spec(rate));
        parameters.extend(rate_spec(ceil));
        // The level is the kernel's to say.
        for number in [burst, ceil_burst, quantum, 0, priority] {
            parameters.extend(number.to_ne_bytes());
        }
        let mut options = Attributes::default().with(HTB_PARAMETERS, &parameters);
        for (kind, bytes) in [(HTB_RATE64, rate), (HTB_CEIL64, ceil)] {
            if u32::try_from(bytes).is_err() {
                options = options.with_u64(kind, bytes);
            }
        }
        let attributes = of_kind(HTB).with_nested(OPTIONS, &options);
        let fixed = fixed(link, self.handle.0, self.parent.0, 0);
        Request::new(NEW_CLASS, ACK | CREATE | REPLACE, &fixed, &attributes)
    }

    pub fn delete(link: u32, handle: Handle) -> Request {
        let fixed = fixed(link, handle.0, 0, 0);
        Request::new(DELETE_CLASS, ACK, &fixed, &Attributes::default())
    }

    /// How long the kernel takes so many bytes to last at a rate, as it counts it.
    pub fn burst_of(bytes: u64, rate: u64) -> u32 {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        u32::try_from(nanoseconds / TICK).unwrap_or(u32::MAX)
    }
}

/// `struct tc_ratespec`.
fn rate_spec(rate: u64) -> [u8; 12] {
    let mut spec = [0; 12];
    spec[1] = ETHERNET;
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    spec[8..].copy_from_slice(&rate.to_ne_bytes());
    spec
}

/// `struct tcmsg`.
fn fixed(link: u32, handle: u32, parent: u32, info: u32) -> [u8; FIXED] {
    let mut fixed = [0; FIXED];
    for (number, at) in [link, handle, parent, info].iter().zip([4, 8, 12, 16]) {
        fixed[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    fixed
}

/// The lower half of a number.
fn low(number: u32) -> u16 {
    let [.., high, low] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

fn split(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    payload.split_at_checked(FIXED)
}

fn of_kind(kind: &str) -> Attributes {
    Attributes::default().with_text(KIND, kind)
}
