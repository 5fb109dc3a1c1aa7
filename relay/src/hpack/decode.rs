//! The decoder of one direction: reads header blocks whole and in order, strictly.

use super::huffman;
use super::table::Table;

/// Longest scratch buffer that is kept from block to block.
const KEPT_SCRATCH: usize = 4 << 10;

/// Follows an encoder.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    limit: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// One instruction of a header block, as its receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The encoder changed the size of the dynamic table, in bytes.
    Resize(usize),
    /// A header field.
    Field {
        name: &'a [u8],
        value: &'a [u8],
        /// No one on the way may put it into a table.
        never: bool,
    },
}

/// Why a header block cannot be decoded. The connection's state is lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    #[error("cut short")]
    Truncated,
    #[error("integer too large")]
    Integer,
    #[error("no entry at index {0}")]
    Index(usize),
    #[error("bad huffman code")]
    Huffman,
    #[error("table of {size} bytes where {limit} are allowed")]
    TableSize { size: usize, limit: usize },
    #[error("table resized behind a field")]
    LateResize,
}

struct Reader<'a> {
    rest: &'a [u8],
}

// === impl Decoder ===

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder with the protocol's initial table and limit of 4,096 bytes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: Table::new(),
            limit: 4_096,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Sets the largest table, in bytes, that the encoder may change to from now on. The table
    /// itself changes when the encoder says so.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The size of the dynamic table, in bytes, that the encoder last chose.
    #[must_use]
    pub fn table_size(&self) -> usize {
        self.table.capacity()
    }

    /// Decodes one whole header block and shows each item in order.
    ///
    /// # Errors
    ///
    /// After an error the table may be out of step; the connection has to be closed.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut visit: impl FnMut(Item<'_>),
    ) -> Result<(), HpackError> {
        let mut reader = Reader { rest: block };
        let mut fields_seen = false;
        while let Some(&first) = reader.rest.first() {
            if first & 0xe0 == 0x20 {
                if fields_seen {
                    return Err(HpackError::LateResize);
                }
                visit(Item::Resize(self.resize(&mut reader)?));
                continue;
            }
            fields_seen = true;
            if first & 0x80 != 0 {
                let index = reader.integer(0x7f)?;
                let field = self.table.get(index);
                let (name, value) = field.ok_or(HpackError::Index(index))?;
                visit(Item::Field {
                    name,
                    value,
                    never: false,
                });
            } else {
                self.literal(first, &mut reader, &mut visit)?;
            }
        }
        self.name.shrink_to(KEPT_SCRATCH);
        self.value.shrink_to(KEPT_SCRATCH);
        Ok(())
    }

    fn resize(&mut self, reader: &mut Reader<'_>) -> Result<usize, HpackError> {
        let size = reader.integer(0x1f)?;
        let limit = self.limit;
        if size > limit {
            return Err(HpackError::TableSize { size, limit });
        }
        self.table.resize(size);
        Ok(size)
    }

    fn literal(
        &mut self,
        first: u8,
        reader: &mut Reader<'_>,
        visit: &mut impl FnMut(Item<'_>),
    ) -> Result<(), HpackError> {
        let indexed = first & 0x40 != 0;
        let index = reader.integer(if indexed { 0x3f } else { 0x0f })?;
        let name = if index == 0 {
            reader.string(&mut self.name)?
        } else {
            let entry = self.table.get(index);
            let (name, _) = entry.ok_or(HpackError::Index(index))?;
            // Inserting the field may evict the entry that named it.
            self.name.clear();
            self.name.extend_from_slice(name);
            &self.name
        };
        let value = reader.string(&mut self.value)?;
        visit(Item::Field {
            name,
            value,
            never: first & 0xf0 == 0x10,
        });
        if indexed {
            self.table.insert(name, value);
        }
        Ok(())
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, HpackError> {
        let (&byte, rest) = self.rest.split_first().ok_or(HpackError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    /// RFC 7541, section 5.1. Four bytes behind the prefix are enough for every length and size
    /// that is in use, and keep the sum far from overflow.
    fn integer(&mut self, mask: u8) -> Result<usize, HpackError> {
        let prefix = self.byte()? & mask;
        let mut value = usize::from(prefix);
        if prefix < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Integer)
    }

    /// A string, decoded into `scratch` if it is Huffman-coded.
    fn string<'s>(&mut self, scratch: &'s mut Vec<u8>) -> Result<&'s [u8], HpackError>
    where
        'a: 's,
    {
        let first = *self.rest.first().ok_or(HpackError::Truncated)?;
        let length = self.integer(0x7f)?;
        if length > self.rest.len() {
            return Err(HpackError::Truncated);
        }
        let (string, rest) = self.rest.split_at(length);
        self.rest = rest;
        if first & 0x80 == 0 {
            return Ok(string);
        }
        scratch.clear();
        huffman::decode(string, scratch).map_err(|_| HpackError::Huffman)?;
        Ok(scratch)
    }
}
