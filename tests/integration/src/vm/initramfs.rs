//! A root file system for a machine without a disk: an archive of a few files, as the kernel
//! unpacks it at boot (`Documentation/driver-api/early-userspace/buffer-format.rst`).

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// An archive in the format `newc`.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    directories: BTreeSet<PathBuf>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Initramfs {
    /// Puts a program in, and the libraries that it loads.
    pub fn add_program(&mut self, at: &str, program: &Path) -> Result<()> {
        self.add_file(Path::new(at), program)?;
        for library in libraries(program)? {
            self.add_file(library.strip_prefix("/")?, &library)?;
        }
        Ok(())
    }

    /// Puts a file in, and the directories above it.
    pub fn add_file(&mut self, at: &Path, from: &Path) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
        above.pop();
        for directory in above.into_iter().rev() {
            if self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[])?;
            }
        }
        self.entry(at, PROGRAM, &content)
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
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let listing = Command::new("ldd").arg(program).output();
    let listing = listing.context("cannot run ldd")?;
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
