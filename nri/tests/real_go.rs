//! The other end is Go: the multiplexer and ttrpc that every runtime and most plugins have, then
//! containerd's adaptation as the runtime, and the stub as the plugin. `tests/nri` has the programs.
//!
//! What is said is written by hand from the encoding of protobuf.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use koord_nri::{CallId, Code, Event, Limits, Peer, Request, RequestId, Role, Status};
use support::line::Line;
use support::wire::payload_field;

const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";
const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";

/// A Go program at the other end of a socket, gone with the test.
struct Go {
    directory: tempfile::TempDir,
    child: Child,
}

impl Go {
    /// Starts it in one of its modes. `before` gets the path of the socket first.
    fn start<T>(mode: &str, before: impl FnOnce(&Path) -> T) -> (Self, T) {
        let program = build();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nri.sock");
        let prepared = before(&socket);
        let child = Command::new(program)
            .arg(mode)
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (Self { directory, child }, prepared)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("nri.sock")
    }

    /// It has to be content with what it saw.
    fn finish(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        // It has ended already, unless the test did first.
        if self.child.kill().and_then(|()| self.child.wait()).is_err() || thread::panicking() {
            let mut said = String::new();
            let stderr = self.child.stderr.take();
            let read = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
            eprintln!("Go says ({read:?}):\n{said}");
        }
    }
}

/// Builds the program once for all tests; Go's own cache knows what is unchanged.
fn build() -> PathBuf {
    static PROGRAM: std::sync::LazyLock<PathBuf> = std::sync::LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nri");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-end");
        let built = Command::new("go")
            .args(["build", "-mod=readonly", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(source)
            .env("GOTOOLCHAIN", "local")
            .status()
            .expect("go can be run");
        assert!(built.success(), "tests/nri does not build");
        program
    });
    PROGRAM.clone()
}

/// What the Go program connects to.
fn listen(socket: &Path) -> UnixListener {
    UnixListener::bind(socket).unwrap()
}

fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(30), "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A `google.protobuf.BytesValue`.
fn bytes_value(length: usize) -> Vec<u8> {
    payload_field(1, &vec![0xa5; length])
}

/// Sizes around those at which a frame or a buffer ends, on either side.
const SIZES: [usize; 12] = [
    0, 1, 127, 4_040, 4_047, 4_048, 4_060, 4_096, 65_536, 100_000, 1_048_576, 4_194_000,
];

#[test]
fn messages_of_every_size_go_both_ways_at_once() {
    let (go, listener) = Go::start("echo", listen);
    let (stream, _) = listener.accept().unwrap();
    let mut line = Line::new(stream, Peer::new(Role::Runtime, Limits::default()));
    let mut calls: BTreeMap<CallId, usize> = BTreeMap::new();
    let mut sizes = SIZES.iter();
    let mut echoed = 0;
    let mut waits: Option<RequestId> = None;
    let refusal = Status::new(Code::FAILED_PRECONDITION, "not today");
    let unknown = Status::new(Code::UNIMPLEMENTED, "no such method");
    while waits.is_none() || !calls.is_empty() || sizes.len() > 0 {
        if calls.len() < 3
            && let Some(&size) = sizes.next()
        {
            let payload = bytes_value(size);
            let call = line.peer.call("koord.Echo", "Echo", &payload, None);
            calls.insert(call.unwrap(), size);
        }
        match line.next().expect("Go waits for us") {
            Event::Request(request) => {
                assert_eq!(request.service, "koord.Echo");
                assert!(request.timeout.is_some_and(|left| left.as_secs() < 60));
                echoed += 1;
                let reply = match &*request.method {
                    "Wait" => {
                        waits = Some(request.id);
                        continue;
                    }
                    "Echo" => Ok(&*request.payload),
                    "Fail" => Err(&refusal),
                    _ => Err(&unknown),
                };
                line.peer.reply(request.id, reply).unwrap();
            }
            Event::Answer { call, result } => {
                let size = calls.remove(&call).unwrap();
                assert!(result.unwrap() == bytes_value(size), "{size} bytes");
            }
            Event::Lost { .. } => panic!("Go has closed the socket"),
        }
    }
    // Eight callers of thirteen sizes, two calls that fail, one that waits.
    assert_eq!(echoed, 8 * 13 + 3);
    let refused = line.call("koord.Echo", "Fail", b"").unwrap_err();
    assert_eq!(refused, refusal);
    for (service, method) in [("koord.Echo", "Nothing"), ("koord.Other", "Echo")] {
        let refused = line.call(service, method, b"").unwrap_err();
        assert_eq!(refused.code, Code::UNIMPLEMENTED);
    }
    line.peer.reply(waits.unwrap(), Ok(b"")).unwrap();
    assert_eq!(line.next(), None);
    go.finish();
}

/// The fields of a message by their number, and whether the flag in field 3 is there.
fn count(mut message: &[u8]) -> (usize, usize, bool) {
    let (mut pods, mut containers) = (0, 0);
    while let Some((&key, rest)) = message.split_first() {
        if key == 0x18 {
            assert_eq!(rest, [1]);
            return (pods, containers, true);
        }
        let size = rest.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let digits = rest[..size].iter().rev();
        let length = digits.fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        match key {
            0x0a => pods += 1,
            0x12 => containers += 1,
            other => panic!("a field {other}"),
        }
        message = &rest[size + length..];
    }
    (pods, containers, false)
}

