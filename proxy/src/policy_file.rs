//! The node policy file: read at start, and again whenever it changes.
//!
//! A file that cannot be used leaves the last good policy in force.
//!
//! Reading and parsing happen on a thread beside the one that carries the data.

use crate::{
    admin::Condition,
    hub::Hub,
    issues,
    metrics::Metrics,
    regular_file::{self, FileError},
    watched_file::{self, Fingerprint, Watch},
    worker::Worker,
};
use koord_proto::{
    Issues,
    policy::{NodePolicy, Parsed, PolicyError, PolicyIssue},
};
use rustix::fd::OwnedFd;
use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};
use tracing::{info, warn};

/// Bytes of a policy file.
const MAX_FILE: u64 = 4 << 20;

/// The stack of the thread that parses, in bytes: what is parsed is nested.
const STACK: usize = 2 << 20;

/// What is known of the policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyState {
    /// The policy in force: that of the last file that could be used, empty before the first.
    pub policy: Arc<NodePolicy>,
    /// What of that policy is not in force because it is wrong.
    pub issues: Arc<Issues<PolicyIssue>>,
    /// Documents of that file that are about other nodes.
    pub other_nodes: usize,
    /// Whether a file could be used since the start.
    pub is_of_file: bool,
    /// Why the file as it is now cannot be used, if it cannot.
    pub error: Option<Arc<LoadError>>,
}

/// Why a policy file cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: FileError,
    },
    #[error("{} holds no policy", path.display())]
    Policy {
        path: PathBuf,
        #[source]
        source: PolicyError,
    },
}

/// Keeps a [`PolicyState`] in line with a file.
#[derive(Debug)]
pub struct PolicyFile {
    source: Source,
    /// What was last read, so that only a change is a change.
    seen: Option<Fingerprint>,
    /// How often it is looked at though nothing was noticed.
    period: Duration,
    state: watch::Sender<PolicyState>,
    metrics: Rc<Metrics>,
}

#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    node_name: String,
}

/// What a file is now; nothing more if it is what was seen last.
type Loaded = (Fingerprint, Option<Result<Parsed, LoadError>>);

/// A reading of the file: what was seen of it last, and who wants to know.
type Reading = (Option<Fingerprint>, oneshot::Sender<Answer>);

/// A watch of the file, if there can be one, and what was read once there was: what changes in between
/// is noticed.
type Answer = (Option<OwnedFd>, Loaded);

// === impl PolicyFile ===

impl PolicyFile {
    /// Reads the file for the first time. What is wrong with it is logged and in the state.
    pub fn open(path: &Path, node_name: &str, metrics: Rc<Metrics>) -> Self {
        let source = Source {
            path: path.to_owned(),
            node_name: node_name.to_owned(),
        };
        let (fingerprint, loaded) = source.load(None);
        let mut file = Self {
            source,
            seen: None,
            period: watched_file::PERIOD,
            state: watch::Sender::default(),
            metrics,
        };
        file.take(fingerprint, loaded);
        file
    }

    pub fn subscribe(&self) -> watch::Receiver<PolicyState> {
        self.state.subscribe()
    }

    /// Reads the file again when it changes, and when `reload` is notified; never ends.
    pub async fn run(mut self, reload: Rc<Notify>) {
        let source = self.source.clone();
        let reader = Worker::sharing("policy-file", STACK, move |(seen, done): Reading| {
            let watch = watched_file::watch(&source.path);
            done.send((watch, source.load(seen))).ok();
        });
        let mut anew = false;
        loop {
            let seen = self.seen.filter(|_| !anew);
            let watch = self.check(&reader, seen).await;
            anew = tokio::select! {
                () = watch.may_have_changed(self.period) => false,
                () = reload.notified() => true,
            };
        }
    }

    /// Without an answer, of which the log tells the reason, the last good policy stays in force, and
    /// nothing is watched.
    async fn check(&mut self, reader: &Worker<Reading>, seen: Option<Fingerprint>) -> Watch {
        let Some((watch, (fingerprint, loaded))) = reader.ask(|done| (seen, done)).await else {
            return Watch::default();
        };
        self.take(fingerprint, loaded);
        Watch::over(watch)
    }

    fn take(&mut self, fingerprint: Fingerprint, loaded: Option<Result<Parsed, LoadError>>) {
        self.seen = Some(fingerprint);
        match loaded {
            None => {}
            Some(Ok(parsed)) => {
                self.metrics.policy_loaded(true, parsed.issues.count());
                for reason in issues::news(self.state.borrow().issues.iter(), parsed.issues.iter())
                {
                    warn!(reason, "a part of the node policy is not in force");
                }
                let other_nodes = parsed.other_nodes;
                if other_nodes > 0 && parsed.policy == NodePolicy::default() {
                    let node = &self.source.node_name;
                    warn!(
                        node,
                        other_nodes, "the node policy is about other nodes alone"
                    );
                } else {
                    let issues = parsed.issues.count();
                    info!(issues, other_nodes, "a node policy is in force");
                }
                self.state.send_replace(PolicyState {
                    policy: Arc::new(parsed.policy),
                    issues: parsed.issues.into(),
                    other_nodes: parsed.other_nodes,
                    is_of_file: true,
                    error: None,
                });
            }
            Some(Err(error)) => {
                self.metrics.policy_loaded(false, 0);
                if self.state.borrow().is_of_file {
                    warn!(
                        error = &error as &dyn Error,
                        "the node policy cannot be used; the last one stays in force"
                    );
                } else {
                    warn!(
                        error = &error as &dyn Error,
                        "the node policy cannot be used; there is none in force"
                    );
                }
                self.state
                    .send_modify(|state| state.error = Some(Arc::new(error)));
            }
        }
    }
}

// === impl Source ===

impl Source {
    /// Reads and parses the file, unless it is what was `seen` last.
    fn load(&self, seen: Option<Fingerprint>) -> Loaded {
        let read = regular_file::read(&self.path, MAX_FILE);
        let fingerprint = Fingerprint::of(&read);
        if seen == Some(fingerprint) {
            return (fingerprint, None);
        }
        let loaded = match read {
            Ok(bytes) => self.parse(bytes),
            Err(source) => Err(self.unread(source)),
        };
        (fingerprint, Some(loaded))
    }

    fn unread(&self, source: FileError) -> LoadError {
        LoadError::Read {
            path: self.path.clone(),
            source,
        }
    }

    fn parse(&self, bytes: Vec<u8>) -> Result<Parsed, LoadError> {
        let text = String::from_utf8(bytes).map_err(|error| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error.utf8_error());
            self.unread(error.into())
        })?;
        NodePolicy::parse_stream(&text, Some(&self.node_name)).map_err(|source| LoadError::Policy {
            path: self.path.clone(),
            source,
        })
    }
}

/// Puts each new policy in force. A file that is written anew, as one is that a timer fetches, may say
/// the same as before; then nothing is decided anew and nobody's turn to write ends.
pub(crate) async fn follow(
    hub: Rc<Hub>,
    condition: Rc<Condition>,
    mut states: watch::Receiver<PolicyState>,
) {
    let mut in_force = None;
    loop {
        let state = states.borrow_and_update().clone();
        if in_force.as_ref() != Some(&state.policy) {
            hub.set_node_policy(state.policy.clone());
            in_force = Some(state.policy.clone());
        }
        condition.policy.replace(Some(state));
        if states.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
