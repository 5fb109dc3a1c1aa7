//! Who stands by while others misbehave, and what becomes of those.

use super::{
    asked::asked,
    method,
    node::{Node, PATIENCE},
    pod::{BATCH_MEMORY, BATCH_QUOTA, BATCH_SHARES, Pod},
};
use koord_testkit::{
    Frame, RawClient, RawReply, RawRequest, RawStream,
    scripted::{Gate, Otherwise, Reply, Script, Step},
};
use std::{future::Future, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

pub const WAIT: &str = "/a.b/Wait";
/// The runtime does not read what this is told.
pub const DEAF: &str = "/a.b/Deaf";

/// What a proxy with a bystander is started with: so long that who is held up for it is told from who
/// waits for a loaded machine.
pub const HOLD_TIMEOUT: &str = "--hold-timeout=30s";
/// Within it each call of a bystander is answered.
const SOON: Duration = Duration::from_secs(20);

/// A client that was there before, with a call that waits, and wants to be left in peace.
pub struct Bystander {
    pub client: RawClient,
    call: RawStream,
}

impl Bystander {
    pub async fn at(node: &Node) -> Self {
        let client = node.client().await;
        let mut call = client.open(WAIT, Vec::new()).await.unwrap();
        call.send_data(Frame::plain("").encode(), true).unwrap();
        let bystander = Self { client, call };
        bystander.works().await;
        bystander
    }

    /// Makes calls that are opened, of which one comes in two parts, and one that is not. What is opened
    /// arrives with what hooks make of it, and nothing takes long.
    pub async fn works(&self) {
        self.echoes().await;
        let create = Pod::best_effort("bystander").create().encode();
        let whole = RawRequest::unary(method::CREATE, create.clone());
        assert_changed(&soon(self.client.call(whole)).await.unwrap());
        let parted = async {
            let mut call = self.client.open(method::CREATE, Vec::new()).await.unwrap();
            let mut start = Frame::plain(create).encode();
            let rest = start.split_off(start.len() / 2);
            call.send_data(start, false).unwrap();
            // The proxy has read the start once it has answered what came behind it.
            self.echoes().await;
            call.send_data(rest, true).unwrap();
            call.collect().await
        };
        assert_changed(&soon(parted).await);
    }

    async fn echoes(&self) {
        let echo = RawRequest::unary("/a.b/Echo", "x");
        let reply = soon(self.client.call(echo)).await.unwrap();
        assert_eq!(reply.messages, [Frame::plain("x")]);
    }

    /// It can still call, and its call is still answered.
    pub async fn noticed_nothing(self, gate: &Gate) {
        self.works().await;
        gate.open();
        let reply = soon(self.call.collect()).await;
        assert_eq!(reply.messages, [Frame::plain("waited for")]);
    }
}

async fn soon<T>(call: impl Future<Output = T>) -> T {
    let answered = timeout(SOON, call).await;
    answered.expect("a bystander is not held up")
}

/// The runtime had this creation with what hooks made of it: it answers what it was asked.
fn assert_changed(reply: &RawReply) {
    assert_eq!(reply.grpc_status(), Some(0));
    let expected = (BATCH_SHARES, BATCH_QUOTA, BATCH_MEMORY, String::new());
    assert_eq!(asked(&reply.messages[0].message), expected);
}

/// The runtime that a bystander needs. It answers creations too with what it was asked.
pub fn script_with(gate: &Gate) -> Script {
    Script::new(Otherwise::Echo)
        .always(WAIT, Reply::message("waited for").held(gate))
        .always(DEAF, Reply::steps(vec![Step::Hold(gate.clone())]))
}

/// Sends bytes and waits until the proxy closes that connection.
pub async fn assert_closed(node: &Node, what: &str, bytes: &[u8]) {
    let mut stream = UnixStream::connect(node.socket()).await.unwrap();
    // The proxy may have had enough before all was said.
    stream.write_all(bytes).await.ok();
    let mut heard = Vec::new();
    let closed = timeout(PATIENCE, stream.read_to_end(&mut heard)).await;
    assert!(closed.is_ok(), "not closed: {what}");
}
