//! A private runtime with the proxy in front and a kubelet's cgroups around.

use crate::{
    classes::PodSpecOf,
    proxy::{Front, Proxy, ProxyOptions},
};
use anyhow::{Context, Result};
use koord_testkit::{
    Options, Parts, PodCgroup, PodCgroups, Runtime, RuntimeKind, Testbed, cri::CriClient,
};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// How long the runtime waits for a plugin that does not run as shipped. Who is late sets nothing, and a
/// loaded machine is not to make us late. `tests/container.rs` keeps the runtimes' own two seconds, and so
/// does what a runtime launches (`proxy/tests/real_launched.rs`).
const NRI_PATIENCE: Duration = Duration::from_secs(60);

/// The whole node. Dropping it removes every trace.
#[derive(Debug)]
pub struct Node {
    pub proxy: Proxy,
    pub cgroups: PodCgroups,
    pub runtime: Runtime,
}

/// A pod that runs on the node.
#[derive(Debug)]
pub struct RunningPod {
    pub sandbox: String,
    pub container: String,
    pub cgroup: PodCgroup,
}

// === impl Node ===

impl Node {
    pub fn start(kind: impl Into<RuntimeKind>, options: ProxyOptions) -> Result<Self> {
        let runtime = Runtime::start(kind, &runtime_options(&options))?;
        Self::around(runtime, options)
    }

    /// The same with parts that are there.
    pub fn start_with(parts: Parts, options: ProxyOptions) -> Result<Self> {
        let runtime = Runtime::start_with(parts, &runtime_options(&options))?;
        Self::around(runtime, options)
    }

    /// The same with a runtime that runs.
    pub fn around(runtime: Runtime, options: ProxyOptions) -> Result<Self> {
        let cgroups = PodCgroups::of(&runtime)?;
        let proxy = Proxy::start(runtime.testbed(), &runtime.socket(), options)?;
        Ok(Self {
            proxy,
            cgroups,
            runtime,
        })
    }

    pub fn testbed(&self) -> &Testbed {
        self.runtime.testbed()
    }

    /// Starts the proxy again, after it was stopped or killed.
    pub fn launch_proxy(&mut self) -> Result<()> {
        self.proxy.launch(self.runtime.testbed())
    }

    /// The socket for clients: the proxy's, or the runtime's where clients do not go
    /// through the proxy.
    pub fn socket(&self) -> PathBuf {
        match self.proxy.front() {
            Front::Cri => self.proxy.socket(),
            Front::Nri | Front::Watch => self.runtime.socket(),
        }
    }

    /// A client on that socket.
    pub async fn client(&self) -> Result<CriClient> {
        Ok(CriClient::connect(&self.socket()).await?)
    }

    /// What the ledger decided for each setting of each group that it knows: what was asked, what should
    /// be, who says so, and what the kernel holds.
    pub fn decided(&self) -> Result<BTreeMap<String, String>> {
        let all = self.settings()?.into_iter().map(|(name, it)| {
            let value = ["asked", "desired", "owner", "kernel"].map(|key| it[key].to_string());
            (name, value.join(" "))
        });
        Ok(all.collect())
    }

    /// All that the ledger tells of each setting of each group.
    pub fn settings(&self) -> Result<BTreeMap<String, Value>> {
        let ledger = self.proxy.ledger()?;
        let root = self.testbed().cgroup_root();
        let mut groups = Vec::new();
        for pod in ledger["pods"].as_array().context("pods")? {
            let containers = pod["containers"].as_array().context("containers")?;
            let of_containers = containers.iter().map(|it| (&it["name"], &it["settings"]));
            let of_pod = [
                (&Value::Null, &pod["settings"]),
                (&Value::Bool(true), &pod["sandboxSettings"]),
            ];
            let all = of_containers.chain(of_pod);
            groups.extend(
                all.map(|(group, settings)| (format!("{} {group}", pod["name"]), settings)),
            );
        }
        for group in ledger["node"].as_array().context("node")? {
            let cgroup = group["cgroup"].as_str().context("cgroup")?;
            let below = cgroup.strip_prefix(&root).unwrap_or(cgroup);
            groups.push((below.to_owned(), &group["settings"]));
        }
        let mut all = BTreeMap::new();
        for (group, settings) in groups {
            for it in settings.as_array().context("settings")? {
                all.insert(format!("{group} {}", it["setting"]), it.clone());
            }
        }
        Ok(all)
    }

    /// Makes the pod's cgroup as a kubelet would, runs its sandbox, creates and starts its
    /// container.
    pub async fn run(&self, client: &CriClient, pod: &PodSpecOf) -> Result<RunningPod> {
        RunningPod::start(&self.cgroups, client, pod).await
    }
}

// === impl RunningPod ===

impl RunningPod {
    /// See [`Node::run`].
    pub async fn start(cgroups: &PodCgroups, client: &CriClient, pod: &PodSpecOf) -> Result<Self> {
        let name = &pod.name;
        let cgroup = cgroups.pod(pod.pod.uid(), pod.qos)?;
        let spec = pod.pod.clone().cgroup(&cgroup);
        let sandbox = client
            .run_pod(&spec)
            .await
            .with_context(|| format!("run pod {name}"))?;
        let container = client
            .create_container(&sandbox, &pod.container, &spec)
            .await
            .with_context(|| format!("create the container of {name}"))?;
        client
            .start_container(&container)
            .await
            .with_context(|| format!("start the container of {name}"))?;
        Ok(Self {
            sandbox,
            container,
            cgroup,
        })
    }

    /// Stops and removes it, container first.
    pub async fn remove(&self, client: &CriClient) -> Result<()> {
        client.stop_container(&self.container, 0).await?;
        client.remove_container(&self.container).await?;
        client.stop_pod(&self.sandbox).await?;
        Ok(client.remove_pod(&self.sandbox).await?)
    }
}

fn runtime_options(proxy: &ProxyOptions) -> Options {
    let nri = proxy.front == Front::Nri;
    Options {
        nri,
        nri_patience: (nri && !proxy.as_shipped).then_some(NRI_PATIENCE),
        ..Options::default()
    }
}
