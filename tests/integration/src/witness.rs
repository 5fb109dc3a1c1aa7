//! Who sees writes to control groups and to groups of caches, and is not the proxy: the kernel's own
//! notifications.

use anyhow::{Context, Result, ensure};
use koord_testkit::Testbed;
use rustix::{
    fd::OwnedFd,
    fs::{
        XattrFlags,
        inotify::{CreateFlags, Reader, WatchFlags, add_watch, init},
        removexattr, setxattr,
    },
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::MaybeUninit,
    path::{Path, PathBuf},
};

/// Files that the kernel itself reports as modified, when what they tell of happens.
const OF_THE_KERNEL: &str = ".events";

/// An extended attribute, as the proxy keeps its notes in, and that nobody has.
const NOTE: &str = "trusted.koord-witness";

/// Watches directories and files from when it is made.
#[derive(Debug)]
pub struct Witness {
    notifications: OwnedFd,
    places: BTreeMap<i32, PathBuf>,
}

/// The control groups of a testbed, by hierarchy, and the groups of caches, where there are any.
pub fn groups(testbed: &Testbed) -> Vec<PathBuf> {
    let below = testbed.cgroup_root();
    let hierarchies = testbed.hierarchies().iter();
    let groups = hierarchies.map(|it| it.mount_point().join(below.trim_start_matches('/')));
    let caches = PathBuf::from("/sys/fs/resctrl");
    groups.chain([caches]).filter(|it| it.exists()).collect()
}

// === impl Witness ===

impl Witness {
    /// Watches these files and directories, and the directories below them.
    pub fn of(places: &[PathBuf]) -> Result<Self> {
        let mut witness = Self {
            notifications: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            places: BTreeMap::new(),
        };
        for place in places {
            witness.watch(place)?;
        }
        Ok(witness)
    }

    fn watch(&mut self, place: &Path) -> Result<()> {
        let flags =
            WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::DELETE;
        let number = add_watch(&self.notifications, place, flags);
        let number = number.with_context(|| format!("cannot watch {}", place.display()))?;
        self.places.insert(number, place.to_owned());
        if !place.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.watch(&entry.path())?;
            }
        }
        Ok(())
    }

    /// What anybody has written, made or removed since it was asked last, and whose extended attributes were
    /// changed.
    pub fn written(&self) -> Result<BTreeSet<PathBuf>> {
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
            let place = self.places.get(&event.wd());
            let place = place.context("more was written than notifications can tell")?;
            if !name.contains(OF_THE_KERNEL) {
                // An empty name, of the place itself, adds nothing.
                written.insert(place.join(&*name));
            }
        }
    }

    /// Fails unless it sees that a file of a control group is written, with what it holds, and that a note is
    /// made at its group.
    pub fn sees(&self, file: &Path) -> Result<()> {
        self.written()?;
        fs::write(file, fs::read_to_string(file)?.trim())?;
        let group = file.parent().context("a file of a group")?;
        setxattr(group, NOTE, b"seen", XattrFlags::empty())?;
        removexattr(group, NOTE)?;
        let written = self.written()?;
        let expected = BTreeSet::from([file.to_owned(), group.to_owned()]);
        ensure!(
            written == expected,
            "{expected:?} were written, {written:?} seen"
        );
        Ok(())
    }
}
