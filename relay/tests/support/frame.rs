//! HTTP/2 frames by hand.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const WITH_PRIORITY: u8 = 0x20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    assert_eq!(length[0], 0, "a length has 24 bits");
    let mut bytes = length[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Cuts one frame off the front.
pub fn cut(bytes: &mut Vec<u8>) -> Option<Frame> {
    if bytes.len() < 9 {
        return None;
    }
    let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
    if bytes.len() < 9 + length {
        return None;
    }
    let frame = Frame {
        kind: bytes[3],
        flags: bytes[4],
        stream: u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]),
        payload: bytes[9..9 + length].to_vec(),
    };
    bytes.drain(..9 + length);
    Some(frame)
}

/// All frames; nothing may be left over.
pub fn parse(bytes: &[u8]) -> Vec<Frame> {
    let mut rest = bytes.to_vec();
    let frames = std::iter::from_fn(|| cut(&mut rest)).collect();
    assert_eq!(rest, b"", "part of a frame");
    frames
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    raw(SETTINGS, 0, 0, &payload)
}

pub fn settings_ack() -> Vec<u8> {
    raw(SETTINGS, ACK, 0, b"")
}

pub fn headers(stream: u32, block: &[u8], end: bool) -> Vec<u8> {
    let flags = END_HEADERS | if end { END_STREAM } else { 0 };
    raw(HEADERS, flags, stream, block)
}

pub fn data(stream: u32, payload: &[u8], end: bool) -> Vec<u8> {
    raw(DATA, if end { END_STREAM } else { 0 }, stream, payload)
}

/// DATA with `pad` bytes of padding behind the payload.
pub fn padded_data(stream: u32, payload: &[u8], pad: u8, end: bool) -> Vec<u8> {
    let mut padded = vec![pad];
    padded.extend_from_slice(payload);
    padded.resize(padded.len() + usize::from(pad), 0);
    let flags = PADDED | if end { END_STREAM } else { 0 };
    raw(DATA, flags, stream, &padded)
}

pub fn rst(stream: u32, code: u32) -> Vec<u8> {
    raw(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    raw(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn goaway(last: u32, code: u32) -> Vec<u8> {
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend_from_slice(&code.to_be_bytes());
    raw(GOAWAY, 0, 0, &payload)
}
