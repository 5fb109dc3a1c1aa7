//! The source of pods (`--pods`): asked again and again what the pods of this node are like now.
//!
//! Asking and reading happen beside the thread that carries the data. A source that does not answer,
//! or with what cannot be used, leaves in force what it said last; nobody waits for it, and no pod
//! needs it.

mod file;
mod kubelet;
#[cfg(test)]
mod tests;
mod tls;

use self::{
    file::PodsFile,
    kubelet::{KubeletError, PodsOfKubelet},
};
use crate::{
    config,
    hub::{Hub, PodsAnswer, Word},
    issues,
    metrics::Metrics,
    regular_file::FileError,
    status::chain_of,
    view::Inputs,
    watched_file::{self, Watch},
    worker::Worker,
};
use koord_proto::{
    Issues,
    pods::{Parsed, PodIssue, PodsError, Reader},
};
use rustix::fd::OwnedFd;
use std::{error::Error, path::PathBuf, rc::Rc, str::Utf8Error, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep},
};
use tracing::{info, warn};

/// The stack of the thread that asks and parses, in bytes: what is parsed is nested.
const STACK: usize = 2 << 20;

/// How long until a kubelet is asked again that has just started.
const AGAIN: Duration = Duration::from_millis(500);

/// What is known of the source.
#[derive(Clone, Debug, Default)]
pub struct PodsState {
    /// What it said last that could be used.
    pub answer: Option<PodsAnswer>,
    /// What of it is left out because it is wrong.
    pub issues: Arc<Issues<PodIssue>>,
    /// Since when it says nothing that can be used, and why.
    pub failure: Option<(Instant, Arc<SourceError>)>,
}

