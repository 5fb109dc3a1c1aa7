//! What is logged within this process.

use koord_runtime_proxy::{
    config::{Log, LogFormat},
    log,
};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};
use tracing::Dispatch;

/// Lines of JSON, as they come.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

// === impl Lines ===

impl Lines {
    /// A log from `info` on, and what it writes.
    pub fn of_a_log() -> (Dispatch, Self) {
        let format = Log {
            filter: "info".to_owned(),
            format: LogFormat::Json,
            time: false,
        };
        let lines = Self::default();
        let writer = lines.clone();
        let (dispatch, _control) = log::dispatch(&format, move || writer.clone()).unwrap();
        (dispatch, lines)
    }

    pub fn all(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
