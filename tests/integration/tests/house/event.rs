//! What the fields of log events are called: one thing has one name in every room.

use crate::none;
use crate::rust::{self, Word};
use crate::tree;

/// The names there are. A new one is for a thing that has none yet.
const FIELDS: &[&str] = &[
    "cgroup",         // the directory of a control group
    "connections",    // how many
    "container",      // its id
    "containers",     // how many
    "cookie",         // of a thread
    "curve",          // from shares to weights
    "device",         // the number of a block device
    "endpoint",       // our socket
    "error",          // the error itself, so that its sources are printed with it
    "file",           // the name of a file in a control group
    "filter",         // what is logged
    "gate",           // a feature gate
    "group",          // of cores or of caches
    "groups",         // how many
    "hook",           // its name
    "hooks",          // their names
    "issues",         // how many
    "key",            // a label, an annotation or a place in a policy
    "location",       // in our source
    "message",        // what somebody was told
    "method",         // of gRPC
    "missing",        // what the node should have
    "mode",           // of this process
    "namespace",      // of a pod
    "new",            // value
    "node",           // its name in the policy
    "old",            // value
    "other_nodes",    // objects in a policy that are about them
    "path",           // of a file
    "pod",            // its name
    "pod_uid",        // its UID
    "pods",           // how many
    "reason",         // a text, where there is no error
    "result",         // of a write
    "runtime",        // its socket
    "sandbox",        // its id
    "setting",        // of a control group
    "settings",       // their names
    "suppressed",     // events like this one that were not written
    "thread",         // its name
    "unclean_starts", // how many
    "value",          // of a setting
    "version",        // of the runtime, after its name
    "writer",         // who else writes a setting
];

const LEVELS: &[&str] = &["trace", "debug", "info", "warn", "error"];

#[test]
fn every_field_of_a_log_event_has_the_name_of_its_thing() {
    let mut complaints = Vec::new();
    let mut met = 0;
    for file in tree::rust_files() {
        let product = file.at.contains("/src/") && !file.at.starts_with("tests/");
        if !product || file.at.ends_with("/tests.rs") {
            continue;
        }
        for field in fields(&rust::words(rust::product_part(&file.text))) {
            met += 1;
            if !FIELDS.contains(&field.text.as_str()) {
                complaints.push(format!("{}:{}: {}", file.at, field.line, field.text));
            }
        }
    }
    assert!(met > 50, "{met} fields were found");
    none(&complaints);
}

/// The names of the fields of all events.
fn fields(words: &[Word]) -> Vec<&Word> {
    let mut found = Vec::new();
    let starts = words.windows(3).enumerate().filter(|(_, three)| {
        LEVELS.contains(&three[0].text.as_str()) && three[1].text == "!" && three[2].text == "("
    });
    for (start, _) in starts {
        for argument in arguments(&words[start + 3..]) {
            let mut name = argument.iter().skip_while(|w| "%?".contains(&w.text));
            let (name, next) = (name.next(), name.next());
            match (name, next.map(|next| next.text.as_str())) {
                (Some(name), None | Some("=")) if name.text != "literal" => found.push(name),
                // `target: "…"`, the sentence, and what is set into it.
                _ => {}
            }
        }
    }
    found
}

/// The arguments of a call, from behind its bracket, as far as commas outside of other brackets
/// part them.
fn arguments(words: &[Word]) -> Vec<&[Word]> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (index, word) in words.iter().enumerate() {
        match word.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth > 0 => depth -= 1,
            ")" => {
                found.push(&words[start..index]);
                break;
            }
            "," if depth == 0 => {
                found.push(&words[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn fields_are_found_in_each_way_of_writing_them() {
    let source = r#"fn f() {
        info!(hook, old = %a(b, c), ?result, "a sentence of {}", hook.name);
        warn!(target: "room", "a sentence");
        error!(
            error = &error as &dyn Error,
            "a sentence"
        );
    }"#;
    let words = rust::words(source);
    let names: Vec<_> = fields(&words).iter().map(|w| w.text.as_str()).collect();
    assert_eq!(names, ["hook", "old", "result", "error"]);
}
