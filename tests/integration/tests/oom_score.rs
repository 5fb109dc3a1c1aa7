//! How soon the processes of containers are killed for want of memory, as `/proc` has it.
//!
//! Nobody here may have a score below that of containerd, for which it takes `CAP_SYS_RESOURCE`.

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes::PodSpecOf};
use koord_testkit::{
    ContainerdVersion, PodCgroup, PodQos,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::{wait_until, wait_until_async},
};
use std::{cell::Cell, fs};

const GATE: &str = "--feature-gates=OOMScoreAdj=true";

/// A pod that is killed at 800 and whose kubelet asked for 100: a runtime's plugin can say that.
const RAISED: (&str, i64, &str) = ("raised", 100, r#"{"main":800,"other":1}"#);
/// One that is killed at 300 and whose kubelet asked for 700: that is written to its process.
const LOWERED: (&str, i64, &str) = ("lowered", 700, r#"{"main":300}"#);

fn spec((name, asked, spec): (&str, i64, &str)) -> PodSpecOf {
    let resources = LinuxContainerResources {
        cpu_shares: 2,
        oom_score_adj: asked,
        ..Default::default()
    };
    // What it has at its first instruction, a process beside the first, and what that starts.
    let command = "cat /proc/self/oom_score_adj >/first; sleep 1000 & exec sleep 1000";
    PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos: PodQos::BestEffort,
        pod: PodSpec::new(name)
            .annotation("koordinator.sh/oom-score-adj", "555")
            .annotation("koordinator.sh/oom-score-adj-spec", spec),
        container: ContainerSpec::new("main")
            .resources(resources)
            .command(["sh", "-c", command]),
        expected: Vec::new(),
    }
}

/// The files of the scores of all processes of a container.
fn files(cgroup: &PodCgroup, container: &str) -> Result<Vec<String>> {
    let processes = cgroup.read("cpu", Some(container), "cgroup.procs")?;
    let processes = processes.lines();
    Ok(processes
        .map(|it| format!("/proc/{it}/oom_score_adj"))
        .collect())
}

fn scores(cgroup: &PodCgroup, container: &str) -> Result<Vec<i64>> {
    let files = files(cgroup, container)?;
    let scores = files
        .iter()
        .map(|file| Ok(fs::read_to_string(file)?.trim().parse()?));
    scores.collect()
}

/// Waits until both processes of each container have its score.
fn wait_for(pods: &[RunningPod; 2], what: &str, expected: [i64; 2]) {
    wait_until(what, || {
        let pairs = pods.iter().zip(expected);
        pairs.into_iter().all(|(pod, score)| {
            let scores = scores(&pod.cgroup, &pod.container);
            scores.is_ok_and(|scores| scores == [score; 2])
        })
    });
}

/// An update, after which the pod is looked at. What it says of the score no runtime heeds.
async fn update(client: &CriClient, pod: &RunningPod) -> Result<()> {
    let update = LinuxContainerResources {
        cpu_shares: 300,
        oom_score_adj: 999,
        ..Default::default()
    };
    Ok(client.update_resources(&pod.container, update).await?)
}

async fn at_first(client: &CriClient, pod: &RunningPod) -> Result<i64> {
    let told = Cell::new(None);
    wait_until_async("the container has said it", || async {
        let said = client.exec(&pod.container, ["cat", "/first"]).await;
        let said = said.ok().and_then(|it| String::from_utf8(it.stdout).ok());
        told.set(said.and_then(|it| it.trim().parse().ok()));
        told.get().is_some()
    })
    .await;
    told.get().context("it was waited for")
}

async fn scores_follow_the_annotations(version: ContainerdVersion, front: Front) -> Result<()> {
    let options = ProxyOptions {
        args: vec![GATE.to_owned()],
        front,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(version, options)?;
    let mut client = node.client().await?;
    let pods = [
        node.run(&client, &spec(RAISED)).await?,
        node.run(&client, &spec(LOWERED)).await?,
    ];
    let (decided, asked) = ([800, 300], [100, 700]);
    wait_for(&pods, "the scores of the annotations", decided);
    if front != Front::Watch {
        for (pod, score) in pods.iter().zip(decided) {
            assert_eq!(at_first(&client, pod).await?, score);
        }
    }
    // Sandbox and shim keep theirs.
    let sandbox = &pods[0].sandbox;
    let of_sandbox = scores(&pods[0].cgroup, sandbox)?;
    ensure!(of_sandbox.len() == 1, "{of_sandbox:?}");
    ensure!(of_sandbox[0] < 100, "{of_sandbox:?}");

    // Somebody else's value is written over at the next look.
    for file in files(&pods[1].cgroup, &pods[1].container)? {
        fs::write(file, "444")?;
    }
    for pod in &pods {
        update(&client, pod).await?;
    }
    wait_for(&pods, "the same after an update", decided);
    for (state, scores) in [("off", asked), ("on", decided)] {
        node.proxy.switch(&format!("OOMScoreAdj={state}"))?;
        wait_for(&pods, state, scores);
    }

    // What was asked for is known to the next of us, as the runtime has it.
    node.proxy.kill9()?;
    node.launch_proxy()?;
    client = node.client().await?;
    wait_until("what was asked is known again", || {
        let known = node.decided().unwrap_or_default();
        let asked = |pod: &str, score: &str| {
            let entry = known.get(&format!("\"{pod}\" \"main\" \"oom_score_adj\""));
            entry.is_some_and(|it| it.starts_with(&format!("\"{score}\"")))
        };
        asked("raised", "100") && asked("lowered", "700")
    });
    update(&client, &pods[0]).await?;
    wait_for(&pods, "the same after a restart", decided);
    node.proxy.switch("OOMScoreAdj=off")?;
    wait_for(&pods, "what was asked for", asked);
    ensure!(
        scores(&pods[0].cgroup, sandbox)? == of_sandbox,
        "the sandbox"
    );
    Ok(())
}

#[tokio::test]
async fn scores_follow_the_annotations_on_containerd_1_6() -> Result<()> {
    scores_follow_the_annotations(ContainerdVersion::V1_6, Front::Cri).await
}

#[tokio::test]
async fn scores_follow_the_annotations_on_containerd_2() -> Result<()> {
    scores_follow_the_annotations(ContainerdVersion::V2, Front::Cri).await
}

#[tokio::test]
async fn scores_follow_the_annotations_by_the_nri_of_containerd_1_7() -> Result<()> {
    scores_follow_the_annotations(ContainerdVersion::V1_7, Front::Nri).await
}

#[tokio::test]
async fn scores_follow_the_annotations_by_the_nri_of_containerd_2() -> Result<()> {
    scores_follow_the_annotations(ContainerdVersion::V2, Front::Nri).await
}

#[tokio::test]
async fn scores_follow_the_annotations_where_nobody_asks_us() -> Result<()> {
    scores_follow_the_annotations(ContainerdVersion::V2, Front::Watch).await
}

/// A container of which nothing is said has what it has, with the hook on.
#[tokio::test]
async fn without_an_annotation_a_container_has_what_its_kubelet_asked() -> Result<()> {
    let options = ProxyOptions {
        args: vec![GATE.to_owned()],
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let mut plain = spec(LOWERED);
    plain.pod = PodSpec::new("plain");
    let pod = node.run(&client, &plain).await?;
    assert_eq!(at_first(&client, &pod).await?, 700);
    Ok(())
}
