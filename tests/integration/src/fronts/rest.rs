//! Who sees writes to control groups and to groups of caches, and is not the proxy: the kernel's own
//! notifications.

use anyhow::{Context, Result, ensure};
use rustix::{
    fd::OwnedFd,
    fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init},
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::MaybeUninit,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Longer than a minute, after which the proxy has looked at everything again.
const REST: Duration = Duration::from_secs(65);

/// Files that the kernel itself reports as modified, when what they tell of happens.
const OF_THE_KERNEL: &str = ".events";

/// Fails if anybody writes to a file of these groups, or of groups below them, or makes or removes one,
/// for longer than anything that is done now and then takes to come round.
pub(super) fn nothing_is_written(roots: &[PathBuf], own: &Path) -> Result<()> {
    let witness = Witness::of(roots)?;
    thread::sleep(REST);
    let written = witness.written()?;
    ensure!(written.is_empty(), "written at rest: {written:#?}");
    // It would have seen it.
    fs::write(own, fs::read_to_string(own)?.trim())?;
    let written = witness.written()?;
    let expected = BTreeSet::from([own.to_owned()]);
    ensure!(written == expected, "{own:?} was written, {written:?} seen");
    Ok(())
}

struct Witness {
    notifications: OwnedFd,
    directories: BTreeMap<i32, PathBuf>,
}

impl Witness {
    fn of(roots: &[PathBuf]) -> Result<Self> {
        let mut witness = Self {
            notifications: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            directories: BTreeMap::new(),
        };
        for root in roots {
            witness.watch(root)?;
        }
        Ok(witness)
    }

    fn watch(&mut self, directory: &Path) -> Result<()> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE;
        let number = add_watch(&self.notifications, directory, flags);
        let number = number.with_context(|| format!("cannot watch {}", directory.display()))?;
        self.directories.insert(number, directory.to_owned());
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.watch(&entry.path())?;
            }
        }
        Ok(())
    }

    /// What was written since it was asked last.
    fn written(&self) -> Result<BTreeSet<PathBuf>> {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.notifications, &mut space);
        let mut written = BTreeSet::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(written),
                Err(error) => return Err(error).context("cannot read notifications"),
            };
            let name = event.file_name().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default();
            let directory = self.directories.get(&event.wd());
            let directory = directory.context("more was written than notifications can tell")?;
            if !name.contains(OF_THE_KERNEL) {
                written.insert(directory.join(&*name));
            }
        }
    }
}
