//! Protobuf by hand: messages as trees of fields, so that a test decides on every byte.

/// A message: fields in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub struct Tree(Vec<(u32, Part)>);

#[derive(Clone, Debug)]
enum Part {
    Number(u64),
    Bytes(Vec<u8>),
    Message(Tree),
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

/// Field numbers that no CRI has.
const UNKNOWN: u32 = 1_000;
/// The highest number that there is.
const HIGHEST: u32 = 536_870_911;

// === impl Tree ===

impl Tree {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn number(self, field: u32, value: u64) -> Self {
        self.with(field, Part::Number(value))
    }

    #[must_use]
    pub fn bytes(self, field: u32, value: impl Into<Vec<u8>>) -> Self {
        self.with(field, Part::Bytes(value.into()))
    }

    #[must_use]
    pub fn message(self, field: u32, value: Self) -> Self {
        self.with(field, Part::Message(value))
    }

    /// An entry of a map from text to text.
    #[must_use]
    pub fn entry(self, field: u32, key: &str, value: &str) -> Self {
        self.message(field, Self::new().bytes(1, key).bytes(2, value))
    }

    fn with(mut self, field: u32, part: Part) -> Self {
        self.0.push((field, part));
        self
    }

    pub fn encode(&self) -> Vec<u8> {
        self.written(&|_| {})
    }

    /// The same with unknown fields of every wire type that proto3 has at every level, before,
    /// between and behind the known ones.
    pub fn salted(&self) -> Vec<u8> {
        self.written(&unknown_fields)
    }

    fn written(&self, salt: &dyn Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        salt(&mut out);
        for (field, part) in &self.0 {
            match part {
                Part::Number(value) => {
                    tag(&mut out, *field, VARINT);
                    varint(&mut out, *value);
                }
                Part::Bytes(value) => delimited(&mut out, *field, value),
                Part::Message(tree) => delimited(&mut out, *field, &tree.written(salt)),
            }
            salt(&mut out);
        }
        out
    }
}

fn unknown_fields(out: &mut Vec<u8>) {
    tag(out, UNKNOWN, VARINT);
    varint(out, u64::MAX);
    tag(out, UNKNOWN + 1, FIXED64);
    out.extend([0xff; 8]);
    tag(out, UNKNOWN + 2, FIXED32);
    out.extend([0xfe; 4]);
    delimited(out, HIGHEST, b"\xc3\x28 no UTF-8 \x00");
}

fn delimited(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    tag(out, field, LENGTH);
    varint(out, u64::try_from(bytes.len()).unwrap());
    out.extend_from_slice(bytes);
}

fn tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field) << 3 | u64::from(wire_type));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
}
