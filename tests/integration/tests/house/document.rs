//! What the documents point at is there: files, and the tests that they name as proof.
//!
//! A proof is written as `path/to/file.rs::name`, the name being a test's. A table row that has to
//! name one and cannot says "untested:" and why.

use crate::none;
use crate::tree::{self, File};

/// Documents whose every table row ends with its proof.
const PROVEN: &[&str] = &["docs/spec.md", "docs/compatibility.md"];

fn documents() -> Vec<File> {
    let mut files = tree::files();
    files.retain(|file| file.at.ends_with(".md"));
    files
}

#[test]
fn every_link_inside_the_tree_leads_somewhere() {
    let documents = documents();
    let mut complaints = Vec::new();
    for document in &documents {
        for target in links(&document.text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            let at = resolved(&document.at, path);
            let mut named = documents.iter().filter(|document| document.at == at);
            let leads = tree::root().join(&at).exists()
                && (anchor.is_empty()
                    || named.any(|named| anchors(&named.text).any(|it| it == anchor)));
            if !leads {
                complaints.push(format!("{}: {target}", document.at));
            }
        }
    }
    none(&complaints);
}

#[test]
fn every_test_that_a_document_names_exists() {
    let files = tree::files();
    let mut complaints = Vec::new();
    for document in documents() {
        for (path, name) in proofs(&document.text) {
            let exists = files
                .iter()
                .any(|file| file.at == path && has_test(file, name));
            if !exists {
                complaints.push(format!("{}: {path}::{name}", document.at));
            }
        }
    }
    none(&complaints);
}

#[test]
fn every_promise_names_its_test_or_says_that_it_has_none() {
    let documents = documents();
    let mut complaints = Vec::new();
    for at in PROVEN {
        let document = documents.iter().find(|document| document.at == *at);
        let text = &document.unwrap_or_else(|| panic!("{at} is missing")).text;
        let rows: Vec<_> = rows(text).collect();
        assert!(rows.len() > 10, "{at} has {} rows", rows.len());
        complaints.extend(
            rows.into_iter()
                .filter(|row| !is_proven(row))
                .map(|row| format!("{at}: {row}")),
        );
    }
    none(&complaints);
}

#[test]
fn links_proofs_and_rows_are_read_as_written() {
    let text = "See [a](docs/a.md#x) and `relay/src/pair.rs::a_name`, not `a::b`.\n\
                | promise | test |\n| --- | --- |\n| one | untested: no device |\n| two | soon |\n";
    assert_eq!(links(text).collect::<Vec<_>>(), ["docs/a.md#x"]);
    for (path, at) in [
        ("", "docs/b.md"),
        ("a.md", "docs/a.md"),
        ("../a.md", "a.md"),
    ] {
        assert_eq!(resolved("docs/b.md", path), at);
    }
    assert_eq!(
        proofs(text).collect::<Vec<_>>(),
        [("relay/src/pair.rs", "a_name")]
    );
    let headings = "# `--pods FILE`, as it is\n\n```\n# a comment\n```\n## GPUs\n";
    assert_eq!(
        anchors(headings).collect::<Vec<_>>(),
        ["--pods-file-as-it-is", "gpus"]
    );
    let verdicts: Vec<_> = rows(text).map(is_proven).collect();
    assert_eq!(verdicts, [true, false]);
}

#[test]
fn a_test_is_what_its_language_runs_as_one() {
    for (at, text, is_test) in [
        ("a.rs", "#[test]\nfn a_name() {}", true),
        (
            "a.rs",
            "    #[test]\n    // Why.\n    fn a_name(x in 0..3) {}",
            true,
        ),
        ("a.rs", "#[tokio::test]\nasync fn a_name() {}", true),
        (
            "a.rs",
            "#[tokio::test(start_paused = true)]\nasync fn a_name() {}",
            true,
        ),
        (
            "a.rs",
            "fn a_name() {}\n#[test]\nfn other() { a_name() }",
            false,
        ),
        ("a.rs", "#[test]\nfn other() {}\nfn a_name() {}", false),
        ("a.rs", "#[test]\nfn a_name_longer() {} // a_name", false),
        ("a.rs", "#[test]\n#[ignore]\nfn a_name() {}", false),
        ("a.rs", "#[test]\nfn other() { run(\"a_name\") }", false),
        ("a_test.go", "\nfunc a_name(t *testing.T) {", true),
        ("a_test.go", "\nfunc a_name(count int) {", false),
        ("a.go", "\nfunc a_name(t *testing.T) {", false),
        ("a.sh", "a_name() {", false),
    ] {
        let file = File {
            at: at.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(has_test(&file, "a_name"), is_test, "{text}");
    }
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
}

/// The path from the root that a document means by a path of its own; of itself by none.
fn resolved(document: &str, path: &str) -> String {
    if path.is_empty() {
        return document.to_owned();
    }
    let mut steps: Vec<&str> = document.split('/').collect();
    steps.pop();
    for step in path.split('/') {
        match step {
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// What links call the headings of a document, as GitHub does.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut in_code = false;
    text.lines().filter_map(move |line| {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ')?;
        let words = heading.to_lowercase().replace(' ', "-");
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_');
        (line.starts_with('#') && !in_code).then(|| words.chars().filter(is_kept).collect())
    })
}

/// What stands between backticks as `file::name`, the file being source.
fn proofs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.rsplit_once("::"))
        .filter(|(path, _)| {
            [".rs", ".go", ".sh"]
                .iter()
                .any(|ending| path.ends_with(ending))
        })
}

/// Whether a source has a test of that name that is run.
fn has_test(file: &File, name: &str) -> bool {
    if file.at.ends_with("_test.go") {
        let test = format!("\nfunc {name}(t *testing.T) {{");
        return file.text.contains(&test);
    }
    file.at.ends_with(".rs") && has_rust_test(&file.text, name)
}

fn has_rust_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let functions = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.trim_start_matches("async ").starts_with(&function));
    functions.map(|(at, _)| &lines[..at]).any(|before| {
        let above = before.iter().rev();
        let attributes: Vec<_> = above
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .collect();
        let has = |attribute: &str| attributes.iter().any(|it| it.starts_with(attribute));
        (has("#[test]") || has("#[tokio::test")) && !has("#[ignore")
    })
}

/// The rows of tables, without their heads.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let is_row = |line: &&str| line.starts_with('|');
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<bool> = (0..lines.len())
        .map(|at| {
            lines[at].starts_with("| ---")
                || lines
                    .get(at + 1)
                    .is_some_and(|next| next.starts_with("| ---"))
        })
        .collect();
    lines
        .into_iter()
        .zip(heads)
        .filter(|(_, head)| !head)
        .map(|(line, _)| line)
        .filter(is_row)
}

fn is_proven(row: &str) -> bool {
    let last = row
        .trim_end_matches([' ', '|'])
        .rsplit('|')
        .next()
        .unwrap_or_default();
    proofs(last).next().is_some() || last.trim_start().starts_with("untested: ")
}
