//! What Terway, a network plugin, is told of classes and pods: two files that it reads.
//!
//! Both are made anew as a whole and written where they say something else, on a thread of their own,
//! because a disk may be slow and what writes the kernel must not wait for it.

mod folder;
#[cfg(test)]
mod tests;

pub use self::folder::{Folder, FolderError};

use crate::{ledger::Pod, worker::Worker};
use koord_model::{NetClass, NetRate, NodeNetwork};
use serde::Serialize;
use std::{cell::Cell, collections::BTreeMap, path::PathBuf};
use tokio::sync::oneshot;

/// The stack of the thread, in bytes.
const STACK: usize = 128 << 10;

/// What the classes have, a line for each number.
const CLASSES: &str = "global_bps_config";
/// What the pods have, by their UIDs.
const PODS: &str = "pod.json";

/// Where Terway looks for the control group of a pod, on the host as it is.
const NET_CLS: &str = "/sys/fs/cgroup/net_cls";

/// The folder that Terway reads.
#[derive(Debug)]
pub struct Terway {
    writer: Worker<Job>,
    /// Files of ours may be there, as at every start.
    there: Cell<bool>,
    /// That it fails is in the log.
    pub complained: Cell<bool>,
}

/// What the two files are to say.
#[derive(Debug)]
pub struct Files {
    classes: String,
    pods: String,
}

/// What became of the two: whether anything was done.
#[derive(Debug)]
pub struct Told {
    pub classes: Result<bool, FolderError>,
    pub pods: Result<bool, FolderError>,
}

struct Job {
    /// `None` has them removed.
    files: Option<Files>,
    done: oneshot::Sender<Told>,
}

#[derive(Serialize)]
struct PodEntry<'a> {
    #[serde(rename = "podName")]
    name: &'a str,
    #[serde(rename = "podNamespace")]
    namespace: &'a str,
    #[serde(rename = "podUID")]
    uid: &'a str,
    prio: u8,
    #[serde(rename = "cgroupDir")]
    cgroup: String,
    #[serde(rename = "qosConfig")]
    limits: Limits,
}

/// Bytes in a second; 0 is no limit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    ingress_bandwidth: u64,
    egress_bandwidth: u64,
}

// === impl Terway ===

impl Terway {
    /// The folder at `path`, whose thread starts with the first job. It alone opens the folder, which
    /// may hang: so what is there is found out when it is to go.
    pub fn reading(path: PathBuf) -> Self {
        let folder = Folder::at(path);
        Self {
            there: Cell::new(true),
            complained: Cell::default(),
            writer: Worker::new("terway", STACK, move |Job { files, done }| {
                // Whoever asked may have gone away; its answer then has no reader, and that is fine.
                done.send(files.map_or_else(|| withdraw(&folder), |files| files.put(&folder)))
                    .ok();
            }),
        }
    }

    /// One for which this is done instead, without an answer, whatever it is to tell.
    #[cfg(test)]
    pub(crate) fn doing(work: impl Fn() + Send + 'static) -> Self {
        Self {
            there: Cell::new(true),
            complained: Cell::default(),
            writer: Worker::new("terway", STACK, move |_: Job| work()),
        }
    }

    /// Whether files of ours may be there, from before a restart too.
    pub fn is_told(&self) -> bool {
        self.there.get()
    }

    /// Has the files say this, or not be there. `None` if there is no thread to do it.
    pub async fn tell(&self, files: Option<Files>) -> Option<Told> {
        let is_said = files.is_some();
        if is_said {
            self.there.set(true);
        }
        let told = self.writer.ask(|done| Job { files, done }).await?;
        if !is_said && told.classes.is_ok() && told.pods.is_ok() {
            self.there.set(false);
        }
        Some(told)
    }
}

fn withdraw(folder: &Folder) -> Told {
    Told {
        classes: folder.withdraw(CLASSES),
        pods: folder.withdraw(PODS),
    }
}

// === impl Files ===

impl Files {
    /// What is decided for the node and for these pods, as far as they are there and it is known
    /// where.
    pub fn of<'a>(network: &NodeNetwork, pods: impl Iterator<Item = &'a Pod>) -> Self {
        let pods = pods.filter(|pod| pod.ready).filter_map(PodEntry::of);
        let pods: BTreeMap<_, _> = pods.map(|pod| (pod.uid, pod)).collect();
        Self {
            classes: classes(network),
            pods: serde_json::to_string(&pods).expect("texts and numbers are JSON"),
        }
    }

    fn put(&self, folder: &Folder) -> Told {
        Told {
            classes: folder.put(CLASSES, &self.classes),
            pods: folder.put(PODS, &self.pods),
        }
    }
}

/// In the order in which upstream writes them.
fn classes(network: &NodeNetwork) -> String {
    let NodeNetwork {
        total,
        latency_sensitive,
        best_effort,
    } = network;
    let mut text = String::new();
    let mut line = |key: String, rate: NetRate| {
        text += &format!("{key} {}\n", rate.bytes());
    };
    line("hw_tx_bps_max".to_owned(), *total);
    line("hw_rx_bps_max".to_owned(), *total);
    for (level, NetClass { sent, received }) in [(1, latency_sensitive), (2, best_effort)] {
        for (direction, share) in [("tx", sent), ("rx", received)] {
            line(format!("offline_l{level}_{direction}_bps_min"), share.min);
            line(format!("offline_l{level}_{direction}_bps_max"), share.max);
        }
    }
    text
}

// === impl PodEntry ===

impl<'a> PodEntry<'a> {
    fn of(pod: &'a Pod) -> Option<Self> {
        let (network, at) = (pod.network()?, pod.own.at.as_ref()?);
        Some(Self {
            name: &pod.view.name,
            namespace: &pod.view.namespace,
            uid: pod.view.uid.as_str(),
            prio: network.priority.rank(),
            cgroup: format!("{NET_CLS}/{}", at.as_str()),
            limits: Limits {
                ingress_bandwidth: network.ingress.bytes(),
                egress_bandwidth: network.egress.bytes(),
            },
        })
    }
}
