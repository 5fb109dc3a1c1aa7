//! What the kernel's network says never panics and is read to its end, whatever it is, and rules that
//! hold for every input do.

use koord_kernel::netlink::{
    message::{Attributes, Message, Request, attributes, messages},
    route,
    traffic::{Class, Filter, GroupFilter, Handle, Htb, Qdisc},
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use std::net::IpAddr;

/// What is said of queues, of their classes and filters, and of routes (`RTM_NEW…`).
const QDISC: u16 = 36;
const CLASS: u16 = 40;
const FILTER: u16 = 44;
const ROUTE: u16 = 24;

/// `struct nlmsghdr`, `struct nlattr` and `struct tcmsg`.
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const FIXED: usize = 20;

const QUEUE: Handle = Handle::new(1, 0);

/// What the kernel would say of what is asked for.
fn said(request: &Request) -> Vec<u8> {
    request.numbered(1).split_off(HEADER)
}

fn written(pairs: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut all = Attributes::default();
    for (kind, payload) in pairs {
        all = all.with(*kind, payload);
    }
    said(&Request::new(0, 0, &[], &all))
}

/// Attributes nearly as they are looked for, up to three deep.
fn nearly_attributes() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(b"htb\0".to_vec()),
        Just(b"u32\0".to_vec()),
        Just(b"cgroup\0".to_vec()),
        vec(any::<u8>(), 0..80),
    ];
    leaf.prop_recursive(3, 32, 4, |inner| {
        vec((0..16_u16, inner), 0..4).prop_map(|pairs| written(&pairs))
    })
}

fn queues() -> impl Strategy<Value = Htb> {
    any::<[u32; 2]>().prop_map(|[default, rate_to_quantum]| Htb {
        default,
        rate_to_quantum,
    })
}

fn classes() -> impl Strategy<Value = Class> {
    // One of more than 32 bits is said elsewhere.
    let rate = || prop_oneof![any::<u32>().prop_map(u64::from), any::<u64>()];
    let numbers = any::<[u32; 4]>();
    (any::<[u16; 4]>(), rate(), rate(), numbers).prop_map(|(handles, rate, ceil, numbers)| {
        let [major, minor, parent_major, parent_minor] = handles;
        let [burst, ceil_burst, quantum, priority] = numbers;
        Class {
            handle: Handle::new(major, minor),
            parent: Handle::new(parent_major, parent_minor),
            rate,
            ceil,
            burst,
            ceil_burst,
            quantum,
            priority,
        }
    })
}

fn filters() -> impl Strategy<Value = Filter> {
    let numbers = (any::<u32>(), any::<[u16; 3]>());
    (numbers, any::<IpAddr>()).prop_map(|((handle, numbers), source)| {
        let [priority, major, minor] = numbers;
        Filter {
            handle,
            priority,
            source,
            class: Handle::new(major, minor),
        }
    })
}

/// Default routes of the table `main` by several interfaces, each with a length that may be wrong.
fn routes() -> impl Strategy<Value = Vec<u8>> {
    vec((0..24_u16, any::<[u8; 14]>()), 0..4).prop_map(|paths| {
        let path = |(length, rest): (u16, [u8; 14])| [&length.to_ne_bytes()[..], &rest].concat();
        let paths: Vec<u8> = paths.into_iter().flat_map(path).collect();
        let attributes = Attributes::default().with_u32(4, 2).with(9, &paths);
        let fixed = [2, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        Request::new(ROUTE, 0, &fixed, &attributes).numbered(1)
    })
}

fn nearly_message() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![QDISC, CLASS, FILTER, ROUTE]);
    let fixed = prop_oneof![vec(any::<u8>(), FIXED), vec(any::<u8>(), 0..32)];
    let made_up = (kind, fixed, nearly_attributes()).prop_map(|(kind, fixed, attributes)| {
        let payload = [fixed, attributes].concat();
        Request::new(kind, 0, &payload, &Attributes::default()).numbered(1)
    });
    prop_oneof![
        made_up,
        queues().prop_map(|htb| Qdisc::add_htb(2, QUEUE, htb).numbered(1)),
        classes().prop_map(|class| class.put(2).numbered(1)),
        filters().prop_map(|filter| filter.redirect(2, QUEUE, filter.class).numbered(1)),
        any::<u16>().prop_map(|priority| GroupFilter::add(2, QUEUE, priority).numbered(1)),
        routes(),
    ]
}

/// Messages of which some bytes are others.
fn nearly_datagram() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    (vec(nearly_message(), 1..4), changes).prop_map(|(messages, changes)| {
        let mut datagram = messages.concat();
        for (at, byte) in changes {
            let at = at.index(datagram.len());
            datagram[at] = byte;
        }
        datagram
    })
}

proptest! {
    #[test]
    fn whatever_is_said_is_read_to_its_end(
        datagram in prop_oneof![nearly_datagram(), vec(any::<u8>(), 0..200)],
    ) {
        // One more than there can be: what is read without an end takes more room than there is.
        let all = messages(&datagram).take(datagram.len() + 1);
        let read: usize = all.map(|message| HEADER + message.payload.len()).sum();
        prop_assert!(read <= datagram.len());
        for Message { kind, payload, .. } in messages(&datagram) {
            for bytes in [payload, &payload[payload.len().min(FIXED)..]] {
                let all = attributes(bytes).take(bytes.len() + 1);
                let read: usize = all.map(|(_, inner)| ATTRIBUTE_HEADER + inner.len()).sum();
                prop_assert!(read <= bytes.len());
            }
            prop_assert!(Qdisc::read(kind, payload).is_none() || kind == QDISC);
            prop_assert!(Class::read(kind, payload).is_none() || kind == CLASS);
            prop_assert!(Filter::read(kind, payload).is_none() || kind == FILTER);
            prop_assert!(GroupFilter::read(kind, payload).is_none() || kind == FILTER);
            let links = route::default_links(kind, payload);
            prop_assert!(links.is_empty() || kind == ROUTE);
            // Each takes an attribute, or a path of that length at least.
            prop_assert!(8 * links.len() <= payload.len());
        }
    }

    #[test]
    fn attributes_are_read_as_they_were_written(
        pairs in vec((0..0x4000_u16, vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let bytes = written(&pairs);
        let read = attributes(&bytes).map(|(kind, payload)| (kind, payload.to_vec()));
        prop_assert_eq!(read.collect::<Vec<_>>(), pairs);
    }

    #[test]
    fn every_queue_class_and_filter_is_read_as_it_was_asked_for(
        htb in queues(),
        class in classes(),
        filter in filters(),
    ) {
        let read = Qdisc::read(QDISC, &said(&Qdisc::add_htb(2, QUEUE, htb)));
        prop_assert_eq!(read.and_then(|qdisc| qdisc.htb), Some(htb));
        prop_assert_eq!(Class::read(CLASS, &said(&class.put(2))), Some(class));
        let request = filter.redirect(2, QUEUE, filter.class);
        prop_assert_eq!(Filter::read(FILTER, &said(&request)), Some(filter));
    }
}
