//! What this process says about itself, and how often.
//!
//! Lines go to standard error without waiting for whoever takes them ([`Queue`]), as text or JSON, through a filter
//! that can be changed while we run ([`LogControl`]). Whatever a workload can cause as often as it likes goes through
//! [`RateLimited`] first. Nothing is installed here: the caller gets a [`Dispatch`] and decides
//! where it holds.

mod json;
mod queue;

pub use self::queue::{Flush, Queue};

use self::json::Json;
use crate::config::{Log, LogFormat};
use std::{
    collections::HashMap,
    fmt::{self, Display, Formatter, Write as _},
    time::{Duration, Instant},
};
use thiserror::Error;
use tracing::Dispatch;
use tracing_subscriber::{
    Layer as _, Registry,
    filter::{ParseError, Targets},
    fmt::{MakeWriter, layer},
    layer::SubscriberExt as _,
    reload,
};

/// Changes the filter of a running process.
#[derive(Clone, Debug)]
pub struct LogControl(reload::Handle<Targets, Registry>);

/// Why a filter is not in force.
#[derive(Debug, Error)]
pub enum FilterError {
    #[error(transparent)]
    Syntax(#[from] FilterSyntax),
    #[error("logging was torn down")]
    Gone(#[from] reload::Error),
}

/// Why a text is no filter.
#[derive(Debug, Error)]
pub enum FilterSyntax {
    /// No source: what is displayed of it has its own sources in it.
    #[error("not a log filter: {0}")]
    Directive(ParseError),
    #[error("not a log filter: {0:?} names a span or a field, and only targets have levels")]
    Span(String),
}

/// A name that somebody else chose: it stays within its line and does not fill it. Kubernetes has
/// none that is longer, or that has a character which is escaped here.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(pub &'a str);

/// Characters of a name that are shown.
const NAME: usize = 253;

/// Lets the first few lines of a kind through and then one at a time, and counts the others.
///
/// A kind is a hook and the key of the input that it read. Both are fixed names, so the table is
/// small; it is bounded all the same, and kinds beyond the bound share one account.
#[derive(Debug, Default)]
pub struct RateLimited {
    kinds: HashMap<(&'static str, &'static str), Account>,
    others: Account,
}

#[derive(Debug)]
struct Account {
    permits: u32,
    /// When `permits` was last made up; `None` before the first line.
    since: Option<Instant>,
    suppressed: u64,
}

/// Lines of one kind that may come at once.
const BURST: u32 = 5;
/// How long until a kind has earned one more line.
const REFILL: Duration = Duration::from_secs(10);
/// Kinds with an account of their own.
const MAX_KINDS: usize = 256;

/// A filter of levels, each for all targets or for one (`info,koord_runtime_proxy::hub=debug`).
///
/// # Errors
///
/// When a part of it is neither.
pub fn filter(text: &str) -> Result<Targets, FilterSyntax> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parts: Vec<_> = parts.collect();
    match parts.iter().find(|part| part.contains('[')) {
        Some(span) => Err(FilterSyntax::Span((*span).to_owned())),
        None => parts.join(",").parse().map_err(FilterSyntax::Directive),
    }
}

/// Sets up logging to `writer`. The filter can be changed through the second of the pair.
pub fn dispatch<W>(log: &Log, writer: W) -> Result<(Dispatch, LogControl), FilterSyntax>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(&log.filter)?);
    let lines = layer().with_ansi(false).with_writer(writer);
    let lines = match (log.format, log.time) {
        (LogFormat::Text, true) => lines.boxed(),
        (LogFormat::Text, false) => lines.without_time().boxed(),
        (LogFormat::Json, time) => lines.event_format(Json { time }).boxed(),
    };
    let subscriber = Registry::default().with(filter).with(lines);
    Ok((Dispatch::new(subscriber), LogControl(handle)))
}

// === impl LogControl ===

impl LogControl {
    /// The filter in force, as the subscriber understood it.
    pub fn filter(&self) -> Result<String, FilterError> {
        Ok(self.0.with_current(ToString::to_string)?)
    }

