//! The other end is the crate `ttrpc`, which shims and agents in Rust speak, as a server and as a client.
//! `tests/ttrpc` has the program.
//!
//! It knows no multiplexer: what a peer says on one of its connections is taken out of the frames here,
//! and what comes is put into some.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use koord_nri::{Code, Event, Limits, Peer, Role, Status};
use support::wire::{TO_PLUGIN, frame};

const SERVICE: &str = "koord.Echo";
const PATIENCE: Duration = Duration::from_secs(30);
/// As the program has them.
const SIZES: [usize; 8] = [0, 1, 127, 4_060, 4_096, 65_536, 1_048_576, 4_194_000];
const CALLERS: usize = 4;

/// The program, gone with the test.
struct End(Child);

impl End {
    fn start(mode: &str, socket: &Path) -> Self {
        let child = Command::new(build()).arg(mode).arg(socket).spawn();
        Self(child.unwrap())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

/// Builds the program; cargo knows what is unchanged.
fn build() -> PathBuf {
    static PROGRAM: std::sync::LazyLock<PathBuf> = std::sync::LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ttrpc/Cargo.toml");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ttrpc");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--manifest-path"])
            .arg(source)
            .arg("--target-dir")
            .arg(&target)
            .status()
            .unwrap();
        assert!(built.success(), "tests/ttrpc does not build");
        target.join("debug/koord-ttrpc-end")
    });
    PROGRAM.clone()
}

/// A peer of which one connection is all that there is of the stream.
struct Plain {
    stream: UnixStream,
    peer: Peer,
    connection: u32,
    framed: Vec<u8>,
}

impl Plain {
    fn new(stream: UnixStream, peer: Peer, connection: u32) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            peer,
            connection,
            framed: Vec::new(),
        }
    }

    /// The next event; `None` when the other end has closed the socket.
    fn next(&mut self) -> Option<Event> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(event) = self.peer.next_event() {
                return Some(event);
            }
            self.send();
            match self.stream.read(&mut buffer).unwrap() {
                0 => {
                    self.peer.end().unwrap();
                    return self.peer.next_event();
                }
                count => {
                    let framed = frame(self.connection, &buffer[..count]);
                    self.peer.feed(&framed).unwrap();
                }
            }
        }
    }

    /// Sends what is in the peer's frames.
    fn send(&mut self) {
        while !self.peer.output().is_empty() {
            self.framed.extend_from_slice(self.peer.output());
            self.peer.advance(usize::MAX);
        }
        let mut rest = &*self.framed;
        while let Some((head, after)) = rest.split_first_chunk::<8>() {
            let connection = u32::from_be_bytes(head[..4].try_into().unwrap());
            assert_eq!(connection, self.connection);
            let length = u32::from_be_bytes(head[4..].try_into().unwrap());
            let length = usize::try_from(length).unwrap();
            let Some((payload, after)) = after.split_at_checked(length) else {
                break;
            };
            self.stream.write_all(payload).unwrap();
            rest = after;
        }
        self.framed = rest.to_vec();
    }
}

fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_crates_server_answers_our_calls() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("ttrpc.sock");
    let _server = End::start("server", &socket);
    let peer = Peer::new(Role::Runtime, Limits::default());
    let mut line = Plain::new(connect(&socket), peer, TO_PLUGIN);
    let mut calls = BTreeMap::new();
    for size in SIZES {
        let payload = vec![0xa5; size];
        let call = line.peer.call(SERVICE, "Echo", &payload, Some(PATIENCE));
        calls.insert(call.unwrap(), Ok(payload));
    }
    let refused = Status::new(Code::FAILED_PRECONDITION, "not today");
    let call = line.peer.call(SERVICE, "Fail", b"", None).unwrap();
    calls.insert(call, Err(refused));
    while !calls.is_empty() {
        match line.next() {
            Some(Event::Answer { call, result }) => {
                let expected = calls.remove(&call).unwrap();
                let size = expected.as_ref().map_or(0, Vec::len);
                assert!(result == expected, "the call of {size} bytes");
            }
            other => panic!("no answer but {other:?}"),
        }
    }
    let call = line.peer.call(SERVICE, "Nothing", b"", None).unwrap();
    match line.next() {
        Some(Event::Answer { call: of, result }) if of == call => {
            // Its own code for a method that is not there.
            assert_eq!(result.unwrap_err().code, Code::INVALID_ARGUMENT);
        }
        other => panic!("no answer but {other:?}"),
    }
}

#[test]
fn the_crates_client_is_content_with_our_answers() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("ttrpc.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut client = End::start("client", &socket);
    let (stream, _) = listener.accept().unwrap();
    let peer = Peer::new(Role::Plugin, Limits::default());
    let mut line = Plain::new(stream, peer, TO_PLUGIN);
    let mut echoed = Vec::new();
    let refused = Status::new(Code::FAILED_PRECONDITION, "not today");
    let unknown = Status::new(Code::UNIMPLEMENTED, "no such method");
    while let Some(event) = line.next() {
        let Event::Request(request) = event else {
            panic!("no request but {event:?}");
        };
        assert_eq!(request.service, SERVICE);
        assert_eq!(request.timeout, Some(PATIENCE));
        let reply = match &*request.method {
            "Echo" => {
                echoed.push(request.payload.len());
                Ok(&*request.payload)
            }
            "Fail" => Err(&refused),
            _ => Err(&unknown),
        };
        line.peer.reply(request.id, reply).unwrap();
    }
    echoed.sort_unstable();
    let expected: Vec<usize> = SIZES.iter().flat_map(|size| [*size; CALLERS]).collect();
    assert_eq!(echoed, expected);
    assert!(client.0.wait().unwrap().success(), "it is not content");
}
