//! What processes in the node's own network send, by the class id of their control group: `net_cls` of
//! cgroup v1 is mounted beside cgroup v2, and the kernel is asked by itself, as no runtime makes such
//! groups here.

use super::{LINK, QDISC, Seen, sent};
use anyhow::{Context, Result, anyhow, ensure};
use koord_kernel::{
    cgroup::ClassIds,
    netlink::{
        Socket,
        traffic::{Class, Filter, GroupFilter, Handle, Htb, Qdisc},
    },
};
use koord_model::CgroupPath;
use rustix::mount::{MountFlags, mount};
use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    thread,
};

/// Beyond the node, by its default route.
const BEYOND: &str = "192.0.2.1:9";

/// That of the filter.
const PRIORITY: u16 = 3;

/// Bytes in a second.
const RATE: u64 = 125_000_000;

/// By a filter that says no class, the packets of a group are in the class of its id, and no others.
pub(super) fn are_sent_to_the_class_of_their_id() -> Result<()> {
    let root = Path::new("/run/koord-cgroups");
    let hierarchy = root.join("net_cls");
    fs::create_dir_all(&hierarchy)?;
    let flags = MountFlags::empty();
    mount("net_cls", hierarchy.as_path(), "cgroup", flags, c"net_cls")?;
    let ids = ClassIds::open(root)?.context("net_cls is mounted")?;
    let pod = hierarchy.join("pod");
    fs::create_dir(&pod)?;
    let class = Handle::new(1, 4);
    ids.set(&CgroupPath::parse("pod")?, class.number())?;

    let mut socket = Socket::open()?;
    // To the class of which nothing is looked at.
    let htb = Htb {
        default: 2,
        rate_to_quantum: 10,
    };
    socket.ask("make queues", &Qdisc::add_htb(LINK, QDISC, htb))?;
    for handle in [Handle::new(1, 2), class] {
        socket.ask("make a queue", &leaf(handle).put(LINK))?;
    }
    let filter = GroupFilter::add(LINK, QDISC, PRIORITY);
    socket.ask("make a filter", &filter)?;
    let dump = Filter::dump(LINK, QDISC);
    let held = socket.list("look", &dump, GroupFilter::read)?;
    ensure!(held == [PRIORITY], "{held:?}");

    send(None, 2)?;
    send(Some(pod.join("tasks")), 5)?;
    let mut seen = Seen::default();
    seen.comes("by their group", sent, &[&["1:4 has sent 5"]])?;
    // A group below has the id of the one in which it is made.
    fs::create_dir(pod.join("below"))?;
    send(Some(pod.join("below/tasks")), 3)?;
    seen.comes("by one below", sent, &[&["1:4 has sent 8"]])?;
    // And keeps it when that has none any more.
    ids.set(&CgroupPath::parse("pod")?, 0)?;
    send(Some(pod.join("tasks")), 1)?;
    send(Some(pod.join("below/tasks")), 1)?;
    seen.comes("by one below alone", sent, &[&["1:4 has sent 9"]])?;
    socket.ask("remove queues", &Qdisc::delete(LINK, QDISC))?;
    Ok(())
}

fn leaf(handle: Handle) -> Class {
    let burst = Class::burst_of(126_600, RATE);
    Class {
        handle,
        parent: Handle::ROOT,
        rate: RATE,
        ceil: RATE,
        burst,
        ceil_burst: burst,
        quantum: 60_000,
        priority: 1,
    }
}

/// Sends so many packets from a thread of its own, which goes to a group before.
fn send(tasks: Option<PathBuf>, packets: usize) -> Result<()> {
    let sender = thread::spawn(move || -> Result<()> {
        if let Some(tasks) = tasks {
            // Whoever writes it.
            fs::write(tasks, "0")?;
        }
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for _ in 0..packets {
            socket.send_to(b"hello", BEYOND)?;
        }
        Ok(())
    });
    sender.join().map_err(|_| anyhow!("the sender panicked"))?
}
