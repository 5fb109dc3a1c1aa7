//! Frames, messages and bodies as bytes.

/// Connections.
pub const TO_PLUGIN: u32 = 1;
pub const TO_RUNTIME: u32 = 2;

/// Types of messages.
pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;
pub const DATA: u8 = 3;

pub fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [
        &connection.to_be_bytes()[..],
        &length.to_be_bytes(),
        payload,
    ]
    .concat()
}

pub fn message(stream: u32, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [
        &length.to_be_bytes()[..],
        &stream.to_be_bytes(),
        &[kind, flags],
        body,
    ]
    .concat()
}

/// A message in a frame of its own.
pub fn framed(connection: u32, stream: u32, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(connection, &message(stream, kind, flags, body))
}

/// Field 3 of a request or field 2 of a response, behind what comes before it.
pub fn payload_field(field: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if !payload.is_empty() {
        out.push(field << 3 | 2);
        let mut length = payload.len();
        while length > 127 {
            out.push(u8::try_from(length % 128).unwrap() + 128);
            length /= 128;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend_from_slice(payload);
    }
    out
}

/// Service "S", method "M" and a payload.
pub fn request(payload: &[u8]) -> Vec<u8> {
    [&b"\x0a\x01S\x12\x01M"[..], &payload_field(3, payload)].concat()
}

pub fn response(payload: &[u8]) -> Vec<u8> {
    payload_field(2, payload)
}

/// A response with a status whose code is below 128.
pub fn failure(code: u8, text: &str) -> Vec<u8> {
    let status = [&[8, code][..], &payload_field(2, text.as_bytes())].concat();
    payload_field(1, &status)
}
