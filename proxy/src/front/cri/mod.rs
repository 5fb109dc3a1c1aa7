//! The CRI front: accepts the kubelet's connections and pairs each with one to the runtime.
//!
//! Frames pass as they came; only the streams of claimed methods are opened ([`method`]). What a
//! call means is the hub's business, what bytes do is the relay's; here is only the I/O between.

mod decisions;
mod driver;
mod ended;
mod guests;
mod method;
mod room;
mod slots;
mod stop;
mod stream;

pub(crate) use self::method::Method;

use self::{
    driver::Driver,
    ended::Ended,
    guests::Guests,
    room::{Bounds, Room},
    slots::Slots,
    stop::DrainSignal,
    stream::Stream,
};
use crate::{
    hub::Hub,
    log::RateLimited,
    metrics::{Metrics, Refused},
    socket::peer_is_root_or_us,
};
use koord_relay::{Claims, Limits, Spare};
use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    error::Error,
    io,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, sleep_until},
};
use tracing::{debug, error, warn};

/// One read takes at most this much; the buffer is shared by all connections of the thread.
const READ_BUFFER: usize = 64 * 1024;
/// How often, while somebody waits for a place, it is looked at who has waited for too long or stands
/// still: a wait outlasts its bound by no more than this.
const SLOT_SWEEP: Duration = Duration::from_millis(100);
/// Room for held messages beside those that have a place of their own, in bytes: each connection that
/// there may be has an equal part of it for itself.
const SMALL_MESSAGES: usize = 64 << 20;
/// Of so many places one is kept from clients that ask for nothing.
const SPARE: usize = 8;
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// How long a large message may wait for its place, at most. The replies of a connection wait for the rest of
    /// what its client announces for as long, or twice that if several announcements overlap.
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
    spare: Spare,
    guests: Guests,
    open: Cell<usize>,
    hold_timeout: Duration,
}

