//! A proxy that is killed while threads of it stand still in the kernel, where not even `SIGKILL`
//! reaches them: its clients see its end, and the next one has its place.
//!
//! A disk that does not answer does that to a thread; here the freezer of cgroup v1 does.

use anyhow::{Context, Result};
use koord_integration::{Node, ProxyOptions, classes};
use koord_testkit::{ContainerdVersion, Testbed, poll, poll::wait_until};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind, Read as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Those that wait for the kernel, and what a node without policy and pods has of them.
const STANDING: [&str; 3] = ["cgroup-writer", "memory-reclaim", "neighbour"];

#[tokio::test]
async fn who_is_killed_with_a_thread_that_stands_still_leaves_its_place() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, ProxyOptions::default())?;
    let killed = node.proxy.pid().context("the proxy runs")?;
    let mut client = UnixStream::connect(node.socket())?;
    client.set_read_timeout(Some(poll::bound()))?;
    let frozen = Frozen::make(node.testbed(), killed)?;
    node.proxy.send_kill()?;
    // What was not read yet makes it a reset.
    if let Err(error) = client.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "a client waits");
    }
    wait_until("only those who stand still live on", || {
        names(killed).is_ok_and(|names| names == set(&STANDING))
    });

    node.launch_proxy()?;
    let client = node.client().await?;
    let running = node.run(&client, &classes::be("next")).await?;
    wait_until("the next proxy writes", || {
        let quota = running.cgroup.read("cpu", None, "cpu.cfs_quota_us");
        quota.is_ok_and(|quota| quota == "100000")
    });
    drop(frozen);
    wait_until("the one that was killed ends", || {
        names(killed).is_ok_and(|names| names.is_empty())
    });
    Ok(())
}

/// Threads of a process that run no more until this is dropped.
struct Frozen(PathBuf);

// === impl Frozen ===

impl Frozen {
    fn make(testbed: &Testbed, process: u32) -> Result<Self> {
        let freezer = testbed.hierarchies().iter().find(|it| it.has("freezer"));
        let freezer = freezer.context("this machine has no freezer of cgroup v1")?;
        let below = testbed.cgroup_root();
        let group = freezer.mount_point().join(below.trim_start_matches('/'));
        let frozen = Self(group.join("still"));
        fs::create_dir_all(&frozen.0)?;
        // They may only just start when the proxy serves. One that is frozen earlier keeps what it has not
        // left yet; one that is not apart by then ends with the rest.
        let mut apart = Vec::new();
        wait_until("the threads stand apart", || {
            apart = standing_apart(process).unwrap_or_default();
            let names: BTreeSet<String> = apart.iter().filter_map(|it| name(it).ok()).collect();
            names == set(&STANDING)
        });
        for thread in apart {
            let id = thread.file_name().context("a thread has an id")?;
            fs::write(frozen.0.join("tasks"), id.as_encoded_bytes())?;
        }
        fs::write(frozen.state(), "FROZEN")?;
        wait_until("the threads stand still", || {
            fs::read_to_string(frozen.state()).is_ok_and(|state| state.trim() == "FROZEN")
        });
        Ok(frozen)
    }

    fn state(&self) -> PathBuf {
        self.0.join("freezer.state")
    }
}

impl Drop for Frozen {
    /// The directory goes with the testbed, which thaws what this could not.
    fn drop(&mut self) {
        fs::write(self.state(), "THAWED").ok();
    }
}

fn threads(process: u32) -> Result<Vec<PathBuf>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        threads.push(thread?.path());
    }
    Ok(threads)
}

fn name(thread: &Path) -> Result<String> {
    Ok(fs::read_to_string(thread.join("comm"))?.trim().to_owned())
}

/// Those who wait for the kernel and have nothing any more that others wait for.
fn standing_apart(process: u32) -> Result<Vec<PathBuf>> {
    let mut apart = threads(process)?;
    // What cannot be read ends, or is just about to leave it.
    apart.retain(|thread| {
        name(thread).is_ok_and(|name| STANDING.contains(&name.as_str()))
            && is_apart(thread).unwrap_or(false)
    });
    Ok(apart)
}

/// Whether a thread has no socket, pipe or lock; what leads to the same as a standard stream is left
/// to it.
fn is_apart(thread: &Path) -> Result<bool> {
    let standard = (0..=2).map(|it| fs::read_link(thread.join(format!("fd/{it}"))));
    let standard: Vec<PathBuf> = standard.filter_map(io::Result::ok).collect();
    for descriptor in fs::read_dir(thread.join("fd"))? {
        let descriptor = descriptor?;
        let to = fs::read_link(descriptor.path())?;
        if standard.contains(&to) {
            continue;
        }
        let info = fs::read_to_string(thread.join("fdinfo").join(descriptor.file_name()))?;
        let is_lock = info.lines().any(|line| line.starts_with("lock:"));
        let to = to.to_string_lossy();
        if is_lock || to.starts_with("socket:") || to.starts_with("pipe:") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Those of the threads that are more than what their parent has yet to hear of.
fn names(process: u32) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for thread in threads(process).unwrap_or_default() {
        let stat = fs::read_to_string(thread.join("stat"))?;
        if !stat.contains(") Z ") {
            names.insert(name(&thread)?);
        }
    }
    Ok(names)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}