    /// Puts another filter in force; a bad one changes nothing.
    pub fn set_filter(&self, text: &str) -> Result<(), FilterError> {
        Ok(self.0.reload(filter(text)?)?)
    }
}

// === impl Name ===

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        let mut shown = name.chars().flat_map(char::escape_debug);
        shown
            .by_ref()
            .take(NAME)
            .try_for_each(|c| f.write_char(c))?;
        shown.next().map_or(Ok(()), |_| f.write_char('…'))
    }
}

// === impl RateLimited ===

impl RateLimited {
    /// Whether a line of this kind may be written at `now`; if so, how many of its kind were held
    /// back since the last one.
    pub fn permit(&mut self, hook: &'static str, key: &'static str, now: Instant) -> Option<u64> {
        let room = self.kinds.len() < MAX_KINDS;
        let account = match self.kinds.get_mut(&(hook, key)) {
            Some(account) => account,
            None if room => self.kinds.entry((hook, key)).or_default(),
            None => &mut self.others,
        };
        account.permit(now)
    }
}

// === impl Account ===

impl Account {
    fn permit(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        let earned = waited.as_secs() / REFILL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.permits = self.permits.saturating_add(earned).min(BURST);
            // What was waited beyond whole lines counts for the next.
            self.since = Some(now - Duration::from_nanos(remainder_ns(waited)));
        }
        if self.permits == 0 {
            self.suppressed += 1;
            return None;
        }
        self.permits -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Default for Account {
    fn default() -> Self {
        Self {
            permits: BURST,
            since: None,
            suppressed: 0,
        }
    }
}

fn remainder_ns(waited: Duration) -> u64 {
    let remainder = waited.as_nanos() % REFILL.as_nanos();
    u64::try_from(remainder).expect("less than ten seconds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn logging(filter: &str, format: LogFormat) -> (Dispatch, LogControl, Lines) {
        let log = Log {
            filter: filter.to_owned(),
            format,
            time: false,
        };
        let lines = Lines::default();
        let writer = lines.clone();
        let (dispatch, control) = dispatch(&log, move || writer.clone()).unwrap();
        (dispatch, control, lines)
    }

    #[test]
    fn a_name_keeps_within_its_line_and_does_not_fill_it() {
        assert_eq!(Name("web-7.example").to_string(), "web-7.example");
        let hostile = "a\nb\rc\0d\x1b[31me\u{9b}f\u{2028}g\u{202e}h";
        let shown = r"a\nb\rc\0d\u{1b}[31me\u{9b}f\u{2028}g\u{202e}h";
        assert_eq!(Name(hostile).to_string(), shown);
        assert_eq!(Name(&"x".repeat(253)).to_string(), "x".repeat(253));
        let long = Name(&"x".repeat(254)).to_string();
        assert_eq!(long, "x".repeat(253) + "…");
    }

    #[test]
    fn text_is_one_line_without_time_or_colour() {
        let (dispatch, _control, lines) = logging("info", LogFormat::Text);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(target: "proxy", pods = 3, "the runtime was listed");
            tracing::debug!(target: "proxy", "not this");
        });
        assert_eq!(lines.text(), " INFO proxy: the runtime was listed pods=3\n");
    }

    #[test]
    fn json_has_the_fields_beside_the_message() {
        let (dispatch, _control, lines) = logging("info", LogFormat::Json);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::warn!(target: "proxy", pods = 3, "listed");
        });
        let line: serde_json::Value = serde_json::from_str(&lines.text()).unwrap();
        assert_eq!(
            line,
            serde_json::json!({"level": "WARN", "message": "listed", "pods": 3, "target": "proxy"})
        );
    }

    #[test]
    fn an_error_is_written_with_its_causes() {
        let (text, json) = (LogFormat::Text, LogFormat::Json);
        let [(dispatch, _, lines), (in_json, _, objects)] =
            [text, json].map(|f| logging("info", f));
        let error = crate::socket::BindError::Directory {
            path: "/run/a".into(),
            source: io::Error::from_raw_os_error(13),
        };
        for dispatch in [dispatch, in_json] {
            tracing::dispatcher::with_default(&dispatch, || {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(target: "proxy", error, "no");
            });
        }
        assert_eq!(
            lines.text(),
            " WARN proxy: no error=cannot make the directory /run/a \
             error.sources=[Permission denied (os error 13)]\n"
        );
        let line: serde_json::Value = serde_json::from_str(&objects.text()).unwrap();
        let said = "cannot make the directory /run/a: Permission denied (os error 13)";
        assert_eq!(line["error"], said);
    }

    #[test]
    fn another_filter_holds_from_the_next_line_on_and_a_bad_one_changes_nothing() {
        let (dispatch, control, lines) = logging("info", LogFormat::Text);
        tracing::dispatcher::with_default(&dispatch, || {
            control.set_filter("warn,proxy=debug").unwrap();
            let refused = control.set_filter("a=b").unwrap_err();
            assert_eq!(
                crate::status::chain_of(&refused),
                "not a log filter: error parsing level filter: expected one of \"off\", \"error\", \
                 \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5"
            );
            tracing::debug!(target: "proxy", "seen");
            tracing::info!(target: "other", "unseen");
        });
        assert_eq!(lines.text(), "DEBUG proxy: seen\n");
        assert_eq!(control.filter().unwrap(), "proxy=debug,warn");
    }

    #[test]
    fn a_filter_is_levels_of_targets_and_says_what_else_is_none() {
        for (text, understood) in [
            ("info,", "info"),
            (" warn , proxy=debug ,,", "proxy=debug,warn"),
        ] {
            assert_eq!(filter(text).unwrap().to_string(), understood, "{text:?}");
        }
        let refused = filter("info,proxy[span]=debug").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "not a log filter: \"proxy[span]=debug\" names a span or a field, and only targets have \
             levels"
        );
    }

    #[test]
    fn five_lines_at_once_and_then_one_in_ten_seconds_with_the_count_of_the_others() {
        let mut limited = RateLimited::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..5 {
            assert_eq!(limited.permit("BatchResource", "key", at(0)), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limited.permit("BatchResource", "key", at(9)), None);
        }
        assert_eq!(limited.permit("BatchResource", "key", at(15)), Some(7));
        assert_eq!(limited.permit("BatchResource", "key", at(16)), None);
        // Five of the first fifteen seconds counted for the second line.
        assert_eq!(limited.permit("BatchResource", "key", at(20)), Some(1));
    }

    #[test]
    fn silence_earns_no_more_than_the_first_five() {
        let mut limited = RateLimited::default();
        let start = Instant::now();
        assert_eq!(limited.permit("BatchResource", "key", start), Some(0));
        let later = start + Duration::from_secs(3_600);
        for _ in 0..5 {
            assert_eq!(limited.permit("BatchResource", "key", later), Some(0));
        }
        assert_eq!(limited.permit("BatchResource", "key", later), None);
    }

    #[test]
    fn kinds_do_not_use_up_each_others_lines() {
        let mut limited = RateLimited::default();
        let now = Instant::now();
        for _ in 0..6 {
            limited.permit("BatchResource", "key", now);
        }
        assert_eq!(limited.permit("BatchResource", "other", now), Some(0));
        assert_eq!(limited.permit("GroupIdentity", "key", now), Some(0));
    }

    #[test]
    fn kinds_beyond_the_bound_share_an_account() {
        let mut limited = RateLimited::default();
        let now = Instant::now();
        for n in 0..256 {
            let key: &'static str = Box::leak(format!("key-{n}").into_boxed_str());
            assert_eq!(limited.permit("hook", key, now), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(limited.permit("hook", "one more", now), Some(0));
        }
        assert_eq!(limited.permit("hook", "yet another", now), None);
        assert_eq!(limited.permit("hook", "key-0", now), Some(0));
    }
}
