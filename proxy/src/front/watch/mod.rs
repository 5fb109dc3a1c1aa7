//! The watch front: nobody asks us. The runtime tells of containers once they are there, each time it
//! does a list is taken, and every value goes by the kernel.
//!
//! ```text
//!  connect ── follow what the runtime tells ──► a list ──► the ledger ──► reconcile ──► the kernel
//!     ▲                  │
//!     └── it is over ◄───┘   and where the runtime tells nothing, a list every few seconds
//! ```
//!
//! What is told is a reason to look, never knowledge: it may be old, or come before what it tells of is
//! in the lists. So nothing is lost with it but time.

mod feed;

use self::feed::{Feed, FeedEnd};
use crate::{
    dial::connect,
    hub::{Hub, Policy},
    retry::Retry,
    runtime::{RuntimeError, channel},
};
use koord_hooks::FailPolicy;
use koord_model::Setting;
use std::{convert::Infallible, error::Error, path::Path, rc::Rc, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::warn;

/// How often a runtime is listed that does not tell of its containers.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same for people.
const LISTED: &str = "lists alone, one every five seconds";
/// While the runtime is away.
const RETRY: Retry = Retry::between(Duration::from_millis(50), Duration::from_millis(500));
/// A runtime that was followed for so long tells. One that is lost sooner, as behind a backlog that
/// stays full for all of its five seconds, never did.
const SETTLED: Duration = Duration::from_secs(10);

/// Why the runtime tells no more.
#[derive(Debug, Error)]
enum Ended {
    #[error("the runtime cannot be asked")]
    Unreachable(#[from] RuntimeError),
    #[error("the runtime tells no more")]
    Over(#[source] FeedEnd),
    /// It never told, and then it was away.
    #[error("the runtime was away")]
    Away,
}

/// Notes that one attempt is over, after so long: how long to wait before the next, and whether to say so.
fn over(retry: &mut Retry, after: Duration) -> (Duration, bool) {
    if after >= SETTLED {
        retry.succeeded();
    }
    (retry.pause(), retry.is_news())
}

/// Follows the runtime whenever it is there; never ends.
pub async fn run(hub: Rc<Hub>, endpoint: Arc<Path>) {
    let mut retry = RETRY;
    loop {
        let started = Instant::now();
        let Err(ended) = follow(&hub, &endpoint).await;
        hub.set_feed(None);
        // What happens from now on is not told.
        hub.runtime_lost();
        let (pause, is_news) = over(&mut retry, started.elapsed());
        if is_news {
            let error = &ended as &dyn Error;
            warn!(error, "the runtime's containers cannot be followed");
        }
        sleep(pause).await;
    }
}

async fn follow(hub: &Hub, endpoint: &Arc<Path>) -> Result<Infallible, Ended> {
    for feed in Feed::ALL {
        let stream = connect(endpoint.clone()).await;
        let channel = channel(stream.map_err(RuntimeError::connect(endpoint))?).await?;
        hub.set_feed(Some(feed.name()));
        // For what happened before.
        hub.relist_soon();
        let Err(end) = feed.follow(hub, channel).await;
        if !matches!(end, FeedEnd::Untold) {
            return Err(Ended::Over(end));
        }
    }
    hub.set_feed(Some(LISTED));
    warn!("the runtime does not tell of its containers: it is listed every five seconds");
    while hub.runtime_is_up() || !hub.is_whole() {
        hub.relist_soon();
        sleep(INTERVAL).await;
    }
    Err(Ended::Away)
}

/// What cannot be promised where nobody asks us, for people.
pub fn remarks(policy: &Policy) -> Vec<String> {
    let mut remarks = vec![
        "nobody asks us: values come by the kernel when a container runs already, its first \
         instructions go without them"
            .to_owned(),
        "of an update only containerd tells: with another runtime, what it overwrites is put back by \
         the check of each minute"
            .to_owned(),
    ];
    let settings = policy.chain().settings();
    if settings.contains(&Setting::CoreSched) {
        remarks.push(
            "a process that runs before its pod's group has a cookie is without one until then"
                .to_owned(),
        );
    }
    if settings.contains(&Setting::Gpu) {
        remarks.push(
            "containers are made without what would show them their GPUs, and cannot get it later"
                .to_owned(),
        );
    }
    if settings.contains(&Setting::GpuMonitor) {
        remarks.push(
            "containers are made without what has HAMi-core count what they use, and cannot get it \
             later"
                .to_owned(),
        );
    }
    if settings.contains(&Setting::Rdma) {
        remarks.push(
            "containers are made without the RDMA devices of their pod, and cannot get them later"
                .to_owned(),
        );
    }
    if settings.contains(&Setting::CpuBurst) {
        remarks.push(
            "a container's CPU limit cannot be resized to less than its burst: the kernel refuses \
             that, and nobody tells us before"
                .to_owned(),
        );
    }
    let node = policy.node();
    let by_gate = node.options.be_cpu_idle && !node.kernel.bvt;
    let may_idle = by_gate || settings.contains(&Setting::CoreSched);
    if settings.contains(&Setting::CpuIdle) && node.kernel.cpu_idle && may_idle {
        remarks.push(
            "a resize in place of an idle pod fails until its kubelet says so (--pods=kubelet): the \
             kernel takes no shares for it, and nobody tells us before"
                .to_owned(),
        );
    }
    for hook in policy.chain().hooks() {
        if policy.chain().fail_policy(hook.name) == Some(FailPolicy::Closed) {
            remarks.push(format!(
                "{} has the policy Closed, but there is nothing that could be refused",
                hook.name
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests;
