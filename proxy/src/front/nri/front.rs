//! A plugin that comes back whenever its runtime does: what that asks comes to the hub, and back.

use super::{
    Identity,
    asked::Answer,
    handler::{Handler, Pendings, events},
    launched::Launched,
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
    watchdog::{Pulse, Watchdog},
};
use crate::{dial::connect, hub::Hub, metrics::Metrics, retry::Retry};
use std::{
    collections::HashMap,
    error::Error,
    future::poll_fn,
    hash::{BuildHasher, RandomState},
    mem,
    panic::{self, AssertUnwindSafe},
    path::Path,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    task::{Id, JoinSet},
    time::{Instant, sleep},
};
use tracing::{error, info, warn};

/// While the runtime does not take us. Half of each pause is chance, since other plugins come back as well.
const RETRY: Retry = Retry::between(Duration::from_millis(50), Duration::from_millis(500));
/// A session that lasts for so long has come to stay.
const SETTLED: Duration = Duration::from_secs(5);

/// A plugin.
pub struct Front {
    /// Until it is served.
    way: Option<Way>,
    plugin: Plugin,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    watchdog: Watchdog,
    /// What was decided in the last session and not known to be done when it ended.
    pending: Pendings,
}

/// How we come to the runtime.
#[derive(Debug)]
pub enum Way {
    /// By its socket, whenever it is there.
    Socket(Arc<Path>),
    /// It has launched us: over the connection that it made, and over no other.
    Launched(Box<Launched>),
}

/// What is done for as long as there is a session.
struct Talk<'a> {
    session: Session,
    hub: &'a Hub,
    handler: Rc<Handler>,
    answers: Answers,
    metrics: &'a Metrics,
    watchdog: &'a Watchdog,
}

/// Those that are looked for.
#[derive(Default)]
struct Answers {
    tasks: JoinSet<Answer>,
    /// To which question each.
    questions: HashMap<Id, Question>,
}

#[derive(Clone, Debug, PartialEq)]
struct Question {
    ticket: Ticket,
    /// The container that is made of it, if one is.
    makes: Option<String>,
}

/// How looking for one has ended.
struct Answered {
    question: Question,
    /// `None` if it died.
    answer: Option<Answer>,
}

// === impl Front ===

impl Front {
    /// A plugin that comes to its runtime in this way. `pulse` is of the runtime that it is served on.
    pub fn new(
        way: Way,
        identity: Identity,
        hub: Rc<Hub>,
        metrics: Rc<Metrics>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let plugin = Plugin {
            identity,
            events: events(),
            inputs: hub.policy().inputs(),
        };
        let watchdog = Watchdog::new(pulse);
        watchdog.start();
        Self {
            way: Some(way),
            plugin,
            hub,
            metrics,
            watchdog,
            pending: Pendings::new(),
        }
    }

    /// Answers the runtime until `stopping`, then it goes on without us; or until it is done with a
    /// plugin that it launched. Must run in a `LocalSet`.
    pub async fn serve(mut self, stopping: impl Future<Output = ()>) {
        tokio::select! {
            () = stopping => {}
            () = self.run() => {}
        }
    }

    async fn run(&mut self) {
        match self.way.take() {
            Some(Way::Socket(socket)) => self.come_back(&socket).await,
            Some(Way::Launched(launched)) => match Session::resume(*launched, &self.plugin).await {
                Ok(session) => self.talk(session, true).await,
                Err(error) => complain(&error, "the connection that it made"),
            },
            None => {}
        }
    }

    /// Comes back whenever the runtime does; never ends.
    async fn come_back(&mut self, socket: &Arc<Path>) {
        let mut retry = RETRY;
        loop {
            match self.register(socket.clone()).await {
                Ok(session) => {
                    let begun = Instant::now();
                    self.talk(session, false).await;
                    // One that takes us and drops us is as one that does not take us.
                    if begun.elapsed() >= SETTLED {
                        retry.succeeded();
                    }
                }
                Err(error) => {
                    if retry.is_news() {
                        complain(&error, &socket.to_string_lossy());
                    }
                    self.metrics.plugin_registered(false);
                }
            }
            sleep(jittered(retry.pause())).await;
        }
    }

    async fn register(&self, socket: Arc<Path>) -> Result<Session, SessionError> {
        let stream = connect(socket).await?;
        Session::register(stream, &self.plugin).await
    }

