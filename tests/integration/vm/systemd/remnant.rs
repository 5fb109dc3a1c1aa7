//! What is left on a node that has gone back.

use crate::reader::{Answer, run};
use anyhow::{Result, ensure};
use std::{
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
};

/// Fails if anything is there that bears our name: files, sockets, units, processes.
pub(super) fn nothing_is_left() -> Result<()> {
    let mut left = files()?;
    let units = run("systemctl list-units --all --plain --no-legend 'koord-runtime*'")?;
    left.extend(units.ended(0)?.text.lines().map(str::to_owned));
    for process in fs::read_dir("/proc")? {
        let name = fs::read_to_string(process?.path().join("comm")).unwrap_or_default();
        left.extend(name.starts_with("koord-runtime").then_some(name));
    }
    ensure!(left.is_empty(), "{left:#?}");
    Ok(())
}

fn files() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let roots = ["/etc", "/opt", "/run", "/usr/local", "/var"];
    let mut directories = roots.map(PathBuf::from).to_vec();
    while let Some(directory) = directories.pop() {
        // Of a tree that lives some goes while it is looked at.
        let entries = unless_gone(fs::read_dir(directory))?;
        for entry in entries.into_iter().flatten() {
            let Some(entry) = unless_gone(entry)? else {
                continue;
            };
            let path = entry.path();
            if entry
                .file_name()
                .to_string_lossy()
                .contains("koord-runtime")
            {
                found.push(path.display().to_string());
            } else if unless_gone(entry.file_type())?.is_some_and(|it| it.is_dir()) {
                directories.push(path);
            }
        }
    }
    Ok(found)
}

fn unless_gone<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails unless `--revert` has given all back but what docs/undo.md says that nobody knows by then, which is
/// named by these beginnings of lines.
pub(super) fn is_given_back(reverted: &Answer, unknown: &[&str]) -> Result<()> {
    let mut lines = reverted.text.lines();
    ensure!(lines.next() == Some("given back:"), "{reverted:#?}");
    let stays = lines.skip_while(|it| *it != "could not be given back:");
    let stays: Vec<&str> = stays.skip(1).collect();
    let is_named = |line: &&str| {
        let of = unknown.iter().any(|beginning| line.starts_with(beginning));
        of && line.ends_with(" stays, left: what was before is unknown")
    };
    ensure!(stays.iter().all(is_named), "{reverted:#?}");
    let status = i32::from(!stays.is_empty());
    ensure!(reverted.status == Some(status), "{reverted:#?}");
    Ok(())
}
