//! What classes and pods send, in queues of the kernel: on each interface with a default route a queueing
//! discipline of the kind `htb`, with a class for each class of pods and for each pod with a limit of its
//! own, and filters that know a pod by its address; where `net_cls` of cgroup v1 is mounted, also by the
//! class id of its control groups, which tells pods in the node's own network apart.
//!
//! What is there is listed, and only what differs is written, so what a process before us has left is taken
//! over. It is ours by a mark in what it is made with, and no other is ever changed. Who has never made any
//! removes none either: that of another one of us in the same network has the same mark. So it is noted
//! with what outlives a restart that there may be some. Who may not look at the node's network, as when the
//! right to it goes together with the hook, learns nothing of them, so the note stays. All of it happens on
//! a thread of its own, because the kernel's network has one lock for which anybody may wait.

mod groups;
mod left;
mod shape;
#[cfg(test)]
mod tests;

pub use self::{
    groups::GroupsError,
    shape::{Member, Shape},
};

use self::{
    groups::bring_ids,
    left::Left,
    shape::{GROUP_PRIORITY, HTB, Held, QDISC, Step, priority, steps},
};
use crate::worker::Worker;
use koord_kernel::{
    cgroup::ClassIds,
    netlink::{
        NetlinkError, Socket,
        route::{self, Family},
        traffic::{Class, Filter, GroupFilter, Handle, Qdisc},
    },
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    mem::Discriminant,
    path::{Path, PathBuf},
};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::debug;

/// The name of the note below the state directory.
const FILE_NAME: &str = "queues";

/// The stack of the thread, in bytes.
const STACK: usize = 128 << 10;

/// The number of the interface that every network namespace has (`LOOPBACK_IFINDEX` of
/// `include/net/flow.h`).
const LOOPBACK: u32 = 1;

/// The queues of this node's network.
#[derive(Debug)]
pub struct Traffic {
    worker: Worker<Job>,
    /// Queues of ours may be there.
    there: Cell<bool>,
    /// What a process before us has left.
    pub(crate) left: Left,
    /// Control groups have class ids here.
    knows_groups: bool,
    /// Of what kind the failure is that is in the log, and whether there were to be queues.
    pub complained: Cell<Option<(Discriminant<TrafficError>, bool)>>,
}

/// Why queues are not as they should be.
#[derive(Debug, Error)]
pub enum TrafficError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("interface {interface} has queues that are not ours: {kind} {handle}")]
    Foreign {
        interface: String,
        kind: String,
        handle: Handle,
    },
    #[error("no interface has a default route")]
    NoRoute,
    /// As in a network namespace of this process alone.
    #[error("no interface is seen but the loopback")]
    NoInterface,
    /// Those with addresses of their own are known by them all the same.
    #[error("pods are not known by their control groups")]
    Groups(#[from] GroupsError),
}

/// That queues of ours may be there: an empty file, which is there before the first of them and goes after
/// the last. A crash between leaves one that is not true, and the next start finds nothing to remove.
struct Note(PathBuf);

struct Job {
    /// `None` has them removed.
    shape: Option<Shape>,
    done: oneshot::Sender<Result<bool, TrafficError>>,
}

// === impl Traffic ===

impl Traffic {
    /// That of the network namespace in which this process is, with its note below `state_dir`, and with
    /// the class ids of control groups if there are any.
    pub fn of_kernel(state_dir: &Path, ids: Option<ClassIds>) -> Self {
        let knows_groups = ids.is_some();
        let queues = Note(state_dir.join(FILE_NAME));
        let this = Self::noted(state_dir, move |shape| {
            let mut done = bring(shape);
            // Ids with our number are ours where queues of ours are or were, and nobody else's are.
            let are_ours = match &done {
                Ok(removed) => shape.is_some() || *removed || queues.is_there(),
                Err(_) => false,
            };
            if let Some(ids) = ids.as_ref().filter(|_| are_ours) {
                let given = bring_ids(ids, shape);
                note(&mut done, given.map_err(TrafficError::from));
            }
            done
        });
        Self {
            knows_groups,
            ..this
        }
    }

    /// The same where control groups have class ids.
    #[cfg(test)]
    pub(crate) fn knowing_groups(self) -> Self {
        Self {
            knows_groups: true,
            ..self
        }
    }

