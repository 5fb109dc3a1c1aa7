//! A panic is one line of the log. A file of its own, for it takes the panic hook of its process.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_hooks::FailPolicy;
use koord_runtime_proxy::panic_report::{self, Catching};
use std::{
    panic,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};
use support::{log::Lines, scripted_hook};

static HOOK: Mutex<()> = Mutex::new(());

/// Panics are reported as long as this lives; what the test finds wrong is told by the usual means.
struct Reported(#[expect(dead_code, reason = "one test at a time")] MutexGuard<'static, ()>);

impl Reported {
    fn begin() -> Self {
        let alone = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
        panic_report::install();
        Self(alone)
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        drop(panic::take_hook());
    }
}

/// What a thread of this name logs.
fn on_a_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Vec<serde_json::Value> {
    let _reported = Reported::begin();
    let (dispatch, lines) = Lines::of_a_log();
    let run = move || tracing::dispatcher::with_default(&dispatch, run);
    let thread = thread::Builder::new().name(name.to_owned());
    // Whether it ended by a panic is seen by what it logged.
    drop(thread.spawn(run).unwrap().join());
    lines.all()
}

#[test]
fn a_panic_is_one_line_with_its_thread_and_its_place() {
    let text = format!("one\ntwo {}", "x".repeat(1_000));
    let lines = on_a_thread("reader", move || panic!("{text}"));
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["message"], "a thread panicked");
    assert_eq!(line["thread"], "reader");
    let place = line["location"].as_str().unwrap();
    assert!(place.starts_with("proxy/tests/panic.rs:"), "{place}");
    let text = line["reason"].as_str().unwrap();
    assert!(
        text.starts_with("one\ntwo x") && text.len() == 256,
        "{text}"
    );
}

#[test]
fn many_panics_are_few_lines() {
    let lines = on_a_thread("reader", || {
        for _ in 0..20 {
            panic::catch_unwind(|| panic!("again")).unwrap_err();
        }
    });
    assert_eq!(lines.len(), 5);
}

#[test]
fn who_catches_a_panic_has_its_place_and_nothing_is_written() {
    let lines = on_a_thread("reader", || {
        let catching = Catching::begin();
        assert_eq!(catching.place(), None);
        panic::catch_unwind(|| panic!("caught")).unwrap_err();
        let place = catching.place().unwrap();
        assert!(place.starts_with("proxy/tests/panic.rs:"), "{place}");
    });
    assert_eq!(lines, [] as [serde_json::Value; 0]);
}

#[test]
fn a_panic_that_was_to_be_caught_and_was_not_is_written_all_the_same() {
    let lines = on_a_thread("reader", || {
        let _catching = Catching::begin();
        panic!("not caught");
    });
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    let place = line["location"].as_str().unwrap();
    assert!(place.starts_with("proxy/tests/panic.rs:"), "{place}");
}

#[tokio::test]
async fn the_panic_of_a_hook_is_one_line_and_says_where_it_was() {
    let reported = Reported::begin();
    let counted = "hook_runs_total{hook=\"ScriptedOpen\",result=\"panic\"}";
    let (_, _, lines) = scripted_hook::create(FailPolicy::Open, "panic", counted).await;
    drop(reported);
    let about: Vec<_> = lines
        .iter()
        .filter(|line| line.to_string().contains("panicked"))
        .collect();
    let [line] = &about[..] else {
        panic!("{about:#?}");
    };
    assert_eq!(line["message"], "a hook's adjustment was left out");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.contains(", at hooks/src/testing.rs:"), "{reason}");
}
