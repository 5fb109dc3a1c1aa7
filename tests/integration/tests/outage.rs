//! A real runtime that goes and comes back: who calls meanwhile hears at once that it is away, and who
//! calls then is served.

use anyhow::{Result, ensure};
use koord_integration::{Node, ProxyOptions, classes, promise};
use koord_testkit::{
    ContainerdVersion,
    cri::CriClient,
    poll::{wait_until, wait_until_async},
};
use std::time::{Duration, Instant};

/// Calls while it is away, each on a connection of its own.
const CALLS: usize = 200;
/// The slowest of them, as promised.
const REFUSED: Duration = Duration::from_millis(100);
/// From the first answer of the runtime itself to the first through us, as promised.
const SERVED: Duration = Duration::from_millis(500);

/// Whether a call on a new connection is answered. A gRPC library says UNAVAILABLE of a connection that
/// closes under its call.
async fn answers(node: &Node) -> bool {
    match node.client().await {
        Ok(client) => client.version().await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn calls_are_refused_at_once_and_served_as_soon_as_the_runtime_is_back() -> Result<()> {
    let options = ProxyOptions {
        as_shipped: true,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V1_7, options)?;
    node.runtime.stop()?;
    let mut slowest = Duration::ZERO;
    for _ in 0..CALLS {
        let begun = Instant::now();
        let is_answered = answers(&node).await;
        slowest = slowest.max(begun.elapsed());
        ensure!(!is_answered, "nobody is there to answer");
    }
    promise::within(
        "a call is refused while the runtime is away",
        slowest,
        REFUSED,
    )?;

    node.runtime.restart()?;
    let begun = Instant::now();
    wait_until_async("a call is served", || answers(&node)).await;
    promise::within(
        "a call is served once the runtime is back",
        begun.elapsed(),
        SERVED,
    )
}

#[tokio::test]
async fn what_was_done_while_the_proxy_was_away_from_the_runtime_is_listed() -> Result<()> {
    let policy = classes::node_policy(&classes::share_pool()?);
    let gates = ["--feature-gates", classes::FEATURE_GATES];
    let options = ProxyOptions {
        policy: Some(policy),
        args: gates.map(str::to_owned).into(),
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V1_7, options)?;
    let client = node.client().await?;
    let gone = node.run(&client, &classes::be("gone")).await?;
    node.run(&client, &classes::be("kept")).await?;
    node.runtime.stop()?;
    node.proxy.stand_still()?;
    node.runtime.restart()?;
    let beside = CriClient::connect(&node.runtime.socket()).await?;
    gone.remove(&beside).await?;
    let pod = classes::be("missed");
    let missed = node.run(&beside, &pod).await?;
    ensure!(!pod.wrong(&missed).is_empty(), "nobody has set anything");
    node.proxy.go_on()?;
    wait_until("what was missed is right", || pod.wrong(&missed).is_empty());
    let names = || -> Result<Vec<_>> {
        let pods = node.proxy.ledger()?["pods"].as_array().cloned();
        let names = pods.into_iter().flatten().map(|pod| pod["name"].clone());
        Ok(names.collect())
    };
    wait_until("the ledger is what there is", || {
        names().is_ok_and(|names| names == ["kept", "missed"])
    });
    Ok(())
}