    fn noted(
        state_dir: &Path,
        mut work: impl FnMut(Option<&Shape>) -> Result<bool, TrafficError> + Send + 'static,
    ) -> Self {
        let note = Note(state_dir.join(FILE_NAME));
        let there = note.is_there();
        let this = Self::by(move |shape| {
            if shape.is_some() {
                note.make();
            }
            let done = match work(shape) {
                // Who has noted none has made none.
                Err(error) if shape.is_none() && error.is_blind() && !note.is_there() => Ok(false),
                done => done,
            };
            if shape.is_none() && done.is_ok() {
                note.remove();
            }
            done
        });
        this.there.set(there);
        this
    }

    /// One whose queues may be there. `work` puts them in force, or removes them where there is nothing to
    /// be, and says whether it had to do anything; it is called on a thread that starts with the first job.
    pub fn by(
        mut work: impl FnMut(Option<&Shape>) -> Result<bool, TrafficError> + Send + 'static,
    ) -> Self {
        Self {
            worker: Worker::new("traffic", STACK, move |Job { shape, done }| {
                // Whoever asked may have gone away; its answer then has no reader, and that is fine.
                done.send(work(shape.as_ref())).ok();
            }),
            there: Cell::new(true),
            left: Left::default(),
            knows_groups: false,
            complained: Cell::default(),
        }
    }

    /// Whether queues of ours may be there, from before a restart too.
    pub fn is_there(&self) -> bool {
        self.there.get()
    }

    /// Whether pods in the node's own network are known by their control groups.
    pub fn knows_groups(&self) -> bool {
        self.knows_groups
    }

    /// Has queues of ours looked for, whatever the note says.
    pub fn may_be_there(&self) {
        self.there.set(true);
    }

    /// Has the queues be so, or not be there. Whether anything had to be done; `None` if there is no
    /// thread to do it.
    pub async fn bring(&self, shape: Option<Shape>) -> Option<Result<bool, TrafficError>> {
        let is_wanted = shape.is_some();
        if is_wanted {
            self.there.set(true);
        }
        let done = self.worker.ask(|done| Job { shape, done }).await?;
        if !is_wanted && done.is_ok() {
            self.there.set(false);
        }
        Some(done)
    }
}

// === impl TrafficError ===

impl TrafficError {
    /// Whether nothing could be seen of the node's network, so that nothing is known of what it has.
    fn is_blind(&self) -> bool {
        match self {
            Self::Netlink(error) => error.is_without_socket(),
            Self::NoInterface => true,
            Self::Foreign { .. } | Self::NoRoute | Self::Groups(_) => false,
        }
    }
}

// === impl Note ===

impl Note {
    fn is_there(&self) -> bool {
        self.0.exists()
    }

