//! The NRI front: a plugin that the runtime asks before it creates and updates containers.
//!
//! ```text
//!  connect ── RegisterPlugin ── Configure: which runtime, which events it knows ── Synchronize
//!                                                                                      │
//!             answer, or "no change" when time is short ◄── Asked ◄── each event ◄─────┘
//! ```
//!
//! A [`Session`] is one connection to one runtime, from the registration on. It reads what is asked
//! in whichever form the runtime's version has, and writes what is answered; what a question means
//! is the caller's business. [`view`] makes of pods and containers what hooks look at. Nothing
//! decides behind it yet, so `--front nri` is refused.

mod asked;
mod identity;
mod session;
#[cfg(test)]
mod tests;
pub mod view;

pub use self::{
    asked::{Answer, Asked},
    identity::{Identity, IdentityError},
    session::{Incoming, Plugin, Runtime, Session, SessionError, Ticket},
};
