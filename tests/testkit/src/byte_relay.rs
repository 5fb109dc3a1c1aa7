//! A plain byte relay between unix sockets: the least that any proxy can add, to measure against.
//!
//! One thread, one buffer of 64 KiB for each direction of a connection, no look at the bytes.

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
