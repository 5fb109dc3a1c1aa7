//! The kernel's own tree of control groups.
//!
//! Each hierarchy is opened once, and every path is resolved below that descriptor without following
//! links, so that no name leads elsewhere: in one call by `openat2`, or component by component on
//! kernels before 5.6, which lack it and among which some have group identity. Which of the two is
//! found out when it is opened: what a single file answers later says nothing of it.

use super::{Controller, Generation, Names, Note, Tree, Version};
use koord_model::CgroupPath;
use rustix::{
    fs::{
        AtFlags, Dir, FileType, FsWord, Mode, OFlags, ResolveFlags, XattrFlags,
        inotify::{self, CreateFlags, WatchFlags},
    },
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;

/// The kernel's own tree.
#[derive(Debug)]
pub struct OsTree {
    version: Version,
    cpu: Option<Mount>,
    cpuset: Option<Mount>,
    memory: Option<Mount>,
    io: Option<Mount>,
}

/// Why no control groups were found.
#[derive(Debug, Error)]
pub enum DetectError {
    #[error("cannot look for control groups in {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path} has none of the controllers cpu, cpuset and memory, of either cgroup version")]
    NoControllers { path: PathBuf },
}

/// A hierarchy that a controller is in.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    generation: Generation,
    directory: Arc<OwnedFd>,
    /// The kernel has no `openat2`, or somebody forbids it.
    walks: bool,
}

/// From `linux/magic.h`.
const CGROUP_SUPER_MAGIC: FsWord = 0x0027_e0eb;
const CGROUP2_SUPER_MAGIC: FsWord = 0x6367_7270;

/// The name of the cgroup v2 mount among those of v1, as systemd gives it.
const UNIFIED: &str = "unified";

// === impl OsTree ===

impl OsTree {
    /// Looks at what is mounted at and directly below `root`.
    ///
    /// # Errors
    ///
    /// When that cannot be found out ([`DetectError::Open`]), or there is none of the controllers cpu, cpuset
    /// and memory, of either version ([`DetectError::NoControllers`]).
    pub fn open(root: &Path) -> Result<Self, DetectError> {
        let failed = |source: io::Error| DetectError::Open {
            path: root.to_owned(),
            source,
        };
        let top = rustix::fs::open(root, DIRECTORY, Mode::empty()).map_err(|e| failed(e.into()))?;
        let tree = if generation_of(&top).map_err(failed)? == Some(Generation::V2) {
            let mount = Mount::new(Generation::V2, top);
            Self {
                version: Version::V2,
                ..Self::find(|controller| mount.if_it_has(controller)).map_err(failed)?
            }
        } else {
            let unified = Mount::at(&top, UNIFIED, Generation::V2).map_err(failed)?;
            let joint = names_below(&top, usize::MAX).map_err(failed)?.names;
            let v1 = |controller: Controller| {
                let wanted = controller.name(Generation::V1);
                v1_mount(&top, &joint, wanted)
            };
            let found = Self::find(|controller| match v1(controller)? {
                Some(mount) => Ok(Some(mount)),
                None => unified
                    .as_ref()
                    .map_or(Ok(None), |mount| mount.if_it_has(controller)),
            });
            let version = match unified {
                Some(_) => Version::Hybrid,
                None => Version::V1,
            };
            Self {
                version,
                ..found.map_err(failed)?
            }
        };
        if tree.cpu.is_none() && tree.cpuset.is_none() && tree.memory.is_none() {
            let path = root.to_owned();
            return Err(DetectError::NoControllers { path });
        }
        Ok(tree)
    }

    fn find(mount_of: impl Fn(Controller) -> io::Result<Option<Mount>>) -> io::Result<Self> {
        Ok(Self {
            version: Version::V1,
            cpu: mount_of(Controller::Cpu)?,
            cpuset: mount_of(Controller::Cpuset)?,
            memory: mount_of(Controller::Memory)?,
            io: mount_of(Controller::Io)?,
        })
    }

    fn mount(&self, controller: Controller) -> Option<&Mount> {
        match controller {
            Controller::Cpu => self.cpu.as_ref(),
            Controller::Cpuset => self.cpuset.as_ref(),
            Controller::Memory => self.memory.as_ref(),
            Controller::Io => self.io.as_ref(),
        }
    }

