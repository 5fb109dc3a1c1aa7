//! A node full of pods: how soon the proxy answers after a start, and what it weighs.

use crate::{
    load::{Kind, Load, Stack},
    parts::{SETTLED, Target, instant_runtime, proxy_options},
};
use anyhow::{Context, Result, ensure};
use koord_integration::{Proxy, classes};
use koord_testkit::{
    RawClient, RawRequest, Testbed,
    cri::{
        CriClient,
        message::{LinuxContainerResources, UpdateContainerResourcesRequest},
    },
    poll::wait_until_async,
    process,
    scripted::instant::LAST_UPDATE,
};
use prost::Message;
use serde::Serialize;
use std::{path::Path, time::Instant};
use tokio::time::sleep;

/// What [`Arguments::only`](crate::Arguments) may name.
pub(crate) const NAME: &str = "with 1,000 pods and 3,000 containers";
const PODS: &str = "1000";
const CONTAINERS: &str = "3000";

/// With 1,000 pods and 3,000 containers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct State {
    /// From exec to the first answered call, milliseconds, median.
    pub(crate) first_answer_ms: f64,
    /// From exec to the first update that arrived as it should, milliseconds, median.
    pub(crate) first_update_ms: f64,
    /// Resident with that state.
    pub(crate) resident_bytes: u64,
    /// Resident when 64 callers have done all they do, and have been gone for [`SETTLED`].
    pub(crate) loaded_bytes: u64,
}

pub(crate) async fn measure(rounds: usize) -> Result<State> {
    let testbed = Testbed::new()?;
    let runtime = testbed.directory().join("runtime.sock");
    let full = ["--pods", PODS, "--containers", CONTAINERS];
    let mut child = instant_runtime(Stack::Frames, &testbed, &runtime, &full)?;
    let mut answers = Vec::new();
    let mut updates = Vec::new();
    let mut proxy = Proxy::new(&testbed, &runtime, proxy_options()?)?;
    for _ in 0..rounds {
        proxy.stop().ok();
        let start = Instant::now();
        proxy.spawn(&testbed)?;
        first_answer(&proxy).await;
        answers.push(start.elapsed().as_secs_f64() * 1e3);
        first_update(&proxy, &runtime).await?;
        updates.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let pid = proxy.pid().context("the proxy runs")?;
    ensure!(
        proxy.ledger()?["pods"].as_array().map(Vec::len) == Some(1000),
        "the ledger has not all pods"
    );
    // The ledger as JSON is large; a fresh process has never printed it.
    proxy.stop()?;
    proxy.spawn(&testbed)?;
    first_answer(&proxy).await;
    first_update(&proxy, &runtime).await?;
    sleep(SETTLED).await;
    let pid = proxy.pid().unwrap_or(pid);
    let resident_bytes = process::resident_bytes(pid).context("the proxy's memory")?;
    let target = Target {
        name: "proxy".to_owned(),
        socket: proxy.socket(),
        pid: Some(pid),
    };
    for kind in Kind::ALL {
        let load = Load {
            stack: Stack::Frames,
            kind,
            callers: 64,
            calls: kind.calls(64),
            tidy: kind == Kind::Create,
        };
        load.run(&target).await?;
    }
    sleep(SETTLED).await;
    let loaded_bytes = process::resident_bytes(pid).context("the proxy's memory")?;
    proxy.stop()?;
    child.kill()?;
    child.wait()?;
    Ok(State {
        first_answer_ms: median(answers),
        first_update_ms: median(updates),
        resident_bytes,
        loaded_bytes,
    })
}

async fn first_answer(proxy: &Proxy) {
    let socket = proxy.socket();
    loop {
        // Refused or cut off: it is not there yet.
        if let Ok(client) = CriClient::connect(&socket).await
            && client.version().await.is_ok()
        {
            return;
        }
        sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Container 0 is one of an LS pod: the policy's shared pool has to arrive with each of its updates.
async fn first_update(proxy: &Proxy, runtime: &Path) -> Result<()> {
    let client = CriClient::connect(&proxy.socket()).await?;
    let runtime = RawClient::connect(runtime).await?;
    let container = format!("{:064x}", 1 << 24);
    let pool = classes::share_pool()?;
    wait_until_async("an update arrives adjusted", || async {
        let resources = LinuxContainerResources {
            cpu_shares: 100,
            ..Default::default()
        };
        let updated = client.update_resources(&container, resources).await;
        updated.is_ok() && arrived(&runtime).await.is_ok_and(|cpus| cpus == pool)
    })
    .await;
    Ok(())
}

/// The CPUs of the last update, as the runtime has it.
async fn arrived(runtime: &RawClient) -> Result<String> {
    let reply = runtime.call(RawRequest::unary(LAST_UPDATE, "")).await?;
    let update = reply.messages.into_iter().next().context("no update")?;
    let update = UpdateContainerResourcesRequest::decode(update.message)?;
    Ok(update.linux.unwrap_or_default().cpuset_cpus)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
