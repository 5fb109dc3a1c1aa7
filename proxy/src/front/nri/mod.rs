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
//! and containers what hooks look at. The handler says what each question comes to, and a [`Front`]
//! comes back whenever the runtime does.

mod asked;
mod front;
mod handler;
mod identity;
mod session;
#[cfg(test)]
mod tests;
pub mod view;

pub use self::{
    asked::{Answer, Asked},
    front::Front,
    identity::{Identity, IdentityError},
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
};
