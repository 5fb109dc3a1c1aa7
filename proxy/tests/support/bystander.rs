//! Who stands by while others misbehave, and what becomes of those.

use super::{
    method,
    node::{Node, PATIENCE, script},
    pod::Pod,
};
use koord_testkit::{
    Frame, RawClient, RawRequest, RawStream,
    scripted::{Gate, Reply, Script, Step},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

pub const WAIT: &str = "/a.b/Wait";
/// The runtime does not read what this is told.
pub const DEAF: &str = "/a.b/Deaf";

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

    /// Makes a call that is opened and one that is not.
    pub async fn works(&self) {
        let echo = RawRequest::unary("/a.b/Echo", "x");
        let reply = self.client.call(echo).await.unwrap();
        assert_eq!(reply.messages, [Frame::plain("x")]);
        let message = Pod::best_effort("bystander").create().encode();
        let create = RawRequest::unary(method::CREATE, message);
        let reply = self.client.call(create).await.unwrap();
        assert_eq!(reply.grpc_status(), Some(0));
    }

    /// It can still call, and its call is still answered.
    pub async fn noticed_nothing(self, gate: &Gate) {
        self.works().await;
        gate.open();
        let reply = self.call.collect().await;
        assert_eq!(reply.messages, [Frame::plain("waited for")]);
    }
}

/// The runtime that a bystander needs.
pub fn script_with(gate: &Gate) -> Script {
    script()
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
