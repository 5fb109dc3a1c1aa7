//! The checks of `koord_kernel::proof` on Debian's stock kernel in a virtual machine: with cgroup
//! v2, which the machine that runs the tests need not have, with cgroup v1 as distributions mounted
//! it, and with some controllers on each.
//!
//! The guest (`vm/guest.rs`) runs them and says on its console how each went. Every check has to be
//! named there as passed, so a boot that prints nothing is a failure.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use koord_integration::vm::{self, Initramfs};
use koord_kernel::proof::CHECKS;
use koord_testkit::{
    Cache,
    setup::{ensure_busybox, ensure_kernel, ensure_qemu},
};
use std::path::Path;

/// Two processors, and little memory.
const HARDWARE: [&str; 6] = ["-accel", "tcg,thread=multi", "-smp", "2", "-m", "256"];

#[test]
fn a_stock_kernel_passes_every_check_on_cgroup_v2() -> Result<()> {
    boot("v2", &every_check())
}

#[test]
fn a_stock_kernel_passes_every_check_on_cgroup_v1_with_joint_controllers() -> Result<()> {
    boot("v1", &every_check())
}

#[test]
fn each_controller_is_used_where_it_is_on_a_hybrid_machine() -> Result<()> {
    boot("hybrid", &["each_controller_is_used_where_it_is"])
}

#[test]
fn a_machine_that_reports_nothing_is_a_failure() -> Result<()> {
    let error = boot("none", &[]).unwrap_err().to_string();
    ensure!(
        error.contains("koord-guest: broken: none is no way to mount cgroups"),
        "{error}"
    );
    Ok(())
}

fn every_check() -> Vec<&'static str> {
    CHECKS.iter().map(|check| check.name).collect()
}

/// Boots a machine with these control groups, and fails unless it says that each check passed.
fn boot(cgroups: &str, checks: &[&str]) -> Result<()> {
    let cache = Cache::open()?;
    let (qemu, kernel) = (ensure_qemu(&cache)?, ensure_kernel(&cache)?);
    let mut archive = Initramfs::default();
    archive.add_program("init", Path::new(env!("CARGO_BIN_EXE_koord-vm-guest")))?;
    archive.add_program("bin/sleep", &ensure_busybox(&cache)?)?;
    let variables = format!("KOORD_CGROUPS={cgroups}");
    let console = vm::boot(&qemu, &HARDWARE, &kernel, archive, &variables)?;
    console.passed(checks)
}
