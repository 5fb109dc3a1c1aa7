//! The bodies of ttrpc messages: the few fields of protobuf that a request and a response have.
//!
//! Read as protobuf decoders read: fields in any order, the last of two wins, what is unknown is
//! skipped. A field of another wire type than it should have counts as unknown, as in Go.

use std::ops::Range;
use std::time::Duration;

use crate::{Code, Status};

/// The body is no message of its kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestBody {
    pub(crate) service: String,
    pub(crate) method: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) payload: Vec<u8>,
}

/// A field's value, by its wire type.
enum Value {
    Varint(u64),
    /// Where it lies in the body.
    Delimited(Range<usize>),
    Fixed,
}

/// Where a walk over the fields of a body stands.
struct Walk<'a> {
    body: &'a [u8],
    at: usize,
    end: usize,
}

pub(crate) fn read_request(body: Vec<u8>) -> Result<RequestBody, Malformed> {
    let (mut service, mut method, mut payload, mut timeout_ns) = (0..0, 0..0, 0..0, 0);
    let mut walk = Walk::over(&body, 0..body.len());
    while let Some((number, value)) = walk.next()? {
        match (number, value) {
            (1, Value::Delimited(range)) => service = text(&body, range)?,
            (2, Value::Delimited(range)) => method = text(&body, range)?,
            (3, Value::Delimited(range)) => payload = range,
            (4, Value::Varint(number)) => timeout_ns = number.cast_signed(),
            _ => {}
        }
    }
    let owned = |range: Range<usize>| String::from_utf8_lossy(&body[range]).into_owned();
    Ok(RequestBody {
        service: owned(service),
        method: owned(method),
        timeout: timeout(timeout_ns),
        payload: cut(body, payload),
    })
}

pub(crate) fn read_response(body: Vec<u8>) -> Result<Result<Vec<u8>, Status>, Malformed> {
    let (mut code, mut message, mut payload) = (Code::OK, 0..0, 0..0);
    let mut walk = Walk::over(&body, 0..body.len());
    while let Some((number, value)) = walk.next()? {
        match (number, value) {
            (1, Value::Delimited(range)) => {
                let mut status = Walk::over(&body, range);
                while let Some((number, value)) = status.next()? {
                    match (number, value) {
                        (1, Value::Varint(number)) => code = Code(low_half(number)),
                        (2, Value::Delimited(range)) => message = text(&body, range)?,
                        _ => {}
                    }
                }
            }
            (2, Value::Delimited(range)) => payload = range,
            _ => {}
        }
    }
    if code == Code::OK {
        return Ok(Ok(cut(body, payload)));
    }
    let message = String::from_utf8_lossy(&body[message]).into_owned();
    Ok(Err(Status { code, message }))
}

pub(crate) fn write_request(
    out: &mut Vec<u8>,
    service: &str,
    method: &str,
    payload: &[u8],
    timeout: Option<Duration>,
) {
    write_delimited(out, 1, service.as_bytes());
    write_delimited(out, 2, method.as_bytes());
    write_delimited(out, 3, payload);
    if let Some(timeout) = timeout {
        // Zero would say that there is none.
        let nanoseconds = timeout.as_nanos().clamp(1, i64::MAX.cast_unsigned().into());
        let nanoseconds = u64::try_from(nanoseconds).expect("63 bits");
        write_number(out, 4, nanoseconds);
    }
}

pub(crate) fn write_response(out: &mut Vec<u8>, result: Result<&[u8], &Status>) {
    match result {
        Ok(payload) => write_delimited(out, 2, payload),
        Err(status) => {
            // What failed must not be read as an empty success.
            let code = if status.code == Code::OK {
                Code::UNKNOWN
            } else {
                status.code
            };
            let mut message = Vec::with_capacity(16 + status.message.len());
            // Protobuf writes a 32-bit number as the 64-bit number that it is.
            write_number(&mut message, 1, i64::from(code.0).cast_unsigned());
            write_delimited(&mut message, 2, status.message.as_bytes());
            write_delimited(out, 1, &message);
        }
    }
}

/// What an int32 field takes of a number: its lower half.
fn low_half(number: u64) -> i32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

fn timeout(nanoseconds: i64) -> Option<Duration> {
    let left = u64::try_from(nanoseconds).unwrap_or(0);
    (nanoseconds != 0).then(|| Duration::from_nanos(left))
}

/// A string has to be UTF-8.
fn text(body: &[u8], range: Range<usize>) -> Result<Range<usize>, Malformed> {
    str::from_utf8(&body[range.clone()])
        .map(|_| range)
        .map_err(|_| Malformed)
}

