//! RDMA on a machine that has none: a sysfs that tells of a few functions of a device, over the
//! machine's own, and nodes below `/dev` that stand for what the kernel would have made there.
//!
//! The nodes are those of another device of the machine, which no container may open by itself.
//! Whatever of all this a machine has is left as it is.

use crate::RunningPod;
use anyhow::{Context, Result};
use koord_testkit::cri::CriClient;
use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// What is made goes again.
#[derive(Debug)]
pub struct RdmaMachine {
    sys: TempDir,
    /// As sysfs writes it.
    number: String,
    made: Vec<PathBuf>,
}

/// Functions, each with the name of its device; the last has no node.
const FUNCTIONS: [(&str, &str); 3] = [
    ("ffff:ff:00.0", "uverbs9000"),
    ("ffff:ff:00.1", "uverbs9001"),
    ("ffff:ff:00.2", "uverbs9002"),
];

const VERBS: &str = "class/infiniband_verbs";
const CONNECTIONS: &str = "class/misc/rdma_cm";
const NODES: &str = "/dev/infiniband";

/// Takes commands about loop devices, and does nothing with one that is opened.
const STAND_IN: &str = "/dev/loop-control";

/// Names the devices that can be opened, to be read and written.
const OPENED: &str = "cd /dev/infiniband 2>/dev/null || exit 0
    for it in *; do test -c $it && (: <>$it) && echo $it; done; true";

// === impl RdmaMachine ===

impl RdmaMachine {
    pub fn make() -> Result<Self> {
        let stand_in = fs::metadata(STAND_IN).with_context(|| format!("need {STAND_IN}"))?;
        let number = (major(stand_in.rdev()), minor(stand_in.rdev()));
        let mut machine = Self {
            sys: tempfile::tempdir()?,
            number: format!("{}:{}", number.0, number.1),
            made: Vec::new(),
        };
        machine.make_sys()?;
        fs::create_dir_all(NODES)?;
        if !Path::new("/sys").join(VERBS).exists() {
            // Ours, or that of a run that was killed.
            machine.made.push(NODES.into());
        }
        for (_, name) in &FUNCTIONS[..2] {
            machine.make_node(name, number)?;
        }
        if !Path::new("/sys").join(CONNECTIONS).exists() {
            machine.make_node("rdma_cm", number)?;
        }
        Ok(machine)
    }

    /// Where sysfs is to be taken to be.
    pub fn argument(&self) -> String {
        format!("--sys-root={}", self.sys.path().display())
    }

    /// The number that the devices have, as sysfs writes it.
    pub fn number(&self) -> &str {
        &self.number
    }

    fn make_sys(&self) -> Result<()> {
        let (real, own) = (Path::new("/sys"), self.sys.path());
        link_all(real, own, "class")?;
        link_all(&real.join("class"), &own.join("class"), "misc")?;
        link_all(&real.join("class/misc"), &own.join("class/misc"), "")?;
        // Where there is RDMA it is not that of these tests.
        fs::remove_file(own.join(VERBS)).ok();
        for (function, name) in FUNCTIONS {
            let at = own.join(VERBS).join(name);
            self.make_device(&at)?;
            symlink(Path::new("../../..").join(function), at.join("device"))?;
        }
        match own.join(CONNECTIONS).exists() {
            true => Ok(()),
            false => self.make_device(&own.join(CONNECTIONS)),
        }
    }

    fn make_device(&self, at: &Path) -> Result<()> {
        fs::create_dir_all(at)?;
        Ok(fs::write(at.join("dev"), format!("{}\n", self.number))?)
    }

    fn make_node(&mut self, name: &str, (major, minor): (u32, u32)) -> Result<()> {
        let at = Path::new(NODES).join(name);
        // Of a run that was killed.
        fs::remove_file(&at).ok();
        let mode = Mode::from_raw_mode(0o600);
        let number = makedev(major, minor);
        mknodat(CWD, &at, FileType::CharacterDevice, mode, number).context("make a device node")?;
        self.made.push(at);
        Ok(())
    }
}

impl Drop for RdmaMachine {
    fn drop(&mut self) {
        for at in self.made.iter().rev() {
            let gone = match at.as_path() == Path::new(NODES) {
                true => fs::remove_dir(at),
                false => fs::remove_file(at),
            };
            gone.ok();
        }
    }
}

/// The devices that a container can open.
pub async fn opened(client: &CriClient, pod: &RunningPod) -> Result<String> {
    let told = client.exec(&pod.container, ["sh", "-c", OPENED]).await?;
    let told = String::from_utf8(told.stdout)?;
    Ok(told.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// What a container is told that opens such a device without having been given it.
pub async fn refusal(client: &CriClient, pod: &RunningPod, number: &str) -> Result<String> {
    let (major, minor) = number.split_once(':').context("a number")?;
    let script = format!("mknod /own c {major} {minor} && : <>/own");
    let told = client.exec(&pod.container, ["sh", "-c", &script]).await?;
    Ok(String::from_utf8(told.stderr)?)
}

/// Has a directory lead to everything in another one, but for one name.
fn link_all(from: &Path, to: &Path, without: &str) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let name = entry?.file_name();
        if name != without {
            symlink(from.join(&name), to.join(&name))?;
        }
    }
    Ok(())
}
