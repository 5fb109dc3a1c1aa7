//! Shares of the cache and of the way to memory, by the kernel's own file system.

use crate::check;
use anyhow::{Context, Result, bail, ensure};
use koord_kernel::{
    core_sched::Tid,
    resctrl::{Resctrl, ResctrlError, Resource, Schemata, Vendor, ways},
};
use koord_testkit::poll::wait_until;
use std::{fs, path::Path, process::Command};

pub(super) fn check_all() {
    check("classes_are_made_filled_and_run_out", the_kernel);
}

/// What an applier may count on.
async fn the_kernel() -> Result<()> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let resctrl = Resctrl::open(Path::new("/sys/fs/resctrl"), &cpuinfo)?;
    ensure!(resctrl.ways() == Some(0x7ff), "{:?}", resctrl.ways());
    ensure!(resctrl.vendor() == Vendor::Intel, "{:?}", resctrl.vendor());
    let whole = lines(&[(Resource::L3, 0x7ff), (Resource::Mb, 100)]);
    ensure!(*resctrl.whole() == whole, "{:?}", resctrl.whole());

    ensure!(
        resctrl.create("BE")? && !resctrl.create("BE")?,
        "it is made once"
    );
    ensure!(
        resctrl.schemata("BE")? == whole,
        "a new class has everything"
    );
    let part = ways(0x7ff, 0, 30).context("a part of the cache")?;
    let share = lines(&[(Resource::L3, part), (Resource::Mb, 30)]);
    ensure!(resctrl.set_schemata("BE", &share)?, "it had more");
    ensure!(!resctrl.set_schemata("BE", &share)?, "it was written again");
    ensure!(
        resctrl.schemata("BE")? == share,
        "{:?}",
        resctrl.schemata("BE")?
    );
    holes_are_refused(&resctrl)?;
    threads_and_their_children(&resctrl)?;

    // The root's class is one of eight.
    for made in 2..=7 {
        ensure!(resctrl.create(&format!("pod-{made}"))?, "{made} of seven");
    }
    match resctrl.create("one-too-many") {
        Err(ResctrlError::NoMoreClasses { .. }) => {}
        other => bail!("{other:?} where no class is left"),
    }
    ensure!(resctrl.groups()?.len() == 7, "{:?}", resctrl.groups()?);
    resctrl.remove("pod-7")?;
    resctrl.remove("pod-7")?;
    ensure!(resctrl.create("another")?, "the class is free again");
    let gone = resctrl.schemata("pod-7").expect_err("it was removed");
    ensure!(gone.is_gone(), "{gone}");
    Ok(())
}

fn holes_are_refused(resctrl: &Resctrl) -> Result<()> {
    let holes = lines(&[(Resource::L3, 0b101)]);
    match resctrl.set_schemata("BE", &holes) {
        Err(ResctrlError::Refused { status, .. }) if status.contains("non-consecutive") => Ok(()),
        other => bail!("{other:?} for a mask with a hole"),
    }
}

/// A child is in the group of its parent, and in the root's once that has gone.
fn threads_and_their_children(resctrl: &Resctrl) -> Result<()> {
    let script = "read line; sleep 1000 & echo $!; wait";
    let mut parent = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()?;
    let own = Tid::try_from(parent.id())?;
    ensure!(resctrl.add("BE", own)?, "it has not ended");
    drop(parent.stdin.take());
    wait_until("its child is in the group", || {
        resctrl
            .threads("BE")
            .is_ok_and(|threads| threads.len() == 2 && threads.contains(&own))
    });
    resctrl.release(own)?;
    let left = resctrl.threads("BE")?;
    ensure!(left.len() == 1 && !left.contains(&own), "{left:?}");
    parent.kill()?;
    parent.wait()?;
    ensure!(!resctrl.add("BE", own)?, "it has ended");
    Ok(())
}

/// A line each for the one cache of this machine.
fn lines(shares: &[(Resource, u64)]) -> Schemata {
    let line = |(resource, share): &(Resource, u64)| (*resource, [(0, *share)].into());
    Schemata(shares.iter().map(line).collect())
}
