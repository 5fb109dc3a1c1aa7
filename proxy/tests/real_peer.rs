//! Another user of the machine is refused by who it is, even where the files' modes would let it in.
//!
//! Needs root, to be somebody else.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_testkit::{Frame, RawRequest};
use rustix::{process::Uid, thread::set_thread_res_uid};
use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    thread,
};
use support::{
    frame, method,
    node::{Node, PATIENCE},
};

/// `nobody` of Debian; any other that is not 0 would do.
const NOBODY: u32 = 65_534;

/// What a user hears who says this to a socket that everybody may write to.
fn heard_as(uid: u32, socket: &Path, said: &[u8]) -> Vec<u8> {
    for path in socket.ancestors().take(3) {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let (socket, said) = (socket.to_owned(), said.to_owned());
    let somebody = thread::spawn(move || {
        // The kernel knows users by thread, so the test's other threads stay who they are.
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root can be anybody");
        let mut stream = UnixStream::connect(socket).expect("no mode forbids it");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be closed before all was said.
        stream.write_all(&said).ok();
        let mut heard = Vec::new();
        if let Err(error) = stream.read_to_end(&mut heard) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        heard
    });
    somebody.join().unwrap()
}

#[test]
fn the_admin_socket_answers_root_and_nobody_else() {
    let node = Node::start();
    let admin = node.path("admin/admin.sock");
    let question = b"GET /healthz HTTP/1.0\r\n\r\n";
    let answer = String::from_utf8(heard_as(0, &admin, question)).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    assert_eq!(heard_as(NOBODY, &admin, question), b"");
}

#[tokio::test]
async fn the_socket_for_clients_serves_root_and_nobody_else() {
    let node = Node::start();
    let call = [frame::hello(&[]), frame::open(1, method::STATUS)].concat();
    assert_eq!(heard_as(NOBODY, &node.socket(), &call), b"");
    let refused = || node.metric("connections_refused_total{reason=\"peer\"}");
    assert_eq!(refused(), 1);
    assert_eq!(node.calls(method::STATUS), []);
    let reply = node.call(RawRequest::unary("/a.b/Echo", "x")).await;
    assert_eq!(reply.messages, [Frame::plain("x")]);
    assert_eq!(refused(), 1);
}
