//! HTTP/2 frames by hand, for what no library would send.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// What a client says first: the preface and SETTINGS of these pairs.
pub fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    [PREFACE.to_vec(), raw(SETTINGS, 0, 0, &payload)].concat()
}

/// The header block of a gRPC call, without any table.
pub fn request(path: &str) -> Vec<u8> {
    // :method POST, :scheme http.
    let mut block = vec![0x83, 0x86];
    literal(&mut block, ":path", path);
    literal(&mut block, ":authority", "localhost");
    literal(&mut block, "content-type", "application/grpc");
    literal(&mut block, "te", "trailers");
    block
}

/// A call without its message.
pub fn open(stream: u32, path: &str) -> Vec<u8> {
    raw(HEADERS, END_HEADERS, stream, &request(path))
}

/// The prefix of an uncompressed message of this length.
pub fn message_head(length: u32) -> Vec<u8> {
    [&[0], &length.to_be_bytes()[..]].concat()
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    raw(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        // Lengths below 127 are one byte, not Huffman coded.
        block.push(u8::try_from(text.len()).ok().filter(|n| *n < 127).unwrap());
        block.extend_from_slice(text.as_bytes());
    }
}
