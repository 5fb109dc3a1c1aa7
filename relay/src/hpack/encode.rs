//! Header fields as literals without indexing, and table-size updates.

/// Appends a field that no table takes up; `never` keeps the mark that no one on the way may.
pub fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8], never: bool) {
    out.push(if never { 0x10 } else { 0x00 });
    for string in [name, value] {
        write_integer(out, 0x00, 0x7f, string.len());
        out.extend_from_slice(string);
    }
}

/// Appends a dynamic-table-size update.
pub fn write_resize(out: &mut Vec<u8>, size: usize) {
    write_integer(out, 0x20, 0x1f, size);
}

/// RFC 7541, section 5.1: `mask` is the prefix with all ones, `pattern` the bits above it.
fn write_integer(out: &mut Vec<u8>, pattern: u8, mask: u8, value: usize) {
    let full = usize::from(mask);
    if value < full {
        out.push(pattern | u8::try_from(value).expect("below a one-byte mask"));
        return;
    }
    out.push(pattern | mask);
    let mut rest = value - full;
    while rest >= 0x80 {
        out.push(0x80 | u8::try_from(rest & 0x7f).expect("seven bits"));
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("below 0x80"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_the_rfc() {
        // Appendix C.1: 10 and 1337 with a five-bit prefix.
        let mut out = Vec::new();
        write_resize(&mut out, 10);
        write_resize(&mut out, 1337);
        assert_eq!(out, b"\x2a\x3f\x9a\x0a");
    }

    #[test]
    fn literal_keeps_the_never_indexed_bit() {
        let mut out = Vec::new();
        write_literal(&mut out, b"a", b"", false);
        write_literal(&mut out, b"b", &[b'x'; 127], true);
        assert_eq!(out[..7], *b"\x00\x01a\x00\x10\x01b");
        assert_eq!(out[7..10], *b"\x7f\x00x");
        assert_eq!(out.len(), 9 + 127);
    }
}
