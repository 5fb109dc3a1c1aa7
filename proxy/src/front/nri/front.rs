//! Holding one connection to the runtime for as long as we run.

use super::{
    Identity, Incoming, Plugin, Session, SessionError,
    asked::Answer,
    handler::{Handler, events},
};
use crate::{front::cri::connect, hub::Hub, metrics::Metrics};
use koord_proto::keys::annotation;
use std::{
    error::Error,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{task::JoinSet, time::sleep};
use tracing::{error, info, warn};

/// Waiting grows from the first to the last while the runtime does not take us; half of it is chance.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_millis(500);

/// A plugin that comes back whenever its runtime does.
pub struct Front {
    socket: Arc<Path>,
    plugin: Plugin,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
}

// === impl Front ===

impl Front {
    pub fn new(socket: PathBuf, identity: Identity, hub: Rc<Hub>, metrics: Rc<Metrics>) -> Self {
        let inputs = hub.policy().inputs();
        let inputs = inputs
            .as_ref()
            .clone()
            .and_annotation(annotation::ORIGINALS);
        Self {
            socket: socket.into(),
            plugin: Plugin {
                identity,
                events: events(),
                inputs: Arc::new(inputs),
            },
            hub,
            metrics,
        }
    }

    /// Answers the runtime until `stopping`; then it goes on without us. Must run in a `LocalSet`.
    pub async fn serve(self, stopping: impl Future<Output = ()>) {
        tokio::select! {
            () = stopping => {}
            never = self.run() => match never {},
        }
    }

    async fn run(self) -> std::convert::Infallible {
        let (mut retry, mut complained) = (FIRST_RETRY, false);
        loop {
            match self.register().await {
                Ok(session) => {
                    let ended = self.follow(session).await;
                    self.hub.set_plugin_up(false);
                    self.hub.runtime_lost();
                    let error = &ended as &dyn Error;
                    warn!(error, "the runtime asks us no more; coming back");
                    (retry, complained) = (FIRST_RETRY, false);
                }
                Err(error) => {
                    self.metrics.plugin_registered(false);
                    if !complained {
                        let error = &error as &dyn Error;
                        let runtime = self.socket.display();
                        warn!(error, %runtime, "the runtime does not take us; trying until it does");
                        complained = true;
                    }
                }
            }
            sleep(jittered(retry)).await;
            retry = LAST_RETRY.min(retry * 2);
        }
    }

    async fn register(&self) -> Result<Session, SessionError> {
        let stream = connect(self.socket.clone()).await?;
        Session::register(stream, &self.plugin).await
    }

    /// Answers one session's questions until it is over.
    async fn follow(&self, mut session: Session) -> SessionError {
        let runtime = session.runtime();
        let version = format!("{} {}", runtime.name, runtime.version);
        info!(version, "registered as a plugin");
        self.metrics.plugin_registered(true);
        self.hub.set_runtime(&runtime.name, &runtime.version);
        let handler = Rc::new(Handler::new(self.hub.clone(), runtime.request_timeout));
        let mut answers = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(answered) = answers.join_next() => match answered {
                    Ok((ticket, answer)) => {
                        if let Err(ended) = reply(&mut session, ticket, answer) {
                            return ended;
                        }
                    }
                    // Its question is answered with "no change" when it is late.
                    Err(died) => error!(error = &died as &dyn Error, "an answer died"),
                },
                incoming = session.next() => match incoming {
                    Ok(Incoming::Asked(ticket, asked)) => {
                        let handler = handler.clone();
                        answers.spawn_local(async move { (ticket, handler.answer(*asked).await) });
                    }
                    Ok(Incoming::Late(_)) => self.metrics.plugin_late_answer(),
                    // Nothing of ours is sent but answers.
                    Ok(Incoming::Updated(_)) => {}
                    Err(ended) => return ended,
                },
            }
        }
    }
}

/// Says an answer; one that is too long to be said is none.
fn reply(session: &mut Session, ticket: super::Ticket, answer: Answer) -> Result<(), SessionError> {
    match session.answer(ticket, answer) {
        Err(SessionError::Send(error)) => {
            let error = &error as &dyn Error;
            warn!(
                error,
                "an answer cannot be said; what it had comes by the kernel"
            );
            session.answer(ticket, Answer::Nothing).map(drop)
        }
        said => said.map(drop),
    }
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
