//! A plugin that answers every question at once and with nothing: the least that any plugin can take.
//!
//! One thread, which waits in its read. It looks for where a question ends and at nothing in it, so what
//! it takes is what the machine takes to carry the question to another process and an answer back.

use std::io::{Read as _, Write as _};
use std::mem;
use std::os::unix::net::UnixStream;

use prost::Message as _;

use super::message::{ConfigureResponse, RegisterPluginRequest, Request, Response};
use super::plugin::RUNTIME_SERVICE;
use super::{Generation, NriError, Wire};

/// Its only call.
const REGISTRATION: u32 = 1;
/// One read takes at most this much.
const BUFFER_BYTES: usize = 64 << 10;

/// Registers with the newest runtime there is, for all of its events, and answers it until it goes.
///
/// # Errors
///
/// When the socket fails, or the runtime's bytes are not those of one.
pub fn echo(mut stream: UnixStream) -> Result<(), NriError> {
    let generation = Generation::V0_12;
    let mut wire = Wire::new(generation.largest_frame());
    stream.write_all(&wire.call(REGISTRATION, &registration(generation)))?;
    // A runtime configures first, and that alone has to be answered with something.
    let mut answer = configured(generation);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        wire.feed(&buffer[..count])?;
        while let Some(number) = wire.question()? {
            stream.write_all(&wire.reply(number, &mem::take(&mut answer)))?;
        }
    }
}

fn registration(generation: Generation) -> Vec<u8> {
    let registration = RegisterPluginRequest {
        plugin_name: "echo".to_owned(),
        plugin_idx: "00".to_owned(),
        nri_version: generation.nri_version().to_owned(),
    };
    let request = Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: registration.encode_to_vec(),
        timeout_nano: 0,
    };
    request.encode_to_vec()
}

fn configured(generation: Generation) -> Vec<u8> {
    let response = ConfigureResponse {
        events: generation.events(),
    };
    let response = Response {
        status: None,
        payload: response.encode_to_vec(),
    };
    response.encode_to_vec()
}