    /// Where it cannot be had, queues that nobody decides any more after a restart stay: no reason to have
    /// none now.
    #[expect(
        clippy::disallowed_methods,
        reason = "it has no content that a crash could leave half of"
    )]
    fn make(&self) {
        if !self.is_there()
            && let Err(error) = File::create(&self.0)
        {
            let error = &error as &dyn Error;
            debug!(error, "that there are queues cannot be noted");
        }
    }

    fn remove(&self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Brings the queues of all interfaces in line with what they should be. What fails for one keeps it
/// from no other.
///
/// # Errors
///
/// When the kernel cannot be asked, refuses something or does not answer for 5 s; when an interface with a
/// default route has queues of others, or there is no such interface; and without a `shape`, when none but
/// the loopback is seen. One failure is told, and that groups cannot be told apart only where there is no
/// other.
pub fn bring(shape: Option<&Shape>) -> Result<bool, TrafficError> {
    let mut socket = Socket::open()?;
    let qdiscs = match socket.list("list queues", &Qdisc::dump(), Qdisc::read) {
        // There is none where the kernel has none.
        Err(error) if shape.is_none() && error.is_unsupported() => return Ok(false),
        qdiscs => qdiscs?,
    };
    let links = match shape {
        Some(_) => default_links(&mut socket)?,
        None if qdiscs.iter().all(|it| it.link == LOOPBACK) => {
            return Err(TrafficError::NoInterface);
        }
        None => BTreeSet::new(),
    };
    let mut done = Ok(false);
    for qdisc in qdiscs.iter().filter(|it| is_ours(it)) {
        if !links.contains(&qdisc.link) {
            let removed = socket.ask("remove queues", &Qdisc::delete(qdisc.link, QDISC));
            note(
                &mut done,
                removed.map(|()| true).map_err(TrafficError::from),
            );
        }
    }
    if let Some(shape) = shape {
        for link in &links {
            let own = qdiscs.iter().find(|it| is_of(it, *link));
            note(&mut done, bring_link(&mut socket, *link, own, shape));
        }
        if links.is_empty() {
            note(&mut done, Err(TrafficError::NoRoute));
        }
    }
    done
}

/// Adds what came of one thing to what came of all: the first error, or whether anything was done. An error
/// of groups gives way to one that is not.
fn note(all: &mut Result<bool, TrafficError>, one: Result<bool, TrafficError>) {
    let gives_way = match (&*all, &one) {
        (Ok(_), _) => true,
        // The first of groups stays: that packets cannot be told apart is found out before any id is given.
        (Err(TrafficError::Groups(_)), one) => !matches!(one, Err(TrafficError::Groups(_))),
        (Err(_), _) => false,
    };
    match (all, one) {
        (Ok(done), Ok(more)) => *done |= more,
        (all, Err(error)) if gives_way => *all = Err(error),
        (Err(_), Ok(_)) | (_, Err(_)) => {}
    }
}

/// The interfaces by which packets leave that no other route is for.
fn default_links(socket: &mut Socket) -> Result<BTreeSet<u32>, NetlinkError> {
    let mut links = BTreeSet::new();
    for family in [Family::V4, Family::V6] {
        // There may be very many others.
        let read = |kind, payload: &[u8]| {
            let found = route::default_links(kind, payload);
            (!found.is_empty()).then_some(found)
        };
        let found = socket.list("list routes", &route::dump(family), read)?;
        links.extend(found.into_iter().flatten());
    }
    Ok(links)
}

/// Whether a qdisc is an interface's own.
fn is_of(qdisc: &Qdisc, link: u32) -> bool {
    qdisc.link == link && qdisc.parent == Handle::ROOT
}

fn is_ours(qdisc: &Qdisc) -> bool {
    is_of(qdisc, qdisc.link) && qdisc.handle == QDISC && qdisc.htb == Some(HTB)
}

fn bring_link(
    socket: &mut Socket,
    link: u32,
    own: Option<&Qdisc>,
    shape: &Shape,
) -> Result<bool, TrafficError> {
    let is_there = own.is_some_and(is_ours);
    if let Some(other) = own.filter(|it| !is_there && it.handle.is_given()) {
        let name = socket.name(link);
        return Err(TrafficError::Foreign {
            interface: name.unwrap_or_else(|_| link.to_string()),
            kind: other.kind.clone(),
            handle: other.handle,
        });
    }
    if !is_there {
        socket.ask("make queues", &Qdisc::add_htb(link, QDISC, HTB))?;
    }
    let held = Held {
        classes: socket.list("list queues", &Class::dump(link), Class::read)?,
        filters: socket.list("list filters", &Filter::dump(link, QDISC), Filter::read)?,
        knows_groups: shape.knows_groups() && knows_groups(socket, link)?,
    };
    let steps = steps(&held, shape);
    let mut done = Ok(!is_there || !steps.is_empty());
    for step in steps {
        match take(socket, link, step) {
            // Not every kernel has such filters.
            Err(error @ NetlinkError::Refused { .. }) if step == Step::KnowGroups => {
                note(&mut done, Err(GroupsError::Filter(error).into()));
            }
            // What the kernel refuses of one pod keeps it from no other.
            Err(error @ NetlinkError::Refused { .. }) => note(&mut done, Err(error.into())),
            taken => taken?,
        }
    }
    done
}

/// Whether an interface has a filter of ours that knows groups.
fn knows_groups(socket: &mut Socket, link: u32) -> Result<bool, NetlinkError> {
    let dump = Filter::dump(link, QDISC);
    let priorities = socket.list("list filters", &dump, GroupFilter::read)?;
    Ok(priorities.contains(&GROUP_PRIORITY))
}

fn take(socket: &mut Socket, link: u32, step: Step) -> Result<(), NetlinkError> {
    let (what, request) = match step {
        Step::Put(class) => ("make a queue", class.put(link)),
        Step::Remove(class) => ("remove a queue", Class::delete(link, class)),
        Step::Add(source, class) => {
            let filter = (priority(source), source, class);
            ("make a filter", Filter::add(link, QDISC, filter))
        }
        Step::Redirect(filter, class) => ("change a filter", filter.redirect(link, QDISC, class)),
        Step::Withdraw(filter) => ("remove a filter", filter.delete(link, QDISC)),
        Step::KnowGroups => (
            "make a filter of control groups",
            GroupFilter::add(link, QDISC, GROUP_PRIORITY),
        ),
    };
    socket.ask(what, &request)
}