/// What a plugin was told.
#[derive(Default)]
struct Told {
    methods: Vec<String>,
    pods: usize,
    containers: usize,
    parts: usize,
}

impl Told {
    /// The answer of a plugin that was written before NRI 0.12.
    fn reply(&mut self, request: &Request) -> Result<&'static [u8], Status> {
        assert_eq!(request.service, PLUGIN);
        self.methods.push(request.method.clone());
        match &*request.method {
            // RunPodSandbox and CreateContainer.
            "Configure" => Ok(b"\x10\x09"),
            "Synchronize" => {
                let (pods, containers, more) = count(&request.payload);
                self.pods += pods;
                self.containers += containers;
                self.parts += 1;
                if more {
                    return Ok(b"\x10\x01");
                }
                // update { container_id: "c4999" linux { resources { cpu { cpus: "0" } } } }
                Ok(b"\x0a\x10\x0a\x05c4999\x12\x07\x0a\x05\x12\x03\x32\x010")
            }
            // The event then comes again, the old way.
            "RunPodSandbox" => Err(Status::new(Code::UNIMPLEMENTED, "")),
            "StateChange" => {
                assert!(request.payload.starts_with(b"\x08\x01\x12"));
                Ok(b"")
            }
            // Shares 2, quota -1.
            "CreateContainer" => Ok(b"\x0a\x17\x32\x15\x12\x13\x12\x11\x0a\x02\x08\x02\
                  \x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_plugin_serves_the_adaptation_that_containerd_has() {
    let (go, ()) = Go::start("runtime", |_| ());
    let stream = connect(&go.socket());
    let mut line = Line::new(stream, Peer::new(Role::Plugin, Limits::default()));
    // Name "koord", index "10".
    let register = b"\x0a\x05koord\x12\x0210";
    let registered = line.peer.call(RUNTIME, "RegisterPlugin", register, None);
    let registered = registered.unwrap();
    let mut updated = None;
    let mut told = Told::default();
    loop {
        match line.next().expect("Go waits for us") {
            Event::Request(request) => {
                let reply = told.reply(&request);
                line.peer.reply(request.id, reply.as_deref()).unwrap();
                if request.method == "StateChange" {
                    // update { container_id: "c1" linux { resources { cpu { cpus: "0-1" } } } }
                    let update = b"\x0a\x0f\x0a\x02c1\x12\x09\x0a\x07\x12\x05\x32\x030-1";
                    let call = line.peer.call(RUNTIME, "UpdateContainers", update, None);
                    updated = Some(call.unwrap());
                }
            }
            Event::Answer { call, result } => {
                assert_eq!(result, Ok(Vec::new()));
                if Some(call) == updated {
                    break;
                }
                assert_eq!(call, registered);
            }
            Event::Lost { .. } => panic!("a call without an answer"),
        }
    }
    assert_eq!((told.pods, told.containers), (1_000, 5_000));
    assert!(told.parts > 1, "it fitted one message");
    told.methods.dedup();
    let old = [
        "Configure",
        "Synchronize",
        "CreateContainer",
        "RunPodSandbox",
        "StateChange",
    ];
    // A creation may follow before it leaves.
    assert_eq!(told.methods[..5], old);
    drop(line);
    go.finish();
}

#[test]
fn a_runtime_is_served_by_the_stub_that_plugins_have() {
    let (go, listener) = Go::start("plugin", listen);
    let (stream, _) = listener.accept().unwrap();
    let mut line = Line::new(stream, Peer::new(Role::Runtime, Limits::default()));
    let register = line.request();
    let named = (&*register.service, &*register.method);
    assert_eq!(named, (RUNTIME, "RegisterPlugin"));
    // Name "stub", index "05", and since 0.12 its version.
    assert!(register.payload.starts_with(b"\x0a\x04stub\x12\x0205"));
    line.peer.reply(register.id, Ok(b"")).unwrap();

    // config: "some: text", "containerd", "v2.3.0", 5,000 and 2,000 ms
    let configure = b"\x0a\x0asome: text\x12\x0acontainerd\x1a\x06v2.3.0\x20\x88\x27\x28\xd0\x0f";
    let mask = line.call(PLUGIN, "Configure", configure);
    // CreateContainer is all that this plugin has.
    assert_eq!(mask, Ok(b"\x10\x08".to_vec()));

    // Two pods and a container in two parts, of which the first is said to be one.
    let part = b"\x0a\x03\x0a\x01p\x0a\x03\x0a\x01q\x18\x01";
    let more = line.call(PLUGIN, "Synchronize", part);
    assert_eq!(more, Ok(b"\x10\x01".to_vec()));
    let last = line.call(PLUGIN, "Synchronize", b"\x12\x06\x0a\x01c\x12\x01p");
    assert_eq!(last, Ok(Vec::new()));

    // Of a pod "p" the container "new": shares 2.
    let create = b"\x0a\x03\x0a\x01p\x12\x08\x0a\x03new\x12\x01p";
    let adjusted = line.call(PLUGIN, "CreateContainer", create);
    let expected = b"\x0a\x0a\x32\x08\x12\x06\x12\x04\x0a\x02\x08\x02";
    assert_eq!(adjusted, Ok(expected.to_vec()));
    drop(line);
    go.finish();
}