    fn directory(
        &self,
        controller: Controller,
        at: &CgroupPath,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let mount = self.mount(controller).ok_or(io::ErrorKind::NotFound)?;
        let opened = mount.open_beneath((at, None), flags);
        opened.map_err(|errno| match errno {
            // A link is no directory.
            Errno::LOOP => Errno::NOTDIR.into(),
            errno => errno.into(),
        })
    }

    fn file(
        &self,
        controller: Controller,
        (at, name): (&CgroupPath, &str),
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let mount = self.mount(controller).ok_or(io::ErrorKind::NotFound)?;
        let flags = flags | OFlags::CLOEXEC;
        Ok(mount.open_beneath((at, Some(name)), flags)?)
    }
}

impl Tree for OsTree {
    fn version(&self) -> Version {
        self.version
    }

    fn generation(&self, controller: Controller) -> Option<Generation> {
        self.mount(controller).map(|mount| mount.generation)
    }

    fn inode(&self, controller: Controller, at: &CgroupPath) -> io::Result<Option<u64>> {
        let opened = self.directory(controller, at, DIRECTORY);
        let stat = opened.and_then(|directory| Ok(rustix::fs::fstat(directory)?));
        Ok(if_there(stat)?.map(|stat| stat.st_ino))
    }

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<bool> {
        let opened = self.directory(controller, at, DIRECTORY);
        let stat = opened.and_then(|directory| {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            Ok(rustix::fs::statat(directory, file, flags)?)
        });
        Ok(if_there(stat)?.is_some())
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String> {
        read_all(self.file(controller, (at, file), OFlags::RDONLY)?)
    }

    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        let file = self.file(controller, (at, file), OFlags::WRONLY)?;
        write_at_once(&file, text)
    }

