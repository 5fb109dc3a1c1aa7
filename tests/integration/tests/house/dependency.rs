//! `docs/dependencies.md` gives a reason for each thing that we take from others, and only for those.

use std::collections::BTreeSet;

use crate::none;
use crate::tree;

const DOCUMENT: &str = "docs/dependencies.md";

type Names = BTreeSet<String>;

#[test]
fn every_direct_crate_has_its_reason() {
    let (mut shipped, mut for_tests) = (Names::new(), Names::new());
    for package in tree::packages() {
        let is_test = package.at.starts_with("tests/") || package.at == "fuzz";
        for used in package.dependencies.into_iter().filter(|used| !used.ours) {
            let names = if is_test || used.dev {
                &mut for_tests
            } else {
                &mut shipped
            };
            names.insert(used.name);
        }
    }
    same("Crates in the binary", &shipped);
    same(
        "Crates in tests alone",
        &for_tests.difference(&shipped).cloned().collect(),
    );
}

#[test]
fn every_direct_go_module_has_its_reason() {
    let mut modules = tree::files();
    modules.retain(|file| file.at.ends_with("go.mod"));
    let is_ours = |name: &str| {
        let declaration = format!("module {name}");
        let declared = |text: &str| text.lines().any(|line| line == declaration);
        modules.iter().any(|module| declared(&module.text))
    };
    let used = modules
        .iter()
        .flat_map(|module| required(&module.text))
        .filter(|name| !is_ours(name))
        .map(str::to_owned)
        .collect();
    same("Go modules", &used);
}

#[test]
fn every_debian_package_has_its_reason() {
    let mut used = Names::new();
    for file in tree::files() {
        if file.at.starts_with("tests/testkit/src/setup/") {
            used.extend(unpacked(crate::rust::product_part(&file.text)).map(str::to_owned));
        } else if file.at == "Makefile" {
            used.extend(needed(&file.text).map(str::to_owned));
        }
    }
    same("Debian packages", &used);
}

#[test]
fn every_tool_has_its_reason() {
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).unwrap();
    same("Tools", &installed(&makefile).map(str::to_owned).collect());
}

#[test]
fn every_crate_is_taken_without_its_default_features() {
    let manifest = std::fs::read_to_string(tree::root().join("Cargo.toml")).unwrap();
    let careless = workspace_dependencies(&manifest)
        .filter(|(_, rest)| !rest.contains("path = "))
        .filter(|(_, rest)| !rest.contains("default-features = false"));
    none(
        &careless
            .map(|(name, _)| name.to_owned())
            .collect::<Vec<_>>(),
    );
}

#[test]
fn the_workspace_names_no_crate_that_nobody_uses() {
    let manifest = std::fs::read_to_string(tree::root().join("Cargo.toml")).unwrap();
    let used: Names = tree::packages()
        .into_iter()
        .flat_map(|package| package.dependencies)
        .map(|used| used.name)
        .collect();
    let idle = workspace_dependencies(&manifest).filter(|(name, _)| !used.contains(*name));
    none(&idle.map(|(name, _)| name.to_owned()).collect::<Vec<_>>());
}

#[test]
fn names_are_found_in_each_kind_of_manifest() {
    let module = "require a.b/c v1.2.3\n\ntool (\n\td.e/f/cmd/x\n)\n\nrequire (\n\tg.h/i v0.1.0\n\t\
                  d.e/f v1.0.0 // indirect\n\tj.k/l v0.1.0 // indirect\n)\n";
    assert_eq!(
        required(module).collect::<Vec<_>>(),
        ["a.b/c", "g.h/i", "d.e/f"]
    );
    let setup =
        "packages: &[\n\"one\",\n\"two\"],\ndebian(\"suite\", &[\"three\"])\n.args(&[\"no\"])";
    assert_eq!(unpacked(setup).collect::<Vec<_>>(), ["one", "two", "three"]);
    let workspace = "[a]\nx = 1\n[workspace.dependencies]\n# why\ny = \"2\"\n\n[b]\nz = 3\n";
    assert_eq!(
        workspace_dependencies(workspace).collect::<Vec<_>>(),
        [("y", "\"2\"")]
    );
    assert_eq!(needed("\t@.ci/need g++ gpp\n").collect::<Vec<_>>(), ["gpp"]);
    assert_eq!(
        installed("\t@.ci/install-tool t 1.0 d\n").collect::<Vec<_>>(),
        ["t"]
    );
    let document =
        "## Go\n\n| what | why |\n| --- | --- |\n| `a`, `b` | c |\n\n## Tools\n| `d` | e |\n";
    assert_eq!(
        listed(document, "Go"),
        Names::from(["a".to_owned(), "b".to_owned()])
    );
}

/// Fails unless the section lists exactly these.
#[track_caller]
fn same(section: &str, used: &Names) {
    let document = std::fs::read_to_string(tree::root().join(DOCUMENT))
        .expect("the page of dependencies is readable");
    let listed = listed(&document, section);
    assert!(
        !used.is_empty(),
        "nothing was found for the section {section}"
    );
    let missing = used
        .difference(&listed)
        .map(|name| format!("{DOCUMENT} has no reason for {name}"));
    let unused = listed
        .difference(used)
        .map(|name| format!("{DOCUMENT} lists {name}, which nothing uses"));
    none(&missing.chain(unused).collect::<Vec<_>>());
}

/// The names in backticks in the first column of a section's table.
fn listed(document: &str, section: &str) -> Names {
    document
        .split("\n## ")
        .map(|part| part.trim_start_matches("## "))
        .find_map(|part| part.strip_prefix(section)?.strip_prefix('\n'))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// The lines of the root's `[workspace.dependencies]`: name, and what is said of it.
fn workspace_dependencies(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
}

/// The modules that a go.mod requires itself, or builds a tool of.
fn required(module: &str) -> impl Iterator<Item = &str> {
    let is_tool = |name: &str| {
        module
            .lines()
            .map(str::trim)
            .filter_map(|line| line.strip_prefix(name))
            .any(|path| path.starts_with('/') && !path.contains(' '))
    };
    let mut open = false;
    module.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["require", "("] => open = true,
            [")"] => open = false,
            ["require", name, _version] => return Some(*name),
            [name, _version] if open => return Some(*name),
            [name, _version, "//", "indirect"] if open && is_tool(name) => return Some(*name),
            _ => {}
        }
        None
    })
}

/// The packages that the test kit unpacks: the lists beside `packages:` and in calls of `debian`.
fn unpacked(source: &str) -> impl Iterator<Item = &str> {
    let beside = source.split("packages: &[").skip(1);
    let called = source.split("debian(").skip(1);
    let called = called.filter_map(|call| Some(call.split_once(')')?.0.split_once("&[")?.1));
    beside
        .chain(called)
        .filter_map(|list| list.split_once(']'))
        .flat_map(|(list, _)| list.split('"').skip(1).step_by(2))
}

/// The packages that `.ci/need` installs when a command is missing.
fn needed(makefile: &str) -> impl Iterator<Item = &str> {
    makefile.lines().filter_map(|line| {
        line.trim()
            .strip_prefix("@.ci/need ")?
            .split_whitespace()
            .nth(1)
    })
}

/// The crates that `.ci/install-tool` builds.
fn installed(makefile: &str) -> impl Iterator<Item = &str> {
    makefile.lines().filter_map(|line| {
        line.trim()
            .strip_prefix("@.ci/install-tool ")?
            .split_whitespace()
            .next()
    })
}
