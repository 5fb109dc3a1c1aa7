//! The Huffman code of HPACK (RFC 7541, appendix B), decoded.
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols. So
//! 257 lengths define it, and a table for every code of at most eight bits plus one row for each
//! longer length decodes it. Text is nearly all short codes, so that is one look-up per symbol.

/// Bits of each symbol's code; the last one is the end-of-string symbol.
#[rustfmt::skip]
pub const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5,
    6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23,
    23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26,
    27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const SYMBOLS: usize = CODE_LENGTHS.len();
const MAX_LENGTH: usize = 30;
const SHORT: usize = 8;

static CODE: Code = Code::derive();

/// The string is not a sequence of whole codes followed by at most seven one bits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadHuffman;

struct Code {
    /// Symbol and length by the next eight bits; length 0 if the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// All symbols by length, then by value.
    sorted: [u16; SYMBOLS],
    /// By length: the first code, and the code after the last one, both shifted to 32 bits; and
    /// where the symbols of that length begin in `sorted`.
    rows: [Row; MAX_LENGTH + 1],
}

#[derive(Clone, Copy)]
struct Row {
    first: u64,
    end: u64,
    offset: usize,
}

// === impl Code ===

impl Code {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "symbols are below 257 and lengths below 31; `try_from` is not const"
    )]
    const fn derive() -> Self {
        let mut code = Self {
            short: [(0, 0); 1 << SHORT],
            sorted: [0; SYMBOLS],
            rows: [Row {
                first: 0,
                end: 0,
                offset: 0,
            }; MAX_LENGTH + 1],
        };
        let mut next = 0_u64;
        let mut count = 0;
        let mut length = 1;
        while length <= MAX_LENGTH {
            next <<= 1;
            let shift = 32 - length;
            code.rows[length].first = next << shift;
            code.rows[length].offset = count;
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if CODE_LENGTHS[symbol] as usize == length {
                    code.sorted[count] = symbol as u16;
                    count += 1;
                    if length <= SHORT {
                        let span = 1 << (SHORT - length);
                        let mut index = (next as usize) * span;
                        let end = index + span;
                        while index < end {
                            code.short[index] = (symbol as u8, length as u8);
                            index += 1;
                        }
                    }
                    next += 1;
                }
                symbol += 1;
            }
            code.rows[length].end = next << shift;
            length += 1;
        }
        code
    }

    /// The symbol that the bits begin with, and its length.
    fn symbol(&self, bits: u64) -> (u16, u32) {
        let top = usize::try_from(bits >> (64 - SHORT)).expect("eight bits fit");
        let (symbol, length) = self.short[top];
        if length > 0 {
            return (u16::from(symbol), u32::from(length));
        }
        let window = bits >> 32;
        let mut length = SHORT + 1;
        while window >= self.rows[length].end && length < MAX_LENGTH {
            length += 1;
        }
        let row = self.rows[length];
        let index = usize::try_from((window - row.first) >> (32 - length));
        let index = row.offset + index.expect("fewer codes of a length than symbols");
        let bits = u32::try_from(length).expect("at most 30");
        (self.sorted[index], bits)
    }
}

/// Appends the decoded string to `out`.
pub(super) fn decode(source: &[u8], out: &mut Vec<u8>) -> Result<(), BadHuffman> {
    // The next bits, left-aligned, and how many of them are real; those behind are ones, as the
    // padding is.
    let mut bits = u64::MAX;
    let mut count = 0_u32;
    let mut source = source.iter();
    loop {
        while count <= 56 {
            let Some(&byte) = source.next() else { break };
            let shift = 56 - count;
            bits = bits & !(0xff << shift) | u64::from(byte) << shift;
            count += 8;
        }
        let (symbol, length) = CODE.symbol(bits);
        if length > count {
            let padding_is_ones = bits == u64::MAX;
            return if count < 8 && padding_is_ones {
                Ok(())
            } else {
                Err(BadHuffman)
            };
        }
        out.push(u8::try_from(symbol).map_err(|_| BadHuffman)?);
        bits = bits << length | ((1 << length) - 1);
        count -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(source: &[u8]) -> Result<Vec<u8>, BadHuffman> {
        let mut out = Vec::new();
        decode(source, &mut out).map(|()| out)
    }

    #[test]
    fn lengths_fill_the_code_space_exactly() {
        let sum: u64 = CODE_LENGTHS.iter().map(|&length| 1 << (30 - length)).sum();
        assert_eq!(sum, 1 << 30);
        assert_eq!(CODE.sorted[SYMBOLS - 1], 256);
    }

    #[test]
    fn examples_of_the_rfc_decode() {
        assert_eq!(decoded(b"\xa8\xeb\x10\x64\x9c\xbf").unwrap(), b"no-cache");
        assert_eq!(
            decoded(b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff").unwrap(),
            b"www.example.com"
        );
        assert_eq!(decoded(b"").unwrap(), b"");
    }

    #[test]
    fn codes_of_every_length_decode() {
        // '0' has 5 bits, '$' 13, '\' 19.
        assert_eq!(decoded(b"\x07").unwrap(), b"0");
        assert_eq!(decoded(b"\xff\xcf").unwrap(), b"$");
        assert_eq!(decoded(b"\xff\xfe\x1f").unwrap(), b"\\");
        // 10 (30 bits: 0x3ffffffc) with two bits of padding.
        assert_eq!(decoded(b"\xff\xff\xff\xf3").unwrap(), b"\n");
        // 22 (30 bits: 0x3ffffffe).
        assert_eq!(decoded(b"\xff\xff\xff\xfb").unwrap(), b"\x16");
    }

    #[test]
    fn padding_is_at_most_seven_ones() {
        // '0' is 00000: then 111 is padding, 110 is not, and eight ones are one too many.
        assert_eq!(decoded(b"\x07").unwrap(), b"0");
        assert_eq!(decoded(b"\x06"), Err(BadHuffman));
        assert_eq!(decoded(b"\x07\xff"), Err(BadHuffman));
        assert_eq!(decoded(b"\xff"), Err(BadHuffman));
    }

    #[test]
    fn end_of_string_symbol_is_refused() {
        assert_eq!(decoded(b"\xff\xff\xff\xff"), Err(BadHuffman));
    }
}
