//! Processes of ours on this node, where no lock tells of them.
//!
//! Others than root can open the directory of CRI-O's socket, so nobody has a lock of it that says
//! anything, and a state directory or a socket of another name keeps nobody out. Then it is looked for
//! those who are called as we are, and believed as upstream's koordlet is.

use crate::{
    cli::Invocation,
    config::Config,
    hub::Hub,
    neighbour::{Neighbour, is_believed},
    worker::Worker,
};
use koord_kernel::neighbour::of_root_called;
use koord_model::CgroupPath;
use std::{error::Error, path::Path, time::Duration};
use tokio::{sync::oneshot, time::timeout};
use tracing::warn;

/// Part of what the kernel keeps of our name: 15 bytes, of which an index with a dash may be the first.
const NAME: &[u8] = b"koord-runtim";

/// The stack of the thread that looks, in bytes.
const STACK: usize = 256 << 10;

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A look, given the control groups of the operator's pods.
type Look = (Vec<CgroupPath>, oneshot::Sender<Option<Vec<u32>>>);

/// The numbers of those that act on our runtime, once it is known which pods there are; `None` if that
/// cannot be known.
pub(super) async fn others(config: &Config, hub: &Hub) -> Option<Vec<u32>> {
    let operators = Neighbour::new(config).operators(&hub.ledger().borrow());
    let (root, endpoint) = (config.roots.proc.clone(), config.runtime_endpoint.clone());
    let looker = Worker::new("neighbour", STACK, move |(operators, done): Look| {
        done.send(look(&root, &endpoint, &operators)).ok();
    });
    let looked = timeout(PATIENCE, looker.ask(|done| (operators, done))).await;
    looked.ok().flatten().flatten()
}

fn look(proc_root: &Path, endpoint: &Path, operators: &[CgroupPath]) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    let is_meant = |name: &[u8]| name.windows(NAME.len()).any(|part| part == NAME);
    let trusted = |cgroups: &[String]| is_believed(cgroups, operators);
    let looked = of_root_called(proc_root, is_meant, trusted, |process| {
        let words = process.words.as_ref();
        let acts =
            |words: &Vec<String>| is_launched(words) || Invocation::may_act_on(words, endpoint);
        if words.is_some_and(acts) {
            found.push(process.id);
        }
    });
    if let Err(error) = looked {
        let error = &error as &dyn Error;
        warn!(error, "whether another koord-runtime-proxy runs is unknown");
        return None;
    }
    Some(found)
}

/// Whether a runtime has launched it, which calls it by an index and says past its command line how it is
/// configured: nobody else knows which runtime that is.
fn is_launched(words: &[String]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    let index = name.and_then(|name| name.to_str()?.split_once('-'));
    index.is_some_and(|(index, _)| {
        index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit())
    })
}
