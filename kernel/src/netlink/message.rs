//! Messages of netlink as bytes: a header, a part of fixed length, and attributes, each padded to a
//! multiple of four (`linux/netlink.h`). Numbers are in this machine's byte order where nothing else is
//! said.

/// The kernel answers that it has done it, or why not.
pub const ACK: u16 = 0x4;
/// Every object of a kind, one message each.
pub const DUMP: u16 = 0x300;
/// What is there already is replaced.
pub const REPLACE: u16 = 0x100;
/// What is there already is left, and the request refused.
pub const EXCLUSIVE: u16 = 0x200;
/// What is not there is made.
pub const CREATE: u16 = 0x400;

pub(super) const ERROR: u16 = 2;
pub(super) const DONE: u16 = 3;
/// What was listed has changed meanwhile.
pub(super) const INTERRUPTED: u16 = 0x10;

const REQUEST: u16 = 0x1;
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// Bits of an attribute's kind that say how it is encoded.
const ENCODING: u16 = 0xc000;

/// A request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request(Vec<u8>);

/// Attributes that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

/// A message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

// === impl Request ===

impl Request {
    /// One with this part of fixed length, whose length is a multiple of four as all of them are.
    pub fn new(kind: u16, flags: u16, fixed: &[u8], attributes: &Attributes) -> Self {
        let length = HEADER + fixed.len() + attributes.0.len();
        let length = u32::try_from(length).expect("a request is short");
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | REQUEST).to_ne_bytes());
        // Its number, which the socket gives, and the port, which is the kernel's.
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        bytes.extend(&attributes.0);
        Self(bytes)
    }

    /// The bytes of it as the one of this number.
    pub fn numbered(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }
}

// === impl Attributes ===

impl Attributes {
    #[must_use]
    pub fn with(mut self, kind: u16, payload: &[u8]) -> Self {
        let length = ATTRIBUTE_HEADER + payload.len();
        let length = u16::try_from(length).expect("an attribute is short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    #[must_use]
    pub fn with_u32(self, kind: u16, number: u32) -> Self {
        self.with(kind, &number.to_ne_bytes())
    }

    #[must_use]
    pub fn with_u64(self, kind: u16, number: u64) -> Self {
        self.with(kind, &number.to_ne_bytes())
    }

    /// A text, with the zero byte that ends it.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    #[must_use]
    pub fn with_nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind, &inner.0)
    }
}

/// The messages of a datagram, up to the first that is cut off or says a length that cannot be.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let payload = datagram.get(HEADER..length)?;
        let message = Message {
            kind: u16_at(datagram, 4)?,
            flags: u16_at(datagram, 6)?,
            sequence: u32_at(datagram, 8)?,
            payload,
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// Attributes with their kinds, up to the first that is cut off or says a length that cannot be.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & !ENCODING;
        let payload = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, payload))
    })
}

/// The first attribute of a kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, payload)| (found == kind).then_some(payload))
}

/// A text up to its zero byte.
pub fn text(payload: &[u8]) -> Option<&str> {
    let end = payload.iter().position(|byte| *byte == 0);
    std::str::from_utf8(&payload[..end.unwrap_or(payload.len())]).ok()
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes_at(bytes, at)?))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes_at(bytes, at)?))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes_at(bytes, at)?))
}

pub(super) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_request_has_header_fixed_part_and_padded_attributes() {
        let inner = Attributes::default().with_u32(5, 7);
        let attributes = Attributes::default()
            .with_text(1, "htb")
            .with(3, &[9])
            .with_nested(2, &inner);
        let request = Request::new(36, CREATE | EXCLUSIVE | ACK, &[1, 2, 3, 4], &attributes);
        #[rustfmt::skip]
        let expected = [
            // Length 48, kind 36, request with those flags, number 6, port 0.
            48, 0, 0, 0,  36, 0,  0x05, 0x06,  6, 0, 0, 0,  0, 0, 0, 0,
            1, 2, 3, 4,
            8, 0, 1, 0,  b'h', b't', b'b', 0,
            5, 0, 3, 0,  9, 0, 0, 0,
            12, 0, 2, 0,  8, 0, 5, 0,  7, 0, 0, 0,
        ];
        assert_eq!(request.numbered(6), expected);
    }

    #[test]
    fn what_is_written_is_read() {
        let attributes = Attributes::default()
            .with_u64(8, 1 << 40)
            .with_text(3, "eth0");
        let one = Request::new(20, DUMP, &[0; 4], &attributes).numbered(1);
        let other = Request::new(21, 0, &[], &Attributes::default()).numbered(2);
        let datagram = [one, other].concat();
        let read: Vec<_> = messages(&datagram).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(
            (read[0].kind, read[0].flags, read[0].sequence),
            (20, 0x301, 1)
        );
        let payload = &read[0].payload[4..];
        assert_eq!(
            attribute(payload, 8).and_then(|it| u64_at(it, 0)),
            Some(1 << 40)
        );
        assert_eq!(attribute(payload, 3).and_then(text), Some("eth0"));
        assert_eq!(attribute(payload, 4), None);
        assert_eq!((read[1].kind, read[1].payload), (21, [].as_slice()));
    }

    #[test]
    fn what_is_cut_off_or_says_an_impossible_length_ends_what_is_read() {
        let attributes = Attributes::default().with_u32(1, 1).with_u32(2, 2);
        let whole = Request::new(20, 0, &[], &attributes).numbered(1);
        for length in 0..whole.len() {
            assert_eq!(messages(&whole[..length]).count(), 0, "{length}");
        }
        for length in [0_u32, 15, u32::MAX] {
            let mut odd = whole.clone();
            odd[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&odd).count(), 0, "{length}");
        }
        let payload = messages(&whole).next().unwrap().payload;
        for (length, count) in [(16, 2), (15, 1), (8, 1), (7, 0), (3, 0)] {
            assert_eq!(attributes_in(&payload[..length]), count, "{length}");
        }
        for length in [0_u16, 3, u16::MAX] {
            let mut odd = payload.to_vec();
            odd[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes_in(&odd), 0, "{length}");
        }
    }

    fn attributes_in(bytes: &[u8]) -> usize {
        attributes(bytes).count()
    }

    #[test]
    fn bits_of_encoding_are_no_part_of_a_kind_and_a_text_may_lack_its_end() {
        let attributes = Attributes::default().with(2 | 0x8000, b"u32");
        let read = attribute(&attributes.0, 2).and_then(text);
        assert_eq!(read, Some("u32"));
        assert_eq!(text(&[0xff]), None);
    }
}
