//! What a scripted runtime has seen, byte for byte.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::Reason;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::wire::Frame;

/// One call, as far as it has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Counts the accepted connections from 0.
    pub connection: u64,
    pub path: String,
    pub authority: String,
    /// In the order of their first appearance; the values of one name stand together.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub messages: Vec<Frame>,
    /// Bytes behind the last whole message; empty until the request has come to its end.
    pub rest: Bytes,
    pub trailers: Option<HeaderMap>,
    pub end: CallEnd,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// Not at its end, or not read up to there.
    Open,
    /// The client has closed its side in order.
    Complete,
    /// The client has reset the stream with this code.
    Reset(Reason),
    /// The connection went away.
    Lost,
}

/// All calls, in the order of their headers' arrival.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Call>>>);

impl Log {
    pub(super) fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        // A test that panicked while looking has changed nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, connection: u64, parts: &Parts) -> Recorder {
        let headers = parts.headers.iter();
        let call = Call {
            connection,
            path: parts.uri.path().to_owned(),
            authority: parts
                .uri
                .authority()
                .map(ToString::to_string)
                .unwrap_or_default(),
            headers: headers
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            messages: Vec::new(),
            rest: Bytes::new(),
            trailers: None,
            end: CallEnd::Open,
        };
        let mut calls = self.calls();
        calls.push(call);
        Recorder {
            log: self.clone(),
            index: calls.len() - 1,
        }
    }
}

/// Writes down the progress of one call.
#[derive(Debug)]
pub(super) struct Recorder {
    log: Log,
    index: usize,
}

impl Recorder {
    fn update(&self, change: impl FnOnce(&mut Call)) {
        change(&mut self.log.calls()[self.index]);
    }

    pub(super) fn received(&self, messages: &[Frame]) {
        self.update(|call| call.messages.extend_from_slice(messages));
    }

    pub(super) fn trailers(&self, trailers: Option<HeaderMap>) {
        self.update(|call| call.trailers = trailers);
    }

    pub(super) fn end(&self, end: CallEnd, rest: Bytes) {
        self.update(|call| {
            call.end = end;
            call.rest = rest;
        });
    }
}
