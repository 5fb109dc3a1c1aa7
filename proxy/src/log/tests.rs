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
    let [(dispatch, _, lines), (in_json, _, objects)] = [text, json].map(|f| logging("info", f));
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
fn a_word_that_is_no_level_and_no_target_of_ours_is_refused_by_name() {
    for (text, understood) in [
        ("INFO", "info"),
        ("Off", "off"),
        ("4", "debug"),
        ("koord_relay", "koord_relay=trace"),
        (
            "warn,koord_runtime_proxy::hub",
            "koord_runtime_proxy::hub=trace,warn",
        ),
        ("info,h2::proto=off", "h2::proto=off,info"),
    ] {
        assert_eq!(filter(text).unwrap().to_string(), understood, "{text:?}");
    }
    for (text, part) in [
        ("inof", "inof"),
        ("info,debgu", "debgu"),
        ("///", "///"),
        ("6", "6"),
        ("koord_realy", "koord_realy"),
        ("koord_relay::", "koord_relay::"),
        ("info,///=debug", "///=debug"),
        ("=info", "=info"),
        ("koord_relay=", "koord_relay="),
        ("a::1b=info", "a::1b=info"),
    ] {
        assert_eq!(
            filter(text).unwrap_err().to_string(),
            format!(
                "not a log filter: \"{part}\" is no level (off, error, warn, info, debug, trace \
                 or 0 to 5), no crate or module of ours (such as koord_runtime_proxy::hub) and no \
                 TARGET=LEVEL"
            )
        );
    }
    for empty in ["", " ", ",", " , "] {
        assert_eq!(
            filter(empty).unwrap_err().to_string(),
            "not a log filter: it is empty, and a level or TARGET=LEVEL is expected",
            "{empty:?}"
        );
    }
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
