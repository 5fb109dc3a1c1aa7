//! How a source file looks: its head, its length, its names, and what no file may say.

use crate::none;
use crate::rust::{self, Word};
use crate::tree::{self, File};

/// The only room that may say `unsafe`.
const UNSAFE_ROOM: &str = "kernel/";

/// Where a file is to be split, in lines of its part that is not tests.
const MOST_LINES: usize = 800;

/// The most bytes of one file: what is larger was built, not written.
const MOST_BYTES: u64 = 512 << 10;

/// The only place of files that are no text.
const BINARY_PLACE: &str = "fuzz/seeds/";

/// File names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &[
    "common", "helper", "helpers", "manager", "misc", "util", "utils",
];

/// Marks of unfinished work. Split, so that this file does not say them.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The beginnings of paths that exist on one person's machine.
const PRIVATE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/ro", "ot/"),
];

#[test]
fn every_crate_but_the_kernel_room_forbids_unsafe() {
    let mut complaints = Vec::new();
    for package in tree::packages()
        .iter()
        .filter(|package| package.at != "fuzz")
    {
        for root in &package.roots {
            let text = std::fs::read_to_string(tree::root().join(root)).unwrap();
            let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
            if forbids == root.starts_with(UNSAFE_ROOM) {
                complaints.push(format!("{root}: forbids unsafe code: {forbids}"));
            }
        }
    }
    none(&complaints);
}

#[test]
fn nothing_outside_of_the_kernel_room_says_unsafe() {
    none(&in_rust(|file, words| {
        let here = !file.at.starts_with(UNSAFE_ROOM);
        lines_of(words, "unsafe")
            .filter(|_| here)
            .map(|line| format!("{}:{line}", file.at))
            .collect()
    }));
}

#[test]
fn every_module_opens_with_what_it_owns() {
    let documented = |file: &&File| {
        file.text
            .lines()
            .find(|line| !line.is_empty() && !line.starts_with("#!["))
            .is_some_and(|line| line.starts_with("//!"))
    };
    let files = tree::rust_files();
    let silent = files
        .iter()
        .filter(|file| !file.at.ends_with("/tests.rs"))
        .filter(|file| !documented(file));
    none(&silent.map(|file| file.at.clone()).collect::<Vec<_>>());
}

#[test]
fn no_file_is_longer_than_one_can_hold() {
    let files = tree::files();
    let written = |file: &&File| {
        (file.at.ends_with(".rs") && !file.at.ends_with("/tests.rs"))
            || (file.at.ends_with(".go") && !file.at.ends_with("_test.go"))
            || file.at.ends_with(".sh")
    };
    let long: Vec<_> = files
        .iter()
        .filter(written)
        .map(|file| (&file.at, rust::product_part(&file.text).lines().count()))
        .filter(|(_, lines)| *lines > MOST_LINES)
        .map(|(at, lines)| format!("{at}: {lines} lines"))
        .collect();
    none(&long);
}

#[test]
fn nothing_that_was_built_is_in_the_tree() {
    let texts = tree::files();
    let is_text =
        |at: &String| texts.iter().any(|file| file.at == *at) || at.contains("/generated/");
    let mut complaints = Vec::new();
    for at in tree::paths() {
        let bytes = std::fs::metadata(tree::root().join(&at)).unwrap().len();
        if bytes > MOST_BYTES || (!is_text(&at) && !at.starts_with(BINARY_PLACE)) {
            complaints.push(format!("{at}: {bytes} bytes"));
        }
    }
    none(&complaints);
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    let files = tree::files();
    let empty = files.iter().filter(|file| {
        let name = file.at.rsplit('/').next().unwrap_or(&file.at);
        let stem = name.split('.').next().unwrap_or(name);
        EMPTY_NAMES.contains(&stem)
    });
    none(&empty.map(|file| file.at.clone()).collect::<Vec<_>>());
}

#[test]
fn nothing_is_marked_as_unfinished_or_bound_to_one_machine() {
    let mut complaints = Vec::new();
    for file in tree::files() {
        for (number, line) in (1..).zip(file.text.lines()) {
            let marks = UNFINISHED.iter().filter(|mark| has_word(line, mark));
            let paths = PRIVATE_PATHS
                .iter()
                .filter(|path| begins_a_path(line, path));
            complaints.extend(
                marks
                    .chain(paths)
                    .map(|what| format!("{}:{number}: {what}", file.at)),
            );
        }
    }
    none(&complaints);
}

/// Whether the text stands in the line, and not as a later part of a longer path.
fn begins_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"_-.})".contains(c))
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric())
        .any(|found| found == word)
}

#[test]
fn no_test_is_ignored_or_named_test() {
    none(&in_rust(|file, words| {
        let ignored = words
            .windows(3)
            .filter(|word| word[0].text == "#" && word[1].text == "[" && word[2].text == "ignore")
            .map(|word| format!("{}:{}: ignored", file.at, word[0].line));
        let named = words
            .windows(2)
            .filter(|word| word[0].text == "fn" && word[1].text.starts_with("test_"))
            .map(|word| format!("{}:{}: {}", file.at, word[1].line, word[1].text));
        ignored.chain(named).collect()
    }));
}

#[test]
fn words_of_a_rule_are_found_where_they_matter_and_nowhere_else() {
    let source = "// unsafe\n/// unsafe\nfn unsafely() { let s = \"unsafe\"; }\nunsafe fn f() {}";
    assert_eq!(
        lines_of(&rust::words(source), "unsafe").collect::<Vec<_>>(),
        [4]
    );
    assert!(has_word("// ABC: later", "ABC"));
    assert!(!has_word("ABCDEF", "ABC"));
    assert!(begins_a_path("cd /a/b", "/a/"));
    assert!(!begins_a_path("cd $x/c/a/b", "/a/"));
}

/// The lines on which a word stands.
fn lines_of<'a>(words: &'a [Word], text: &'a str) -> impl Iterator<Item = usize> {
    words
        .iter()
        .filter(move |word| word.text == text)
        .map(|word| word.line)
}

/// What a rule says about every Rust file.
fn in_rust(rule: impl Fn(&File, &[Word]) -> Vec<String>) -> Vec<String> {
    tree::rust_files()
        .iter()
        .flat_map(|file| rule(file, &rust::words(&file.text)))
        .collect()
}
