//! Which room may use which: the table of `docs/architecture.md`, section "Rooms".

use crate::none;
use crate::tree::{self, Package};

/// One row: where the room is, its crate, and whose names may stand in its `Cargo.toml`.
struct Room {
    at: &'static str,
    name: &'static str,
    may_use: May,
}

enum May {
    /// These rooms; its tests also the testkit.
    Use(&'static [&'static str]),
    /// Whatever it likes: nothing of it is shipped.
    UseAnything,
}

const TESTKIT: &str = "koord-testkit";

#[rustfmt::skip]
const ROOMS: &[Room] = &[
    Room { at: "model", name: "koord-model", may_use: May::Use(&[]) },
    Room { at: "relay", name: "koord-relay", may_use: May::Use(&[]) },
    Room { at: "nri", name: "koord-nri", may_use: May::Use(&[]) },
    Room { at: "proto", name: "koord-proto", may_use: May::Use(&["koord-model"]) },
    Room { at: "kernel", name: "koord-kernel", may_use: May::Use(&["koord-model"]) },
    Room { at: "hooks", name: "koord-hooks", may_use: May::Use(&["koord-model", "koord-proto"]) },
    Room {
        at: "proxy", name: "koord-runtime-proxy",
        may_use: May::Use(&["koord-model", "koord-relay", "koord-nri", "koord-proto", "koord-hooks", "koord-kernel"]),
    },
    // What judges the rooms must not be built from them.
    Room { at: "tests/testkit", name: TESTKIT, may_use: May::Use(&[]) },
    Room { at: "tests/integration", name: "koord-integration", may_use: May::UseAnything },
    Room { at: "tests/bench", name: "koord-bench", may_use: May::UseAnything },
    Room { at: "fuzz", name: "koord-fuzz", may_use: May::UseAnything },
    // What the rooms are held against is not of them.
    Room { at: "tests/ttrpc", name: "koord-ttrpc-end", may_use: May::Use(&[]) },
];

/// What a room that is a pure function may not name: it has no clock, no thread, no file, no socket.
const PURE_ROOMS: &[&str] = &["model", "relay", "nri", "hooks"];
const IMPURE: &[&str] = &[
    "Instant",
    "SystemTime",
    "async",
    "await",
    "libc",
    "rustix",
    "tokio",
];
const IMPURE_IN_STD: &[&str] = &["env", "fs", "net", "os", "process", "thread"];

#[test]
fn every_arrow_between_rooms_is_in_the_table() {
    none(&forbidden_arrows(&tree::packages()));
}

#[test]
fn an_arrow_that_the_table_lacks_is_named() {
    let mut packages = tree::packages();
    let arrow = |name: &str, dev| tree::Dependency {
        name: name.to_owned(),
        ours: true,
        dev,
    };
    for package in &mut packages {
        match package.name.as_str() {
            "koord-hooks" => package.dependencies.push(arrow("koord-kernel", false)),
            "koord-model" => package.dependencies.push(arrow(TESTKIT, false)),
            "koord-relay" => package.dependencies.push(arrow(TESTKIT, true)),
            _ => {}
        }
    }
    assert_eq!(
        forbidden_arrows(&packages),
        [
            "hooks may not use koord-kernel",
            "model may not use koord-testkit"
        ]
    );
}

fn forbidden_arrows(packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let Some(room) = ROOMS.iter().find(|room| room.name == package.name) else {
            continue;
        };
        let May::Use(listed) = room.may_use else {
            continue;
        };
        for used in package.dependencies.iter().filter(|used| used.ours) {
            let for_tests = used.dev && used.name == TESTKIT;
            if !for_tests && !listed.contains(&used.name.as_str()) {
                complaints.push(format!("{} may not use {}", room.at, used.name));
            }
        }
    }
    complaints.sort();
    complaints
}

#[test]
fn the_table_has_a_row_for_every_package_and_no_other() {
    let mut present: Vec<_> = tree::packages()
        .into_iter()
        .map(|package| (package.at, package.name))
        .collect();
    let mut listed: Vec<_> = ROOMS
        .iter()
        .map(|room| (room.at.to_owned(), room.name.to_owned()))
        .collect();
    present.sort();
    listed.sort();
    assert_eq!(present, listed);
}

#[test]
fn pure_rooms_name_neither_clock_nor_thread_nor_file() {
    let mut complaints = Vec::new();
    for file in tree::rust_files() {
        let Some((room, _)) = file.at.split_once("/src/") else {
            continue;
        };
        if PURE_ROOMS.contains(&room) && !file.at.ends_with("tests.rs") {
            let words = crate::rust::words(crate::rust::product_part(&file.text));
            complaints
                .extend(impure(&words).map(|(line, name)| format!("{}:{line}: {name}", file.at)));
        }
    }
    none(&complaints);
}

#[test]
fn impurity_is_seen_in_paths_and_in_use_trees() {
    let words = crate::rust::words(
        "use std::{fmt, fs};\nfn f() { std::thread::yield_now(); }\nfn g(t: std::time::Instant) {}",
    );
    let found: Vec<_> = impure(&words).collect();
    assert_eq!(found, [(1, "fs"), (2, "thread"), (3, "Instant")]);
}

/// The words that a pure room may not say, with their lines.
fn impure(words: &[crate::rust::Word]) -> impl Iterator<Item = (usize, &str)> {
    let named = |at: usize| words.get(at).map(|word| word.text.as_str());
    // How many braces of a `std::{…}` are open: in there, the first word of a path is a module.
    let mut open = 0_usize;
    words.iter().enumerate().filter_map(move |(at, word)| {
        let after_std = at >= 3
            && named(at - 3) == Some("std")
            && named(at - 2) == Some(":")
            && named(at - 1) == Some(":");
        match word.text.as_str() {
            "{" if after_std || open > 0 => open += 1,
            "}" => open = open.saturating_sub(1),
            _ => {}
        }
        let module = after_std || open == 1;
        let text = word.text.as_str();
        let forbidden = IMPURE.contains(&text) || (module && IMPURE_IN_STD.contains(&text));
        forbidden.then_some((word.line, text))
    })
}
