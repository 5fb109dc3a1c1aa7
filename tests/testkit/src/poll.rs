//! Waiting for what another process does, by looking again and again.
//!
//! Used only where there is nothing to be told by: kernel files, sockets of other programs.

use std::{
    env,
    future::Future,
    time::{Duration, Instant},
};

/// No wait lasts longer on a machine that is one; a slow one gets there, a stuck test fails.
const BOUND: Duration = Duration::from_secs(30);

/// How many times longer a wait may last where every instruction is emulated.
pub const SLOWNESS: &str = "KOORD_TEST_SLOWNESS";

const PAUSE: Duration = Duration::from_millis(10);

/// No wait lasts longer here.
pub fn bound() -> Duration {
    let slowness = env::var(SLOWNESS).ok().and_then(|it| it.parse().ok());
    BOUND * slowness.unwrap_or(1)
}

/// Returns once `condition` holds.
///
/// # Panics
///
/// When it does not hold within [`bound`]; the message says `what` was awaited.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(condition), "not within {:?}: {what}", bound());
}

/// [`wait_until`] for what takes its time by itself: a kubelet leaves what failed twice for 10 s, then for
/// 20, and for 40, and a runtime that is killed again and again finishes little in between.
///
/// # Panics
///
/// When it does not hold within four times [`bound`]; the message says `what` was awaited.
#[track_caller]
pub fn wait_patiently(what: &str, condition: impl FnMut() -> bool) {
    let bound = patience();
    assert!(
        comes_true_patiently(condition),
        "not within {bound:?}: {what}"
    );
}

/// Returns once `condition` holds, or after four times [`bound`]; whether it came to hold. For who has more to
/// say than [`wait_patiently`].
#[must_use]
pub fn comes_true_patiently(condition: impl FnMut() -> bool) -> bool {
    holds_within(patience(), condition)
}

fn patience() -> Duration {
    bound() * 4
}

/// Returns once `condition` holds, or after [`bound`]; whether it came to hold. For who has more to say
/// than [`wait_until`].
#[must_use]
pub fn comes_true(condition: impl FnMut() -> bool) -> bool {
    holds_within(bound(), condition)
}

fn holds_within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= bound {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// [`wait_until`] for a condition that asks over a connection.
///
/// # Panics
///
/// When it does not hold within [`bound`]; the message says `what` was awaited.
pub async fn wait_until_async<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let (start, bound) = (Instant::now(), bound());
    while !condition().await {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