    fn watch(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<OwnedFd> {
        let file = self.file(controller, (at, file), OFlags::PATH)?;
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // By the name of the descriptor it is the file that was found below the mount.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify::add_watch(&watch, path, WatchFlags::MODIFY)?;
        Ok(watch)
    }

    fn children(&self, controller: Controller, at: &CgroupPath, most: usize) -> io::Result<Names> {
        names_below(self.directory(controller, at, DIRECTORY)?, most)
    }

    fn note(&self, controller: Controller, at: &CgroupPath, note: Note) -> io::Result<String> {
        let directory = self.directory(controller, at, LISTED)?;
        refuse_forgeable(&directory, note)?;
        let name = note.name();
        let mut text = vec![0; USUAL_NOTE];
        let mut length = rustix::fs::fgetxattr(&directory, attribute(name), &mut text);
        if let Err(Errno::RANGE) = length {
            text.resize(MAX_NOTE, 0);
            length = rustix::fs::fgetxattr(&directory, attribute(name), &mut text);
        }
        match length {
            Ok(length) => text.truncate(length),
            Err(Errno::NODATA) => text.clear(),
            Err(error) => return Err(error.into()),
        }
        // What nobody of ours has noted is passed over line by line by whoever reads it.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn set_note(
        &self,
        controller: Controller,
        at: &CgroupPath,
        note: Note,
        text: &str,
    ) -> io::Result<()> {
        let directory = self.directory(controller, at, LISTED)?;
        refuse_forgeable(&directory, note)?;
        let name = note.name();
        if !text.is_empty() {
            let flags = XattrFlags::empty();
            rustix::fs::fsetxattr(directory, attribute(name), text.as_bytes(), flags)?;
            return Ok(());
        }
        match rustix::fs::fremovexattr(directory, attribute(name)) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The longest note: what is longer than that the kernel does not take (`XATTR_SIZE_MAX` of
/// `include/uapi/linux/limits.h`), so whatever it has taken can be read.
const MAX_NOTE: usize = 64 << 10;

/// Room for nearly all of them.
const USUAL_NOTE: usize = 1 << 10;

/// Refuses a note of values on a directory to which others than root may write.
fn refuse_forgeable(directory: &OwnedFd, note: Note) -> Result<(), Errno> {
    if !note.is_of_values() {
        return Ok(());
    }
    let stat = rustix::fs::fstat(directory)?;
    let others = Mode::from_raw_mode(stat.st_mode) & (Mode::WGRP | Mode::WOTH);
    match stat.st_uid == 0 && others.is_empty() {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// The extended attribute that a note is. Those of users need no capability, and Linux 5.7.
fn attribute(name: &str) -> String {
    format!("user.koordinator.{name}")
}

// === impl Mount ===

impl Mount {
    fn new(generation: Generation, directory: OwnedFd) -> Self {
        let itself = open_at_once(&directory, (&CgroupPath::root(), None), DIRECTORY);
        Self {
            generation,
            directory: Arc::new(directory),
            // Of an open directory nothing else is forbidden.
            walks: matches!(itself, Err(Errno::NOSYS | Errno::PERM)),
        }
    }

    /// The mount of that generation at `name`, which may be a link as `cpu` is to `cpu,cpuacct`.
    fn at(top: &OwnedFd, name: &str, generation: Generation) -> io::Result<Option<Self>> {
        let directory = match rustix::fs::openat(top, name, DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = generation_of(&directory)?;
        Ok((found == Some(generation)).then(|| Self::new(generation, directory)))
    }

    /// The hierarchy of cgroup v1 below `root` that has this controller, by the kernel's name for it.
    pub(super) fn of_v1(root: &Path, controller: &str) -> io::Result<Option<Self>> {
        let top = rustix::fs::open(root, DIRECTORY, Mode::empty())?;
        v1_mount(&top, &names_below(&top, usize::MAX)?.names, controller)
    }

    pub(super) fn read(&self, at: &CgroupPath, name: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        read_all(self.open_beneath((at, Some(name)), flags)?)
    }

    pub(super) fn write(&self, at: &CgroupPath, name: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        write_at_once(&self.open_beneath((at, Some(name)), flags)?, text)
    }

    pub(super) fn children(&self, at: &CgroupPath, most: usize) -> io::Result<Names> {
        names_below(self.open_beneath((at, None), DIRECTORY)?, most)
    }

    /// This mount of cgroup v2, if the controller is in it.
    fn if_it_has(&self, controller: Controller) -> io::Result<Option<Self>> {
        let file = (&CgroupPath::root(), Some("cgroup.controllers"));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let controllers = read_all(self.open_beneath(file, flags)?)?;
        let has = controllers
            .split_whitespace()
            .any(|name| name == controller.name(Generation::V2));
        Ok(has.then(|| self.clone()))
    }

    /// Opens what lies below, following no links.
    fn open_beneath(&self, below: Below<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.walks {
            true => walk(&self.directory, below, flags),
            false => open_at_once(&self.directory, below, flags),
        }
    }
}

/// What was looked for, if it is there. What else can go wrong, as without a free descriptor, does not mean
/// that it is not.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn is_absence(error: &io::Error) -> bool {
    let is_removed = error.raw_os_error() == Some(Errno::NODEV.raw_os_error());
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    is_removed || absent.contains(&error.kind())
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The same to be listed. A descriptor of a path alone has no attributes either.
const LISTED: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

fn generation_of(directory: &OwnedFd) -> io::Result<Option<Generation>> {
    Ok(match rustix::fs::fstatfs(directory)?.f_type {
        CGROUP_SUPER_MAGIC => Some(Generation::V1),
        CGROUP2_SUPER_MAGIC => Some(Generation::V2),
        _ => None,
    })
}

/// The hierarchy of cgroup v1 that a controller is in: alone, or together with others as in
/// `cpu,cpuacct`.
fn v1_mount(top: &OwnedFd, names: &[String], wanted: &str) -> io::Result<Option<Mount>> {
    if let Some(mount) = Mount::at(top, wanted, Generation::V1)? {
        return Ok(Some(mount));
    }
    let joint = names
        .iter()
        .find(|name| name.split(',').any(|part| part == wanted));
    joint.map_or(Ok(None), |name| Mount::at(top, name, Generation::V1))
}

/// What lies below a directory: another, or a file in that.
type Below<'a> = (&'a CgroupPath, Option<&'a str>);

fn open_at_once(top: &OwnedFd, (at, file): Below<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = String::with_capacity(256);
    for component in at.components().chain(file) {
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(component);
    }
    let path = if path.is_empty() { "." } else { &path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)
}

fn walk(top: &OwnedFd, (at, file): Below<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut directory = rustix::io::fcntl_dupfd_cloexec(top, 0)?;
    for component in at.components() {
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        directory = rustix::fs::openat(&directory, component, flags, Mode::empty())?;
    }
    match file {
        Some(file) => rustix::fs::openat(directory, file, flags | OFlags::NOFOLLOW, Mode::empty()),
        None => Ok(directory),
    }
}

/// What a file has, in as few calls as there can be: thousands are read at a change of policy, and events
/// of a runtime wait for some.
///
/// What gives less than it was asked for has no more. The kernel stops short of that only before a record
/// that does not fit into its own buffer (`seq_read_iter` in `fs/seq_file.c`), which is a page at least:
/// these files are of one record, or of one for each process.
fn read_all(file: OwnedFd) -> io::Result<String> {
    let mut text = Vec::new();
    let mut part = [0; 512];
    loop {
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut part))?;
        text.extend_from_slice(&part[..count]);
        if count < part.len() {
            break;
        }
    }
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn write_at_once(file: &OwnedFd, text: &str) -> io::Result<()> {
    let written = rustix::io::retry_on_intr(|| rustix::io::write(file, text.as_bytes()))?;
    if written < text.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// The names of the directories in a directory, no more than `most` of them with those that are not UTF-8:
/// whoever made it makes as many as it likes.
fn names_below(directory: impl AsFd, most: usize) -> io::Result<Names> {
    let listed = listable(directory)?;
    let mut below = Names::default();
    let mut count = 0;
    for entry in Dir::new(listed)? {
        let entry = entry?;
        let is_directory = entry.file_type() == FileType::Directory;
        let name = entry.file_name();
        if !is_directory || name == c"." || name == c".." {
            continue;
        }
        if count == most {
            below.are_more = true;
            break;
        }
        count += 1;
        match name.to_str() {
            Ok(name) => below.names.push(name.to_owned()),
            // None of the kubelet's or of a runtime's.
            Err(_) => below.others += 1,
        }
    }
    Ok(below)
}

/// The same directory. A descriptor of a path alone cannot be listed.
fn listable(directory: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(directory, ".", LISTED, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        ffi::OsStr,
        io::Write,
        os::unix::{ffi::OsStrExt, fs::symlink, net::UnixStream},
    };

    #[test]
    fn a_directory_without_control_groups_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("cpu")).unwrap();
        let error = OsTree::open(directory.path()).unwrap_err();
        assert!(matches!(error, DetectError::NoControllers { .. }));
        let error = OsTree::open(&directory.path().join("none")).unwrap_err();
        assert!(matches!(error, DetectError::Open { .. }));
    }

    #[test]
    fn only_what_is_not_there_is_absent() {
        let looked = |errno: Errno| if_there::<()>(Err(errno.into())).ok();
        for absent in [Errno::NOENT, Errno::NOTDIR, Errno::NODEV] {
            assert_eq!(looked(absent), Some(None), "{absent}");
        }
        for unknown in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS] {
            assert_eq!(looked(unknown), None, "{unknown}");
        }
        assert_eq!(if_there(Ok(7)).unwrap(), Some(7));
    }

    #[test]
    fn what_gives_less_than_it_was_asked_for_is_not_read_again() {
        for length in [7, 1_200] {
            let text = "x".repeat(length);
            let (file, mut end) = UnixStream::pair().unwrap();
            end.write_all(text.as_bytes()).unwrap();
            // Nothing more comes, and another read is refused.
            file.set_nonblocking(true).unwrap();
            assert_eq!(read_all(file.into()).unwrap(), text);
        }
        let text = "x".repeat(1_024);
        let (file, mut end) = UnixStream::pair().unwrap();
        end.write_all(text.as_bytes()).unwrap();
        drop(end);
        assert_eq!(read_all(file.into()).unwrap(), text);
    }

    #[test]
    fn no_more_names_are_read_than_were_asked_for_and_odd_ones_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let listed = |most| {
            let top = rustix::fs::open(directory.path(), DIRECTORY, Mode::empty()).unwrap();
            let below = names_below(top, most).unwrap();
            (below.names.len(), below.are_more, below.others)
        };
        for name in ["a", "b", "c"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!(listed(2), (2, true, 0));
        assert_eq!(listed(3), (3, false, 0));
        let odd = |name| directory.path().join(OsStr::from_bytes(name));
        std::fs::create_dir(odd(b"x\xff")).unwrap();
        assert_eq!(listed(4), (3, false, 1));
        for name in ["a", "b", "c"] {
            std::fs::remove_dir(directory.path().join(name)).unwrap();
        }
        std::fs::create_dir(odd(b"y\xff")).unwrap();
        assert_eq!(listed(2), (0, false, 2));
        // Neither are odd ones gone through without an end.
        assert_eq!(listed(1), (0, true, 1));
    }

    #[test]
    fn no_component_of_a_path_may_be_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("top/a");
        std::fs::create_dir_all(&inside).unwrap();
        symlink(directory.path(), inside.join("out")).unwrap();
        symlink("/etc/hostname", inside.join("file")).unwrap();
        let path = |text| CgroupPath::parse(text).unwrap();
        // Neither way goes through a link; the words differ.
        for (walks, through) in [(false, Errno::LOOP), (true, Errno::NOTDIR)] {
            let top = directory.path().join("top");
            let top = rustix::fs::open(top, DIRECTORY, Mode::empty()).unwrap();
            let mut mount = Mount::new(Generation::V2, top);
            assert!(!mount.walks, "this kernel has openat2");
            mount.walks = walks;
            let tree = OsTree {
                version: Version::V2,
                cpu: Some(mount),
                cpuset: None,
                memory: None,
                io: None,
            };
            let has = |at| tree.has_directory(Controller::Cpu, &path(at)).unwrap();
            assert!(has("a"));
            assert!(!has("a/out"));
            assert!(!has("a/out/top"));
            for (at, refused) in [("a", Errno::LOOP), ("a/out", through)] {
                let read = tree.read(Controller::Cpu, &path(at), "file");
                let errno = read.unwrap_err().raw_os_error();
                assert_eq!(errno, Some(refused.raw_os_error()), "{at}");
            }
            let written = tree.write(Controller::Cpu, &path("a"), "new", "1");
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of the test's own")]
    fn at_once_or_step_by_step_the_same_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("top/a");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(inside.join("file"), "text\n").unwrap();
        symlink("a", directory.path().join("top/link")).unwrap();
        symlink("file", inside.join("link")).unwrap();
        let top = directory.path().join("top");
        let top = rustix::fs::open(top, DIRECTORY, Mode::empty()).unwrap();
        let found = |at: &str, file, flags| {
            let at = CgroupPath::parse(at).unwrap();
            let ways: [fn(&OwnedFd, Below<'_>, OFlags) -> _; 2] = [open_at_once, walk];
            ways.map(|way| match way(&top, (&at, file), flags) {
                Ok(opened) if flags == DIRECTORY => {
                    Ok(rustix::fs::fstat(&opened).unwrap().st_ino.to_string())
                }
                Ok(opened) => Ok(read_all(opened).unwrap()),
                Err(errno) => Err(errno),
            })
        };
        let text = || Ok("text\n".to_owned());
        assert_eq!(found("a", Some("file"), OFlags::RDONLY), [text(), text()]);
        let [at_once, walked] = found("a", None, DIRECTORY);
        assert!(at_once.is_ok() && at_once == walked, "{at_once:?}");
        let [at_once, walked] = found("", None, DIRECTORY);
        assert!(at_once.is_ok() && at_once == walked, "{at_once:?}");
        let none = || Err(Errno::NOENT);
        assert_eq!(found("b", Some("file"), OFlags::RDONLY), [none(), none()]);
        let link = found("a", Some("link"), OFlags::RDONLY);
        assert_eq!(link, [Err(Errno::LOOP), Err(Errno::LOOP)]);
        // Neither goes through it; the words differ.
        let [at_once, walked] = found("link", Some("file"), OFlags::RDONLY);
        assert_eq!((at_once, walked), (Err(Errno::LOOP), Err(Errno::NOTDIR)));
    }
}
