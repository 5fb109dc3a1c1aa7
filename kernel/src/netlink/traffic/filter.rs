//! Filters that send to a class what comes from an address, or from the processes of a control group.

use super::{Handle, KIND, OPTIONS, fixed, low, of_kind, split};
use crate::netlink::message::{
    ACK, Attributes, CREATE, DUMP, EXCLUSIVE, REPLACE, Request, attribute, bytes_at, text, u32_at,
};
use std::{net::IpAddr, ops::Range};

const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;

/// `TCA_U32_…`.
const U32_CLASS: u16 = 1;
const U32_SELECTOR: u16 = 5;

const U32: &str = "u32";
const CGROUP: &str = "cgroup";

/// The handle of a filter of the kind `cgroup`: the kernel takes any but zero, and has one for a priority.
const GROUP_HANDLE: u32 = 1;

/// A filter that ends the search (`TC_U32_TERMINAL`).
const TERMINAL: u8 = 1;

/// Of `struct tc_u32_sel` and of each of its keys.
const SELECTOR: usize = 16;
const KEY: usize = 16;
/// Where a packet has its source address, from the header of the network on.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;
/// `ETH_P_IP` and `ETH_P_IPV6`.
const ETHER_V4: u16 = 0x0800;
const ETHER_V6: u16 = 0x86dd;
/// `ETH_P_ALL`.
const ETHER_ALL: u16 = 3;

/// A filter that sends what comes from an address to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// As the kernel numbers it.
    pub handle: u32,
    pub priority: u16,
    pub source: IpAddr,
    pub class: Handle,
}

/// A filter that sends what a process sends to the class that the id of its control group names. What is of
/// a group without one is left to other filters (`net/sched/cls_cgroup.c`).
#[derive(Clone, Copy, Debug)]
pub struct GroupFilter;

// === impl Filter ===

impl Filter {
    /// Asks for those that a qdisc has.
    pub fn dump(link: u32, qdisc: Handle) -> Request {
        let fixed = fixed(link, 0, qdisc.0, 0);
        Request::new(GET_FILTER, DUMP, &fixed, &Attributes::default())
    }

    /// What a dump says of a filter of this sort; `None` of anything else.
    pub fn read(kind: u16, payload: &[u8]) -> Option<Self> {
        let (fixed, attributes) = split(payload).filter(|_| kind == NEW_FILTER)?;
        if text(attribute(attributes, KIND)?)? != U32 {
            return None;
        }
        let options = attribute(attributes, OPTIONS)?;
        let class = u32_at(attribute(options, U32_CLASS)?, 0)?;
        let info = u32_at(fixed, 16)?;
        let protocol = u16::from_be(low(info));
        let source = source(protocol, attribute(options, U32_SELECTOR)?)?;
        Some(Self {
            handle: u32_at(fixed, 8)?,
            priority: low(info >> 16),
            source,
            class: Handle(class),
        })
    }

    /// Makes one, which the kernel numbers.
    pub fn add(
        link: u32,
        qdisc: Handle,
        (priority, source, class): (u16, IpAddr, Handle),
    ) -> Request {
        let filter = Self {
            handle: 0,
            priority,
            source,
            class,
        };
        filter.request(NEW_FILTER, ACK | CREATE | EXCLUSIVE, (link, qdisc))
    }

    /// Has it send to another class from now on.
    pub fn redirect(self, link: u32, qdisc: Handle, class: Handle) -> Request {
        let filter = Self { class, ..self };
        filter.request(NEW_FILTER, ACK | REPLACE, (link, qdisc))
    }

    pub fn delete(self, link: u32, qdisc: Handle) -> Request {
        let fixed = fixed(link, self.handle, qdisc.0, self.info());
        Request::new(DELETE_FILTER, ACK, &fixed, &of_kind(U32))
    }

    fn request(&self, kind: u16, flags: u16, (link, qdisc): (u32, Handle)) -> Request {
        let options = Attributes::default()
            .with_u32(U32_CLASS, self.class.0)
            .with(U32_SELECTOR, &selector(self.source));
        let attributes = of_kind(U32).with_nested(OPTIONS, &options);
        let fixed = fixed(link, self.handle, qdisc.0, self.info());
        Request::new(kind, flags, &fixed, &attributes)
    }

    /// Priority, and the protocol in the byte order of the network.
    fn info(&self) -> u32 {
        let protocol = match self.source {
            IpAddr::V4(_) => ETHER_V4,
            IpAddr::V6(_) => ETHER_V6,
        };
        (u32::from(self.priority) << 16) | u32::from(protocol.to_be())
    }
}

// === impl GroupFilter ===

impl GroupFilter {
    /// The priority of one that a dump says; `None` of anything else.
    pub fn read(kind: u16, payload: &[u8]) -> Option<u16> {
        let (fixed, attributes) = split(payload).filter(|_| kind == NEW_FILTER)?;
        let is_of_groups = text(attribute(attributes, KIND)?)? == CGROUP;
        // The kernel says of each priority that there is one, too.
        let is_filter = u32_at(fixed, 8)? != 0;
        let info = u32_at(fixed, 16)?;
        (is_of_groups && is_filter).then_some(low(info >> 16))
    }

    /// Makes one, of packets of every protocol.
    pub fn add(link: u32, qdisc: Handle, priority: u16) -> Request {
        let info = (u32::from(priority) << 16) | u32::from(ETHER_ALL.to_be());
        let attributes = of_kind(CGROUP).with_nested(OPTIONS, &Attributes::default());
        let fixed = fixed(link, GROUP_HANDLE, qdisc.0, info);
        Request::new(NEW_FILTER, ACK | CREATE | EXCLUSIVE, &fixed, &attributes)
    }
}

/// What matches packets from an address and no others: `struct tc_u32_sel` with its keys, one for each
/// four bytes.
fn selector(source: IpAddr) -> Vec<u8> {
    let (bytes, at) = match source {
        IpAddr::V4(address) => (address.octets().to_vec(), SOURCE_V4),
        IpAddr::V6(address) => (address.octets().to_vec(), SOURCE_V6),
    };
    let words = bytes.chunks_exact(4);
    let mut selector = vec![0; SELECTOR];
    selector[0] = TERMINAL;
    selector[2] = u8::try_from(words.len()).expect("an address is short");
    for (word, at) in words.zip((at..).step_by(4)) {
        selector.extend([0xff; 4]);
        selector.extend(word);
        selector.extend(at.to_ne_bytes());
        selector.extend([0; 4]);
    }
    selector
}

/// The address whose packets a selector matches, if it is one of these.
fn source(protocol: u16, given: &[u8]) -> Option<IpAddr> {
    let (count, first) = match protocol {
        ETHER_V4 => (1, SOURCE_V4),
        ETHER_V6 => (4, SOURCE_V6),
        _ => return None,
    };
    let keys = given.get(SELECTOR..)?.get(..count * KEY)?;
    let words = keys.chunks_exact(KEY).flat_map(|key| &key[4..8]);
    let bytes: Vec<u8> = words.copied().collect();
    let address = match first {
        SOURCE_V4 => IpAddr::from(bytes_at::<4>(&bytes, 0)?),
        _ => IpAddr::from(bytes_at::<16>(&bytes, 0)?),
    };
    let expected = selector(address);
    // Masks, places, and that there is nothing more, all at once; the padding says nothing.
    let same = |range: Range<usize>| given.get(range.clone()) == expected.get(range);
    (same(0..3) && same(4..expected.len())).then_some(address)
}
