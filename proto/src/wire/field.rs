//! Walking over the fields of a message as it lies on the wire.

use std::str;
use thiserror::Error;

/// One field as met on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    pub value: Value<'a>,
}

/// A value by its wire type; what it means is in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    /// A string, bytes, a message, a map entry or a packed list.
    Delimited(&'a [u8]),
    Fixed32([u8; 4]),
}

/// Why bytes are no message, or not one of the expected shape.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    #[error("message ends inside a field")]
    Truncated,
    #[error("number takes more than 64 bits")]
    Overlong,
    #[error("field number is outside 1 to 536870911")]
    FieldNumber,
    #[error("field {number} has wire type {wire_type}, which CRI does not use")]
    WireType { number: u32, wire_type: u8 },
    #[error("field {number} is no message")]
    NoMessage { number: u32 },
}

/// The fields of a message in the order of the wire. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// The fields of `message`, which is not copied.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// The text of a string field of `message` itself; `None` if it is missing, is no UTF-8, or the
/// message is malformed.
pub fn string_field(message: &[u8], number: u32) -> Option<&str> {
    let mut found = None;
    for field in fields(message) {
        match field.ok()? {
            Field { number: n, value } if n == number => found = Some(value),
            _ => {}
        }
    }
    match found? {
        Value::Delimited(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The values of a field of strings or messages, up to where the message is malformed.
pub(super) fn delimited(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let fields = fields(message).map_while(Result::ok);
    let fields = fields.filter(move |field| field.number == number);
    fields.filter_map(|field| match field.value {
        Value::Delimited(bytes) => Some(bytes),
        _ => None,
    })
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// What is not walked over yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    // Always: a call would hand the field over in memory, which costs as much as reading it.
    #[inline(always)]
    fn read(&mut self) -> Result<Field<'a>, WireError> {
        let key = u32::try_from(self.varint()?).map_err(|_| WireError::FieldNumber)?;
        let number = key >> 3;
        if number == 0 {
            return Err(WireError::FieldNumber);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.fixed()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
                let (bytes, rest) = self
                    .rest
                    .split_at_checked(length)
                    .ok_or(WireError::Truncated)?;
                self.rest = rest;
                Value::Delimited(bytes)
            }
            5 => Value::Fixed32(self.fixed()?),
            other => {
                let wire_type = u8::try_from(other).expect("three bits");
                return Err(WireError::WireType { number, wire_type });
            }
        };
        Ok(Field { number, value })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        // As nearly all are.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
            self.rest = rest;
            // The tenth byte holds the one bit that is left of 64.
            if shift == 63 && *byte > 1 {
                return Err(WireError::Overlong);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::Overlong)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type_is_walked_over() {
        let message = b"\x08\x96\x01\x11ABCDEFGH\x1a\x02hi\x25abcd";
        let met: Result<Vec<_>, _> = fields(message).collect();
        let field = |number, value| Field { number, value };
        assert_eq!(
            met.unwrap(),
            [
                field(1, Value::Varint(150)),
                field(2, Value::Fixed64(*b"ABCDEFGH")),
                field(3, Value::Delimited(b"hi")),
                field(4, Value::Fixed32(*b"abcd")),
            ]
        );
    }

    #[test]
    fn malformed_bytes_are_an_error_and_the_end() {
        for (message, error) in [
            (&b"\x08"[..], WireError::Truncated),
            (b"\x80", WireError::Truncated),
            (b"\x0a\x02x", WireError::Truncated),
            (
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                WireError::Truncated,
            ),
            (b"\x09\0\0\0\0\0\0\0", WireError::Truncated),
            (b"\x0d\0\0\0", WireError::Truncated),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
                WireError::Overlong,
            ),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                WireError::Overlong,
            ),
            (b"\0\0", WireError::FieldNumber),
            (b"\x80\x80\x80\x80\x10\0", WireError::FieldNumber),
            (
                b"\x0b\x0c",
                WireError::WireType {
                    number: 1,
                    wire_type: 3,
                },
            ),
            (
                b"\x0c",
                WireError::WireType {
                    number: 1,
                    wire_type: 4,
                },
            ),
            (
                b"\x0e",
                WireError::WireType {
                    number: 1,
                    wire_type: 6,
                },
            ),
            (
                b"\x0f",
                WireError::WireType {
                    number: 1,
                    wire_type: 7,
                },
            ),
        ] {
            let met: Vec<_> = fields(message).collect();
            assert_eq!(met, [Err(error)], "{message:x?}");
        }
    }

    #[test]
    fn the_largest_numbers_are_read() {
        let met: Vec<_> =
            fields(b"\xf8\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").collect();
        let value = Value::Varint(u64::MAX);
        assert_eq!(
            met,
            [Ok(Field {
                number: 536_870_911,
                value
            })]
        );
    }

    #[test]
    fn the_last_string_wins() {
        assert_eq!(string_field(b"\x0a\x01a\x0a\x01b", 1), Some("b"));
        assert_eq!(string_field(b"\x12\x01a", 1), None);
        assert_eq!(string_field(b"\x0a\x01\xff", 1), None);
        assert_eq!(string_field(b"\x08\x01", 1), None);
        assert_eq!(string_field(b"\x0a\x01a\x0a", 1), None);
    }
}
