//! A plain byte relay between unix sockets: the least that any proxy can add, to measure against.
//!
//! One thread, one buffer of 64 KiB for each direction of a connection, no look at the bytes.
//!
//! Held once against socat 1.7.4 with buffers of that size, which has a process for each connection,
//! between the benchmark's raw frames: a small unary took 74 µs here and 69 µs there at p50, a
//! creation of 8 KiB 158 and 159, a list of 1 MiB 924 and 1,988; with 64 callers of the unary 52,326
//! calls a second went through here and 29,099 there. So it is no easy one to be measured against.

use std::io;
use std::path::Path;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{UnixListener, UnixStream};

const BUFFER_BYTES: usize = 64 << 10;

/// Accepts on `listener` for ever and joins each connection to a new one to `target`.
///
/// # Errors
///
/// When accepting fails; a connection that fails is closed, and the others go on.
pub async fn relay(listener: UnixListener, target: &Path) -> io::Result<()> {
    loop {
        let (mut client, _) = listener.accept().await?;
        let target = target.to_owned();
        tokio::spawn(async move {
            let mut server = UnixStream::connect(target).await?;
            copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES)
                .await
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{RawClient, RawRequest};
    use crate::scripted::{Otherwise, Script, ScriptedRuntime};

    #[tokio::test]
    async fn calls_cross_it_whole_and_each_client_has_a_connection_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let socket = |name| directory.path().join(name);
        let runtime =
            ScriptedRuntime::listen(&socket("runtime"), Script::new(Otherwise::Echo)).unwrap();
        let listener = UnixListener::bind(socket("relay")).unwrap();
        let target = runtime.socket().to_owned();
        tokio::spawn(async move { relay(listener, &target).await });

        let message = vec![5_u8; 3 << 20];
        for _ in 0..2 {
            let client = RawClient::connect(&socket("relay")).await.unwrap();
            let reply = client
                .call(RawRequest::unary("/a/b", message.clone()))
                .await
                .unwrap();
            assert_eq!(reply.messages[0].message, message);
        }
        assert_eq!(runtime.script().connections(), 2);
    }
}
