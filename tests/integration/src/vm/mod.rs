//! Virtual machines for tests: a kernel of our choice, an initramfs with one program that is the
//! test, and what that says on the console.
//!
//! Lines for the host begin with `koord-guest: `: `ok NAME` for each check that passed, and `end` as
//! the last. A console without them is a failure, so a machine that does nothing passes no test.

mod initramfs;
mod machine;
mod node;
mod system;

pub use self::{
    initramfs::Initramfs,
    machine::BOUND,
    node::{NodeMachine, ONE_CORE, RUNTIME, TWO_CORES, TWO_NODES},
    system::{DEMO, DEMO_CACHE, ONE_CORE_WITH_PODS, REPOSITORY, SystemMachine, TWO_CPUS},
};

use anyhow::{Context, Result, ensure};
use koord_testkit::setup::Qemu;
use std::{fs, path::Path};

/// What the guest says begins so.
const MARK: &str = "koord-guest: ";

/// What a machine had to say until it was off.
#[derive(Debug)]
pub struct Console(Vec<String>);

/// Boots a machine, and returns when it has switched itself off. `hardware` are QEMU's arguments for
/// processors and memory; `variables` become the environment of `/init`.
pub fn boot(
    qemu: &Qemu,
    hardware: &[&str],
    kernel: &Path,
    files: Initramfs,
    variables: &str,
) -> Result<Console> {
    let directory = tempfile::tempdir()?;
    let initramfs = directory.path().join("initramfs");
    fs::write(&initramfs, files.finish()?).context("cannot write the initramfs")?;
    machine::run(qemu, hardware, kernel, &initramfs, variables).map(Console)
}

// === impl Console ===

impl Console {
    /// Fails unless the guest says that each of these passed, and came to its end.
    pub fn passed(&self, checks: &[&str]) -> Result<()> {
        let missing: Vec<&&str> = checks
            .iter()
            .filter(|check| !self.said(&format!("ok {check}")))
            .collect();
        ensure!(
            missing.is_empty() && self.said("end"),
            "these checks did not pass: {missing:?}; the console's end:\n{}",
            machine::tail(&self.0)
        );
        Ok(())
    }

    fn said(&self, line: &str) -> bool {
        self.0
            .iter()
            .any(|said| said.strip_prefix(MARK) == Some(line))
    }
}
