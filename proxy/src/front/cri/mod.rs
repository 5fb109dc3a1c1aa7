//! The CRI front: accepts the kubelet's connections and pairs each with one to the runtime.
//!
//! Frames pass as they came; only the streams of claimed methods are opened ([`method`]). What a
//! call means is the hub's business, what bytes do is the relay's; here is only the I/O between.

mod decisions;
mod dial;
mod driver;
mod ended;
mod guests;
mod method;
mod room;
mod slots;

pub(crate) use self::{dial::connect, method::Method};

use self::{driver::Driver, ended::Ended, guests::Guests, room::Room, slots::Slots};
use crate::{
    hub::Hub,
    log::RateLimited,
    metrics::{Metrics, Refused},
    socket::peer_is_root_or_us,
};
use koord_relay::{Claims, Limits};
use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    error::Error,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, timeout, timeout_at},
};
use tracing::{debug, error, info, warn};

/// One read takes at most this much; the buffer is shared by all connections of the thread.
const READ_BUFFER: usize = 64 * 1024;
/// How often, while somebody waits for a place, it is looked at who has waited for too long or stands
/// still: a wait outlasts its bound by no more than this.
const SLOT_SWEEP: Duration = Duration::from_millis(100);
/// Room for held messages beside those that have a place of their own, in bytes.
const SMALL_MESSAGES: usize = 64 << 20;
/// Of so many places one is kept from clients that ask for nothing.
const SPARE: usize = 8;
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a stop lets newcomers wait for the next of us, before it serves them itself until the
/// calls in flight are done. A kubelet takes a runtime for gone that leaves a new connection without
/// an answer for 5 s (`minConnectionTimeout` of its CRI client).
const LAST_ORDERS: Duration = Duration::from_secs(1);
/// How long before the end of its time a stop serves nobody new: calls that are shorter are not cut off by
/// it. With [`LAST_ORDERS`] just before it, who waits has the next of us before a kubelet's patience is over.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// What a front needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The runtime's socket.
    pub runtime: Arc<Path>,
    /// Client connections at most; what is over is closed at once, those that have not yet shown
    /// an HTTP/2 preface first. Before it comes to that, those that ask for nothing are asked to go.
    pub max_connections: usize,
    /// Claimed messages larger than their stream's window that are held at the same time.
    pub large_message_slots: usize,
    /// Bytes of one claimed message at most; a larger one passes unopened.
    pub max_message_bytes: usize,
    /// How long a large message may wait for its place, at most.
    pub hold_timeout: Duration,
    /// Open claimed calls; false passes everything through.
    pub hooks: bool,
    /// The socket is not ours and stays when we go: clients wait in it for the next of us.
    pub socket_stays: bool,
}

/// One accepted connection; later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionId(u64);

/// What one connection takes of what all share; given back however it ends.
struct Seat {
    id: ConnectionId,
    shared: Rc<Shared>,
    _attendance: mpsc::Sender<()>,
}

/// Tells connections to go: all that are there when its number rises.
#[derive(Clone, Debug)]
struct DrainSignal(watch::Receiver<u64>);

/// What the connections of one front share.
struct Shared {
    claims: Claims,
    limits: Limits,
    runtime: Arc<Path>,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    slots: Slots,
    room: Room,
    drain: DrainSignal,
    buffer: RefCell<Box<[u8]>>,
    guests: Guests,
    open: Cell<usize>,
}

/// The listening side.
pub struct Front {
    listener: UnixListener,
    shared: Rc<Shared>,
    max_connections: usize,
    hold_timeout: Duration,
    socket_stays: bool,
    complaints: RateLimited,
    drain: watch::Sender<u64>,
    connections: JoinSet<()>,
    /// Those that have not been told to go have a clone each.
    attendance: (mpsc::Sender<()>, mpsc::Receiver<()>),
    next: u64,
}

// === impl DrainSignal ===

