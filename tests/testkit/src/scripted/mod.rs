//! A runtime double: records every byte it is sent and answers by script.
//!
//! It speaks HTTP/2 by the `h2` library and knows no CRI message, so it can say what no real runtime
//! says on command: errors of every shape, resets, GOAWAYs, 64 KiB of trailers, replies that never
//! come. `h2` refuses an `:authority` that is no authority; clients that send a socket path there
//! need another server.
//!
//! [`instant`] is its fast sibling for the benchmark: fixed answers, nothing recorded.

mod connection;
pub mod instant;
mod record;
mod script;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use h2::server::Builder;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use crate::poll;

use connection::Order;
pub use record::{Call, CallEnd};
use record::{Log, Recorder};
use script::Rules;
pub use script::{Gate, Otherwise, Reply, Step, status_block};

/// The rules and the record of a scripted runtime; clones share both.
#[derive(Debug, Clone)]
pub struct Script {
    rules: Arc<Mutex<Rules>>,
    log: Log,
    unexpected: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<u64>>,
    orders: broadcast::Sender<Order>,
}

impl Script {
    /// Without a rule: what comes is answered as `otherwise` says.
    pub fn new(otherwise: Otherwise) -> Self {
        Self {
            rules: Arc::new(Mutex::new(Rules {
                otherwise,
                once: Vec::new(),
                always: Vec::new(),
            })),
            log: Log::default(),
            unexpected: Arc::default(),
            connections: Arc::default(),
            orders: broadcast::Sender::new(16),
        }
    }

    /// Answers every call of `path` so.
    #[must_use]
    pub fn always(self, path: &str, reply: Reply) -> Self {
        locked(&self.rules).always.push((path.to_owned(), reply));
        self
    }

    /// Answers the next call of `path` so; several are given in order, before [`always`](Self::always).
    #[must_use]
    pub fn once(self, path: &str, reply: Reply) -> Self {
        locked(&self.rules).once.push((path.to_owned(), reply));
        self
    }

    /// Everything recorded so far.
    pub fn calls(&self) -> Vec<Call> {
        self.log.calls().clone()
    }

    /// The paths of calls that no rule named, where they are not echoed.
    pub fn unexpected(&self) -> Vec<String> {
        locked(&self.unexpected).clone()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        *locked(&self.connections)
    }

    /// Sends GOAWAY on every open connection; open calls go on.
    pub fn go_away(&self) {
        drop(self.orders.send(Order::GoAway));
    }

    /// Closes every open connection without a word.
    pub fn disconnect(&self) {
        drop(self.orders.send(Order::Disconnect));
    }

    /// Serves one connection over any stream of bytes, such as half of an in-memory pipe.
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    pub async fn serve<S>(&self, stream: S) -> Result<(), h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        connection::serve(stream, &Self::settings(), self).await
    }

    /// The same with other HTTP/2 settings, such as small windows: start from [`settings`](Self::settings).
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    pub async fn serve_with<S>(&self, stream: S, settings: &Builder) -> Result<(), h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        connection::serve(stream, settings, self).await
    }

    /// What [`serve`](Self::serve) offers its clients.
    pub fn settings() -> Builder {
        connection::settings()
    }

    fn next_connection(&self) -> u64 {
        let mut connections = locked(&self.connections);
        *connections += 1;
        *connections - 1
    }

    fn begin(&self, connection: u64, parts: &Parts) -> (Recorder, Option<Reply>) {
        let recorder = self.log.begin(connection, parts);
        let reply = locked(&self.rules).choose(parts.uri.path());
        if reply.is_none() {
            locked(&self.unexpected).push(parts.uri.path().to_owned());
        }
        (recorder, reply)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one push or one assignment: a panic leaves nothing halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A scripted runtime on a unix socket, on a thread of its own: a test may block or be async.
///
/// Dropping it ends it and removes the socket; it panics when a strict script saw an unexpected call.
#[derive(Debug)]
pub struct ScriptedRuntime {
    script: Script,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedRuntime {
    /// Listens on `socket`, in place of whatever file was there.
    ///
    /// # Errors
    ///
    /// When the socket cannot be bound.
    pub fn listen(socket: &Path, script: Script) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = net::UnixListener::bind(socket)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let stop = watch::Sender::new(false);
        let stopped = stop.subscribe();
        let serving = script.clone();
        let thread = std::thread::Builder::new()
            .name("scripted-runtime".to_owned())
            .spawn(move || runtime.block_on(accept(listener, serving, stopped)))?;
        Ok(Self {
            script,
            socket: socket.to_owned(),
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its script and record.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Waits until `count` calls have come to an end, and returns all calls.
    ///
    /// # Panics
    ///
    /// When they do not come within 30 s.
    #[track_caller]
    pub fn ended_calls(&self, count: usize) -> Vec<Call> {
        let ended = |calls: &[Call]| {
            calls
                .iter()
                .filter(|call| call.end != CallEnd::Open)
                .count()
        };
        poll::wait_until(&format!("{count} ended calls"), || {
            ended(&self.script.log.calls()) >= count
        });
        self.script.calls()
    }
}

impl Drop for ScriptedRuntime {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(
                served.is_ok() || std::thread::panicking(),
                "the scripted runtime panicked"
            );
        }
        // Gone already when a test put something else in its place.
        drop(std::fs::remove_file(&self.socket));
        let unexpected = self.script.unexpected();
        assert!(
            unexpected.is_empty() || std::thread::panicking(),
            "calls that the script does not expect: {unexpected:?}"
        );
    }
}

async fn accept(listener: net::UnixListener, script: Script, mut stopped: watch::Receiver<bool>) {
    let listener = UnixListener::from_std(listener).expect("the runtime has I/O enabled");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let script = script.clone();
                // How a connection ends is the record's matter, call by call.
                connections.spawn(async move { drop(script.serve(stream).await) });
            }
            Some(_) = connections.join_next() => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}
