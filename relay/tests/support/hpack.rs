//! HPACK by the plainest means: lists, and one bit at a time. The encoder uses whatever the format
//! allows, at random.

use std::collections::HashMap;
use std::sync::OnceLock;

use koord_relay::hpack::{self, CODE_LENGTHS, HpackError, Item};

use super::rng::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    pub never: bool,
}

pub fn field(name: &str, value: impl AsRef<[u8]>) -> Field {
    Field {
        name: name.as_bytes().to_vec(),
        value: value.as_ref().to_vec(),
        never: false,
    }
}

/// A field that enters no table, as RFC 7541 writes it in section 6.2.2, or 6.2.3 for one that never may.
/// Not by the room's own encoder, which is what such fields are compared with.
pub fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8], never: bool) {
    block.push(if never { 0x10 } else { 0x00 });
    for text in [name, value] {
        assert!(text.len() < 127, "its length takes one byte");
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text);
    }
}

/// The bytes of a hex dump.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    pairs.map(|p| u8::from_str_radix(p, 16).unwrap()).collect()
}

/// What the room's decoder reads in a block: table sizes and fields.
pub fn read(
    decoder: &mut hpack::Decoder,
    block: &[u8],
) -> Result<(Vec<usize>, Vec<Field>), HpackError> {
    let (mut sizes, mut fields) = (Vec::new(), Vec::new());
    decoder.decode(block, |item| match item {
        Item::Resize(size) => sizes.push(size),
        Item::Field { name, value, never } => {
            let (name, value) = (name.to_vec(), value.to_vec());
            fields.push(Field { name, value, never });
        }
    })?;
    Ok((sizes, fields))
}

/// The entries of the static table that the tests use.
const STATIC: [(usize, &str, &str); 7] = [
    (3, ":method", "POST"),
    (4, ":path", "/"),
    (6, ":scheme", "http"),
    (8, ":status", "200"),
    (28, "content-length", ""),
    (31, "content-type", ""),
    (58, "user-agent", ""),
];

/// A dynamic table, newest entry first.
#[derive(Debug)]
struct Table {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    capacity: usize,
}

impl Table {
    fn insert(&mut self, name: &[u8], value: &[u8]) {
        self.entries.insert(0, (name.to_vec(), value.to_vec()));
        self.evict();
    }

    fn evict(&mut self) {
        let size = |entry: &(Vec<u8>, Vec<u8>)| entry.0.len() + entry.1.len() + 32;
        while self.entries.iter().map(size).sum::<usize>() > self.capacity {
            self.entries.pop();
        }
    }

    fn get(&self, index: usize) -> (Vec<u8>, Vec<u8>) {
        if index > 61 {
            return self.entries[index - 62].clone();
        }
        let entry = STATIC.iter().find(|entry| entry.0 == index);
        let (_, name, value) = entry.expect("an index that the tests use");
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    /// Indices of entries with this name, and whether the value is equal too.
    fn find(&self, field: &Field) -> Vec<(usize, bool)> {
        let of_static = STATIC
            .iter()
            .map(|(index, name, value)| (*index, name.as_bytes(), value.as_bytes()));
        let of_dynamic = (62..)
            .zip(&self.entries)
            .map(|(index, (name, value))| (index, &name[..], &value[..]));
        of_static
            .chain(of_dynamic)
            .filter(|(_, name, _)| *name == field.name)
            .map(|(index, _, value)| (index, value == field.value))
            .collect()
    }
}

#[derive(Debug)]
pub struct Encoder {
    table: Table,
    limit: usize,
    /// The smallest limit since the last block.
    lowest: usize,
}

impl Encoder {
    pub fn new() -> Self {
        Self {
            table: Table {
                entries: Vec::new(),
                capacity: 4_096,
            },
            limit: 4_096,
            lowest: 4_096,
        }
    }

    /// The other end's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.lowest = self.lowest.min(limit);
    }

    pub fn encode(&mut self, fields: &[Field], rng: &mut Rng) -> Vec<u8> {
        let mut out = Vec::new();
        if self.lowest < self.table.capacity {
            self.resize(self.lowest, &mut out);
        }
        if rng.one_in(6) {
            let size = rng.below(self.limit + 1);
            self.resize(size, &mut out);
        }
        self.lowest = self.limit;
        for field in fields {
            self.field(field, rng, &mut out);
        }
        out
    }

    fn resize(&mut self, size: usize, out: &mut Vec<u8>) {
        integer(out, 0x20, 5, size);
        self.table.capacity = size;
        self.table.evict();
    }

    fn field(&mut self, field: &Field, rng: &mut Rng, out: &mut Vec<u8>) {
        let found = self.table.find(field);
        let same: Vec<usize> = found.iter().filter(|f| f.1).map(|f| f.0).collect();
        if !field.never && !same.is_empty() && !rng.one_in(4) {
            return integer(out, 0x80, 7, rng.pick(&same));
        }
        let name = if found.is_empty() || rng.one_in(4) {
            0
        } else {
            rng.pick(&found).0
        };
        let insert = !field.never && !rng.one_in(3);
        match (field.never, insert) {
            (true, _) => integer(out, 0x10, 4, name),
            (false, true) => integer(out, 0x40, 6, name),
            (false, false) => integer(out, 0x00, 4, name),
        }
        if name == 0 {
            string(out, &field.name, rng);
        }
        string(out, &field.value, rng);
        if insert {
            self.table.insert(&field.name, &field.value);
        }
    }
}

