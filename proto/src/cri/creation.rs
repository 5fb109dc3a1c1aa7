//! The creation of a container, where it lies in its request.
//!
//! Each creation brings its pod whole, which is mostly as it was when the last one brought it. So nothing of the
//! pod is copied here: it is held against what is known of it first.

use super::{CONTAINER, ContainerConfig};
use crate::wire::{self, Field, Value};
use prost::Message;
use std::str;

/// A request to create a container, as far as it is looked at.
#[derive(Debug, Default, PartialEq)]
pub struct Creation<'a> {
    pub sandbox_id: &'a str,
    /// Without labels and annotations: those of the pod count.
    pub config: Option<ContainerConfig>,
    /// The pod as the caller knows it now.
    pub pod: Option<LentPod<'a>>,
}

/// A pod where it lies in a request, with a `PodSandboxConfig`'s zeros for what that does not say.
#[derive(Debug, Default, PartialEq)]
pub struct LentPod<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub namespace: &'a str,
    /// Each key once: of equal ones the last counts.
    pub labels: Vec<(&'a str, &'a str)>,
    /// The same.
    pub annotations: Vec<(&'a str, &'a str)>,
    /// As cgroupfs writes it, also where systemd drives.
    pub cgroup_parent: &'a str,
}

/// Labels or annotations that are looked at of a usual pod.
const USUAL: usize = 8;

// === impl Creation ===

impl<'a> Creation<'a> {
    /// Reads the fields that are looked at, and of the pod's labels and annotations those whose key
    /// `keep` takes. `None` if the bytes are no such message; they are passed on as they came then, and
    /// the runtime says what is wrong with them. An entry that nobody asks for may be no UTF-8.
    pub fn read(message: &'a [u8], keep: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let mut creation = Self::default();
        for field in wire::fields(message) {
            let Field { number, value } = field.ok()?;
            match (number, value) {
                (1, Value::Delimited(text)) => creation.sandbox_id = str::from_utf8(text).ok()?,
                (2, Value::Delimited(config)) => {
                    let looked_at = wire::select(config, CONTAINER, &|_| false).ok()?;
                    let config = creation.config.get_or_insert_default();
                    config.merge(&*looked_at).ok()?;
                }
                (3, Value::Delimited(config)) => {
                    let pod = creation.pod.get_or_insert_default();
                    pod.read(config, &keep)?;
                }
                (1..=3, _) => return None,
                _ => {}
            }
        }
        Some(creation)
    }
}

// === impl LentPod ===

impl<'a> LentPod<'a> {
    /// Reads a `PodSandboxConfig` over what there is.
    fn read(&mut self, config: &'a [u8], keep: &dyn Fn(&[u8]) -> bool) -> Option<()> {
        for field in wire::fields(config) {
            let Field { number, value } = field.ok()?;
            match (number, value) {
                (1, Value::Delimited(metadata)) => {
                    texts(
                        metadata,
                        [&mut self.name, &mut self.uid, &mut self.namespace],
                    )?;
                }
                (6, Value::Delimited(entry)) => take(&mut self.labels, entry, keep)?,
                (7, Value::Delimited(entry)) => take(&mut self.annotations, entry, keep)?,
                (8, Value::Delimited(linux)) => texts(linux, [&mut self.cgroup_parent])?,
                (1 | 6..=8, _) => return None,
                _ => {}
            }
        }
        Some(())
    }
}

/// The first fields of a message, which are strings, over what there is.
fn texts<'a, const N: usize>(message: &'a [u8], mut places: [&mut &'a str; N]) -> Option<()> {
    for field in wire::fields(message) {
        let Field { number, value } = field.ok()?;
        let index = usize::try_from(number - 1).ok()?;
        if let Some(place) = places.get_mut(index) {
            let Value::Delimited(text) = value else {
                return None;
            };
            **place = str::from_utf8(text).ok()?;
        }
    }
    Some(())
}

