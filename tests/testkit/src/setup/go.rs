//! Programs built from the Go module proxy, at the versions that a `go.mod` pins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Cache, SetupError};
use crate::command::run;

/// The programs that a module names as its tools.
#[derive(Debug, Clone, Copy)]
pub(super) struct GoTools {
    /// What they are called in the cache and in messages.
    pub(super) name: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Build tags, divided by commas; none if empty.
    pub(super) tags: &'static str,
    pub(super) code: Code,
}

/// How programs are compiled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Code {
    /// For those that most tests run, also on emulated processors.
    Fast,
    /// In two thirds of the time, for those that few tests run; with the flags of the Makefile, so that
    /// packages of the same versions are compiled once.
    SoonThere,
}

impl GoTools {
    /// Builds them unless the cache has them, and answers the directory with the programs.
    pub(super) fn ensure(self, cache: &Cache) -> Result<PathBuf, SetupError> {
        let Self {
            name,
            go_mod,
            go_sum,
            tags,
            code,
        } = self;
        let flags = code.flags();
        cache.entry(name, &[go_mod, go_sum, tags, flags], |out| {
            eprintln!("setup: building {name} from its Go modules (minutes, once)");
            let source = out.join("source");
            fs::create_dir(&source).map_err(SetupError::file("create", &source))?;
            for (file, text) in [("go.mod", go_mod), ("go.sum", go_sum)] {
                let path = source.join(file);
                fs::write(&path, text).map_err(SetupError::file("write", &path))?;
            }
            run(Command::new("go")
                .args([
                    "build",
                    "-trimpath",
                    "-ldflags=-s -w",
                    flags,
                    "-tags",
                    tags,
                    "-o",
                ])
                .arg(out)
                .arg("tool")
                .current_dir(&source)
                .env("GOTOOLCHAIN", "local")
                .env("GOFLAGS", "-buildvcs=false")
                .env("GOWORK", "off")
                .env("CGO_ENABLED", "0"))
            .map(drop)
            .map_err(SetupError::recipe(name))
        })
    }

    /// Where the source of a module of its is, once they are built: in Go's own cache.
    pub(super) fn source_of(self, module: &str, built: &Path) -> Result<PathBuf, SetupError> {
        let directory = run(Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}", module])
            .current_dir(built.join("source"))
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off"))
        .map_err(SetupError::recipe(self.name))?;
        Ok(directory.trim().into())
    }
}

// === impl Code ===

impl Code {
    fn flags(self) -> &'static str {
        match self {
            Self::Fast => "-gcflags=all=-dwarf=false",
            Self::SoonThere => "-gcflags=all=-N -l -dwarf=false",
        }
    }
}