/// The listening side.
pub struct Front {
    listener: UnixListener,
    shared: Rc<Shared>,
    max_connections: usize,
    socket_stays: bool,
    complaints: RateLimited,
    drain: watch::Sender<u64>,
    connections: JoinSet<()>,
    /// Those that have not been told to go have a clone each.
    attendance: (mpsc::Sender<()>, mpsc::Receiver<()>),
    next: u64,
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
        let bounds = room_bounds(&options);
        let limits = Limits {
            max_message: options.max_message_bytes,
            ..Limits::default()
        };
        Self {
            listener,
            max_connections: options.max_connections,
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
                room: Room::new(bounds, metrics.clone()),
                metrics,
                slots: Slots::new(options.large_message_slots),
                drain: DrainSignal(draining),
                buffer: RefCell::new(vec![0; READ_BUFFER].into_boxed_slice()),
                spare: Spare::default(),
                guests: Guests::default(),
                open: Cell::new(0),
                hold_timeout: options.hold_timeout,
            }),
        }
    }

    /// Accepts until `stop` is ready, then lets the calls in flight finish, at most for `grace`.
    /// Gives back how many connections were still open at the end. Must run in a `LocalSet`.
    pub async fn serve(self, stop: impl Future<Output = ()>, grace: Duration) -> usize {
        let sweep = sweep(self.shared.clone());
        tokio::select! {
            left = self.serve_all(stop, grace) => left,
            never = sweep => match never {},
        }
    }

    async fn accept_until(&mut self, stop: impl Future) {
        let mut stop = std::pin::pin!(stop);
        let mut goes_on = Instant::now();
        loop {
            let accepted = async {
                sleep_until(goes_on).await;
                self.listener.accept().await
            };
            tokio::select! {
                // Accepting comes last: who connects without end must not keep the rest from us.
                biased;
                _ = &mut stop => break,
                Some(ended) = self.connections.join_next() => reap(ended, &self.shared.hub),
                accepted = accepted => match accepted {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) => {
                        self.cannot_accept(&error);
                        goes_on = Instant::now() + ACCEPT_PAUSE;
                    }
                },
            }
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
        let stream = match Stream::new(stream) {
            Ok(stream) => stream,
            Err(error) => return self.cannot_accept(&error),
        };
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

    fn cannot_accept(&mut self, error: &io::Error) {
        if let Some(suppressed) = self.complaint("accept") {
            let error = error as &dyn Error;
            warn!(error, suppressed, "cannot accept a connection");
        }
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
async fn sweep(shared: Rc<Shared>) -> Infallible {
    let mut tick = tokio::time::interval(SLOT_SWEEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        shared.slots.crowded().await;
        tick.tick().await;
        let now = Instant::now();
        shared.slots.evict_overdue(now, shared.hold_timeout);
    }
}

/// What its calls came to only a list tells, if its task died.
fn reap(ended: Result<(), JoinError>, hub: &Hub) {
    if let Err(died) = ended {
        error!(error = &died as &dyn Error, "a connection's task died");
        hub.relist_soon();
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
    debug!(error = ended as &dyn Error, "a connection ended");
}

/// What all requests that are held may come to in memory, with what of them is there a second time.
fn room_bounds(options: &Options) -> Bounds {
    Bounds {
        own: SMALL_MESSAGES / options.max_connections,
        common: options.large_message_slots * options.max_message_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, RawConfig, Surroundings};
    use crate::hub::testing::Bench;
    use clap::{Args, Command, FromArgMatches};
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use std::os::fd::OwnedFd;
    use tokio::{
        task::LocalSet,
        time::{sleep, timeout},
    };

    /// The service as it is installed.
    const SERVICE: &str = include_str!("../../../../systemd/koord-runtime-proxy.service");
    const MIB: usize = 1 << 20;

    fn options() -> Options {
        Options {
            runtime: Path::new("/not/there").into(),
            max_connections: 4,
            large_message_slots: 1,
            max_message_bytes: MIB,
            hold_timeout: Duration::from_secs(1),
            hooks: true,
            socket_stays: true,
        }
    }

    #[test]
    fn held_requests_and_a_kubelets_answer_fit_below_the_services_bounds_of_memory() {
        let mib = |key: &str| -> usize {
            let said = SERVICE.lines().find_map(|line| line.strip_prefix(key));
            let said = said.and_then(|said| said.strip_suffix('M'));
            said.expect("in MiB").parse().unwrap()
        };
        let (high, max) = (mib("MemoryHigh="), mib("MemoryMax="));
        let command = RawConfig::augment_args(Command::new("test").no_binary_name(true));
        let none = command.try_get_matches_from([""; 0]).unwrap();
        let flags = RawConfig::from_arg_matches(&none).unwrap();
        let surroundings = Surroundings {
            host_name: "worker-1".to_owned(),
            log_filter: None,
            launch: None,
        };
        let limits = Config::resolve(flags, None, &surroundings).unwrap().limits;
        let bounds = room_bounds(&Options {
            max_connections: limits.max_connections,
            large_message_slots: limits.large_message_slots,
            max_message_bytes: limits.max_message_bytes,
            ..options()
        });
        let held = (bounds.common + limits.max_connections * bounds.own) / MIB;
        // The kubelet's pods as they come, and as they are kept.
        let most = held + 2 * 64;
        assert!(most < high && high < max, "{most} < {high} < {max}");
    }

    #[tokio::test]
    async fn what_became_of_the_calls_of_a_connection_whose_task_died_a_list_is_to_tell() {
        let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
        let died = tokio::spawn(async { panic!("a task dies") }).await;
        for (ended, wanted) in [(Ok(()), false), (died, true)] {
            reap(ended, &hub);
            let relist = timeout(Duration::ZERO, hub.relist_wanted()).await;
            assert_eq!(relist.is_ok(), wanted);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_until_accepting_goes_on() {
        let test = async {
            // Each accept fails, as where there is no descriptor left: it is none that listens, and what
            // ended at its other end makes it readable.
            let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let listener = UnixListener::from_std(OwnedFd::from(socket).into()).unwrap();
            let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
            let front = Front::new(listener, options(), hub, Rc::new(Metrics::new()));
            let begun = Instant::now();
            let stop = sleep(Duration::from_millis(10));
            front.serve(stop, Duration::ZERO).await;
            assert_eq!(begun.elapsed().as_millis(), 10);
        };
        LocalSet::new().run_until(test).await;
    }
}
