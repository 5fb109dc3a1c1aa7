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
const PAGE: &str = "docs/architecture.md";
const LOG: &str = "proxy/src/log.rs";

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

// === impl Room ===

impl Room {
    fn row(&self) -> Row {
        let at = |name: &str| ROOMS.iter().find(|room| room.name == name);
        let may_use = match self.may_use {
            May::Use([]) => "–".to_owned(),
            May::Use(names) => {
                let rooms = names.iter().filter_map(|name| at(name));
                rooms.map(|room| room.at).collect::<Vec<_>>().join(", ")
            }
            May::UseAnything => "anything".to_owned(),
        };
        (self.at.to_owned(), may_use)
    }
}

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

/// A room and what it may use, as the page writes it.
type Row = (String, String);

#[test]
fn the_page_has_this_table() {
    let page = std::fs::read_to_string(tree::root().join(PAGE)).unwrap();
    let mut written = rows(&page);
    let mut listed: Vec<Row> = ROOMS.iter().map(Room::row).collect();
    written.sort();
    listed.sort();
    assert_eq!(written, listed);
}

#[test]
fn rooms_that_share_a_row_are_rows_of_the_page() {
    let page = "## Rooms\n\n| room | crate | owns | may use |\n| --- | --- | --- | --- |\n\
                | `a/` | `koord-a` | this | b, c |\n| `d/`, `e/e/` | | that | – |\n\n\
                ## More\n\n| `f/` | `koord-f` | no room | – |\n";
    let expected = [("a", "b, c"), ("d", "–"), ("e/e", "–")];
    assert_eq!(
        rows(page),
        expected.map(|(at, may_use)| (at.to_owned(), may_use.to_owned()))
    );
}

fn rows(page: &str) -> Vec<Row> {
    let section = page.split("## ").find(|it| it.starts_with("Rooms\n"));
    let lines = section.unwrap_or_default().lines();
    let cells = lines.filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let cells = cells.filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)));
    let rows = cells.flat_map(|(rooms, may_use)| {
        let rooms = rooms.split(", ").map(|it| it.trim_matches(['`', '/']));
        rooms.map(|at| (at.to_owned(), may_use.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_room_that_is_shipped_can_be_named_in_a_filter_of_the_log() {
    let log = std::fs::read_to_string(tree::root().join(LOG)).unwrap();
    let list = log.split_once("const CRATES:").unwrap().1;
    let list = list.split_once("];").unwrap().0;
    let named: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let is_shipped = |room: &&Room| room.at != "fuzz" && !room.at.starts_with("tests/");
    let shipped = ROOMS.iter().filter(is_shipped);
    let mut shipped: Vec<String> = shipped.map(|room| room.name.replace('-', "_")).collect();
    shipped.sort();
    assert_eq!(named, shipped);
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