    /// Answers in one session until it is over.
    async fn talk(&mut self, session: Session, is_launched: bool) {
        self.registered(session.runtime());
        if is_launched {
            // containerd 1.7 tells what it launches nothing of what is there: the list does.
            self.hub.set_plugin_up(true);
        }
        self.watchdog.watch(&session);
        let handler = Handler::new(self.hub.clone(), session.runtime().waits(None));
        let handler = Rc::new(handler.after(mem::take(&mut self.pending)));
        let mut talk = Talk {
            session,
            hub: &self.hub,
            handler: handler.clone(),
            answers: Answers::default(),
            metrics: &self.metrics,
            watchdog: &self.watchdog,
        };
        let ended = talk.go_on().await;
        self.watchdog.rest();
        drop(talk);
        self.pending = handler.take_pending();
        if let Some(suppressed) = self.hub.may_complain("-", "plugin session") {
            let error = &ended as &dyn Error;
            warn!(error, suppressed, "the runtime asks us no more");
        }
        self.hub.set_plugin_up(false);
        self.hub.runtime_lost();
    }

    fn registered(&self, runtime: &Runtime) {
        let version = format!("{} {}", runtime.name, runtime.version);
        // Another plugin that sets one of these makes the runtime fail the creation.
        let sets = self.hub.policy().sayable();
        let sets: Vec<_> = sets.iter().map(|setting| setting.name()).collect();
        let settings = sets.join(",");
        // As often as the runtime likes.
        if let Some(suppressed) = self.hub.may_complain("-", "plugin") {
            info!(version, settings, suppressed, "registered as a plugin");
        }
        self.metrics.plugin_registered(true);
        self.hub.set_runtime(&runtime.name, &runtime.version);
    }
}

// === impl Talk ===

impl Talk<'_> {
    async fn go_on(&mut self) -> SessionError {
        loop {
            let said = tokio::select! {
                biased;
                Some(answered) = self.answers.next() => self.answered(answered),
                incoming = self.session.next() => match incoming {
                    Ok(incoming) => self.take(incoming).await,
                    Err(ended) => Err(ended),
                },
            };
            if let Err(ended) = said {
                return ended;
            }
        }
    }

    async fn take(&mut self, incoming: Incoming) -> Result<(), SessionError> {
        match incoming {
            Incoming::Asked(ticket, asked) => {
                self.watchdog.start();
                let handler = self.handler.clone();
                let makes = asked.makes().map(str::to_owned);
                let question = Question { ticket, makes };
                let answer = async move { handler.answer_by(*asked, ticket.due).await };
                match self.answers.look_for(question, answer).await {
                    Some(answered) => self.answered(answered),
                    None => Ok(()),
                }
            }
            Incoming::Unreadable(method) => {
                self.hub.unread(&method);
                Ok(())
            }
            Incoming::Late(count) => {
                self.metrics.plugin_late_answers(count);
                Ok(())
            }
        }
    }

    fn answered(&mut self, answered: Answered) -> Result<(), SessionError> {
        let Answered { question, answer } = answered;
        let Question { ticket, makes } = question;
        let said = match answer {
            Some(answer) => self.say(ticket, answer)?,
            None => {
                // The panic tells why.
                if let Some(suppressed) = self.hub.may_complain("-", "answer") {
                    error!(suppressed, "an answer died");
                }
                // A runtime asks one thing at a time, for whatever pod: nobody waits until it would be late.
                self.session.answer(ticket, Answer::Nothing)?;
                false
            }
        };
        if let Some(made) = makes.filter(|_| !said) {
            self.handler.unsaid(&made);
        }
        Ok(())
    }

    /// Says an answer; one that is too long to be said is none. Whether it was said.
    fn say(&mut self, ticket: Ticket, answer: Answer) -> Result<bool, SessionError> {
        match self.session.answer(ticket, answer) {
            Err(SessionError::Send(error)) => {
                if let Some(suppressed) = self.hub.may_complain("-", "answer") {
                    let error = &error as &dyn Error;
                    warn!(
                        error,
                        suppressed, "an answer cannot be said; what it had comes by the kernel"
                    );
                }
                self.session.answer(ticket, Answer::Nothing).map(|_| false)
            }
            said => said,
        }
    }
}

// === impl Answers ===

