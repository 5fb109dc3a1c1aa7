//! The NRI front: a plugin that the runtime asks before it creates and updates containers.
//!
//! ```text
//!  connect ── RegisterPlugin ── Configure: which runtime, which events it knows ── Synchronize
//!                                                                                      │
//!             answer, or "no change" when time is short ◄── Asked ◄── each event ◄─────┘
//! ```
//!
//! A [`Session`] is one connection to one runtime, from the registration on. It reads what is asked
//! in whichever form the runtime's version has, and writes what is answered. [`view`] makes of pods
//! and containers what hooks look at. A [`Front`] holds a session whenever the runtime is there, and has
//! the handler say what each question comes to. The watchdog sees to it that no question is late,
//! whatever the data path is doing.

mod asked;
mod desk;
mod front;
mod handler;
mod identity;
mod launched;
mod session;
#[cfg(test)]
mod tests;
pub mod view;
mod watchdog;
mod wire;

pub use self::{
    asked::{Answer, Asked},
    front::{Front, Way},
    identity::{Identity, IdentityError},
    launched::{LaunchError, Launched},
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
    watchdog::Pulse,
};
