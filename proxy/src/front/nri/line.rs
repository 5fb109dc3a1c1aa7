//! The line to the runtime: a thread that registers, listens, and answers in time whatever the data
//! path is doing.
//!
//! A plugin that is late is closed, and its runtime goes on without it. So no hook, however slow, may
//! keep a question from its answer: what the data path has not answered in half of the time is
//! answered with "no change" from here. It is told of the question all the same, and what it decides
//! comes to the kernel by reconcile. Messages are decoded here too, however large they are.

use super::{
    asked::{Answer, Asked},
    launched::Launched,
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
};
use crate::front::cri::connect;
use std::{
    convert::Infallible,
    error::Error,
    hash::{BuildHasher, RandomState},
    io,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    runtime::Builder,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tracing::warn;

/// Waiting grows from the first to the last while the runtime does not take us; half of it is chance.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// What may wait for the data path, and for the runtime. A runtime asks one thing at a time, so most
/// of this is for a data path that stands still.
const QUEUE: usize = 256;

/// The data path's end.
pub(super) struct Line {
    told: mpsc::Receiver<Told>,
    answers: mpsc::Sender<(Question, Answer)>,
    /// Ends the thread when it goes.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// What the data path is told.
#[derive(Debug)]
pub(super) enum Told {
    /// The runtime has taken us for its plugin.
    Registered(Runtime),
    /// It has not.
    Refused,
    Asked(Question, Box<Asked>),
    /// So many questions were answered with "no change", because time was short.
    Late(u64),
    /// The runtime asks no more.
    Ended,
    /// It had launched us, and asks no more: it launches the next process itself.
    Over,
}

/// How we come to the runtime.
#[derive(Debug)]
pub enum Way {
    /// By its socket, whenever it is there.
    Socket(Arc<Path>),
    /// It has launched us: over the connection that it made, and over no other.
    Launched(Box<Launched>),
}

/// Names a question of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    session: u64,
    ticket: Ticket,
}

/// The thread's end.
struct Speaker {
    plugin: Plugin,
    told: mpsc::Sender<Told>,
    answers: mpsc::Receiver<(Question, Answer)>,
    session: u64,
    /// Late answers of which the data path has no time to hear.
    late: u64,
}

// === impl Line ===

impl Line {
    /// Starts the thread, which goes on trying until the runtime takes us.
    pub(super) fn start(way: Way, plugin: Plugin) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (tell, told) = mpsc::channel(QUEUE);
        let (answers, answered) = mpsc::channel(QUEUE);
        let (stop, stopped) = oneshot::channel::<Infallible>();
        let mut speaker = Speaker {
            plugin,
            told: tell,
            answers: answered,
            session: 0,
            late: 0,
        };
        let speak = async move {
            tokio::select! {
                _ = stopped => {}
                () = speaker.run(way) => {}
            }
        };
        let thread = thread::Builder::new()
            .name("nri".to_owned())
            .spawn(move || runtime.block_on(speak))?;
        Ok(Self {
            told,
            answers,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The next thing that the data path has to know. Nothing is lost if it is dropped before it is
    /// ready.
    pub(super) async fn next(&mut self) -> Told {
        match self.told.recv().await {
            Some(told) => told,
            None => self.died(),
        }
    }

    /// Answers a question, unless that is out of date.
    pub(super) fn answer(&self, question: Question, answer: Answer) {
        // Where there is no room, the question is answered with "no change" when it is late.
        self.answers.try_send((question, answer)).ok();
    }

    /// Nothing is right without the thread, and it ends by nothing but a panic: that is ours then.
    fn died(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => unreachable!("the line is held for as long as anything is asked of it"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has told of its panic itself.
            thread.join().ok();
        }
    }
}

// === impl Speaker ===

impl Speaker {
    /// Ends when nobody wants to be told, or the runtime that launched us is done with us.
    async fn run(&mut self, way: Way) {
        match way {
            Way::Socket(socket) => self.come_back(&socket).await,
            Way::Launched(launched) => {
                match Session::resume(*launched, &self.plugin).await {
                    Ok(session) => drop(self.speak(session).await),
                    Err(error) => complain(&error, "the connection that it made"),
                }
                self.tell(Told::Over).await;
            }
        }
    }

    /// Speaks in one session until it is over. Whether nobody wants to be told.
    async fn speak(&mut self, mut session: Session) -> bool {
        self.session += 1;
        if self.tell(Told::Registered(session.runtime().clone())).await {
            return true;
        }
        let ended = self.follow(&mut session).await;
        drop(session);
        warn!(error = &ended as &dyn Error, "the runtime asks us no more");
        self.tell(Told::Ended).await
    }

    /// Comes back whenever the runtime does.
    async fn come_back(&mut self, socket: &Arc<Path>) {
        let (mut retry, mut complained) = (FIRST_RETRY, false);
        loop {
            let over = match self.register(socket.clone()).await {
                Ok(session) => {
                    (retry, complained) = (FIRST_RETRY, false);
                    self.speak(session).await
                }
                Err(error) => {
                    if !complained {
                        complain(&error, &socket.to_string_lossy());
                        complained = true;
                    }
                    self.tell(Told::Refused).await
                }
            };
            if over {
                return;
            }
            sleep(jittered(retry)).await;
            retry = LAST_RETRY.min(retry * 2);
        }
    }

    async fn register(&self, socket: Arc<Path>) -> Result<Session, SessionError> {
        let stream = connect(socket).await?;
        Session::register(stream, &self.plugin).await
    }

    /// Whether nobody listens.
    async fn tell(&self, told: Told) -> bool {
        self.told.send(told).await.is_err()
    }

    /// Passes questions and answers on until the session is over.
    async fn follow(&mut self, session: &mut Session) -> SessionError {
        loop {
            self.tell_late();
            let spoken = tokio::select! {
                biased;
                Some((question, answer)) = self.answers.recv() => {
                    self.reply(session, question, answer)
                }
                incoming = session.next() => match incoming {
                    Ok(incoming) => self.pass_on(session, incoming),
                    Err(ended) => Err(ended),
                },
            };
            if let Err(ended) = spoken {
                return ended;
            }
        }
    }

    fn pass_on(&mut self, session: &mut Session, incoming: Incoming) -> Result<(), SessionError> {
        match incoming {
            Incoming::Asked(ticket, asked) => {
                let question = Question {
                    session: self.session,
                    ticket,
                };
                if self.told.try_send(Told::Asked(question, asked)).is_err() {
                    // Whatever is missed is found by the next list.
                    self.late += 1;
                    session.answer(ticket, Answer::Nothing)?;
                }
            }
            Incoming::Late(_) => self.late += 1,
        }
        Ok(())
    }

    /// The data path may have no room for it now; it is told next time then.
    fn tell_late(&mut self) {
        if self.late > 0 && self.told.try_send(Told::Late(self.late)).is_ok() {
            self.late = 0;
        }
    }

    /// Says an answer; one that is too long to be said is none.
    fn reply(
        &self,
        session: &mut Session,
        question: Question,
        answer: Answer,
    ) -> Result<(), SessionError> {
        if question.session != self.session {
            return Ok(());
        }
        match session.answer(question.ticket, answer) {
            Err(SessionError::Send(error)) => {
                let error = &error as &dyn Error;
                warn!(
                    error,
                    "an answer cannot be said; what it had comes by the kernel"
                );
                session.answer(question.ticket, Answer::Nothing).map(drop)
            }
            said => said.map(drop),
        }
    }
}

fn complain(error: &SessionError, runtime: &str) {
    let error = error as &dyn Error;
    warn!(error, runtime, "the runtime does not take us");
}

/// Between half of this time and all of it.
fn jittered(time: Duration) -> Duration {
    // Every state has keys of its own, which are random.
    let random = RandomState::new().hash_one(());
    let share = u32::try_from(random >> 33).unwrap_or(0);
    let half = time / 2;
    half + half.mul_f64(f64::from(share) / f64::from(u32::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_by_chance_between_half_and_all_of_its_time() {
        let all: Vec<_> = (0..1_000).map(|_| jittered(LAST_RETRY)).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!((250..300).contains(&least.as_millis()), "{least:?}");
        assert!((450..=500).contains(&most.as_millis()), "{most:?}");
    }
}
