//! Kill -9 in the middle of everything: what the runtime lists is what the ledger holds, and every
//! container that lives has its values, those too whose creation was answered to nobody.

use anyhow::{Context, Result};
use koord_integration::{
    Node, ProxyOptions,
    churn::{Living, living, pod},
    classes, promise,
};
use koord_testkit::{ContainerdVersion, cri::CriClient, poll::wait_until_async};
use std::{
    cell::Cell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Pods that are begun in all.
const PODS: usize = 200;
/// Callers at a time, as a kubelet has workers.
const CALLERS: usize = 8;
/// The proxy is killed when so many pods have been begun.
const KILL_AT: usize = 120;
/// From the start of the next proxy until everything has its values, as promised; a tenth of it is usual.
const MOST: Duration = Duration::from_secs(2);

/// Begins pods until none is left or a call fails; every third is removed again.
async fn work(node: &Node, next: &Cell<usize>, share_pool: &str) {
    let Ok(client) = node.client().await else {
        return;
    };
    loop {
        let number = next.get();
        if number >= PODS {
            return;
        }
        next.set(number + 1);
        let pod = pod(number, share_pool);
        let Ok(running) = node.run(&client, &pod).await else {
            return;
        };
        if number.is_multiple_of(3) && running.remove(&client).await.is_err() {
            return;
        }
    }
}

/// Ids of sandboxes and containers.
type Ids = (BTreeSet<String>, BTreeSet<String>);

async fn listed(client: &CriClient) -> Result<Ids> {
    let pods = client.list_pods().await?;
    let containers = client.list_containers().await?;
    Ok((
        pods.into_iter().map(|pod| pod.id).collect(),
        containers.into_iter().map(|c| c.id).collect(),
    ))
}

fn in_ledger(node: &Node) -> Result<Ids> {
    let ledger = node.proxy.ledger()?;
    let pods = ledger["pods"].as_array().context("pods")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let containers = pods
        .iter()
        .flat_map(|pod| pod["containers"].as_array().into_iter().flatten())
        .map(|container| text(&container["id"]))
        .collect();
    Ok((
        pods.iter().map(|pod| text(&pod["sandbox"])).collect(),
        containers,
    ))
}

#[tokio::test]
async fn killed_amid_churn_it_finds_everything_again() -> Result<()> {
    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V1_7, options)?;
    let next = Cell::new(0);
    let workers = futures(&node, &next, &share_pool);
    let killer = async {
        while next.get() < KILL_AT {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        node.proxy.send_kill()
    };
    let (killed, ()) = tokio::join!(killer, workers);
    killed?;
    node.proxy.kill9()?;
    assert!(next.get() < PODS, "the kill came when all was done");

    let runtime = CriClient::connect(&node.containerd.socket()).await?;
    let start = Instant::now();
    node.launch_proxy()?;
    // The runtime is still finishing what it had begun, stops among it: who lives is asked anew.
    let alive = Cell::new(0);
    wait_until_async("every living container has its values", || async {
        let Ok(living) = living(&runtime, &node.cgroups, &share_pool).await else {
            return false;
        };
        alive.set(living.len());
        living
            .iter()
            .map(Living::wrong)
            .all(|wrong| wrong.is_empty())
    })
    .await;
    let took = start.elapsed();
    let alive = alive.get();
    assert!(alive > KILL_AT / 3, "{alive} live");
    let what = format!("{alive} living containers have their values after the start");
    promise::within(&what, took, MOST)?;
    wait_until_async("the ledger is what the runtime lists", || async {
        let lists = listed(&runtime).await;
        lists.is_ok_and(|lists| in_ledger(&node).is_ok_and(|ledger| ledger == lists))
    })
    .await;
    Ok(())
}

async fn futures(node: &Node, next: &Cell<usize>, share_pool: &str) {
    let worker = || work(node, next, share_pool);
    const { assert!(CALLERS == 8, "as many as are joined here") };
    tokio::join!(
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker()
    );
}
