//! A runtime double that speaks NRI: registers one plugin, tells it everything, asks it about events.
//!
//! It behaves as containerd of five NRI generations does ([`Generation`]): which events it knows, how
//! it tells of them, what Configure says, whether it splits a synchronisation, and that a plugin is
//! closed which is late. It reads the plugin's bytes as strictly as Go's end does ([`Violation`]),
//! and it can be slow and write in pieces ([`Manner`]), which Go seldom is.
//!
//! Everything blocks, so a test reads from top to bottom.
//!
//! At the other end of its socket, to measure a plugin against, is [`echo()`].

mod echo;
mod generation;
pub mod message;
mod plugin;
#[cfg(test)]
mod tests;
mod wire;

pub use echo::echo;
pub use generation::Generation;
pub use plugin::{Answer, Plugin};
pub use wire::{Message, Violation, Wire};

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a plugin is no plugin any more.
#[derive(Debug, thiserror::Error)]
pub enum NriError {
    /// The socket cannot be used.
    #[error("the socket failed")]
    Io(#[from] io::Error),
    /// The plugin went away.
    #[error("the plugin closed the connection")]
    Closed,
    /// It broke a rule.
    #[error("the plugin broke a rule of the wire")]
    Violation(#[from] Violation),
    /// It did not answer in time, so it was closed.
    #[error("the plugin did not answer {0} in time")]
    Late(String),
    /// It answered with an error.
    #[error("the plugin refused {method}: {message} ({code})")]
    Refused {
        method: String,
        code: i32,
        message: String,
    },
}

/// How the double writes, and when it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// At once and whole.
    #[default]
    Swift,
    /// In pieces of any length with pauses of up to some milliseconds between them; the registration
    /// is answered before or after Configure. The same seed gives the same pieces and pauses.
    Fitful { seed: u64 },
}

/// A runtime that waits for plugins.
#[derive(Debug)]
pub struct NriRuntime {
    listener: UnixListener,
    socket: PathBuf,
    generation: Generation,
    manner: Manner,
    request_timeout: Duration,
}

// === impl NriRuntime ===

impl NriRuntime {
    /// Listens on `socket`, in place of whatever file was there.
    ///
    /// # Errors
    ///
    /// When the socket cannot be bound.
    pub fn listen(socket: &Path, generation: Generation) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            listener: UnixListener::bind(socket)?,
            socket: socket.to_owned(),
            generation,
            manner: Manner::Swift,
            // As runtimes do that nobody told anything else.
            request_timeout: Duration::from_secs(2),
        })
    }

    /// Writes in another manner.
    #[must_use]
    pub fn with_manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }

    /// Waits longer or shorter for an answer. Runtimes before NRI 0.7 tell it with each question alone.
    #[must_use]
    pub fn with_request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// Takes the next plugin that connects, registers and configures it.
    ///
    /// # Errors
    ///
    /// When it does not register in 30 s, or not as this generation wants it.
    pub fn take_plugin(&self) -> Result<Plugin, NriError> {
        let (stream, _) = self.listener.accept()?;
        Plugin::register(stream, self.generation, self.manner, self.request_timeout)
    }
}

impl Drop for NriRuntime {
    fn drop(&mut self) {
        // Gone already when a test put something else in its place.
        drop(std::fs::remove_file(&self.socket));
    }
}