/// Adds an entry of a map if its key is asked for, which few are.
fn take<'a>(
    entries: &mut Vec<(&'a str, &'a str)>,
    entry: &'a [u8],
    keep: &dyn Fn(&[u8]) -> bool,
) -> Option<()> {
    let key = wire::key(entry).ok()?;
    if !keep(key) {
        return Some(());
    }
    let value = wire::value(entry).ok()?;
    let (key, value) = (str::from_utf8(key).ok()?, str::from_utf8(value).ok()?);
    if let Some((_, earlier)) = entries.iter_mut().find(|(it, _)| *it == key) {
        *earlier = value;
        return Some(());
    }
    if entries.capacity() == 0 {
        entries.reserve(USUAL);
    }
    entries.push((key, value));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `config { metadata { name: "a" } linux { resources { cpu_shares: 2 } } }` and an unknown
    /// field 99, by hand from the protobuf encoding.
    const REQUEST: &[u8] = b"\x12\x0b\x0a\x03\x0a\x01a\x7a\x04\x0a\x02\x18\x02\x9a\x06\x01x";

    #[test]
    fn a_creation_is_read_past_what_is_unknown() {
        let creation = Creation::read(REQUEST, |_| false).unwrap();
        assert_eq!((creation.sandbox_id, creation.pod), ("", None));
        let config = creation.config.unwrap();
        assert_eq!(config.resources().unwrap().cpu_shares, 2);
        assert_eq!(config.metadata.unwrap().name, "a");
        let cut = &REQUEST[..REQUEST.len() - 1];
        assert_eq!(Creation::read(cut, |_| true), None);
    }

    #[test]
    fn a_pod_is_what_all_of_its_messages_say_and_of_what_is_asked_for() {
        // pod_sandbox_id: "s" sandbox_config { metadata { name: "n" uid: "u" attempt: 7 } labels { k: "1" }
        // labels { a: "2" } hostname: "h" annotations { a: "\xff" } linux { cgroup_parent: "/p" } }
        // sandbox_config { metadata { uid: "v" namespace: "d" } annotations { k: "3" } annotations { k: "" } }
        let request = b"\x0a\x01s\x1a\x2b\x0a\x08\x0a\x01n\x12\x01u\x20\x07\x32\x06\x0a\x01k\x12\x011\x32\x06\x0a\x01a\x12\x012\x12\x01h\x3a\x06\x0a\x01a\x12\x01\xff\x42\x04\x0a\x02/p\x1a\x15\x0a\x06\x12\x01v\x1a\x01d\x3a\x06\x0a\x01k\x12\x013\x3a\x03\x0a\x01k";
        let creation = Creation::read(request, |key| key == b"k").unwrap();
        assert_eq!((creation.sandbox_id, creation.config), ("s", None));
        let pod = LentPod {
            name: "n",
            uid: "v",
            namespace: "d",
            labels: vec![("k", "1")],
            annotations: vec![("k", "")],
            cgroup_parent: "/p",
        };
        assert_eq!(creation.pod, Some(pod));
        // Somebody asks for what is no UTF-8.
        assert_eq!(Creation::read(request, |_| true), None);
    }

    #[test]
    fn what_is_of_another_type_than_it_has_to_be_is_no_creation() {
        for request in [
            // A number in place of each of the fields that are looked at.
            &b"\x08\x01"[..],
            b"\x10\x01",
            b"\x18\x01",
            b"\x1a\x02\x08\x01",
            b"\x1a\x04\x0a\x02\x10\x01",
            b"\x1a\x02\x30\x01",
            b"\x1a\x02\x38\x01",
            b"\x1a\x02\x40\x01",
            b"\x1a\x04\x42\x02\x08\x01",
            // Of an entry, its key and its value.
            b"\x1a\x04\x32\x02\x08\x01",
            b"\x1a\x04\x32\x02\x10\x01",
            // A name that is no UTF-8.
            b"\x0a\x01\xff",
            b"\x1a\x05\x0a\x03\x0a\x01\xff",
        ] {
            assert_eq!(Creation::read(request, |_| true), None, "{request:x?}");
        }
        let others = b"\x20\x01\x1a\x02\x10\x01\x1a\x04\x0a\x02\x20\x01";
        let pod = Some(LentPod::default());
        assert_eq!(Creation::read(others, |_| true).unwrap().pod, pod);
    }
}
