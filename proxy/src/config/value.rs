//! What the text of a value means. Every refusal says what would have been taken.

use crate::log::{self, FilterSyntax};
use koord_model::{CgroupPath, Setting};
use std::{collections::BTreeSet, ops::RangeInclusive, path::PathBuf, time::Duration};
use thiserror::Error;

/// Why a value is refused.
#[derive(Debug, Error)]
pub enum ValueError {
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("expected {what} from {least} to {most}")]
    OutOfRange {
        what: &'static str,
        least: String,
        most: String,
    },
    #[error("expected some of these with commas between them: {}", every_setting())]
    Settings,
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("--{0} is at the same path, and each needs a socket of its own")]
    Shared(&'static str),
    #[error("not a cgroup path")]
    CgroupPath(#[source] koord_model::CgroupPathError),
    #[error(transparent)]
    LogFilter(FilterSyntax),
    #[error(transparent)]
    Hook(koord_hooks::FlagFault),
}

type Parsed<T> = Result<T, ValueError>;

/// Bytes of a path in a unix socket address, without the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

/// The path of a unix socket, with or without `unix://` before it.
pub(super) fn socket(text: &str) -> Parsed<PathBuf> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if !path.starts_with('/') || path.contains('\0') {
        return Err(ValueError::Expected(
            "an absolute path of a unix socket, with or without unix:// before it",
        ));
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(ValueError::Expected(
            "a path of at most 107 bytes, the most that a unix socket address can hold",
        ));
    }
    Ok(path.into())
}

pub(super) fn directory(text: &str) -> Parsed<PathBuf> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(text.into())
    } else {
        Err(ValueError::Expected("an absolute path of a directory"))
    }
}

pub(super) fn file(text: &str) -> Parsed<String> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err(ValueError::Expected("an absolute path of a file"))
    }
}

/// A path of a file; none if empty.
pub(super) fn optional_file(text: &str) -> Parsed<Option<PathBuf>> {
    if text.is_empty() {
        return Ok(None);
    }
    file(text).map(|path| Some(path.into()))
}

pub(super) fn cgroup(text: &str) -> Parsed<CgroupPath> {
    CgroupPath::parse(text).map_err(ValueError::CgroupPath)
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ValueError::Expected("true or false")),
    }
}

pub(super) fn count(text: &str, range: RangeInclusive<usize>) -> Parsed<usize> {
    text.parse()
        .ok()
        .filter(|count| range.contains(count))
        .ok_or_else(|| ValueError::OutOfRange {
            what: "a whole number",
            least: range.start().to_string(),
            most: range.end().to_string(),
        })
}

/// A number of bytes: `65536`, `64KiB`, `16MiB`.
pub(super) fn bytes(text: &str, range: RangeInclusive<usize>) -> Parsed<usize> {
    let (number, unit) = split_unit(text);
    let unit = match unit {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        _ => None,
    };
    number
        .parse::<usize>()
        .ok()
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .filter(|bytes| range.contains(bytes))
        .ok_or_else(|| ValueError::OutOfRange {
            what: "a number of bytes, KiB or MiB,",
            least: in_bytes(*range.start()),
            most: in_bytes(*range.end()),
        })
}

/// One whole number and its unit: `500ms`, `25s`, `2m`, `1h`.
pub(super) fn duration(text: &str, range: RangeInclusive<Duration>) -> Parsed<Duration> {
    let (number, unit) = split_unit(text);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(unit_ms)
        .and_then(|(number, unit_ms)| number.checked_mul(unit_ms))
        .map(Duration::from_millis)
        .filter(|duration| range.contains(duration))
        .ok_or_else(|| ValueError::OutOfRange {
            what: "a duration in ms, s, m or h",
            least: in_time(*range.start()),
            most: in_time(*range.end()),
        })
}

/// How long calls may take at a stop; `None` as the socket has it.
pub(super) fn grace_period(text: &str) -> Parsed<Option<Duration>> {
    if text == "auto" {
        return Ok(None);
    }
    let grace = duration(text, Duration::ZERO..=Duration::from_secs(600));
    grace.map(Some).map_err(|error| match error {
        ValueError::OutOfRange { least, most, .. } => ValueError::OutOfRange {
            what: "auto, or a duration in ms, s, m or h",
            least,
            most,
        },
        error => error,
    })
}

/// A comma list of names; empty names are refused, an empty list is none.
pub(super) fn names(text: &str) -> Parsed<BTreeSet<String>> {
    if text.is_empty() {
        return Ok(BTreeSet::new());
    }
    text.split(',')
        .map(|name| match name.trim() {
            "" => Err(ValueError::Expected("names with commas between them")),
            name => Ok(name.to_owned()),
        })
        .collect()
}

/// A comma list of namespaces. What Kubernetes would refuse there can match no pod.
pub(super) fn namespaces(text: &str) -> Parsed<BTreeSet<String>> {
    let names = names(text)?;
    if names.iter().all(|name| is_namespace(name)) {
        Ok(names)
    } else {
        Err(ValueError::Expected(
            "namespaces with commas between them, each of at most 63 lower-case letters, digits and '-', \
             which is not at either end",
        ))
    }
}

/// Whether it is a label of DNS (RFC 1123), as Kubernetes has namespaces be.
pub(super) fn is_namespace(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_ended = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && text.chars().all(allowed) && is_ended
}

/// A comma list of settings.
pub(super) fn settings(text: &str) -> Parsed<BTreeSet<Setting>> {
    let named = |name: &String| Setting::ALL.iter().copied().find(|it| it.name() == name);
    let found = names(text)?.iter().map(named).collect::<Option<_>>();
    found.ok_or(ValueError::Settings)
}

fn every_setting() -> String {
    let all: Vec<&str> = Setting::ALL.iter().map(|it| it.name()).collect();
    all.join(", ")
}

/// A key or a value of a label. What Kubernetes would refuse there can match no pod.
pub(super) fn label(text: &str) -> Parsed<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if text.len() <= 317 && text.chars().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(ValueError::Expected(
            "letters, digits, '-', '_', '.' and '/', as in a Kubernetes label",
        ))
    }
}

pub(super) fn label_key(text: &str) -> Parsed<String> {
    if text.is_empty() {
        return Err(ValueError::Expected("the key of a Kubernetes label"));
    }
    label(text)
}

pub(super) fn log_filter(text: &str) -> Parsed<String> {
    log::filter(text)
        .map(|_| text.to_owned())
        .map_err(ValueError::LogFilter)
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn in_bytes(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// As it could be written in a flag.
fn in_time(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (secs, 0) if secs > 0 && secs.is_multiple_of(60) => format!("{}m", secs / 60),
        (secs, 0) => format!("{secs}s"),
        _ => format!("{}ms", duration.as_millis()),
    }
}
