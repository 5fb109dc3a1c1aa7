//! Nothing is written where nothing is left to do.

use crate::witness::Witness;
use anyhow::{Result, ensure};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Longer than a minute, after which the proxy has looked at everything again.
const REST: Duration = Duration::from_secs(65);

/// Fails if anybody writes to a file of these groups, or of groups below them, or makes or removes one,
/// for longer than anything that is done now and then takes to come round.
pub(super) fn nothing_is_written(roots: &[PathBuf], own: &Path) -> Result<()> {
    let witness = Witness::of(roots)?;
    thread::sleep(REST);
    let written = witness.written()?;
    ensure!(written.is_empty(), "written at rest: {written:#?}");
    witness.sees(own)
}