impl DrainSignal {
    /// Ready once all that are there now are told to go.
    fn told(mut self) -> impl Future<Output = ()> {
        let now = *self.0.borrow();
        async move {
            // A front that is gone has nothing to drain: never ready.
            if self.0.wait_for(|told| *told > now).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

// === impl Seat ===

impl Drop for Seat {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.guests.gone(self.id);
        shared.metrics.connection_closed();
        shared.open.set(shared.open.get() - 1);
    }
}

// === impl Front ===

impl Front {
    pub fn new(
        listener: UnixListener,
        options: Options,
        hub: Rc<Hub>,
        metrics: Rc<Metrics>,
    ) -> Self {
        let (drain, draining) = watch::channel(0);
        let limits = Limits {
            max_message: options.max_message_bytes,
            ..Limits::default()
        };
        Self {
            listener,
            max_connections: options.max_connections,
            hold_timeout: options.hold_timeout,
            socket_stays: options.socket_stays,
            complaints: RateLimited::default(),
            drain,
            connections: JoinSet::new(),
            attendance: mpsc::channel(1),
            next: 0,
            shared: Rc::new(Shared {
                claims: Method::claims(options.hooks),
                limits,
                runtime: options.runtime,
                hub,
                room: Room::new(
                    options.large_message_slots * options.max_message_bytes + SMALL_MESSAGES,
                    metrics.clone(),
                ),
                metrics,
                slots: Slots::new(options.large_message_slots),
                drain: DrainSignal(draining),
                buffer: RefCell::new(vec![0; READ_BUFFER].into_boxed_slice()),
                guests: Guests::default(),
                open: Cell::new(0),
            }),
        }
    }

    /// Accepts until `stop` is ready, then lets the calls in flight finish, at most for `grace`.
    /// Gives back how many connections were still open at the end. Must run in a `LocalSet`.
    pub async fn serve(self, stop: impl Future<Output = ()>, grace: Duration) -> usize {
        let sweep = sweep(self.shared.clone(), self.hold_timeout);
        tokio::select! {
            left = self.serve_all(stop, grace) => left,
            never = sweep => match never {},
        }
    }

    async fn serve_all(mut self, stop: impl Future<Output = ()>, grace: Duration) -> usize {
        self.accept_until(stop).await;
        let until = Instant::now() + grace;
        info!(
            connections = self.connections.len(),
            "draining: calls in flight finish, and their clients take new ones elsewhere"
        );
        if self.socket_stays {
            self.make_way(until).await;
        }
        self.drain(until).await
    }

    async fn accept_until(&mut self, stop: impl Future) {
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                // Accepting comes last: who connects without end must not keep the rest from us.
                biased;
                _ = &mut stop => break,
                Some(ended) = self.connections.join_next() => reap(ended),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) => {
                        if let Some(suppressed) = self.complaint("accept") {
                            let error = &error as &dyn Error;
                            warn!(error, suppressed, "cannot accept a connection");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Comes back when nobody is connected, or at closing time.
    ///
    /// A container may take half a minute to stop and an image longer to come, and nobody else serves
    /// before we have ended: so as long as such a call is in flight, those that come are served.
    async fn make_way(&mut self, until: Instant) {
        while Instant::now() + CLOSING_TIME < until {
            let told = self.tell_all_to_go();
            if timeout(LAST_ORDERS, all_ended(&mut self.connections))
                .await
                .is_ok()
            {
                return;
            }
            self.accept_until(timeout_at(until - CLOSING_TIME, told))
                .await;
        }
    }

    async fn drain(mut self, until: Instant) -> usize {
        drop(self.tell_all_to_go());
        // Nothing new: what connects from here on meets a closed socket, or waits in the backlog
        // of a socket that stays for the next of us.
        let Self {
            listener,
            mut connections,
            ..
        } = self;
        drop(listener);
        // Whether time was left is said by what is left: nothing, if it was.
        timeout_at(until, all_ended(&mut connections)).await.ok();
        connections.len()
    }

    /// Tells all that are connected; ready when they have gone.
    fn tell_all_to_go(&mut self) -> impl Future<Output = ()> + use<> {
        let (sender, mut told) = std::mem::replace(&mut self.attendance, mpsc::channel(1));
        drop(sender);
        self.drain.send_modify(|told| *told += 1);
        async move {
            // Nobody sends; it ends with the last sender.
            told.recv().await;
        }
    }

    fn admit(&mut self, stream: UnixStream) {
        if !peer_is_root_or_us(&stream) {
            self.shared.metrics.connection_refused(Refused::Peer);
            debug!("refused a connection: its peer is not root");
            return;
        }
        self.keep_places();
        let guests = &self.shared.guests;
        if self.shared.open.get() >= self.max_connections && !guests.evict_stranger() {
            self.shared.metrics.connection_refused(Refused::TooMany);
            debug!("refused a connection: the cap is reached");
            return;
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        let guest = guests.admit(id);
        self.shared.open.set(self.shared.open.get() + 1);
        self.shared.metrics.connection_opened();
        let shared = self.shared.clone();
        let driver = Driver::new(id, stream, guest, shared.clone());
        let seat = Seat {
            id,
            shared,
            _attendance: self.attendance.0.clone(),
        };
        self.connections.spawn_local(async move {
            let ended = driver.run().await;
            report(&ended, &seat.shared.metrics);
        });
    }

    /// Asks the client that has asked for nothing for the longest to go, when few places are left
    /// that strangers do not have. It comes back when it wants something; one that leaks connections
    /// would keep all others out.
    fn keep_places(&mut self) {
        let spoken = self.shared.open.get() - self.shared.guests.strangers();
        let spare = self.max_connections.div_ceil(SPARE);
        if spoken < self.max_connections - spare || !self.shared.guests.ask_idlest() {
            return;
        }
        self.shared.metrics.connection_asked_to_go();
        if let Some(suppressed) = self.complaint("crowded") {
            let connections = spoken;
            warn!(
                connections,
                suppressed,
                "many connections are open: the one that was idle for the longest is asked to go"
            );
        }
    }

    /// Whether this may be said now, and how often it was not.
    fn complaint(&mut self, what: &'static str) -> Option<u64> {
        self.complaints.permit("-", what, Instant::now().into())
    }
}

/// Looks after the places for large messages, at a stop too. An idle process sleeps: nothing is swept while
/// nobody waits for a place.
async fn sweep(shared: Rc<Shared>, hold_timeout: Duration) -> Infallible {
    let mut tick = tokio::time::interval(SLOT_SWEEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        shared.slots.crowded().await;
        tick.tick().await;
        shared.slots.evict_overdue(Instant::now(), hold_timeout);
    }
}

async fn all_ended(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        reap(ended);
    }
}

fn reap(ended: Result<(), JoinError>) {
    if let Err(died) = ended {
        error!(error = &died as &dyn Error, "a connection's task died");
    }
}

fn report(ended: &Ended, metrics: &Metrics) {
    match ended {
        Ended::Violation(violation) => metrics.violation(violation.side),
        Ended::NoPreface => metrics.connection_refused(Refused::NoPreface),
        Ended::PushedOut => metrics.connection_refused(Refused::TooMany),
        Ended::Overdue => {
            warn!(error = ended as &dyn Error, "closed a connection");
            return;
        }
        Ended::Closed(_) | Ended::Drained | Ended::Unreachable(_) | Ended::Io { .. } => {}
    }
    debug!(reason = ended as &dyn Error, "a connection ended");
}
