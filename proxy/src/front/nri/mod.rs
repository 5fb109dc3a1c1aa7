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
//! and containers what hooks look at. The line is a thread that holds a session whenever the runtime is
//! there, so that no question is late, whatever the data path is doing. There a [`Front`] has the
//! handler say what each question comes to.

mod asked;
mod front;
mod handler;
mod identity;
mod launched;
mod line;
mod session;
#[cfg(test)]
mod tests;
pub mod view;

pub use self::{
    asked::{Answer, Asked},
    front::Front,
    identity::{Identity, IdentityError},
    launched::{LaunchError, Launched},
    line::Way,
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
};
