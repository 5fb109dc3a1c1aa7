//! What this process says about itself, and how often.
//!
//! Lines go to standard error without waiting for whoever takes them ([`Queue`]), as text or JSON,
//! through a filter that can be changed while we run ([`LogControl`]). Whatever a workload can cause
//! as often as it likes goes through [`RateLimited`] first. Nothing is installed here: the caller
//! gets a [`Dispatch`] and decides where it holds.

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
    filter::{LevelFilter, ParseError, Targets},
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
    #[error(
        "not a log filter: {0:?} is no level (off, error, warn, info, debug, trace or 0 to 5), no \
         crate or module of ours (such as koord_runtime_proxy::hub) and no TARGET=LEVEL"
    )]
    Unknown(String),
    #[error("not a log filter: it is empty, and a level or TARGET=LEVEL is expected")]
    Empty,
}

/// A name that somebody else chose: it stays within its line and does not fill it. Kubernetes has
/// none that is longer, or that has a character which is escaped here.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(pub &'a str);

/// Characters of a name that are shown.
const NAME: usize = 253;

/// Lets the first few lines of a kind through and then one at a time, and counts the others.
///
/// A kind is who complains (a hook, or `-` for us) and about what: the key of an input, a setting, a place.
/// Both are fixed names, so the table is small; it is bounded all the same, and kinds beyond the bound share
/// one account.
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

/// Crates whose names are filters by themselves, and those of their modules.
const CRATES: [&str; 7] = [
    "koord_hooks",
    "koord_kernel",
    "koord_model",
    "koord_nri",
    "koord_proto",
    "koord_relay",
    "koord_runtime_proxy",
];

/// A filter of levels, each for all targets or for one (`info,koord_runtime_proxy::hub=debug`). A
/// crate or a module of ours alone has all that it says.
///
/// # Errors
///
/// When a part of it is none of these, or it has no part.
pub fn filter(text: &str) -> Result<Targets, FilterSyntax> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() {
        return Err(FilterSyntax::Empty);
    }
    if let Some(span) = parts.iter().find(|part| part.contains('[')) {
        return Err(FilterSyntax::Span((*span).to_owned()));
    }
    if let Some(unknown) = parts.iter().find(|part| !is_directive(part)) {
        return Err(FilterSyntax::Unknown((*unknown).to_owned()));
    }
    parts.join(",").parse().map_err(FilterSyntax::Directive)
}

/// The subscriber takes any word for a target: one that nobody has silences everything.
fn is_directive(part: &str) -> bool {
    match part.split_once('=') {
        Some((target, level)) => is_path(target) && !level.is_empty(),
        None => part.parse::<LevelFilter>().is_ok() || (is_path(part) && is_ours(part)),
    }
}

fn is_ours(target: &str) -> bool {
    let name = target.split_once("::").map_or(target, |(name, _)| name);
    CRATES.contains(&name)
}

/// Whether this can be the path of a Rust module, as targets are.
fn is_path(target: &str) -> bool {
    let is_of_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    target
        .split("::")
        .all(|name| name.starts_with(|c: char| !c.is_ascii_digit()) && name.chars().all(is_of_word))
}

/// Sets up logging to `writer`. The filter can be changed through the second of the pair.
///
/// # Errors
///
/// When the filter of `log` is no [filter](filter()).
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
    ///
    /// # Errors
    ///
    /// When the dispatcher is gone that this was made with.
    pub fn filter(&self) -> Result<String, FilterError> {
        Ok(self.0.with_current(ToString::to_string)?)
    }

    /// Puts another filter in force.
    ///
    /// # Errors
    ///
    /// When `text` is no [filter](filter()), which changes nothing, or the dispatcher is gone that this was
    /// made with.
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
    pub fn permit(&mut self, who: &'static str, what: &'static str, now: Instant) -> Option<u64> {
        let room = self.kinds.len() < MAX_KINDS;
        let account = match self.kinds.get_mut(&(who, what)) {
            Some(account) => account,
            None if room => self.kinds.entry((who, what)).or_default(),
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
mod tests;
