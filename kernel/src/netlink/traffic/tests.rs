//! Messages byte by byte, as `linux/pkt_sched.h` and `linux/pkt_cls.h` have them.

use super::*;
use crate::netlink::message::messages;
use std::net::{IpAddr, Ipv4Addr};

const QDISC: Handle = Handle::new(1, 0);
const MARK: u32 = 0x6b6f_6f72;
const LS: Handle = Handle::new(1, 3);

const CLASS: Class = Class {
    handle: LS,
    parent: Handle::new(1, 5),
    rate: 50_000_000,
    ceil: 125_000_000,
    burst: 500,
    ceil_burst: 200,
    quantum: 60_000,
    priority: 2,
};

const FILTER: Filter = Filter {
    handle: 0x8000_0801,
    priority: 1,
    source: IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
    class: LS,
};

/// What the kernel would say of it: the same under the kind of an answer.
fn payload(request: &Request) -> Vec<u8> {
    let bytes = request.numbered(0);
    messages(&bytes).next().unwrap().payload.to_vec()
}

/// A header with number 1 and no port, and what follows it.
fn expected(length: u8, kind: u8, flags: u16, rest: &[u8]) -> Vec<u8> {
    let [low, high] = flags.to_le_bytes();
    let header = [length, 0, 0, 0, kind, 0, low, high, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(usize::from(length), header.len() + rest.len());
    [&header[..], rest].concat()
}

#[test]
#[cfg(target_endian = "little")]
#[rustfmt::skip]
fn a_qdisc_is_added_only_where_the_kernels_own_is() {
    let htb = Htb { default: 2, rate_to_quantum: MARK };
    let request = Qdisc::add_htb(2, QDISC, htb);
    // RTM_NEWQDISC with request, acknowledge, exclusive and create.
    assert_eq!(request.numbered(1), expected(72, 36, 0x605, &[
        0, 0, 0, 0,  2, 0, 0, 0,  0, 0, 1, 0,  0xff, 0xff, 0xff, 0xff,  0, 0, 0, 0,
        8, 0, 1, 0,  b'h', b't', b'b', 0,
        28, 0, 2, 0,
        // tc_htb_glob: version, rate to quantum, default, debug, packets sent directly.
        24, 0, 2, 0,  3, 0, 0, 0,  b'r', b'o', b'o', b'k',  2, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
    ]));
    // RTM_DELQDISC of that handle and no other.
    assert_eq!(Qdisc::delete(2, QDISC).numbered(1), expected(36, 37, 0x5, &[
        0, 0, 0, 0,  2, 0, 0, 0,  0, 0, 1, 0,  0xff, 0xff, 0xff, 0xff,  0, 0, 0, 0,
    ]));
    assert_eq!(Qdisc::dump().numbered(1), expected(36, 38, 0x301, &[0; 20]));
}

#[test]
#[cfg(target_endian = "little")]
#[rustfmt::skip]
fn a_class_has_its_rates_in_bytes() {
    // RTM_NEWTCLASS with request, acknowledge, replace and create.
    assert_eq!(CLASS.put(2).numbered(1), expected(96, 40, 0x505, &[
        0, 0, 0, 0,  2, 0, 0, 0,  3, 0, 1, 0,  5, 0, 1, 0,  0, 0, 0, 0,
        8, 0, 1, 0,  b'h', b't', b'b', 0,
        52, 0, 2, 0,
        // tc_htb_opt: two of tc_ratespec with the link layer of Ethernet, 50,000,000 and 125,000,000.
        48, 0, 1, 0,
        0, 1, 0, 0,  0, 0, 0, 0,  0x80, 0xf0, 0xfa, 0x02,
        0, 1, 0, 0,  0, 0, 0, 0,  0x40, 0x59, 0x73, 0x07,
        // Bursts, quantum, level, priority.
        0xf4, 1, 0, 0,  200, 0, 0, 0,  0x60, 0xea, 0, 0,  0, 0, 0, 0,  2, 0, 0, 0,
    ]));
    assert_eq!(Class::delete(2, LS).numbered(1), expected(36, 41, 0x5, &[
        0, 0, 0, 0,  2, 0, 0, 0,  3, 0, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,
    ]));
    assert_eq!(Class::dump(2).numbered(1), expected(36, 42, 0x301, &[
        0, 0, 0, 0,  2, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
    ]));
}

#[test]
#[cfg(target_endian = "little")]
#[rustfmt::skip]
fn a_rate_that_takes_more_than_32_bits_has_an_attribute_of_its_own() {
    let class = Class { ceil: 5_000_000_000, ..CLASS };
    let request = class.put(2).numbered(1);
    assert_eq!(request[72..76], [0xff; 4]);
    // TCA_HTB_CEIL64.
    assert_eq!(request[96..], [12, 0, 7, 0,  0x00, 0xf2, 0x05, 0x2a, 1, 0, 0, 0]);
}

#[test]
#[cfg(target_endian = "little")]
#[rustfmt::skip]
fn a_filter_matches_one_source_address() {
    let request = Filter::add(2, QDISC, (1, FILTER.source, LS));
    // RTM_NEWTFILTER with request, acknowledge, exclusive and create.
    assert_eq!(request.numbered(1), expected(92, 44, 0x605, &[
        // Priority 1, and the protocol 0x0800 as the network has it.
        0, 0, 0, 0,  2, 0, 0, 0,  0, 0, 0, 0,  0, 0, 1, 0,  8, 0, 1, 0,
        8, 0, 1, 0,  b'u', b'3', b'2', 0,
        48, 0, 2, 0,
        8, 0, 1, 0,  3, 0, 1, 0,
        // tc_u32_sel: terminal, with one key: mask, value, offset.
        36, 0, 5, 0,
        1, 0, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
        0xff, 0xff, 0xff, 0xff,  10, 1, 2, 3,  12, 0, 0, 0,  0, 0, 0, 0,
    ]));
    // The same by its number, replaced.
    let redirected = FILTER.redirect(2, QDISC, Handle::new(1, 4)).numbered(1);
    assert_eq!(redirected[..8], [92, 0, 0, 0, 44, 0, 0x05, 0x01]);
    assert_eq!(redirected[24..28], [1, 8, 0, 0x80]);
    assert_eq!(redirected[48..56], [8, 0, 1, 0, 4, 0, 1, 0]);
    assert_eq!(FILTER.delete(2, QDISC).numbered(1), expected(44, 45, 0x5, &[
        0, 0, 0, 0,  2, 0, 0, 0,  1, 8, 0, 0x80,  0, 0, 1, 0,  8, 0, 1, 0,
        8, 0, 1, 0,  b'u', b'3', b'2', 0,
    ]));
    assert_eq!(Filter::dump(2, QDISC).numbered(1), expected(36, 46, 0x301, &[
        0, 0, 0, 0,  2, 0, 0, 0,  0, 0, 0, 0,  0, 0, 1, 0,  0, 0, 0, 0,
    ]));
}

#[test]
#[cfg(target_endian = "little")]
fn an_address_of_ipv6_is_four_words_of_another_protocol() {
    let source = "fd00::1:2".parse().unwrap();
    let request = Filter::add(2, QDISC, (2, source, LS)).numbered(1);
    // Priority 2, and the protocol 0x86dd.
    assert_eq!(request[32..36], [0x86, 0xdd, 2, 0]);
    let keys: Vec<_> = request[76..].chunks(16).collect();
    assert_eq!(keys.len(), 4);
    for (key, (value, at)) in keys.iter().zip([
        ([0xfd, 0, 0, 0], 8),
        ([0; 4], 12),
        ([0; 4], 16),
        ([0, 1, 0, 2], 20),
    ]) {
        let key: Vec<u8> = key.to_vec();
        let expected = [[0xff; 4], value, [at, 0, 0, 0], [0; 4]].concat();
        assert_eq!(key, expected);
    }
}

#[test]
#[cfg(target_endian = "little")]
#[rustfmt::skip]
fn a_filter_of_groups_is_of_all_protocols_and_says_no_class() {
    let request = GroupFilter::add(2, QDISC, 3);
    // RTM_NEWTFILTER with request, acknowledge, exclusive and create.
    assert_eq!(request.numbered(1), expected(52, 44, 0x605, &[
        // Handle 1, priority 3, and the protocol 0x0003 as the network has it.
        0, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,  0, 0, 1, 0,  0, 3, 3, 0,
        11, 0, 1, 0,  b'c', b'g', b'r', b'o',  b'u', b'p', 0, 0,
        4, 0, 2, 0,
    ]));
    let said = payload(&request);
    assert_eq!(GroupFilter::read(44, &said), Some(3));
    assert_eq!(GroupFilter::read(45, &said), None);
    // What is said of its priority alone has no handle.
    let mut of_priority = said.clone();
    of_priority[8] = 0;
    assert_eq!(GroupFilter::read(44, &of_priority), None);
    // Up to the end of its kind.
    for length in 0..31 {
        assert_eq!(GroupFilter::read(44, &said[..length]), None, "{length}");
    }
    assert_eq!(Filter::read(44, &said), None);
    let by_address = payload(&FILTER.redirect(2, QDISC, LS));
    assert_eq!(GroupFilter::read(44, &by_address), None);
}

#[test]
fn what_is_asked_for_is_read_from_what_is_said() {
    let htb = Htb {
        default: 2,
        rate_to_quantum: MARK,
    };
    let read = Qdisc::read(36, &payload(&Qdisc::add_htb(2, QDISC, htb)));
    let expected = Qdisc {
        link: 2,
        handle: QDISC,
        parent: Handle::ROOT,
        kind: "htb".to_owned(),
        htb: Some(htb),
    };
    assert_eq!(read, Some(expected));
    let large = Class {
        rate: 5_000_000_000,
        ceil: 12_500_000_000,
        ..CLASS
    };
    for class in [CLASS, large] {
        assert_eq!(Class::read(40, &payload(&class.put(2))), Some(class));
    }
    for source in ["10.1.2.3", "fd00::1:2"].map(|it| it.parse().unwrap()) {
        let filter = Filter { source, ..FILTER };
        let said = payload(&filter.redirect(2, QDISC, LS));
        assert_eq!(Filter::read(44, &said), Some(filter));
    }
}

#[test]
fn of_a_qdisc_of_another_kind_its_kind_is_known() {
    let fixed = fixed(3, 0x8001_0000, u32::MAX, 0);
    let request = Request::new(NEW_QDISC, 0, &fixed, &of_kind("fq_codel"));
    let read = Qdisc::read(36, &payload(&request)).unwrap();
    assert_eq!((read.kind.as_str(), read.htb), ("fq_codel", None));
    assert_eq!(read.handle.to_string(), "8001:");
    assert!(read.handle.is_given());
}

#[test]
fn what_is_cut_off_or_of_another_sort_is_none() {
    let htb = Htb {
        default: 2,
        rate_to_quantum: MARK,
    };
    let qdisc = payload(&Qdisc::add_htb(2, QDISC, htb));
    for length in 0..qdisc.len() {
        let read = Qdisc::read(36, &qdisc[..length]);
        assert!(read.is_none_or(|it| it.htb.is_none()), "{length}");
    }
    let class = payload(&CLASS.put(2));
    for length in 0..class.len() {
        assert_eq!(Class::read(40, &class[..length]), None, "{length}");
    }
    let filter = payload(&FILTER.redirect(2, QDISC, LS));
    for length in 0..filter.len() {
        assert_eq!(Filter::read(44, &filter[..length]), None, "{length}");
    }
    assert_eq!(Qdisc::read(40, &qdisc), None);
    assert_eq!(Class::read(44, &class), None);
    assert_eq!(Class::read(40, &filter), None);
    assert_eq!(Filter::read(36, &filter), None);
    // Matches a network, something else of the packet, or more than the address.
    for (at, byte) in [(60, 0), (68, 16), (72, 1), (46, 2)] {
        let mut other = filter.clone();
        other[at] = byte;
        let read = Filter::read(44, &other);
        assert_eq!(read, None, "{at}");
    }
}

#[test]
fn a_burst_is_as_long_as_its_bytes_take_at_the_rate() {
    for (bytes, rate, ticks) in [
        // 64 ns each.
        (1_600, 1_000_000, 25_000),
        (126_600, 125_000_000, 15_825),
        (1_600, 1, u32::MAX),
        (1_600, 0, u32::MAX),
        (0, 1_000, 0),
    ] {
        assert_eq!(Class::burst_of(bytes, rate), ticks, "{bytes} at {rate}");
    }
}

#[test]
fn handles_are_written_as_tc_does() {
    for (handle, shown) in [
        (Handle::ROOT, "root"),
        (QDISC, "1:"),
        (Handle::new(1, 0xabc), "1:abc"),
    ] {
        assert_eq!(handle.to_string(), shown);
    }
    assert_eq!(Handle::new(1, 0xabc).minor(), 0xabc);
    let of_a_group = Handle::of_number(0x0001_0004);
    assert_eq!(of_a_group, Handle::new(1, 4));
    assert_eq!(of_a_group.major(), 1);
    assert_eq!(of_a_group.number(), 0x0001_0004);
}
