//! Processes of ours on this node, where no lock tells of them.
//!
//! Others than root can open the directory of CRI-O's socket, so nobody has a lock of it that says
//! anything, and a state directory or a socket of another name keeps nobody out. Then it is looked for
//! those who are called as we are, and believed as upstream's koordlet is. Who has had us started may be
//! called so as well, as a script is, and counts only if its command line says that it serves.

use crate::{
    cli::Invocation,
    config::Config,
    hub::Hub,
    neighbour::{self, Neighbour, PATIENCE, is_believed, is_unplaced},
};
use koord_kernel::neighbour::{is_same_file, of_root_called};
use koord_model::CgroupPath;
use std::{error::Error, path::Path};
use tokio::time::timeout;
use tracing::warn;

/// Part of what the kernel keeps of our name: 15 bytes, of which an index with a dash may be the first.
const NAME: &[u8] = b"koord-runtim";

/// The numbers of those that are called as we are.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// They act on our runtime, or may.
    pub(super) acting: Vec<u32>,
    /// Nobody can know from here where they are, so they are not believed.
    pub(super) unplaced: Vec<u32>,
    /// They are in pods that are not the operator's, so they are not believed.
    pub(super) strangers: Vec<u32>,
}

/// Who else there is, once it is known which pods there are; `None` if that cannot be known.
pub(super) async fn others(config: &Config, hub: &Hub) -> Option<Others> {
    let operators = Neighbour::new(config).operators(&hub.ledger().borrow());
    let (root, endpoint) = (config.roots.proc.clone(), config.runtime_endpoint.clone());
    let looker = neighbour::looker("others", move |pods| look(&root, &endpoint, pods));
    let looked = timeout(PATIENCE, looker.ask(|done| (operators, done))).await;
    looked.ok().flatten().flatten()
}

fn look(proc_root: &Path, endpoint: &Path, operators: &[CgroupPath]) -> Option<Others> {
    let mut found = Others::default();
    let is_meant = |name: &[u8]| name.windows(NAME.len()).any(|part| part == NAME);
    let trusted = |cgroups: &[String]| is_believed(cgroups, operators);
    let looked = of_root_called(proc_root, is_meant, trusted, |process| {
        let Some(words) = &process.words else {
            match is_unplaced(&process.cgroups) {
                _ if process.has_us_run => {}
                true => found.unplaced.push(process.id),
                false => found.strangers.push(process.id),
            }
            return;
        };
        // In a container the same path may lead elsewhere, and another one to the same socket.
        let is_ours = |theirs: &Path| {
            let is_same = is_same_file((proc_root, process.id), theirs, endpoint);
            is_same.unwrap_or(theirs == endpoint)
        };
        let shares =
            |config: &Path| is_same_file((proc_root, process.id), config, config) == Some(true);
        let acts = Invocation::acts_on(words, is_ours, shares);
        if acts.unwrap_or(!process.has_us_run) || is_launched(words) {
            found.acting.push(process.id);
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
