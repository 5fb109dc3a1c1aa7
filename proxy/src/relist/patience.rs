//! How much one list asks about single pods and containers.
//!
//! Until its questions are over a list is not taken in, and one that takes too long comes to nothing. So
//! whoever is not asked about by then waits for the next list.

use crate::runtime::RuntimeError;
use std::time::Duration;
use tokio::time::Instant;

/// What is left of it. How many questions may go unanswered is limited, since each costs a second, and
/// sandboxes that hang must not keep the others out of the ledger; so is how long all of them take, since a
/// slow runtime may answer each in time. Whatever the earlier steps of the list have spent, each has one
/// such question: what hangs for one must not keep the next from ever asking.
#[derive(Default)]
pub(super) struct Patience {
    late: usize,
    late_in_step: usize,
    spent: Duration,
    asked_in_step: bool,
    left_unasked: bool,
}

// === impl Patience ===

impl Patience {
    pub(super) const MOST: usize = 3;
    /// With the calls before them, and a last question of each step, well within the deadline of a list.
    pub(super) const LONGEST: Duration = Duration::from_secs(10);

    /// The same for the next step of the list.
    pub(super) fn next_step(&mut self) -> &mut Self {
        (self.late_in_step, self.asked_in_step) = (0, false);
        self
    }

    /// The answer to a question, which is not asked any more once patience is over.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Option<Result<T, RuntimeError>> {
        if self.is_over() {
            return None;
        }
        let asked = Instant::now();
        let answer = question.await;
        self.spent += asked.elapsed();
        self.asked_in_step = true;
        if matches!(answer, Err(RuntimeError::Late { .. })) {
            self.late += 1;
            self.late_in_step += 1;
        }
        Some(answer)
    }

    /// It is over before this one of a step, about whom the runtime was asked in vain so often; all after it
    /// were so no less often.
    pub(super) fn leave(&mut self, times_in_vain: u32) {
        self.left_unasked |= self.has_no_time() && times_in_vain == 0;
    }

    /// Whether there was no time left for somebody about whom the runtime was never asked in vain. The next list
    /// asks about some of these, so this ends; a runtime that lets questions go unanswered is not asked more
    /// often for that.
    pub(super) fn has_left_unasked(&self) -> bool {
        self.left_unasked
    }

    fn is_over(&self) -> bool {
        let is_late = self.late >= Self::MOST && self.late_in_step > 0;
        is_late || self.has_no_time() && self.asked_in_step
    }

    fn has_no_time(&self) -> bool {
        self.spent >= Self::LONGEST
    }
}
