//! The demo, as `make demo` starts it, on Debian's cgroups as they are: v2, below systemd.

use crate::{Check, machine::told};
use anyhow::{Context, Result, ensure};
use koord_integration::vm::{DEMO, DEMO_CACHE};
use std::{fs, process::Command};

pub(super) const CHECKS: &[Check<Stage>] = &[("the_demo_shows_that_all_is_right", it_is_right)];

pub(super) struct Stage;

fn it_is_right(_: &mut Stage) -> Result<()> {
    for front in ["cri", "nri", "watch"] {
        it_is_right_by(front).context(front)?;
    }
    Ok(())
}

fn it_is_right_by(front: &str) -> Result<()> {
    let cache = told(DEMO_CACHE).context("where the parts are is not said")?;
    let output = Command::new(DEMO)
        .arg(front)
        .env(DEMO_CACHE, cache)
        .output()
        .context("start the demo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {said}{complained}",
        output.status
    );
    let rows = said
        .lines()
        .filter(|line| line.trim_end().ends_with("┆ ok │"));
    ensure!(rows.count() == 15, "{said}");
    ensure!(
        said.ends_with("all 15 values are what they should be\n"),
        "{said}"
    );
    for directory in ["/sys/fs/cgroup", "/tmp"] {
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let is_a_testbed = name.to_string_lossy().starts_with("ktb-");
            ensure!(!is_a_testbed, "{directory} has {name:?}");
        }
    }
    Ok(())
}