/// Why a source says nothing that can be used.
#[derive(Debug, Error)]
pub enum SourceError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: FileError,
    },
    #[error("the kubelet does not say them at {url}")]
    Kubelet { url: String, source: KubeletError },
    #[error("it does not speak UTF-8")]
    Encoding(#[from] Utf8Error),
    #[error("it says no pods")]
    Pods(#[from] PodsError),
}

/// Keeps a [`PodsState`] in line with a source.
#[derive(Debug)]
pub struct PodSource {
    /// Asks beside the data path.
    desk: Worker<Question>,
    rhythm: Rhythm,
    state: watch::Sender<PodsState>,
    metrics: Rc<Metrics>,
}

/// Where the source is asked and its answer read.
#[derive(Debug)]
struct Desk {
    way: Way,
    reader: Reader,
    inputs: Arc<Inputs>,
}

#[derive(Debug)]
enum Way {
    File(PodsFile),
    Kubelet(PodsOfKubelet),
}

/// When there may be something new.
#[derive(Debug)]
enum Rhythm {
    /// When the file changes, and so often in any case.
    Changes(Duration),
    Every(Duration),
}

/// A text of pods, and what was left out of it because there was no room for all.
type Text = (Vec<u8>, Issues<PodIssue>);

/// What the source says; nothing if that is what it said the last time.
type Said = Result<Option<Parsed>, SourceError>;

/// Whether it is to say it even if it said just that, and who wants to know.
type Question = (bool, oneshot::Sender<Answer>);

/// A watch of the source, if there can be one, and what it said once there was: what changes in
/// between is noticed.
type Answer = (Option<OwnedFd>, Said);

// === impl PodSource ===

impl PodSource {
    /// A source as it is configured. A file is read for the first time, and what is wrong with it is
    /// logged and in the state; a kubelet may be waiting for us.
    pub fn open(config: &config::Pods, inputs: Arc<Inputs>, metrics: Rc<Metrics>) -> Option<Self> {
        let (way, rhythm) = match config {
            config::Pods::None => return None,
            config::Pods::File(path) => {
                let file = PodsFile::at(path);
                (Way::File(file), Rhythm::Changes(watched_file::PERIOD))
            }
            config::Pods::Kubelet(config) => {
                let kubelet = PodsOfKubelet::at(config);
                (Way::Kubelet(kubelet), Rhythm::Every(config.interval))
            }
        };
        let mut desk = Desk {
            way,
            reader: Reader::default(),
            inputs,
        };
        let asked = Instant::now();
        let first = match rhythm {
            Rhythm::Changes(_) => Some(desk.ask(false)),
            Rhythm::Every(_) => None,
        };
        // A desk over which it panicked has a reader that knows too little, no wrong one.
        let desk = Worker::sharing("pods", STACK, move |(anew, done): Question| {
            let watch = desk.way.watch();
            done.send((watch, desk.ask(anew))).ok();
        });
        let source = Self {
            desk,
            rhythm,
            state: watch::Sender::default(),
            metrics,
        };
        if let Some(said) = first {
            source.take(asked, said);
        }
        Some(source)
    }

    pub fn subscribe(&self) -> watch::Receiver<PodsState> {
        self.state.subscribe()
    }

    /// What it says, for who asks it no more after it. A kubelet that has just started does not answer, or
    /// knows but the pods that it starts by itself: it is asked again, for so long, until its answer is
    /// whole.
    pub(crate) async fn said(
        &self,
        patience: Duration,
        is_whole: impl Fn(&PodsAnswer) -> bool,
    ) -> PodsState {
        let until = Instant::now() + patience;
        let mut is_asked = false;
        loop {
            let state = self.state.borrow().clone();
            let answer = state.answer.as_ref();
            let is_final = match self.word() {
                Word::Stands => true,
                Word::OfItsTime => state.failure.is_none() && answer.is_some_and(&is_whole),
            };
            if is_final || is_asked && Instant::now() >= until {
                return state;
            }
            if is_asked {
                sleep(AGAIN).await;
            }
            self.check(false).await;
            is_asked = true;
        }
    }

    /// How long what it says is meant.
    pub(crate) fn word(&self) -> Word {
        self.rhythm.word()
    }

    /// Asks again when there may be something new, and when `reload` is notified; never ends.
    pub async fn run(self, reload: Rc<Notify>) {
        let mut anew = false;
        loop {
            let watch = self.check(anew).await;
            anew = tokio::select! {
                () = self.rhythm.next(&watch) => false,
                () = reload.notified() => true,
            };
        }
    }

    /// Asks the source; `anew` even if it says just what it did. Without an answer, of which the log
    /// tells the reason, what it said last stays in force, and nothing is watched.
    async fn check(&self, anew: bool) -> Watch {
        let asked = Instant::now();
        let Some((watch, said)) = self.desk.ask(|done| (anew, done)).await else {
            return Watch::default();
        };
        self.take(asked, said);
        Watch::over(watch)
    }

    fn take(&self, asked: Instant, said: Said) {
        match said {
            Ok(None) => {}
            Ok(Some(Parsed { pods, issues })) => {
                self.metrics.pods_answered(true, issues.count());
                let state = self.state.borrow();
                for reason in issues::news(state.issues.iter(), issues.iter()) {
                    warn!(reason, "a part of what the source of pods says is left out");
                }
                if state.answer.is_none() || state.failure.is_some() {
                    info!(
                        pods = pods.len(),
                        issues = issues.count(),
                        "the source of pods answers"
                    );
                }
                drop(state);
                self.state.send_replace(PodsState {
                    answer: Some(PodsAnswer {
                        pods: pods.into(),
                        asked,
                        word: self.rhythm.word(),
                    }),
                    issues: issues.into(),
                    failure: None,
                });
            }
            Err(error) => {
                self.metrics.pods_answered(false, 0);
                self.tell_failure(&error);
                let since = self
                    .state
                    .borrow()
                    .failure
                    .as_ref()
                    .map(|(since, _)| *since);
                let failure = (since.unwrap_or(asked), Arc::new(error));
                self.state
                    .send_modify(|state| state.failure = Some(failure));
            }
        }
    }

    /// A line for each failure that has another reason than the one before.
    fn tell_failure(&self, error: &SourceError) {
        let state = self.state.borrow();
        let before = state
            .failure
            .as_ref()
            .map(|(_, before)| chain_of(&**before));
        if before.is_some_and(|before| before == chain_of(error)) {
            return;
        }
        let error = error as &dyn Error;
        match state.answer {
            Some(_) => warn!(
                error,
                "the source of pods says nothing that can be used; what it said last stays in force"
            ),
            None => warn!(
                error,
                "the source of pods says nothing that can be used, and has said nothing before"
            ),
        }
    }
}

// === impl Rhythm ===

impl Rhythm {
    /// Ready when there may be something new since the watch was made.
    async fn next(&self, watch: &Watch) {
        match self {
            Self::Changes(period) => watch.may_have_changed(*period).await,
            Self::Every(interval) => sleep(*interval).await,
        }
    }

    fn word(&self) -> Word {
        match self {
            Self::Changes(_) => Word::Stands,
            Self::Every(_) => Word::OfItsTime,
        }
    }
}

// === impl Way ===

impl Way {
    fn watch(&self) -> Option<OwnedFd> {
        match self {
            Self::File(file) => file.watch(),
            Self::Kubelet(_) => None,
        }
    }

    /// What is said now; nothing if it is known to be what it was, unless it is wanted `anew`.
    fn read(&mut self, anew: bool) -> Result<Option<Text>, SourceError> {
        match self {
            Self::File(file) => file.read(anew),
            Self::Kubelet(kubelet) => match kubelet.read() {
                Ok(text) => Ok(Some(text)),
                Err(source) => Err(SourceError::Kubelet {
                    url: kubelet.url(),
                    source,
                }),
            },
        }
    }
}

// === impl Desk ===

impl Desk {
    /// What the source says now.
    fn ask(&mut self, anew: bool) -> Said {
        let Self {
            way,
            reader,
            inputs,
        } = self;
        let Some((text, left_out)) = way.read(anew)? else {
            return Ok(None);
        };
        let text = str::from_utf8(&text)?;
        let mut parsed = reader.read(text, |key| inputs.has(key.as_bytes()))?;
        parsed.issues.append(left_out);
        Ok(Some(parsed))
    }
}

/// Puts each new answer in force.
pub async fn follow(hub: Rc<Hub>, mut states: watch::Receiver<PodsState>) {
    loop {
        let PodsState {
            answer, failure, ..
        } = states.borrow_and_update().clone();
        if let Some(answer) = answer {
            hub.take_pods(&answer);
        } else if failure.is_some() {
            hub.source_spoke();
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}
