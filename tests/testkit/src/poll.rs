//! Waiting for what another process does, by looking again and again.
//!
//! Used only where there is nothing to be told by: kernel files, sockets of other programs.

use std::future::Future;
use std::time::{Duration, Instant};

/// No wait lasts longer; a slow machine gets there, a stuck test fails.
pub const BOUND: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(10);

/// Returns once `condition` holds.
///
/// # Panics
///
/// When it does not hold within [`BOUND`]; the message says `what` was awaited.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// [`wait_until`] for a condition that asks over a connection.
///
/// # Panics
///
/// When it does not hold within [`BOUND`]; the message says `what` was awaited.
pub async fn wait_until_async<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
