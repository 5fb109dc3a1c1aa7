//! A message without the map entries that nobody asks for.

use super::field::{Field, Value, WireError, fields};
use super::writer::Writer;

/// A copy of `message` in which the maps at the ends of `paths` keep only the entries whose key
/// `keep` takes. All else is as it was, though a sub-message on a path may have its length written
/// shorter.
///
/// A pod brings dozens of annotations to each of its containers, of which hooks read a handful.
/// Walking over the others costs a few nanoseconds each, decoding them a hundred times that.
pub fn retain_entries(
    message: &[u8],
    paths: &[&[u32]],
    keep: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, WireError> {
    let mut kept = Writer::default();
    let mut walk = fields(message);
    loop {
        let before = walk.rest();
        let Some(field) = walk.next() else {
            return Ok(kept.into_bytes());
        };
        let Field { number, value } = field?;
        let ends = paths.iter().any(|path| **path == [number]);
        let leads = paths.iter().any(|path| path.len() > 1 && path[0] == number);
        match value {
            Value::Delimited(entry) if ends => {
                if keep(key(entry)?) {
                    kept.delimited(number, entry);
                }
            }
            Value::Delimited(message) if leads => {
                let below = paths.iter().filter_map(|path| path.split_first());
                let below = below.filter(|(first, _)| **first == number);
                let below: Vec<_> = below.map(|(_, below)| below).collect();
                kept.delimited(number, &retain_entries(message, &below, keep)?);
            }
            // prost would take the number for a length.
            _ if ends || leads => return Err(WireError::NoMessage { number }),
            _ => kept.raw(&before[..before.len() - walk.rest().len()]),
        }
    }
}

/// The key of a map entry.
fn key(entry: &[u8]) -> Result<&[u8], WireError> {
    let mut key: &[u8] = b"";
    for field in fields(entry) {
        match field? {
            Field {
                number: 1,
                value: Value::Delimited(bytes),
            } => key = bytes,
            Field { number: 1, .. } => return Err(WireError::NoMessage { number: 1 }),
            _ => {}
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_nobody_asks_for_are_left_out() {
        // config { annotations { k: "1" } 14: true annotations { l: "2" } } 1: "id"
        let message =
            b"\x12\x12\x52\x06\x0a\x01k\x12\x011\x70\x01\x52\x06\x0a\x01l\x12\x012\x0a\x02id";
        let kept = retain_entries(message, &[&[2, 9], &[2, 10]], &|key| key == b"l");
        let expected = b"\x12\x0a\x70\x01\x52\x06\x0a\x01l\x12\x012\x0a\x02id";
        assert_eq!(kept.unwrap(), expected);
    }

    #[test]
    fn a_message_without_such_maps_is_as_it_was() {
        let message = b"\x12\0\x1a\x03abc\x0d1234\x12\x02\x70\x01";
        let kept = retain_entries(message, &[&[2, 10]], &|_| false);
        assert_eq!(kept.unwrap(), message);
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        let error = retain_entries(b"\x12\x03\x52\x05x", &[&[2, 10]], &|_| true);
        assert_eq!(error, Err(WireError::Truncated));
        let error = retain_entries(b"\x12\x02\x50\x01", &[&[2, 10]], &|_| true);
        assert_eq!(error, Err(WireError::NoMessage { number: 10 }));
        let number_as_key = b"\x12\x04\x52\x02\x08\x01";
        let error = retain_entries(number_as_key, &[&[2, 10]], &|_| true);
        assert_eq!(error, Err(WireError::NoMessage { number: 1 }));
    }
}
