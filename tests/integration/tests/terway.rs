//! What the network plugin Terway is told of pods and classes, with a real containerd.
//!
//! There is no Terway here. That it gives everybody what it is told is its business.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
};
use koord_testkit::{ContainerdVersion, cri::PodSpec, poll::wait_until};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A network of 1 Gbit, of which best-effort pods send this at most.
fn policy(most: &str) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  systemStrategy: {{totalNetworkBandwidth: 1G}}
  resourceQOSStrategy:
    policies: {{netQOSPolicy: terway-qos}}
    lsClass: {{networkQOS: {{enable: true, egressRequest: 40, ingressRequest: 300M}}}}
    beClass: {{networkQOS: {{enable: true, egressLimit: {most}}}}}
"
    )
}

fn classes_with(most: u64) -> String {
    format!(
        "hw_tx_bps_max 125000000
hw_rx_bps_max 125000000
offline_l1_tx_bps_min 50000000
offline_l1_tx_bps_max 0
offline_l1_rx_bps_min 37500000
offline_l1_rx_bps_max 0
offline_l2_tx_bps_min 0
offline_l2_tx_bps_max {most}
offline_l2_rx_bps_min 0
offline_l2_rx_bps_max 0
"
    )
}

/// What the plugin reads.
struct Told {
    _above: TempDir,
    folder: PathBuf,
}

impl Told {
    fn new() -> Result<Self> {
        let above = tempfile::tempdir()?;
        Ok(Self {
            folder: above.path().join("qos"),
            _above: above,
        })
    }

    fn classes(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("global_bps_config")).ok()
    }

    fn pods(&self) -> Option<Value> {
        let text = fs::read_to_string(self.folder.join("pod.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until both say this.
    fn comes_to(&self, when: &str, classes: &str, pods: &Value) {
        wait_until(when, || {
            self.classes().as_deref() == Some(classes) && self.pods().as_ref() == Some(pods)
        });
    }

    fn ends(&self, when: &str) {
        wait_until(when, || {
            let mut entries = fs::read_dir(&self.folder).into_iter().flatten();
            entries.next().is_none()
        });
    }

    fn args(&self) -> [String; 2] {
        [
            "--feature-gates=TerwayQoS=true".to_owned(),
            format!("--terway-qos-dir={}", self.folder.display()),
        ]
    }
}

fn pod(name: &str, class: &str, limits: &str) -> PodSpecOf {
    let mut pod = classes::be(name);
    pod.pod = PodSpec::new(name)
        .label("koordinator.sh/qosClass", class)
        .annotation("koordinator.sh/networkQOS", limits);
    pod
}

fn entry(name: &str, prio: u8, pod: &RunningPod, (ingress, egress): (u64, u64)) -> Value {
    json!({
        "podName": name,
        "podNamespace": "default",
        "podUID": format!("uid-{name}"),
        "prio": prio,
        "cgroupDir": format!("/sys/fs/cgroup/net_cls{}", pod.cgroup.path()),
        "qosConfig": {"ingressBandwidth": ingress, "egressBandwidth": egress},
    })
}

/// What the ledger says has become of what a pod has.
fn noted(node: &Node, name: &str) -> Option<String> {
    let ledger = node.proxy.ledger().ok()?;
    let mut pods = ledger["pods"].as_array()?.iter();
    let settings = &pods.find(|pod| pod["name"] == name)?["settings"];
    let mut settings = settings.as_array()?.iter();
    let network = settings.find(|it| it["setting"] == "network")?;
    Some(network["applied"].as_str()?.to_owned())
}

fn number(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file)?.ino())
}

async fn terway_is_told(front: Front) -> Result<()> {
    let told = Told::new()?;
    let options = ProxyOptions {
        policy: Some(policy("20")),
        args: told.args().into(),
        front,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let limits = r#"{"ingressLimit":"80M","egressLimit":"8M"}"#;
    let quick = node.run(&client, &pod("quick", "LS", limits)).await?;
    let batch = node
        .run(&client, &pod("batch", "BE", r#"{"egressLimit":"4M"}"#))
        .await?;
    let of_quick = entry("quick", 1, &quick, (10_000_000, 1_000_000));
    let both = json!({
        "uid-quick": of_quick,
        "uid-batch": entry("batch", 2, &batch, (0, 500_000)),
    });
    let mut classes = classes_with(25_000_000);
    told.comes_to("both pods are told", &classes, &both);

    node.proxy.write_policy(&policy("400M"))?;
    classes = classes_with(50_000_000);
    told.comes_to("another policy is told", &classes, &both);
    client.stop_pod(&batch.sandbox).await?;
    let one = json!({"uid-quick": of_quick});
    told.comes_to("a pod that stops is told no more", &classes, &one);
    client.remove_pod(&batch.sandbox).await?;

    // Files outlive us, and what they say already is not written.
    let pods = told.folder.join("pod.json");
    let before = number(&pods)?;
    node.proxy.kill9()?;
    told.comes_to("the files stay", &classes, &one);
    node.launch_proxy()?;
    wait_until("they are as they should be", || {
        noted(&node, "quick").as_deref() == Some("equal")
    });
    ensure!(number(&pods)? == before, "it was written");

    for (state, is_on) in [("off", false), ("on", true)] {
        node.proxy.switch(&format!("TerwayQoS={state}"))?;
        match is_on {
            true => told.comes_to(state, &classes, &one),
            false => told.ends(state),
        }
    }

    // Who only observes decides, and leaves the folder to others.
    node.proxy.kill9()?;
    fs::remove_dir_all(&told.folder)?;
    let [gate, folder] = told.args();
    node.proxy.set_args(&[&gate, &folder, "--mode=observe"]);
    node.launch_proxy()?;
    wait_until("it is decided", || noted(&node, "quick").is_some());
    let noted = noted(&node, "quick").context("it was there")?;
    ensure!(noted == "pending" && !told.folder.exists(), "{noted}");
    Ok(())
}

#[tokio::test]
async fn terway_is_told_of_pods_and_classes_on_containerd_2() -> Result<()> {
    terway_is_told(Front::Cri).await
}

#[tokio::test]
async fn terway_is_told_of_pods_and_classes_by_nri_on_containerd_2() -> Result<()> {
    terway_is_told(Front::Nri).await
}
