//! Any bytes from the kernel's network. They are read to their end without a panic, and whatever is made
//! of them is read again from what asking for it says.
//!
//! Input: a datagram.
#![no_main]

use koord_kernel::netlink::{
    message::{Attributes, Message, Request, attributes, messages},
    route::default_links,
    traffic::{Class, Filter, GroupFilter, Handle, Qdisc},
};
use libfuzzer_sys::fuzz_target;

/// `struct nlmsghdr` and `struct nlattr`.
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// `struct rtmsg` and `struct tcmsg`, behind which attributes stand.
const FIXED: [usize; 2] = [12, 20];

/// What the kernel would say of what is asked for.
fn said(request: &Request) -> Vec<u8> {
    request.numbered(1).split_off(HEADER)
}

/// No attribute takes room that another one has, and written they are the same.
fn read_attributes(bytes: &[u8]) {
    let mut written = Attributes::default();
    let mut read = 0;
    for (kind, payload) in attributes(bytes) {
        read += ATTRIBUTE_HEADER + payload.len();
        assert!(read <= bytes.len());
        written = written.with(kind, payload);
    }
    let again = said(&Request::new(0, 0, &[], &written));
    assert!(attributes(&again).eq(attributes(bytes)));
}

fn read_traffic(kind: u16, payload: &[u8]) {
    if let Some(qdisc) = Qdisc::read(kind, payload)
        && let Some(htb) = qdisc.htb
    {
        let request = Qdisc::add_htb(qdisc.link, qdisc.handle, htb);
        let again = Qdisc::read(36, &said(&request)).and_then(|again| again.htb);
        assert_eq!(again, Some(htb));
    }
    if let Some(class) = Class::read(kind, payload) {
        assert_eq!(Class::read(40, &said(&class.put(1))), Some(class));
    }
    if let Some(filter) = Filter::read(kind, payload) {
        let request = filter.redirect(1, Handle::new(1, 0), filter.class);
        assert_eq!(Filter::read(44, &said(&request)), Some(filter));
    }
    if let Some(priority) = GroupFilter::read(kind, payload) {
        let request = GroupFilter::add(1, Handle::new(1, 0), priority);
        assert_eq!(GroupFilter::read(44, &said(&request)), Some(priority));
    }
}

fuzz_target!(|datagram: &[u8]| {
    let mut read = 0;
    for Message { kind, payload, .. } in messages(datagram) {
        read += HEADER + payload.len();
        assert!(read <= datagram.len());
        for fixed in FIXED {
            read_attributes(payload.get(fixed..).unwrap_or_default());
        }
        read_traffic(kind, payload);
        // Each takes an attribute, or a path of that length at least.
        assert!(8 * default_links(kind, payload).len() <= payload.len());
    }
});
