//! The data path's part of a plugin: what the runtime asks comes to the hub, and back.

use super::{
    Identity,
    asked::Answer,
    handler::{Handler, events},
    line::{Line, Question, Told, Way},
    session::{Plugin, Runtime},
};
use crate::{hub::Hub, metrics::Metrics};
use std::{error::Error, io, rc::Rc};
use tokio::task::{JoinError, JoinSet};
use tracing::{error, info};

/// A plugin that comes back whenever its runtime does.
pub struct Front {
    line: Line,
    launched: bool,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    /// Of the session that there is.
    handler: Option<Rc<Handler>>,
    answers: JoinSet<(Question, Answer)>,
}

// === impl Front ===

impl Front {
    /// A plugin that comes to its runtime in this way. It is asked at once, and answers when it is served.
    ///
    /// # Errors
    ///
    /// When its thread does not start.
    pub fn new(
        way: Way,
        identity: Identity,
        hub: Rc<Hub>,
        metrics: Rc<Metrics>,
    ) -> io::Result<Self> {
        let plugin = Plugin {
            identity,
            events: events(),
            inputs: hub.policy().inputs(),
        };
        let launched = matches!(way, Way::Launched(_));
        Ok(Self {
            launched,
            line: Line::start(way, plugin)?,
            hub,
            metrics,
            handler: None,
            answers: JoinSet::new(),
        })
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
        loop {
            tokio::select! {
                biased;
                Some(answered) = self.answers.join_next() => self.answered(answered),
                told = self.line.next() => if self.told(told) {
                    return;
                },
            }
        }
    }

    fn answered(&self, answered: Result<(Question, Answer), JoinError>) {
        match answered {
            Ok((question, answer)) => self.line.answer(question, answer),
            // Its question is answered with "no change" when it is late.
            Err(died) => error!(error = &died as &dyn Error, "an answer died"),
        }
    }

    /// Whether that was the last.
    fn told(&mut self, told: Told) -> bool {
        match told {
            Told::Over => return true,
            Told::Registered(runtime) => self.registered(&runtime),
            Told::Refused => self.metrics.plugin_registered(false),
            Told::Asked(question, asked) => {
                if let Some(handler) = self.handler.clone() {
                    let answer = async move { (question, handler.answer(*asked).await) };
                    self.answers.spawn_local(answer);
                }
            }
            Told::Late(count) => self.metrics.plugin_late_answers(count),
            Told::Ended => {
                self.handler = None;
                self.answers = JoinSet::new();
                self.hub.set_plugin_up(false);
                self.hub.runtime_lost();
            }
        }
        false
    }

    fn registered(&mut self, runtime: &Runtime) {
        let version = format!("{} {}", runtime.name, runtime.version);
        // Another plugin that sets one of these makes the runtime fail the creation.
        let sets = self.hub.policy().sayable();
        let sets: Vec<_> = sets.iter().map(|setting| setting.name()).collect();
        let settings = sets.join(",");
        info!(version, settings, "registered as a plugin");
        self.metrics.plugin_registered(true);
        self.hub.set_runtime(&runtime.name, &runtime.version);
        if self.launched {
            // containerd 1.7 tells what it launches nothing of what is there: the list does.
            self.hub.set_plugin_up(true);
        }
        let handler = Handler::new(self.hub.clone(), runtime.request_timeout);
        self.handler = Some(Rc::new(handler));
    }
}
