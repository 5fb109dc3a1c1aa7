//! What a panic says: one line of the log, like every other failure.
//!
//! By itself the standard library prints lines of its own form to standard error, as often as
//! somebody can cause it. A panic that is caught and told of is its catcher's to tell: while a
//! [`Catching`] lives, the place is kept for the one who has it, and nothing is written.
//!
//! A panic hook is one for the whole process and is handed nothing of ours, so the place is kept
//! with the thread: the only state here that is not handed in.

use crate::log::RateLimited;
use std::{
    cell::RefCell,
    panic::{self, PanicHookInfo},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};
use tracing::error;

/// Characters of a panic's text that are written: it may quote what a workload wrote.
const MAX_TEXT: usize = 256;

thread_local! {
    static CATCHER: RefCell<Option<Catcher>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Catcher {
    /// Where the last panic was.
    place: Option<String>,
}

/// Keeps to itself where this thread panics, for whoever catches the panic and tells of it.
#[derive(Debug)]
#[must_use = "panics are written as soon as this is dropped"]
pub struct Catching(());

/// From now on a panic of any thread is written to the log.
pub fn install() {
    let limited = Mutex::new(RateLimited::default());
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if kept(&place) {
            return;
        }
        // What it guards is sound at any time: it counts.
        let mut limited = limited.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = limited.permit("-", "panic", Instant::now()) {
            tell(&place, info, suppressed);
        }
    }));
}

/// Whether somebody on this thread catches the panic that has begun at `place`.
fn kept(place: &str) -> bool {
    CATCHER.with_borrow_mut(|catcher| match catcher {
        Some(catcher) => {
            catcher.place = Some(place.to_owned());
            true
        }
        None => false,
    })
}

fn tell(place: &str, info: &PanicHookInfo<'_>, suppressed: u64) {
    let text = info.payload_as_str().unwrap_or("it left no text");
    let reason: String = text.chars().take(MAX_TEXT).collect();
    error!(
        thread = thread::current().name(),
        location = place,
        reason,
        suppressed,
        "a thread panicked"
    );
}

// === impl Catching ===

impl Catching {
    pub fn begin() -> Self {
        CATCHER.set(Some(Catcher { place: None }));
        Self(())
    }

    /// Where the last panic since the beginning was.
    pub fn place(&self) -> Option<String> {
        CATCHER.with_borrow(|catcher| catcher.as_ref()?.place.clone())
    }
}

impl Drop for Catching {
    fn drop(&mut self) {
        let place = CATCHER.take().and_then(|catcher| catcher.place);
        // It was not caught here, so nobody has told of it.
        if let Some(location) = place.filter(|_| thread::panicking()) {
            error!(
                thread = thread::current().name(),
                location, "a thread panicked while it ran a hook"
            );
        }
    }
}