/// Part of a body, in the body's own memory.
fn cut(mut body: Vec<u8>, range: Range<usize>) -> Vec<u8> {
    body.truncate(range.end);
    body.drain(..range.start);
    body
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn over(body: &'a [u8], range: Range<usize>) -> Self {
        Self {
            body,
            at: range.start,
            end: range.end,
        }
    }

    fn next(&mut self) -> Result<Option<(u64, Value)>, Malformed> {
        if self.at == self.end {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number >= 1 << 29 {
            return Err(Malformed);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| Malformed)?;
                Value::Delimited(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<Range<usize>, Malformed> {
        if length > self.end - self.at {
            return Err(Malformed);
        }
        let range = self.at..self.at + length;
        self.at = range.end;
        Ok(range)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.body[self.take(1)?.start];
            // The tenth byte holds the one bit that is left of 64.
            if shift == 63 && byte > 1 {
                return Err(Malformed);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}

fn write_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        out.push(field << 3);
        write_varint(out, number);
    }
}

fn write_delimited(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(field << 3 | 2);
        write_varint(out, bytes.len().try_into().expect("a length fits 64 bits"));
        out.extend_from_slice(bytes);
    }
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).expect("seven bits"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Service "S", method "M", payload "p", two seconds, by hand from the encoding of protobuf.
    const REQUEST: &[u8] = b"\x0a\x01S\x12\x01M\x1a\x01p\x20\x80\xa8\xd6\xb9\x07";

    fn request(timeout: Option<Duration>) -> RequestBody {
        RequestBody {
            service: "S".to_owned(),
            method: "M".to_owned(),
            payload: b"p".to_vec(),
            timeout,
        }
    }

    #[test]
    fn a_request_is_its_four_fields() {
        let two_seconds = Some(Duration::from_secs(2));
        assert_eq!(read_request(REQUEST.to_vec()), Ok(request(two_seconds)));
        let mut out = Vec::new();
        write_request(&mut out, "S", "M", b"p", two_seconds);
        assert_eq!(out, REQUEST);
    }

    #[test]
    fn what_a_request_does_not_say_is_not_written() {
        let mut out = Vec::new();
        write_request(&mut out, "S", "M", b"", None);
        assert_eq!(out, b"\x0a\x01S\x12\x01M");
        let read = read_request(out).unwrap();
        assert_eq!((read.payload, read.timeout), (Vec::new(), None));
    }

    #[test]
    fn fields_come_in_any_order_and_the_last_wins() {
        // 3: "x", 5 { metadata }, 2: "M", a fixed64 7, a varint under the number of the service,
        // 1: "S", a fixed32 8, 3: "p"
        let body = b"\x1a\x01x\x2a\x06\x0a\x01k\x12\x01v\x12\x01M\x39abcdefgh\x08\x05\x0a\x01S\x45abcd\x1a\x01p";
        assert_eq!(read_request(body.to_vec()), Ok(request(None)));
    }

    #[test]
    fn time_that_is_over_is_no_time_and_not_no_limit() {
        let body = b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        let read = read_request(body.to_vec()).unwrap();
        assert_eq!(read.timeout, Some(Duration::ZERO));
        let mut out = Vec::new();
        write_request(&mut out, "", "", b"", Some(Duration::ZERO));
        assert_eq!(out, b"\x20\x01");
        out.clear();
        write_request(&mut out, "", "", b"", Some(Duration::MAX));
        assert_eq!(out, b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\x7f");
    }

    #[test]
    fn an_empty_answer_is_no_byte() {
        let mut out = Vec::new();
        write_response(&mut out, Ok(b""));
        assert_eq!(out, b"");
        assert_eq!(read_response(out), Ok(Ok(Vec::new())));
    }

    #[test]
    fn an_answer_is_a_payload_or_a_status() {
        let mut out = Vec::new();
        write_response(&mut out, Ok(b"abc"));
        assert_eq!(out, b"\x12\x03abc");
        assert_eq!(read_response(out), Ok(Ok(b"abc".to_vec())));

        let status = Status::new(Code::UNIMPLEMENTED, "no");
        let mut out = Vec::new();
        write_response(&mut out, Err(&status));
        assert_eq!(out, b"\x0a\x06\x08\x0c\x12\x02no");
        assert_eq!(read_response(out), Ok(Err(status)));
    }

    #[test]
    fn a_status_of_zero_is_success_and_a_negative_one_is_not() {
        // status { message: "fine" } payload: "abc"
        let body = b"\x0a\x06\x12\x04fine\x12\x03abc";
        assert_eq!(read_response(body.to_vec()), Ok(Ok(b"abc".to_vec())));
        let mut out = Vec::new();
        write_response(&mut out, Err(&Status::new(Code::OK, "")));
        assert_eq!(out, b"\x0a\x02\x08\x02");
        out.clear();
        write_response(&mut out, Err(&Status::new(Code(-1), "")));
        assert_eq!(out, b"\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        assert_eq!(read_response(out), Ok(Err(Status::new(Code(-1), ""))));
    }

    #[test]
    fn a_second_status_is_merged_into_the_first() {
        // status { code: 5 } status { message: "m" }
        let body = b"\x0a\x02\x08\x05\x0a\x03\x12\x01m";
        let expected = Status::new(Code(5), "m");
        assert_eq!(read_response(body.to_vec()), Ok(Err(expected)));
    }

    #[test]
    fn what_is_no_message_is_malformed() {
        for body in [
            &b"\x0a"[..],
            b"\x0a\x02S",
            b"\x0a\x01\xff",
            b"\x12\x01\xff",
            b"\x00",
            b"\x80\x80\x80\x80\x10\x05",
            b"\x0b\x0c",
            b"\x39abcdefg",
            b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            assert_eq!(read_request(body.to_vec()), Err(Malformed), "{body:?}");
        }
        // The length of what is inside of the status reaches behind it.
        let body = b"\x0a\x02\x12\x03abc";
        assert_eq!(read_response(body.to_vec()), Err(Malformed));
    }
}
