//! Limits of block devices on the machine's own kernel, with a real containerd.

use anyhow::{Result, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes};
use koord_testkit::{
    ContainerdVersion, PodQos,
    poll::{comes_true, wait_until},
};
use std::{fs, path::Path};

/// Devices that nobody has to have anything on for the kernel to take limits of them.
const DEVICES: [&str; 2] = ["loop6", "loop7"];

const FILES: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Best-effort pods may do this to the first device; there is no other of the policy.
fn policy(limits: &str) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    beClass: {{blkioQOS: {{enable: true, blocks: [
      {{name: no-such-device, type: device, ioCfg: {{readBPS: 1}}}},
      {{name: /dev/loop6, type: device, ioCfg: {{{limits}}}}}]}}}}
"
    )
}

const ALL: &str = "readBPS: 1048576, writeBPS: 2097152, readIOPS: 100, writeIOPS: 200";

/// What the pod itself asks for.
const OWN: &str = r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":4096}}]}"#;

/// Of the directory of best-effort pods, and of the pod, in the order of [`FILES`].
type Held = [[String; 4]; 2];

async fn block_devices_are_limited(front: Front) -> Result<()> {
    let options = ProxyOptions {
        policy: Some(policy(ALL)),
        args: vec!["--feature-gates=BlkIOReconcile=true".to_owned()],
        front,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let mut spec = classes::be("limited");
    spec.pod = spec.pod.annotation("koordinator.sh/blkioQOS", OWN);
    let pod = node.run(&client, &spec).await?;
    ensure!(spec.qos == PodQos::BestEffort, "it is in that directory");
    let [first, second] = DEVICES.map(number);
    let (first, second) = (first?, second?);
    let whole = [
        [
            format!("{first} 1048576"),
            format!("{first} 2097152"),
            format!("{first} 100"),
            format!("{first} 200"),
        ],
        ["".into(), format!("{second} 4096"), "".into(), "".into()],
    ];
    let less = |tier: [&str; 4]| {
        let held = tier.map(|it| it.replace("loop6", &first));
        [held, whole[1].clone()]
    };
    let nothing = Held::default();
    wait("at the start", &pod, &whole)?;
    // The kernel is written before the ledger is told that it is.
    let missing = "not for all devices: /dev/no-such-device";
    wait_until("it is told that a device is not there", || {
        let ledger = node.proxy.ledger().map(|it| it.to_string());
        ledger.is_ok_and(|it| it.contains(missing))
    });

    node.proxy.write_policy(&policy("readBPS: 5"))?;
    let five = less(["loop6 5", "", "", ""]);
    wait("under another policy", &pod, &five)?;
    for (state, expected) in [("off", &nothing), ("on", &five)] {
        node.proxy.switch(&format!("BlkIOReconcile={state}"))?;
        wait(state, &pod, expected)?;
    }
    node.proxy.kill9()?;
    ensure!(held(&pod)? == five, "values outlive us");
    node.launch_proxy()?;
    node.proxy.write_policy(&policy("writeIOPS: 9"))?;
    let nine = less(["", "", "", "loop6 9"]);
    wait("under another policy after a restart", &pod, &nine)
}

fn wait(when: &str, pod: &RunningPod, expected: &Held) -> Result<()> {
    let matches = || held(pod).is_ok_and(|held| held == *expected);
    let came = comes_true(matches);
    let held = held(pod)?;
    ensure!(came, "{when}: {held:?}, not {expected:?}");
    Ok(())
}

fn held(pod: &RunningPod) -> Result<Held> {
    let own = pod.cgroup.directory("blkio");
    let mut all = Held::default();
    for (held, directory) in all.iter_mut().zip([own.join(".."), own]) {
        for (text, file) in held.iter_mut().zip(FILES) {
            *text = fs::read_to_string(directory.join(file))?.trim().to_owned();
        }
    }
    Ok(all)
}

/// The number of a device.
fn number(name: &str) -> Result<String> {
    let file = Path::new("/sys/class/block").join(name).join("dev");
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

#[tokio::test]
async fn block_devices_are_limited_on_containerd_2() -> Result<()> {
    block_devices_are_limited(Front::Cri).await
}

#[tokio::test]
async fn block_devices_are_limited_by_nri_on_containerd_2() -> Result<()> {
    block_devices_are_limited(Front::Nri).await
}
