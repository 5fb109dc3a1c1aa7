//! The one message that we write ourselves: an error reply without a body.

use crate::hpack;
use crate::inbound::Resizes;

const STATUS_200: u8 = 0x80 | 8;

/// Longest `grpc-message`, in bytes before encoding.
const MAX_TEXT: usize = 4_096;

/// A header block that ends a call with a status. It inserts nothing into the dynamic table, so it
/// fits between any two blocks of the runtime. `resizes` are the table sizes that it has to begin with.
pub(crate) fn error_block(
    resizes: Option<Resizes>,
    reply_begun: bool,
    grpc_status: u32,
    text: &str,
) -> Vec<u8> {
    let mut block = Vec::with_capacity(64 + text.len());
    if let Some(resizes) = resizes {
        resizes.write(&mut block);
    }
    if !reply_begun {
        block.push(STATUS_200);
        hpack::write_literal(&mut block, b"content-type", b"application/grpc", false);
    }
    let status = grpc_status.to_string();
    hpack::write_literal(&mut block, b"grpc-status", status.as_bytes(), false);
    if !text.is_empty() {
        let encoded = percent_encoded(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
        hpack::write_literal(&mut block, b"grpc-message", &encoded, false);
    }
    block
}

/// As gRPC wants it: printable ASCII but for `%` as it is, every other byte as `%XX`.
fn percent_encoded(text: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(byte);
        } else {
            out.push(b'%');
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 0xf)]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_ascii_without_percent_stays_as_it_is() {
        assert_eq!(
            percent_encoded("50 % ü\n~".as_bytes()),
            b"50 %25 %C3%BC%0A~"
        );
    }

    #[test]
    fn reply_that_had_begun_gets_trailers_alone() {
        assert_eq!(
            error_block(None, true, 9, "no"),
            b"\x00\x0bgrpc-status\x019\x00\x0cgrpc-message\x02no"
        );
        assert_eq!(
            error_block(Some(Resizes::to(10)), false, 14, ""),
            b"\x2a\x88\x00\x0ccontent-type\x10application/grpc\x00\x0bgrpc-status\x0214"
        );
    }
}
