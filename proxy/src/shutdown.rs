//! What signals mean: SIGTERM and SIGINT stop us gracefully, a second one of either at once, and
//! SIGHUP has the node policy and the pods read again. Some others are caught and mean nothing.

use rustix::process::Signal as Number;
use std::{io, rc::Rc};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, watch},
};
use tracing::{info, warn};

/// The signals that we listen for. From here on none of them ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What would end a process that does not listen for it: what other daemons take for a wish, timers, and
/// that a file is at its limit, which the write says too.
const MEANINGLESS: [Number; 6] = [
    Number::USR1,
    Number::USR2,
    Number::ALARM,
    Number::VTALARM,
    Number::PROF,
    Number::XFSZ,
];

/// How far a stop has come; as many clones as there are who want to know.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Phase>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Graceful,
    AtOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Stop,
    Reload,
}

// === impl Signals ===

impl Signals {
    /// Catches these signals, and those that mean nothing. Must run within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When one of them cannot be caught.
    pub fn install() -> io::Result<Self> {
        for number in MEANINGLESS {
            // Nobody waits for it, and it is caught from here on.
            drop(signal(SignalKind::from_raw(number.as_raw()))?);
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The task that does what signals say, for as long as it is polled, and what it tells.
    /// Each of `reload` is notified at every SIGHUP.
    pub fn obey(mut self, reload: [Rc<Notify>; 2]) -> (Stop, impl Future<Output = ()>) {
        let (phase, stop) = watch::channel(Phase::Running);
        let task = async move {
            loop {
                match self.next().await {
                    Order::Reload => {
                        info!("SIGHUP: reading the node policy and the pods again");
                        reload.iter().for_each(|it| it.notify_one());
                    }
                    Order::Stop if *phase.borrow() == Phase::Running => {
                        info!("asked to stop");
                        phase.send_replace(Phase::Graceful);
                    }
                    Order::Stop => {
                        warn!("asked to stop again: not waiting for calls in flight");
                        phase.send_replace(Phase::AtOnce);
                    }
                }
            }
        };
        (Stop(stop), task)
    }

    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.terminate.recv() => Order::Stop,
            _ = self.interrupt.recv() => Order::Stop,
            _ = self.hangup.recv() => Order::Reload,
        }
    }
}

// === impl Stop ===

impl Stop {
    /// Ready once a stop has begun.
    pub async fn begun(self) {
        self.reached(Phase::Graceful).await;
    }

    /// Ready once whoever asked to stop has lost patience.
    pub async fn at_once(self) {
        self.reached(Phase::AtOnce).await;
    }

    async fn reached(mut self, wanted: Phase) {
        // A task that is gone hears no signals any more: never ready.
        if self.0.wait_for(|phase| *phase >= wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
