//! Quotas that follow the speed of the node, and what containers may save up, on cgroup v2.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{Front, ProxyOptions, RunningPod, classes};
use koord_testkit::{
    cri::PodSpec,
    poll::{comes_true, wait_until},
};

pub(super) fn check_all() {
    check("quota_and_burst_follow_the_node_by_cri", || {
        follow(Front::Cri)
    });
    check("quota_and_burst_follow_the_node_by_nri", || {
        follow(Front::Nri)
    });
}

fn policy(burst: &str, ratio: &str) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  cpuBurstStrategy: {{policy: {burst}}}
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-normalization-ratio: \"{ratio}\"
"
    )
}

/// `cpu.max` and `cpu.max.burst` of the pod, and those of its container.
fn held(pod: &RunningPod) -> Result<[String; 4]> {
    let read = |container, file| pod.cgroup.read("cpu", container, file);
    let container = Some(pod.container.as_str());
    Ok([
        read(None, "cpu.max")?,
        read(None, "cpu.max.burst")?,
        read(container, "cpu.max")?,
        read(container, "cpu.max.burst")?,
    ])
}

async fn follow(front: Front) -> Result<()> {
    let mut node = node(ProxyOptions {
        policy: Some(policy("auto", "1.25")),
        args: vec!["--feature-gates=CPUNormalization=true".to_owned()],
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    // A guaranteed pod of half a CPU without a class.
    let mut half = classes::lsr("half");
    half.pod = PodSpec::new("half");
    let pod = node.run(&client, &half).await?;
    let wait = |when: &str, expected: [&str; 4]| {
        let matches = || held(&pod).is_ok_and(|held| held == expected);
        let came = comes_true(matches);
        let held = held(&pod)?;
        ensure!(came, "{when}: {held:?}, not {expected:?}");
        anyhow::Ok(())
    };
    let faster = ["50000 100000", "50000", "40000 100000", "40000"];
    let asked = ["50000 100000", "50000", "50000 100000", "50000"];
    wait("at the start", faster)?;
    node.proxy.write_policy(&policy("auto", "1.00"))?;
    wait("by another policy", asked)?;
    node.proxy.write_policy(&policy("auto", "1.25"))?;
    wait("by the first again", faster)?;
    let unsaved = ["50000 100000", "0", "40000 100000", "0"];
    for (switch, expected) in [
        ("CPUNormalization=off", asked),
        ("CPUNormalization=on", faster),
        ("CPUBurst=off", unsaved),
        ("CPUBurst=on", faster),
    ] {
        node.proxy.switch(switch)?;
        wait(switch, expected)?;
    }
    node.proxy.kill9()?;
    node.launch_proxy()?;
    wait_until("the ledger has the container again", || {
        let ledger = node.proxy.ledger().map(|ledger| ledger.to_string());
        ledger.is_ok_and(|ledger| ledger.contains(&pod.container))
    });
    wait("after a restart", faster)?;
    node.proxy.write_policy(&policy("none", "1.00"))?;
    wait("as asked", ["50000 100000", "0", "50000 100000", "0"])
}
