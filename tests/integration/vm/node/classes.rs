//! The pods of the demo, one of each class, on cgroup v2.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{Front, ProxyOptions, classes};
use koord_testkit::poll::comes_true;

pub(super) fn check_all() {
    check("classes_have_their_values_by_cri", || have(Front::Cri));
    check("classes_have_their_values_by_nri", || have(Front::Nri));
    check("classes_have_their_values_by_watch", || have(Front::Watch));
}

async fn have(front: Front) -> Result<()> {
    let pool = classes::share_pool()?;
    let gates = ["--feature-gates", classes::FEATURE_GATES];
    let node = node(ProxyOptions {
        policy: Some(classes::node_policy(&pool)),
        args: gates.map(str::to_owned).into(),
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    let mut all = Vec::new();
    for pod in classes::all(&pool) {
        let running = node.run(&client, &pod).await?;
        all.push((pod, running));
    }
    let wrong = || {
        let wrong = all.iter().flat_map(|(pod, running)| pod.wrong(running));
        wrong.collect::<Vec<_>>()
    };
    ensure!(comes_true(|| wrong().is_empty()), "{:#?}", wrong());
    Ok(())
}
