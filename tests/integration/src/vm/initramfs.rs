//! A root file system for a machine without a disk: an archive of a few files, as the kernel
//! unpacks it at boot (`Documentation/driver-api/early-userspace/buffer-format.rst`).

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

/// An archive in the format `newc`.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    /// Those that are in, and links that lead to one.
    directories: BTreeSet<PathBuf>,
    libraries: BTreeSet<PathBuf>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
const PROGRAM: u32 = 0o100_755;

impl Initramfs {
    /// Puts a program in, and the libraries that it loads.
    pub fn add_program(&mut self, at: &str, program: &Path) -> Result<()> {
        self.add_file(Path::new(at), program)?;
        self.add_libraries(program, &[])
    }

    /// Puts in the libraries that a program loads, but for those that these directories have.
    pub fn add_libraries(&mut self, program: &Path, but: &[PathBuf]) -> Result<()> {
        for library in libraries(program, but)? {
            let name = library.file_name().context("a library is a file")?;
            let is_there = but.iter().any(|directory| directory.join(name).exists());
            if !is_there && self.libraries.insert(library.clone()) {
                self.add_file(library.strip_prefix("/")?, &library)?;
            }
        }
        Ok(())
    }

    /// Puts a file in as a program, and the directories above it.
    pub fn add_file(&mut self, at: &Path, from: &Path) -> Result<()> {
        self.add_with_mode(at, from, PROGRAM)
    }

    /// Puts in what is below a directory: files with their modes, links as links, directories.
    pub fn add_tree(&mut self, at: &Path, from: &Path) -> Result<()> {
        let reading = || format!("cannot read {}", from.display());
        let entries = fs::read_dir(from).with_context(reading)?;
        let mut names: Vec<_> = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        // So that the archive of the same files is the same.
        names.sort();
        self.add_directory(at)?;
        for name in names {
            let (at, from) = (at.join(&name), from.join(&name));
            let kind = fs::symlink_metadata(&from)?;
            if kind.is_symlink() {
                self.add_link(&at, &fs::read_link(&from)?)?;
            } else if kind.is_dir() {
                self.add_tree(&at, &from)?;
            } else {
                let mode = kind.permissions().mode() & 0o7777;
                self.add_with_mode(&at, &from, FILE | mode)?;
            }
        }
        Ok(())
    }

    /// Puts in a link. What is added below it later lies where it leads.
    pub fn add_link(&mut self, at: &Path, to: &Path) -> Result<()> {
        self.add_above(at)?;
        self.directories.insert(at.to_owned());
        self.entry(at, LINK, to.as_os_str().as_bytes())
    }

    /// Puts in a directory, and those above it.
    pub fn add_directory(&mut self, at: &Path) -> Result<()> {
        self.add_above(at)?;
        let is_root = at.as_os_str().is_empty();
        if !is_root && self.directories.insert(at.to_owned()) {
            self.entry(at, DIRECTORY, &[])?;
        }
        Ok(())
    }

    fn add_with_mode(&mut self, at: &Path, from: &Path, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.add_above(at)?;
        self.entry(at, mode, &content)
    }

    fn add_above(&mut self, at: &Path) -> Result<()> {
        match at.parent() {
            Some(above) => self.add_directory(above),
            None => Ok(()),
        }
    }

    /// The whole archive.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.entry(Path::new("TRAILER!!!"), 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &Path, mode: u32, content: &[u8]) -> Result<()> {
        let name = name.to_str().context("a path is not UTF-8")?;
        self.entries += 1;
        let size = u32::try_from(content.len())?;
        let name_size = u32::try_from(name.len() + 1)?;
        let (inode, links) = (self.entries, 1);
        self.bytes.extend(b"070701");
        // inode, mode, user, group, links, time, size, four device numbers, name size, checksum
        for field in [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

/// What the loader of this machine would load with a program, and the loader itself.
fn libraries(program: &Path, first: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("ldd");
    command.arg(program);
    if !first.is_empty() {
        command.env("LD_LIBRARY_PATH", env::join_paths(first)?);
    }
    let listing = command.output().context("cannot run ldd")?;
    let text = String::from_utf8(listing.stdout)?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

#[test]
fn an_archive_is_padded_as_the_kernel_reads_it() {
    let mut archive = Initramfs::default();
    archive.entry(Path::new("a"), DIRECTORY, &[]).unwrap();
    archive.entry(Path::new("a/bcd"), PROGRAM, b"abc").unwrap();
    let bytes = archive.finish().unwrap();
    // Header, name and its zero byte, then zeros up to the next multiple of four; so for contents.
    assert_eq!(&bytes[..14], b"07070100000001");
    assert_eq!(&bytes[110..117], b"a\x0007070");
    assert_eq!(&bytes[222..228], b"a/bcd\0");
    assert_eq!(&bytes[228..237], b"abc\x0007070");
    assert_eq!(&bytes[342..], b"TRAILER!!!\0\0\0\0");
}

#[test]
fn a_tree_comes_with_its_modes_and_links_and_what_is_below_a_link_lies_where_that_leads() {
    let directory = tempfile::tempdir().unwrap();
    let below = |path| directory.path().join(path);
    fs::create_dir_all(below("lib/units")).unwrap();
    fs::write(below("lib/units/a.service"), "text").unwrap();
    fs::set_permissions(
        below("lib/units/a.service"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    std::os::unix::fs::symlink("a.service", below("lib/units/b.service")).unwrap();

    let mut archive = Initramfs::default();
    archive
        .add_link(Path::new("lib"), Path::new("usr/lib"))
        .unwrap();
    archive.add_tree(Path::new(""), directory.path()).unwrap();
    let text = String::from_utf8(archive.finish().unwrap()).unwrap();
    let entries = text.split("070701").skip(1).map(|entry| {
        let fields = entry.split_at(104);
        let name = fields.1.split('\0').next().unwrap();
        (name, &fields.0[8..16])
    });
    let entries: Vec<_> = entries.collect();
    assert_eq!(
        entries,
        [
            ("lib", "0000a1ff"),
            ("lib/units", "000041ed"),
            ("lib/units/a.service", "000081a4"),
            ("lib/units/b.service", "0000a1ff"),
            ("TRAILER!!!", "00000000"),
        ]
    );
}
