//! The kubelet of this machine and its pods: what their owners write, and what the kernel holds for them
//! in slices and scopes.

use crate::reader::run;
use anyhow::{Context, Result, ensure};
use koord_integration::{
    classes::{self, PodSpecOf, Scope},
    static_pod::{manifest, ready_of},
};
use koord_testkit::{PodCgroup, kubelet_pods, poll::wait_patiently};
use serde_json::Value;
use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

const MANIFESTS: &str = "/etc/kubernetes/manifests";
const KUBELET: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10_255);

/// What the kubelet asks for each class, where no hook has a say.
#[rustfmt::skip]
const ASKED: &[(&str, Scope, &str, &str)] = &[
    ("LSR", Scope::Pod, "cpu.max", "50000 100000"),
    ("LSR", Scope::Pod, "memory.max", "1073741824"),
    ("LSR", Scope::Container, "cpuset.cpus.effective", "0-1"),
    ("LSR", Scope::Container, "cpu.max", "50000 100000"),
    ("LSR", Scope::Container, "memory.max", "1073741824"),
    ("LS", Scope::Pod, "cpu.max", "max 100000"),
    ("LS", Scope::Container, "cpuset.cpus.effective", "0-1"),
    ("LS", Scope::Container, "cpu.max", "max 100000"),
    ("BE", Scope::Pod, "cpu.idle", "0"),
    ("BE", Scope::Pod, "cpu.weight", "1"),
    ("BE", Scope::Pod, "cpu.max", "max 100000"),
    ("BE", Scope::Pod, "memory.max", "max"),
    ("BE", Scope::Container, "cpu.weight", "1"),
    ("BE", Scope::Container, "cpu.max", "max 100000"),
    ("BE", Scope::Container, "memory.max", "max"),
];

/// A pod that runs.
struct Running {
    pod: PodSpecOf,
    container: String,
    slice: PodCgroup,
}

/// All pods that were started, in order.
#[derive(Default)]
pub(super) struct Node(Vec<Running>);

// === impl Node ===

impl Node {
    /// One whose kubelet runs a pod of each class.
    pub(super) fn of_each_class() -> Result<Self> {
        let mut node = Self::default();
        node.has_images()?;
        node.start(vec![
            classes::lsr("redis"),
            classes::ls("web", "1"),
            classes::be("batch"),
        ])?;
        Ok(node)
    }

    /// One whose kubelet runs two latency-sensitive pods that may share a core, and a best-effort one.
    pub(super) fn of_groups() -> Result<Self> {
        let group = "koordinator.sh/core-sched-group-id";
        let mut pods = vec![
            classes::ls("web", "1"),
            classes::ls("shop", "1"),
            classes::be("batch"),
        ];
        for pod in &mut pods {
            pod.pod = pod.pod.clone().label(group, "a");
        }
        let mut node = Self::default();
        node.has_images()?;
        node.start(pods)?;
        Ok(node)
    }

    fn has_images(&self) -> Result<()> {
        let import = "ctr --namespace k8s.io images import /opt/images.tar";
        run(import)?.ended(0).map(drop)
    }

    /// Has the kubelet run these, and returns when they are ready.
    pub(super) fn start(&mut self, pods: Vec<PodSpecOf>) -> Result<()> {
        for pod in &pods {
            // Written beside and renamed: a kubelet takes half a file for a wrong one.
            let beside = Path::new(MANIFESTS).with_file_name("manifest.new");
            fs::write(&beside, without_probe(manifest(pod)).to_string())?;
            fs::rename(&beside, manifest_of(pod))?;
        }
        for pod in pods {
            let mut container = None;
            wait_patiently(&format!("{} is ready", pod.name), || {
                container = ready(&pod);
                container.is_some()
            });
            self.0.push(Running {
                container: container.context("it was waited for")?,
                slice: PodCgroup::slice(pod.pod.uid(), pod.qos)?,
                pod,
            });
        }
        Ok(())
    }

    /// What is not as the classes of the pods say.
    pub(super) fn not_as_decided(&self) -> Vec<String> {
        let all = self.0.iter();
        all.flat_map(|it| it.pod.wrong_in(&it.slice, &it.scope()))
            .collect()
    }

    /// What is not as the kubelet asked for it.
    pub(super) fn not_as_asked(&self) -> Vec<String> {
        let all = self.0.iter().flat_map(Running::asked);
        all.filter(|(_, asked, held)| !held.as_ref().is_ok_and(|held| held == asked))
            .map(|(what, asked, held)| format!("{what}: {held:?}, not {asked:?}"))
            .collect()
    }

    /// The threads of each container.
    pub(super) fn threads(&self) -> Result<Vec<Vec<i32>>> {
        let of = |it: &Running| {
            let text = it.slice.read("cpu", Some(&it.scope()), "cgroup.threads")?;
            Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
        };
        self.0.iter().map(of).collect()
    }

    /// Fails unless each pod is ready in the container in which it was first.
    pub(super) fn runs_on(&self) -> Result<()> {
        for Running { pod, container, .. } in &self.0 {
            let now = ready(pod);
            ensure!(
                now.as_ref() == Some(container),
                "{}: {now:?}, not {container}",
                pod.name
            );
        }
        Ok(())
    }
}

// === impl Running ===

impl Running {
    fn scope(&self) -> String {
        format!("cri-containerd-{}.scope", self.container)
    }

    /// What was asked for, and what is held.
    fn asked(&self) -> impl Iterator<Item = (String, &'static str, io::Result<String>)> {
        let rows = ASKED.iter().filter(|row| row.0 == self.pod.class);
        rows.map(|(_, of, file, asked)| {
            let scope = self.scope();
            let container = (*of == Scope::Container).then_some(&*scope);
            let held = self.slice.read("cpu", container, file);
            (
                format!("{file} of {} ({of:?})", self.pod.name),
                *asked,
                held,
            )
        })
    }
}

/// Where every instruction is emulated a command a second in each pod leaves time for nothing else.
fn without_probe(mut manifest: Value) -> Value {
    manifest["spec"]["containers"][0]["readinessProbe"].take();
    manifest
}

/// Whether the kubelet answers.
pub(super) fn kubelet_answers() -> bool {
    kubelet_pods(KUBELET).is_ok()
}

fn ready(pod: &PodSpecOf) -> Option<String> {
    ready_of(&kubelet_pods(KUBELET).ok()?, pod)
}

fn manifest_of(pod: &PodSpecOf) -> String {
    format!("{MANIFESTS}/{}.json", pod.name)
}
