//! The part of a message that somebody looks at.

use super::field::{Field, Value, WireError, fields};

/// What is kept of a field.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// All of it.
    Whole,
    /// A map: the entries whose key is asked for.
    Entries,
    /// A map: the entries with these keys.
    Named(&'static [&'static str]),
    /// A list of strings: those that begin so.
    Starting(&'static str),
    /// A message: these of its fields.
    Fields(&'static [(u32, Keep)]),
}

/// Room for what hooks look at in a usual request.
const USUAL: usize = 1 << 10;

/// Bytes of a length that is not known yet: five groups of seven bits, of which decoders take
/// those that are zero as well.
const LENGTH: usize = 5;

/// A copy of `message` with the fields that `wanted` names, and of maps the entries whose key
/// `asked` takes. A length of a message in it may be written longer than it need be.
///
/// A pod brings dozens of annotations to each of its containers, a container its command, mounts
/// and environment; hooks look at a handful of fields. Walking over the others costs a few
/// nanoseconds each, decoding them a hundred times that.
///
/// # Errors
///
/// When the message, or one in it of which fields are wanted, or an entry of a map whose key is looked at is
/// malformed. Or when one of the latter two, the key of an entry, or a string whose beginning is looked at
/// has another wire type than 2, a length and so many bytes.
pub fn select(
    message: &[u8],
    wanted: &[(u32, Keep)],
    asked: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, WireError> {
    let mut selected = Vec::with_capacity(message.len().min(USUAL));
    select_into(&mut selected, message, wanted, asked)?;
    Ok(selected)
}

fn select_into(
    selected: &mut Vec<u8>,
    message: &[u8],
    wanted: &[(u32, Keep)],
    asked: &dyn Fn(&[u8]) -> bool,
) -> Result<(), WireError> {
    let mut walk = fields(message);
    loop {
        let before = walk.rest();
        let Some(field) = walk.next() else {
            return Ok(());
        };
        let Field { number, value } = field?;
        let Some((_, keep)) = wanted.iter().find(|(wanted, _)| *wanted == number) else {
            continue;
        };
        let field = &before[..before.len() - walk.rest().len()];
        match (keep, value) {
            (Keep::Whole, _) => selected.extend_from_slice(field),
            (Keep::Entries, Value::Delimited(entry)) => {
                if asked(key(entry)?) {
                    selected.extend_from_slice(field);
                }
            }
            (Keep::Named(keys), Value::Delimited(entry)) => {
                let key = key(entry)?;
                if keys.iter().any(|named| named.as_bytes() == key) {
                    selected.extend_from_slice(field);
                }
            }
            (Keep::Starting(begin), Value::Delimited(text)) => {
                if text.starts_with(begin.as_bytes()) {
                    selected.extend_from_slice(field);
                }
            }
            (Keep::Fields(below), Value::Delimited(message)) => {
                // The field up to its value is its number and its length.
                let head = &field[..field.len() - message.len()];
                selected.extend_from_slice(number_of(head));
                let length_at = selected.len();
                selected.extend_from_slice(&[0; LENGTH]);
                select_into(selected, message, below, asked)?;
                write_length(&mut selected[length_at..]);
            }
            // prost would take the number for a length.
            (Keep::Entries | Keep::Named(_) | Keep::Starting(_) | Keep::Fields(_), _) => {
                return Err(WireError::NoMessage { number });
            }
        }
    }
}

/// The first varint of `head`.
fn number_of(head: &[u8]) -> &[u8] {
    let last = head.iter().position(|byte| *byte < 0x80);
    &head[..last.map_or(head.len(), |last| last + 1)]
}

/// Writes into the first bytes of `field` how many follow them.
fn write_length(field: &mut [u8]) {
    let mut length = field.len() - LENGTH;
    for (index, byte) in field[..LENGTH].iter_mut().enumerate() {
        let low = u8::try_from(length & 0x7f).expect("seven bits");
        *byte = if index + 1 < LENGTH { low | 0x80 } else { low };
        length >>= 7;
    }
}

/// The key of a map entry.
pub(crate) fn key(entry: &[u8]) -> Result<&[u8], WireError> {
    match usual_key(entry) {
        Some(key) => Ok(key),
        None => last(entry, 1),
    }
}

/// The value of a map entry.
pub(crate) fn value(entry: &[u8]) -> Result<&[u8], WireError> {
    last(entry, 2)
}

/// The key of an entry as encoders write it: a key of up to 127 bytes, then a value, and no more.
fn usual_key(entry: &[u8]) -> Option<&[u8]> {
    let [0x0a, length @ ..0x80, rest @ ..] = entry else {
        return None;
    };
    let (key, rest) = rest.split_at_checked(usize::from(*length))?;
    let (value, length) = match rest {
        [0x12, length @ ..0x80, value @ ..] => (value, usize::from(*length)),
        [0x12, low, high @ ..0x80, value @ ..] => {
            (value, usize::from(low & 0x7f) | usize::from(*high) << 7)
        }
        _ => return None,
    };
    (value.len() == length).then_some(key)
}

/// The bytes of the last field with this number, or none.
fn last(message: &[u8], number: u32) -> Result<&[u8], WireError> {
    let mut last: &[u8] = b"";
    for field in fields(message) {
        match field? {
            Field {
                number: it,
                value: Value::Delimited(bytes),
            } if it == number => last = bytes,
            Field { number: it, .. } if it == number => {
                return Err(WireError::NoMessage { number });
            }
            _ => {}
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A string, and a message with a flag and a map.
    const WANTED: &[(u32, Keep)] = &[
        (1, Keep::Whole),
        (2, Keep::Fields(&[(14, Keep::Whole), (10, Keep::Entries)])),
    ];

    fn selected(message: &[u8], key: &[u8]) -> Result<Vec<u8>, WireError> {
        select(message, WANTED, &|asked| asked == key)
    }

    #[test]
    fn fields_and_entries_that_nobody_asks_for_are_left_out() {
        // config { annotations { k: "1" } 14: true 3: 5 annotations { l: "2" } } 1: "id" 4: "x"
        let message = b"\x12\x14\x52\x06\x0a\x01k\x12\x011\x70\x01\x18\x05\x52\x06\x0a\x01l\x12\x012\x0a\x02id\x22\x01x";
        let expected = b"\x12\x8a\x80\x80\x80\x00\x70\x01\x52\x06\x0a\x01l\x12\x012\x0a\x02id";
        assert_eq!(selected(message, b"l").unwrap(), expected);
    }

    #[test]
    fn of_a_map_with_names_no_other_entry_is_kept() {
        // map { "k": "1" } map { "l": "2" } map { "": "3" }, each in field 9.
        let message = b"\x4a\x06\x0a\x01k\x12\x011\x4a\x06\x0a\x01l\x12\x012\x4a\x03\x12\x013";
        let wanted = &[(9, Keep::Named(&["l", "x"]))];
        let kept = select(message, wanted, &|_| true).unwrap();
        assert_eq!(kept, b"\x4a\x06\x0a\x01l\x12\x012");
        let error = select(b"\x48\x01", wanted, &|_| true);
        assert_eq!(error, Err(WireError::NoMessage { number: 9 }));
    }

    #[test]
    fn the_key_of_an_entry_is_found_however_it_is_written() {
        let long = [b"\x0a\x01k\x12\xac\x02".as_slice(), &[b'v'; 300]].concat();
        let after_a_value = [&long, b"\x0a\x01l".as_slice()].concat();
        for (entry, found) in [
            (b"\x0a\x01k\x12\x01v".as_slice(), b"k".as_slice()),
            (&long, b"k"),
            // The last of several counts, wherever it is.
            (&after_a_value, b"l"),
            (b"\x0a\x01k\x12\x01v\x0a\x01l", b"l"),
            (b"\x0a\x01k\x0a\x01l", b"l"),
            (b"\x12\x01v\x0a\x01k", b"k"),
            (b"\x12\x01v", b""),
            (b"\x0a\x01k", b"k"),
            (b"", b""),
        ] {
            assert_eq!(key(entry), Ok(found), "{entry:?}");
        }
        assert_eq!(key(b"\x0a\x02k"), Err(WireError::Truncated));
        assert_eq!(key(b"\x0a\x01k\x12\x02v"), Err(WireError::Truncated));
        let number = WireError::NoMessage { number: 1 };
        assert_eq!(key(b"\x0a\x01k\x12\x01v\x08\x01"), Err(number));
    }

    #[test]
    fn a_long_message_has_its_length_in_all_its_groups() {
        // 300 bytes in field 14 of field 2: two bytes of number and length, then the value.
        let mut message = b"\x12\xaf\x02\x72\xac\x02".to_vec();
        message.extend_from_slice(&[b'y'; 300]);
        let kept = selected(&message, b"").unwrap();
        assert_eq!(kept[..9], *b"\x12\xaf\x82\x80\x80\x00\x72\xac\x02");
        assert_eq!(kept.len(), 309);
    }

    #[test]
    fn a_message_stays_a_message_though_nothing_of_it_is_kept() {
        let kept = selected(b"\x12\x02\x18\x05", b"").unwrap();
        assert_eq!(kept, b"\x12\x80\x80\x80\x80\x00");
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        let error = selected(b"\x12\x03\x52\x05x", b"x");
        assert_eq!(error, Err(WireError::Truncated));
        let error = selected(b"\x12\x02\x50\x01", b"x");
        assert_eq!(error, Err(WireError::NoMessage { number: 10 }));
        let error = selected(b"\x10\x01", b"x");
        assert_eq!(error, Err(WireError::NoMessage { number: 2 }));
        let number_as_key = b"\x12\x04\x52\x02\x08\x01";
        let error = selected(number_as_key, b"x");
        assert_eq!(error, Err(WireError::NoMessage { number: 1 }));
    }
}