#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The largest table that was announced and may be in use.
    pub limit: usize,
    /// The smallest limit in force since the last block.
    pub lowest: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self {
            table: Table {
                entries: Vec::new(),
                capacity: 4_096,
            },
            limit: 4_096,
            lowest: usize::MAX,
        }
    }

    /// Panics if the block is wrong in any way.
    pub fn decode(&mut self, mut block: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut resized = self.table.capacity;
        while let Some(&first) = block.first() {
            if first & 0xe0 == 0x20 {
                assert!(fields.is_empty(), "table resized behind a field");
                let size = take_integer(&mut block, 5);
                assert!(size <= self.limit, "table over its limit");
                self.table.capacity = size;
                self.table.evict();
                resized = resized.min(size);
                continue;
            }
            assert!(resized <= self.lowest, "a lower limit was not acknowledged");
            fields.push(self.field(first, &mut block));
        }
        self.lowest = usize::MAX;
        fields
    }

    fn field(&mut self, first: u8, block: &mut &[u8]) -> Field {
        if first & 0x80 != 0 {
            let (name, value) = self.table.get(take_integer(block, 7));
            let never = false;
            return Field { name, value, never };
        }
        let insert = first & 0x40 != 0;
        let name = match take_integer(block, if insert { 6 } else { 4 }) {
            0 => take_string(block),
            index => self.table.get(index).0,
        };
        let value = take_string(block);
        if insert {
            self.table.insert(&name, &value);
        }
        let never = first & 0xf0 == 0x10;
        Field { name, value, never }
    }
}

pub fn integer(out: &mut Vec<u8>, pattern: u8, bits: u32, value: usize) {
    let mask = (1 << bits) - 1;
    if value < mask {
        return out.push(pattern | u8::try_from(value).unwrap());
    }
    out.push(pattern | u8::try_from(mask).unwrap());
    let mut rest = value - mask;
    while rest >= 128 {
        out.push(u8::try_from(rest % 128 + 128).unwrap());
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

fn take_integer(block: &mut &[u8], bits: u32) -> usize {
    let mask = (1 << bits) - 1;
    let mut value = usize::from(take(block, 1)[0]) & mask;
    let mut shift = 0;
    while value >= mask {
        let byte = usize::from(take(block, 1)[0]);
        value += (byte % 128) << shift;
        shift += 7;
        if byte < 128 {
            break;
        }
    }
    value
}

fn take<'a>(block: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = block.split_at(count);
    *block = rest;
    taken
}

fn string(out: &mut Vec<u8>, bytes: &[u8], rng: &mut Rng) {
    if rng.one_in(2) {
        integer(out, 0, 7, bytes.len());
        out.extend_from_slice(bytes);
    } else {
        let coded = huffman(bytes);
        integer(out, 0x80, 7, coded.len());
        out.extend_from_slice(&coded);
    }
}

fn take_string(block: &mut &[u8]) -> Vec<u8> {
    let coded = block[0] & 0x80 != 0;
    let length = take_integer(block, 7);
    let bytes = take(block, length);
    if coded {
        unhuffman(bytes)
    } else {
        bytes.to_vec()
    }
}

/// Length and bits of each symbol's code.
fn codes() -> &'static Vec<(u8, u32)> {
    static CODES: OnceLock<Vec<(u8, u32)>> = OnceLock::new();
    CODES.get_or_init(|| {
        let mut order: Vec<usize> = (0..CODE_LENGTHS.len()).collect();
        order.sort_by_key(|symbol| (CODE_LENGTHS[*symbol], *symbol));
        let mut codes = vec![(0, 0); CODE_LENGTHS.len()];
        let (mut code, mut length) = (0_u32, 0);
        for symbol in order {
            code <<= CODE_LENGTHS[symbol] - length;
            length = CODE_LENGTHS[symbol];
            codes[symbol] = (length, code);
            code += 1;
        }
        codes
    })
}

pub fn huffman(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut acc, mut count) = (0_u64, 0);
    for &byte in bytes {
        let (length, code) = codes()[usize::from(byte)];
        acc = acc << length | u64::from(code);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push(u8::try_from(acc >> count & 0xff).unwrap());
        }
    }
    if count > 0 {
        out.push(u8::try_from((acc << (8 - count) | (0xff >> count)) & 0xff).unwrap());
    }
    out
}

fn unhuffman(bytes: &[u8]) -> Vec<u8> {
    static SYMBOLS: OnceLock<HashMap<(u8, u32), u8>> = OnceLock::new();
    let symbols = SYMBOLS.get_or_init(|| {
        let codes = codes()[..256].iter();
        codes
            .zip(0..=255)
            .map(|(code, symbol)| (*code, symbol))
            .collect()
    });
    let mut out = Vec::new();
    let (mut length, mut code) = (0, 0);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if let Some(symbol) = symbols.get(&(length, code)) {
                out.push(*symbol);
                (length, code) = (0, 0);
            }
        }
    }
    assert!(length < 8 && code == (1 << length) - 1, "bad padding");
    out
}
