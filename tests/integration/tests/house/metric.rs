//! What can be counted is counted: a metric that nothing moves is a lie on a dashboard, and one that a page
//! names and nobody has is an alert that never comes.

use crate::none;
use crate::rust::{self, Word};
use crate::tree;

/// Where metrics are, and the type whose methods move them.
const ROOM: &str = "proxy/src/metrics/";
const TYPE: &str = "Metrics";
/// With what all their names begin.
const PREFIX: &str = "koord_runtime_proxy_";

#[test]
fn every_method_that_counts_is_called_where_something_happens() {
    let (metrics, others): (Vec<_>, Vec<_>) = tree::rust_files()
        .into_iter()
        .filter(|file| file.at.starts_with("proxy/src/") && !file.at.ends_with("/tests.rs"))
        .partition(|file| file.at.starts_with(ROOM));
    let words = |text: &str| rust::words(rust::product_part(text));
    let others: Vec<_> = others.iter().map(|file| words(&file.text)).collect();
    let mut complaints = Vec::new();
    let mut met = 0;
    for file in &metrics {
        for method in methods(&words(&file.text)) {
            met += 1;
            if !others.iter().any(|words| calls(words, &method.text)) {
                let Word { line, text } = method;
                complaints.push(format!("{}:{line}: nobody calls {text}", file.at));
            }
        }
    }
    assert!(met > 10, "{met} methods were found");
    none(&complaints);
}

#[test]
fn every_metric_that_a_page_names_is_there() {
    let files = tree::files();
    let (metrics, pages): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(|file| file.at.starts_with(ROOM) || file.at.ends_with(".md"))
        .partition(|file| file.at.starts_with(ROOM));
    let is_there = |name: &str| {
        let registered = format!("\"{}\"", name.strip_suffix("_total").unwrap_or(name));
        metrics.iter().any(|file| file.text.contains(&registered))
    };
    let mut complaints = Vec::new();
    let mut met = 0;
    for page in pages {
        for name in metric_names(&page.text) {
            met += 1;
            if !is_there(name) {
                complaints.push(format!("{}: nobody has a metric {name}", page.at));
            }
        }
    }
    assert!(met > 10, "{met} names were found");
    none(&complaints);
}

/// The names of metrics in a text, without what they begin with.
fn metric_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(PREFIX).skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn names_of_metrics_are_found_whatever_is_behind_them() {
    let text = "`koord_runtime_proxy_up` or koord_runtime_proxy_calls_total{a=\"b\"}, \
                koord_runtime_proxy::hub=debug";
    let names: Vec<_> = metric_names(text).collect();
    assert_eq!(names, ["up", "calls_total"]);
}

/// The names of the public methods of the type.
fn methods(words: &[Word]) -> Vec<Word> {
    let texts = |at: usize, wanted: &[&str]| {
        let found = words[at..].iter().map(|word| word.text.as_str());
        found.take(wanted.len()).eq(wanted.iter().copied())
    };
    let mut found = Vec::new();
    let starts = (0..words.len()).filter(|&at| texts(at, &["impl", TYPE, "{"]));
    for start in starts {
        let mut depth = 0;
        for at in start..words.len() {
            match words[at].text.as_str() {
                "{" => depth += 1,
                "}" if depth == 1 => break,
                "}" => depth -= 1,
                "pub" if texts(at, &["pub", "fn"]) && takes_self(&words[at..]) => {
                    let Word { line, text } = &words[at + 2];
                    let (line, text) = (*line, text.clone());
                    found.push(Word { line, text });
                }
                _ => {}
            }
        }
    }
    found
}

/// Whether a function is called on something: the others make one.
fn takes_self(function: &[Word]) -> bool {
    let mut parameters = function.iter().skip_while(|word| word.text != "(").skip(1);
    parameters
        .find(|word| word.text != "&")
        .is_some_and(|word| word.text == "self")
}

/// Whether a method of this name is called on metrics.
fn calls(words: &[Word], method: &str) -> bool {
    words.windows(4).enumerate().any(|(at, four)| {
        let called = four[1].text == "." && four[2].text == method && four[3].text == "(";
        // `metrics.` and `hub.metrics().`
        let on = match four[0].text.as_str() {
            ")" => at.checked_sub(2).map(|name| words[name].text.as_str()),
            name => Some(name),
        };
        called && on == Some("metrics")
    })
}

#[test]
fn calls_are_told_from_methods_of_the_same_name() {
    let source = "
        impl Metrics {
            pub fn new() -> Self { Self }
            pub fn moved(&self, by: u64) { if by > 0 { self.0.inc() } }
            fn own(&self) {}
        }
        impl Other { pub fn else_where(&self) {} }";
    let names: Vec<_> = methods(&rust::words(source));
    let names: Vec<_> = names.iter().map(|word| word.text.as_str()).collect();
    assert_eq!(names, ["moved"]);
    for (source, is_call) in [
        ("fn f() { self.metrics.moved(1) }", true),
        ("fn f() { hub.metrics().moved(1) }", true),
        ("fn f() { other.moved(1) }", false),
        ("fn f() { other().moved(1) }", false),
        ("fn f() { metrics.moved_on(1) }", false),
        ("fn f() { let moved = metrics; }", false),
    ] {
        assert_eq!(calls(&rust::words(source), "moved"), is_call, "{source}");
    }
}
