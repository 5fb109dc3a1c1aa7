//! A log event as one line of JSON.
//!
//! Our own, because that of `tracing-subscriber` leaves the causes of an error out.

use crate::status::chain_of;
use serde_json::{Map, Value};
use std::{error::Error, fmt};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Fields beside the message, an error with all its causes.
pub(super) struct Json {
    pub(super) time: bool,
}

struct Fields(Map<String, Value>);

// === impl Json ===

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        if self.time {
            let mut now = String::new();
            SystemTime.format_time(&mut Writer::new(&mut now))?;
            fields.put("timestamp", now);
        }
        fields.put("level", event.metadata().level().as_str());
        fields.put("target", event.metadata().target());
        writeln!(line, "{}", Value::Object(fields.0))
    }
}

// === impl Fields ===

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field.name(), chain_of(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }
}
