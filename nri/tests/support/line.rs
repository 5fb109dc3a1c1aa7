//! A peer at one end of a real socket, driven by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use koord_nri::{CallId, Event, Peer, Request, Status};

/// How long nothing may come. Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Line {
    stream: UnixStream,
    pub peer: Peer,
}

impl Line {
    pub fn new(stream: UnixStream, peer: Peer) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, peer }
    }

    /// The next event. `None` when the other end has closed the socket.
    pub fn next(&mut self) -> Option<Event> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(event) = self.peer.next_event() {
                return Some(event);
            }
            self.stream.write_all(self.peer.output()).unwrap();
            self.peer.advance(usize::MAX);
            match self.stream.read(&mut buffer).unwrap() {
                0 => {
                    self.peer.end().unwrap();
                    return self.peer.next_event();
                }
                count => self.peer.feed(&buffer[..count]).unwrap(),
            }
        }
    }

    pub fn request(&mut self) -> Request {
        match self.next() {
            Some(Event::Request(request)) => request,
            other => panic!("no request but {other:?}"),
        }
    }

    pub fn answer(&mut self, of: CallId) -> Result<Vec<u8>, Status> {
        match self.next() {
            Some(Event::Answer { call, result }) if call == of => result,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Calls, and waits for the answer and nothing else.
    pub fn call(&mut self, service: &str, method: &str, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let call = self.peer.call(service, method, payload, Some(PATIENCE));
        self.answer(call.unwrap())
    }
}
