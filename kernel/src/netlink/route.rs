//! Routes (`linux/rtnetlink.h`), as far as they tell by which interfaces packets leave that no other
//! route is for.

use super::message::{Attributes, DUMP, Request, attribute, u16_at, u32_at};

const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
/// `RTA_…`.
const INTERFACE: u16 = 4;
const PATHS: u16 = 9;
const TABLE: u16 = 15;
/// The table `main`, where the routes of the machine are.
const MAIN: u32 = 254;
/// To somewhere, not one that discards or refuses.
const UNICAST: u8 = 1;
/// `RTM_F_CLONED`: nobody's but remembered.
const CLONED: u32 = 0x200;

/// `struct rtmsg` and `struct rtnexthop`.
const FIXED: usize = 12;
const PATH: usize = 8;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Asks for the routes of a family.
pub fn dump(family: Family) -> Request {
    let mut fixed = [0; FIXED];
    fixed[0] = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    Request::new(GET_ROUTE, DUMP, &fixed, &Attributes::default())
}

/// The numbers of the interfaces of a default route; none of any other message.
pub fn default_links(kind: u16, payload: &[u8]) -> Vec<u32> {
    links(kind, payload).unwrap_or_default()
}

fn links(kind: u16, payload: &[u8]) -> Option<Vec<u32>> {
    let (fixed, attributes) = payload.split_at_checked(FIXED)?;
    let table = match attribute(attributes, TABLE) {
        Some(table) => u32_at(table, 0)?,
        None => u32::from(fixed[4]),
    };
    let flags = u32_at(fixed, 8)?;
    let (length, route) = (fixed[1], fixed[7]);
    let is_default = kind == NEW_ROUTE && length == 0 && table == MAIN && route == UNICAST;
    if !is_default || flags & CLONED != 0 {
        return None;
    }
    let mut links = Vec::new();
    if let Some(link) = attribute(attributes, INTERFACE) {
        links.push(u32_at(link, 0)?);
    }
    let mut paths = attribute(attributes, PATHS).unwrap_or_default();
    while let Some(length) = u16_at(paths, 0).map(usize::from) {
        let path = paths.get(..length).filter(|_| length >= PATH)?;
        links.push(u32_at(path, 4)?);
        paths = paths.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default route of the table `main`, but for what a test changes in it.
    fn route(change: impl Fn(&mut [u8; FIXED]), attributes: &Attributes) -> Vec<u8> {
        let mut fixed = [2, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        change(&mut fixed);
        let request = Request::new(NEW_ROUTE, 0, &fixed, attributes).numbered(1);
        request[16..].to_vec()
    }

    #[test]
    fn a_dump_asks_for_one_family() {
        let [v4, v6] = [Family::V4, Family::V6].map(|it| dump(it).numbered(1));
        // Length 28, kind 26, flags of a dump.
        assert_eq!(
            v4[..6],
            [28_u32.to_ne_bytes().as_slice(), &26_u16.to_ne_bytes()].concat()
        );
        assert_eq!((v4[16], v6[16]), (2, 10));
    }

    #[test]
    fn a_default_route_has_its_interface_and_no_other_route_has() {
        let to_two = Attributes::default().with_u32(15, 254).with_u32(4, 2);
        let links = |change: fn(&mut [u8; FIXED])| default_links(24, &route(change, &to_two));
        assert_eq!(links(|_| ()), [2]);
        for change in [
            // To a network of 16 bits, one that discards, one that is remembered.
            (|it| it[1] = 16) as fn(&mut [u8; FIXED]),
            |it| it[7] = 6,
            |it| it[8..].copy_from_slice(&0x200_u32.to_ne_bytes()),
        ] {
            assert_eq!(links(change), [0_u32; 0]);
        }
        assert_eq!(default_links(25, &route(|_| (), &to_two)), [0_u32; 0]);
        let elsewhere = Attributes::default().with_u32(15, 1_000).with_u32(4, 2);
        assert_eq!(default_links(24, &route(|_| (), &elsewhere)), [0_u32; 0]);
        // Where no attribute says the table.
        let to_three = Attributes::default().with_u32(4, 3);
        assert_eq!(default_links(24, &route(|_| (), &to_three)), [3]);
    }

    #[test]
    fn a_route_of_several_paths_has_the_interface_of_each() {
        let path = |flags: u8, link: u32| {
            let length = 16_u16.to_ne_bytes();
            let gateway = Attributes::default().with(5, &[10, 0, 0, 1]);
            let request = Request::new(0, 0, &[], &gateway).numbered(0);
            [
                &length[..],
                &[flags, 0],
                &link.to_ne_bytes(),
                &request[16..],
            ]
            .concat()
        };
        let paths = [path(0, 4), path(1, 5), path(0, 6)].concat();
        let whole = route(|_| (), &Attributes::default().with(9, &paths));
        assert_eq!(default_links(24, &whole), [4, 5, 6]);
        for length in 0..whole.len() {
            // Whatever is cut off.
            default_links(24, &whole[..length]);
        }
        let odd = route(|_| (), &Attributes::default().with(9, &[0; 8]));
        assert_eq!(default_links(24, &odd), [0_u32; 0]);
    }
}