impl Answers {
    /// Looks for one, and has it if nothing has to be waited for, as hardly ever: then it goes out before
    /// anybody else does anything here. What has to be waited for comes with [`next`](Self::next).
    async fn look_for(
        &mut self,
        question: Question,
        answer: impl Future<Output = Answer> + 'static,
    ) -> Option<Answered> {
        let mut answer = Box::pin(answer);
        let look = |cx: &mut Context<'_>| {
            let look = AssertUnwindSafe(|| answer.as_mut().poll(cx));
            Poll::Ready(panic::catch_unwind(look))
        };
        let answer = match poll_fn(look).await {
            Ok(Poll::Ready(answer)) => Some(answer),
            Ok(Poll::Pending) => {
                let id = self.tasks.spawn_local(answer).id();
                self.questions.insert(id, question);
                return None;
            }
            Err(_) => None,
        };
        Some(Answered { question, answer })
    }

    /// The next one that is there, or that never will be; `None` if none is looked for.
    async fn next(&mut self) -> Option<Answered> {
        let ended = self.tasks.join_next_with_id().await?;
        let (id, answer) = match ended {
            Ok((id, answer)) => (id, Some(answer)),
            Err(died) => (died.id(), None),
        };
        let question = self.questions.remove(&id);
        let question = question.expect("each was looked for to a question");
        Some(Answered { question, answer })
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
    use super::{super::tests::session, *};
    use crate::hub::testing::Bench;
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use tokio::task::{LocalSet, yield_now};

    #[test]
    fn waiting_is_by_chance_between_half_and_all_of_its_time() {
        let all: Vec<_> = (0..1_000)
            .map(|_| jittered(Duration::from_millis(500)))
            .collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!((250..300).contains(&least.as_millis()), "{least:?}");
        assert!((450..=500).contains(&most.as_millis()), "{most:?}");
    }

    #[tokio::test]
    async fn of_an_answer_that_dies_it_is_known_which_container_was_to_have_it() {
        let (mut session, mut runtime) = session().await;
        runtime.ask("CreateContainer", b"").await;
        let Incoming::Asked(ticket, _) = session.next().await.unwrap() else {
            panic!("it has asked");
        };
        let test = async {
            let mut answers = Answers::default();
            for makes in [None, Some("container-1".to_owned())] {
                let question = Question { ticket, makes };
                let at_once = async { panic!("of a test") };
                let died = answers.look_for(question.clone(), at_once).await.unwrap();
                assert!(died.answer.is_none());
                assert_eq!(died.question, question);
                let later = async {
                    yield_now().await;
                    panic!("of a test")
                };
                assert!(answers.look_for(question.clone(), later).await.is_none());
                let died = answers.next().await.unwrap();
                assert!(died.answer.is_none());
                assert_eq!(died.question, question);
            }
            assert!(answers.next().await.is_none());
            assert_eq!(answers.questions.len(), 0);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_what_no_answer_comes_to_is_told_so_at_once() {
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let (session, mut runtime) = session().await;
        let watchdog = Watchdog::new(Pulse::new().unwrap());
        let mut talk = Talk {
            session,
            hub: &bench.hub,
            handler: Rc::new(Handler::new(bench.hub.clone(), Duration::from_secs(2))),
            answers: Answers::default(),
            metrics: bench.hub.metrics(),
            watchdog: &watchdog,
        };
        let call = runtime.ask("CreateContainer", b"").await;
        let Incoming::Asked(ticket, _) = talk.session.next().await.unwrap() else {
            panic!("it has asked");
        };
        let question = Question {
            ticket,
            makes: None,
        };
        let begun = Instant::now();
        let answer = None;
        talk.answered(Answered { question, answer }).unwrap();
        let told = tokio::select! {
            told = runtime.answer(call) => told,
            more = talk.session.next() => panic!("nothing else is asked: {more:?}"),
        };
        assert_eq!(told.unwrap(), b"");
        assert!(begun.elapsed() < Duration::from_millis(10));

        let unreadable = Incoming::Unreadable("CreateContainer".to_owned());
        talk.take(unreadable).await.unwrap();
        let metrics = bench.hub.metrics().encode().unwrap();
        let counted = "calls_total{method=\"CreateContainer\",result=\"unhooked_unreadable\"} 1";
        assert!(metrics.contains(counted), "{metrics}");
    }
}
