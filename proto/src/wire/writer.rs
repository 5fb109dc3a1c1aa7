//! Writing protobuf fields where absence and zero differ, which encoders of proto3 cannot.

/// A message under construction.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

/// Bytes of a usual patch, originals included.
const USUAL: usize = 256;

const VARINT: u32 = 0;
const DELIMITED: u32 = 2;

// === impl Writer ===

impl Default for Writer {
    fn default() -> Self {
        Self(Vec::with_capacity(USUAL))
    }
}

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A number; zero is written like any other.
    pub(super) fn int64(&mut self, number: u32, value: Option<i64>) {
        if let Some(value) = value {
            self.varint((number << 3 | VARINT).into());
            self.varint(u64::from_ne_bytes(value.to_ne_bytes()));
        }
    }

    /// A string; the empty one is written like any other.
    pub(super) fn string(&mut self, number: u32, value: Option<&str>) {
        if let Some(value) = value {
            self.delimited(number, value.as_bytes());
        }
    }

    /// One entry of a map, or one element of a list of pairs.
    pub(super) fn pair(&mut self, number: u32, key: &str, value: &str) {
        let mut pair = Self::default();
        pair.string(1, Some(key));
        pair.string(2, Some(value));
        self.delimited(number, &pair.0);
    }

    /// A message, unless it says nothing: an empty one would come into being by being merged.
    pub(super) fn message(&mut self, number: u32, message: &Self) {
        if !message.0.is_empty() {
            self.delimited(number, &message.0);
        }
    }

    fn delimited(&mut self, number: u32, bytes: &[u8]) {
        self.varint((number << 3 | DELIMITED).into());
        self.varint(bytes.len().try_into().expect("a length fits 64 bits"));
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            let low = u8::try_from(number & 0x7f).expect("seven bits");
            self.0.push(low | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).expect("seven bits"));
    }
}
