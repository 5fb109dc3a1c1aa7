//! How lists follow each other.

use crate::hub::Hub;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// When one follows another.
pub(super) struct Rhythm {
    /// The least time between the end of a list and the next: whoever asks in between shares that
    /// one.
    pause: Duration,
    /// How long a list that is asked for waits for more that it can tell of.
    settling: Duration,
    /// When the runtime is listed again after a list that was asked for, and after the first.
    pub(super) afterthoughts: &'static [Duration],
}

/// What a list is asked for may not have come to its end by then, nor a second later on a runtime that is slow.
const AFTERTHOUGHTS: &[Duration] = &[Duration::from_secs(1), Duration::from_secs(5)];

/// A call is in doubt whose caller was lost, with us or before us.
pub(super) const DOUBTING: Rhythm = Rhythm {
    pause: Duration::from_secs(1),
    settling: Duration::ZERO,
    afterthoughts: AFTERTHOUGHTS,
};

/// A container waits for its values until it is in a list, and is told of a moment before that.
pub(super) const WATCHING: Rhythm = Rhythm {
    pause: Duration::from_millis(150),
    settling: Duration::from_millis(25),
    afterthoughts: AFTERTHOUGHTS,
};

// === impl Rhythm ===

impl Rhythm {
    /// Resolves when a list is due, at the latest at `next`. Whether somebody has asked for it.
    pub(super) async fn wanted(&self, hub: &Hub, next: Instant) -> bool {
        sleep(self.pause).await;
        let wanted = timeout_at(next, hub.relist_wanted()).await.is_ok();
        if wanted && !self.settling.is_zero() {
            sleep(self.settling).await;
        }
        wanted
    }
}
