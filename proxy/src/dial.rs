//! Connecting to the runtime.

use std::{io, path::Path, sync::Arc, time::Duration};
use tokio::net::UnixStream;

/// How long a full backlog is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Connects to the runtime's socket. A backlog that is full (`EAGAIN`) is tried again for five
/// seconds; anything else is an answer at once, as it would be for the client itself.
pub(crate) async fn connect(endpoint: Arc<Path>) -> io::Result<UnixStream> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(&endpoint).await {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}
