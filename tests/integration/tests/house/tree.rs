//! The tree as the tests see it: its packages by `cargo metadata`, its files by walking.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The root of the tree.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate lies two directories below the root")
}

/// One Cargo package of ours.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its directory, from the root.
    pub(crate) at: String,
    pub(crate) dependencies: Vec<Dependency>,
    /// The first files of its library and binaries, from the root.
    pub(crate) roots: Vec<String>,
}

/// One line of a package's `dependencies` sections.
#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Whether it is one of our packages.
    pub(crate) ours: bool,
    /// Whether tests alone use it.
    pub(crate) dev: bool,
}

/// All packages: those of the workspace, and those that are a workspace of their own.
pub(crate) fn packages() -> Vec<Package> {
    ["Cargo.toml", "fuzz/Cargo.toml", "tests/ttrpc/Cargo.toml"]
        .iter()
        .filter(|manifest| root().join(manifest).exists())
        .flat_map(|manifest| metadata(manifest))
        .collect()
}

fn metadata(manifest: &str) -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .arg("--manifest-path")
        .arg(root().join(manifest))
        .output()
        .expect("cargo runs, since it runs this test");
    assert!(
        output.status.success(),
        "cargo metadata on {manifest}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    list(&metadata, "packages").iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let manifest = PathBuf::from(text(value, "manifest_path"));
    let of_product = |target: &&Value| {
        let kind = list(target, "kind")[0].as_str();
        !matches!(kind, Some("test" | "bench" | "example" | "custom-build"))
    };
    Package {
        name: text(value, "name").to_owned(),
        at: from_root(manifest.parent().expect("a manifest lies in a directory")),
        dependencies: list(value, "dependencies").iter().map(dependency).collect(),
        roots: list(value, "targets")
            .iter()
            .filter(of_product)
            .map(|target| from_root(Path::new(text(target, "src_path"))))
            .collect(),
    }
}

fn dependency(value: &Value) -> Dependency {
    Dependency {
        name: text(value, "name").to_owned(),
        ours: value["path"].is_string(),
        dev: value["kind"] == "dev",
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("cargo metadata has a text at {key}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("cargo metadata has a list at {key}"))
}

/// One text file of the tree.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with `/`.
    pub(crate) at: String,
    pub(crate) text: String,
}

/// Every text file that somebody wrote: nothing generated.
pub(crate) fn files() -> Vec<File> {
    let written = |at: &String| !at.contains("/generated/");
    let text = |at: String| {
        let text = fs::read_to_string(root().join(&at)).ok()?;
        Some(File { at, text })
    };
    paths()
        .into_iter()
        .filter(written)
        .filter_map(text)
        .collect()
}

/// Every file of the tree, from the root, but for what `.gitignore` names.
pub(crate) fn paths() -> Vec<String> {
    let ignored = fs::read_to_string(root().join(".gitignore")).expect(".gitignore is readable");
    let ignored: Vec<&str> = ignored
        .lines()
        .map(|line| line.trim_matches('/'))
        .chain([".git"])
        .collect();
    let mut found = Vec::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the tree is readable") {
            let entry = entry.expect("a directory of the tree is readable");
            let at = from_root(&entry.path());
            let kind = entry.file_type().expect("an entry has a type");
            if ignored.contains(&at.as_str()) {
                continue;
            } else if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                found.push(at);
            }
        }
    }
    assert!(found.len() > 50, "the walk found {} files", found.len());
    found.sort();
    found
}

/// The Rust files among [`files`].
pub(crate) fn rust_files() -> Vec<File> {
    let mut files = files();
    files.retain(|file| file.at.ends_with(".rs"));
    files
}

/// The path as seen from the root.
fn from_root(path: &Path) -> String {
    path.strip_prefix(root())
        .expect("a path of the tree begins with the root")
        .to_str()
        .expect("paths of the tree are UTF-8")
        .to_owned()
}
