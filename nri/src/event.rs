//! What a peer tells its driver: requests, answers, and plain counts.

use std::time::Duration;

use crate::Status;

/// A call of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u32);

/// A call of the other end's, to be answered by [`Peer::reply`](crate::Peer::reply).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u32);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other end calls.
    Request(Request),
    /// A call of ours was answered.
    Answer {
        call: CallId,
        result: Result<Vec<u8>, Status>,
    },
    /// The stream ended, or was given up, before a call of ours was answered: what came of it is
    /// unknown.
    Lost { call: CallId },
}

/// What the other end asks for. Metadata, which is for tracing, is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: RequestId,
    /// Such as `nri.pkg.api.v1alpha1.Plugin`.
    pub service: String,
    pub method: String,
    /// The encoded message.
    pub payload: Vec<u8>,
    /// How long the caller still waited when it wrote this: zero if that was over already, `None` if it
    /// does not say.
    pub timeout: Option<Duration>,
}

// === impl Event ===

impl Event {
    /// Bytes that it keeps in memory, but for a few.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Request(request) => {
                request.payload.len() + request.service.len() + request.method.len()
            }
            Self::Answer { result, .. } => match result {
                Ok(payload) => payload.len(),
                Err(status) => status.message.len(),
            },
            Self::Lost { .. } => 0,
        }
    }
}
