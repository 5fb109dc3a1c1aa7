//! Decisions that are made beside the data path, each for a call that is held until it is there.
//!
//! Each is a task of its own, so that one that panics costs its call the hooks and nobody anything
//! else. A decision is given up with the call that it is for, and all of them with their connection:
//! the runtime has not seen the message of a call that is held, so there is nothing to find out
//! about it. What a decision asked of the kernel's writer by then is done to its end all the same,
//! on the writer's own thread, and is what the pod gets when the client tries again.

use super::method::Method;
use crate::hub::Decision;
use koord_relay::StreamId;
use std::{
    collections::HashMap,
    error::Error,
    future::Future,
    task::{Context, Poll, ready},
};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::error;

/// The decisions under way of one connection: at most one for each open stream.
#[derive(Default)]
pub(super) struct Decisions {
    tasks: JoinSet<(StreamId, Decision)>,
    /// The calls that wait for one.
    held: HashMap<StreamId, Held>,
    /// Bytes that these may have been copied to be decided about.
    kept: usize,
}

/// A decision that a held call waited for.
pub(super) struct Decided {
    pub(super) stream: StreamId,
    pub(super) method: Method,
    pub(super) decision: Decision,
}

struct Held {
    method: Method,
    task: AbortHandle,
    /// Bytes of its message.
    length: usize,
}

// === impl Decisions ===

impl Decisions {
    /// Starts a decision about a message of this `length`. [`Decisions::poll_next`] has to be asked again
    /// after that. Must run in a `LocalSet`.
    pub(super) fn begin(
        &mut self,
        stream: StreamId,
        (method, length): (Method, usize),
        decision: impl Future<Output = Decision> + 'static,
    ) {
        let task = self
            .tasks
            .spawn_local(async move { (stream, decision.await) });
        let held = Held {
            method,
            task,
            length,
        };
        self.held.insert(stream, held);
        self.kept += length;
    }

    /// Bytes of messages that are here a second time, as far as that can be: some decisions need them once
    /// more when what they wait for has come.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept
    }

    /// Nothing is held for this call any more.
    fn let_go(&mut self, stream: StreamId) -> Option<Held> {
        let held = self.held.remove(&stream)?;
        self.kept -= held.length;
        Some(held)
    }

    /// Gives up what a call was held for, if anything, because it has ended or goes on without.
    pub(super) fn abandon(&mut self, stream: StreamId) {
        if let Some(held) = self.let_go(stream) {
            held.task.abort();
        }
    }

    /// The next decision that is made. Pending also when none is under way.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Decided> {
        while let Some(ended) = ready!(self.tasks.poll_join_next(cx)) {
            let (stream, decision) = match ended {
                Ok(made) => made,
                Err(died) => match self.held_by(&died) {
                    Some((stream, method)) => (stream, Decision::unthought(method)),
                    None => continue,
                },
            };
            // It may have been made just before its call ended.
            let Some(Held { method, .. }) = self.let_go(stream) else {
                continue;
            };
            return Poll::Ready(Decided {
                stream,
                method,
                decision,
            });
        }
        Poll::Pending
    }

    /// Which call waits for a task that died; none waits for one that was abandoned.
    fn held_by(&self, died: &JoinError) -> Option<(StreamId, Method)> {
        let mut held = self.held.iter();
        let (&stream, held) = held.find(|(_, held)| held.task.id() == died.id())?;
        error!(
            method = %held.method,
            error = died as &dyn Error,
            "a decision died, and its call goes on as it came"
        );
        Some((stream, held.method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::{Answer, Untouched};
    use std::{
        future::{pending, poll_fn, ready},
        rc::Rc,
    };
    use tokio::task::{LocalSet, yield_now};

    fn patched(byte: u8) -> Decision {
        Decision {
            answer: Answer::Patched(vec![byte]),
            ..Decision::unthought(Method::RunPodSandbox)
        }
    }

    async fn next(decisions: &mut Decisions) -> (StreamId, Method, Answer) {
        let decided = poll_fn(|cx| decisions.poll_next(cx)).await;
        (decided.stream, decided.method, decided.decision.answer)
    }

    /// Whether nothing is there now.
    async fn quiet(decisions: &mut Decisions) -> bool {
        for _ in 0..3 {
            yield_now().await;
        }
        poll_fn(|cx| Poll::Ready(decisions.poll_next(cx).is_pending())).await
    }

    #[tokio::test]
    async fn each_call_gets_its_own_decision_once_that_is_made() {
        let test = async {
            let mut decisions = Decisions::default();
            let (made, wait) = tokio::sync::oneshot::channel();
            let late = async move {
                wait.await.unwrap();
                patched(1)
            };
            decisions.begin(1, (Method::RunPodSandbox, 10), late);
            let update = Method::UpdateContainerResources;
            decisions.begin(3, (update, 20), ready(patched(3)));
            assert_eq!(decisions.kept_bytes(), 30);
            let (stream, method, answer) = next(&mut decisions).await;
            assert_eq!((stream, method), (3, Method::UpdateContainerResources));
            assert!(matches!(answer, Answer::Patched(bytes) if bytes == [3]));
            assert!(quiet(&mut decisions).await);
            assert_eq!(decisions.kept_bytes(), 10);
            made.send(()).unwrap();
            let (stream, method, answer) = next(&mut decisions).await;
            assert_eq!((stream, method), (1, Method::RunPodSandbox));
            assert!(matches!(answer, Answer::Patched(bytes) if bytes == [1]));
            assert!(quiet(&mut decisions).await);
            assert_eq!(decisions.kept_bytes(), 0);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_decision_that_panics_lets_its_call_go_on_as_it_came() {
        let test = async {
            let mut decisions = Decisions::default();
            let run = (Method::RunPodSandbox, 10);
            decisions.begin(1, run, pending());
            decisions.begin(3, run, async { panic!("of this test") });
            let (stream, _, answer) = next(&mut decisions).await;
            assert_eq!(stream, 3);
            assert!(matches!(answer, Answer::AsIs(Untouched::Unknown)));
            assert!(quiet(&mut decisions).await);
            assert_eq!(decisions.kept_bytes(), 10);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_call_that_has_ended_takes_its_decision_with_it() {
        let test = async {
            let mut decisions = Decisions::default();
            let thinking = Rc::new(());
            for stream in [1, 3] {
                let thought = thinking.clone();
                let never = async move {
                    let _thought = thought;
                    pending().await
                };
                decisions.begin(stream, (Method::RunPodSandbox, 10), never);
            }
            decisions.begin(5, (Method::RunPodSandbox, 20), ready(patched(5)));
            assert_eq!(decisions.kept_bytes(), 40);
            yield_now().await;
            decisions.abandon(1);
            // This one is made, and not heard yet.
            decisions.abandon(5);
            assert!(quiet(&mut decisions).await);
            assert_eq!(Rc::strong_count(&thinking), 2);
            assert!(decisions.held.contains_key(&3));
            assert_eq!(decisions.kept_bytes(), 10);
            assert_eq!((decisions.held.len(), decisions.tasks.len()), (1, 1));
            // The rest goes with the connection.
            drop(decisions);
            yield_now().await;
            assert_eq!(Rc::strong_count(&thinking), 1);
        };
        LocalSet::new().run_until(test).await;
    }
}
