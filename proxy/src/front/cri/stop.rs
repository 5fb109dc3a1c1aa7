//! The stop: calls in flight finish, and clients take new ones elsewhere.

use super::{Front, reap};
use crate::hub::Hub;
use std::time::Duration;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::info;

/// How long a stop lets newcomers wait for the next of us, before it serves them itself until the
/// calls in flight are done. A kubelet takes a runtime for gone that leaves a new connection without
/// an answer for 5 s (`minConnectionTimeout` of its CRI client).
const LAST_ORDERS: Duration = Duration::from_secs(1);
/// The same once the calls of before the stop are done. What newcomers ask for takes less than this as a
/// rule; if it took longer, those who wait by then would be let in, and the stop go on to the end of its
/// time.
const LATER_ORDERS: Duration = Duration::from_secs(3);
/// How long before the end of its time a stop serves nobody new: calls that are shorter are not cut off by
/// it, and who waits has the next of us before a kubelet's patience is over.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// Tells connections to go: all that are there when its number rises.
#[derive(Clone, Debug)]
pub(super) struct DrainSignal(pub(super) watch::Receiver<u64>);

// === impl DrainSignal ===

impl DrainSignal {
    /// Ready once all that are there now are told to go.
    pub(super) fn told(mut self) -> impl Future<Output = ()> {
        let now = *self.0.borrow();
        async move {
            // A front that is gone has nothing to drain: never ready.
            if self.0.wait_for(|told| *told > now).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

// === impl Front ===

impl Front {
    pub(super) async fn serve_all(mut self, stop: impl Future, grace: Duration) -> usize {
        self.accept_until(stop).await;
        let now = Instant::now();
        let (closing, until) = (now + grace.saturating_sub(CLOSING_TIME), now + grace);
        info!(
            connections = self.connections.len(),
            "draining: calls in flight finish, and their clients take new ones elsewhere"
        );
        if self.socket_stays {
            self.make_way(closing).await;
        }
        self.drain(until).await
    }

    /// Comes back when nobody is connected, or at closing time.
    ///
    /// A container may take half a minute to stop and an image longer to come, and nobody else serves
    /// before we have ended: so as long as such a call is in flight, those that come are served.
    async fn make_way(&mut self, closing: Instant) {
        let mut orders = LAST_ORDERS;
        // A turn that runs into closing time would have newcomers wait through both.
        while Instant::now() + orders < closing {
            let told = self.tell_all_to_go();
            if timeout(orders, all_ended(&mut self.connections, &self.shared.hub))
                .await
                .is_ok()
            {
                return;
            }
            self.accept_until(timeout_at(closing, told)).await;
            orders = LATER_ORDERS;
        }
        self.accept_until(sleep_until(closing)).await;
    }

    async fn drain(mut self, until: Instant) -> usize {
        drop(self.tell_all_to_go());
        // Nothing new: what connects from here on meets a closed socket, or waits in the backlog
        // of a socket that stays for the next of us.
        let Self {
            listener,
            mut connections,
            shared,
            ..
        } = self;
        drop(listener);
        // Whether time was left is said by what is left: nothing, if it was.
        timeout_at(until, all_ended(&mut connections, &shared.hub))
            .await
            .ok();
        connections.len()
    }

    /// Tells all that are connected; ready when they have gone.
    fn tell_all_to_go(&mut self) -> impl Future<Output = ()> + use<> {
        let (sender, mut told) = std::mem::replace(&mut self.attendance, mpsc::channel(1));
        drop(sender);
        self.drain.send_modify(|told| *told += 1);
        async move {
            // Nobody sends; it ends with the last sender.
            told.recv().await;
        }
    }
}

async fn all_ended(connections: &mut JoinSet<()>, hub: &Hub) {
    while let Some(ended) = connections.join_next().await {
        reap(ended, hub);
    }
}
