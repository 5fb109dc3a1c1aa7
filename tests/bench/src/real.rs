//! The same in front of a real containerd, where an answer is work.

use crate::{
    load::{self, Kind, Sample},
    parts::{self, Peer, Target, proxy_options},
    report::{Report, Row},
};
use anyhow::{Context, Result, ensure};
use koord_integration::{Node, classes, every_hook};
use koord_testkit::{
    ContainerdVersion, RawRequest,
    cri::{ContainerSpec, CriClient, PodSpec},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Child,
};

/// What [`Arguments::only`](crate::Arguments) may name.
pub(crate) const NAME: &str = "in front of a real containerd";

/// The hooks that decide about a creation.
const DECIDING: [&str; 4] = [
    "BatchResource",
    "CPUSetAllocator",
    "GPUEnvInject",
    "OOMScoreAdj",
];

/// Containers that make a list of 1 MiB, by an annotation of 16 KiB each.
const LISTED: usize = 64;

/// The node, a byte relay beside the proxy, and a pod for containers to be created in.
struct Real {
    node: Node,
    relay: Child,
    /// Where peers find the runtime.
    _link: Option<Link>,
    targets: Vec<Target>,
    spec: PodSpec,
    sandbox: String,
}

/// A symbolic link to the runtime's socket, at a path that peers were told.
struct Link(PathBuf);

/// Each kind of call by each way, one caller and many.
pub(crate) async fn measure(
    rounds: usize,
    (runtime_socket, peers): (Option<&Path>, &[Peer]),
    report: &mut Report,
) -> Result<()> {
    let mut real = Real::start(runtime_socket, peers).await?;
    for kind in [Kind::Unary, Kind::Create, Kind::List] {
        if kind == Kind::List {
            real.fill().await?;
        }
        for callers in [1, 64] {
            let rows = real.interleaved(kind, callers, rounds).await?;
            report.add_real(kind, callers, rows);
        }
    }
    Ok(())
}

// === impl Real ===

impl Real {
    async fn start(runtime_socket: Option<&Path>, peers: &[Peer]) -> Result<Self> {
        let node = Node::start(ContainerdVersion::V1_7, proxy_options()?)?;
        let runtime = node.runtime.socket();
        let (relay, relayed) = parts::byte_relay(node.testbed(), &runtime)?;
        let target = |name: &str, socket, pid| Target {
            name: name.to_owned(),
            socket,
            pid,
        };
        let link = runtime_socket.map(|path| Link::new(path, &runtime));
        let link = link.transpose()?;
        let expected = runtime_socket.unwrap_or(&runtime).to_owned();
        let mut targets = vec![
            target("direct", runtime, None),
            target("relay", relayed, Some(relay.id())),
            target("proxy", node.proxy.socket(), node.proxy.pid()),
        ];
        targets.extend(peers.iter().map(|peer| parts::await_peer(peer, &expected)));
        let pod = classes::be("batch");
        let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        let mut spec = every_hook::asking(pod.pod).cgroup(&cgroup);
        spec.request.config = Some(load::grown(spec.config().clone()));
        let client = CriClient::connect(&node.proxy.socket()).await?;
        let sandbox = client.run_pod(&spec).await?;
        let container = classes::be("batch").container;
        let container = client.create_container(&sandbox, &container, &spec).await?;
        let ledger = node.proxy.ledger()?;
        // It has the name of those that are measured, which the runtime would refuse beside it.
        client.remove_container(&container).await?;
        let deciding = deciding(&ledger);
        ensure!(deciding == DECIDING, "{deciding:?} decide about it");
        Ok(Self {
            node,
            relay,
            _link: link,
            targets,
            spec,
            sandbox,
        })
    }

    /// Creates containers until a list of all has 1 MiB.
    async fn fill(&mut self) -> Result<()> {
        let client = CriClient::connect(&self.node.runtime.socket()).await?;
        for number in 0..LISTED {
            let mut container = ContainerSpec::new(&format!("listed-{number}"));
            let filler = ("example.com/filler".to_owned(), "x".repeat(16 << 10));
            container.config.annotations.extend([filler]);
            let sandbox = &self.sandbox;
            client
                .create_container(sandbox, &container, &self.spec)
                .await?;
        }
        Ok(())
    }

    /// All ways in turn, round by round.
    async fn interleaved(&self, kind: Kind, callers: usize, rounds: usize) -> Result<Vec<Row>> {
        let mut measured: Vec<Vec<Sample>> = self.targets.iter().map(|_| Vec::new()).collect();
        let patched = self.node.proxy.creations(Some("patched"))?;
        // The first round warms up and is thrown away.
        for round in 0..=rounds {
            for (target, samples) in self.targets.iter().zip(&mut measured) {
                let before = target.cpu_us();
                let each = calls(kind, callers) / callers;
                let requests = (0..callers).map(|caller| self.request(kind, caller));
                let requests = requests.collect();
                let (latencies, elapsed) =
                    load::drive(&target.socket, requests, each, kind == Kind::Create).await?;
                let spent = target.cpu_us().zip(before).map(|(now, then)| now - then);
                // What a removal between two creations costs is not told apart.
                let spent = spent.filter(|_| kind != Kind::Create);
                if round > 0 {
                    samples.push(Sample::of(latencies, elapsed, spent));
                }
            }
        }
        if kind == Kind::Create {
            let sent = (rounds + 1) * calls(kind, callers);
            parts::all_were_patched(&self.node.proxy, patched, sent)?;
        }
        let rows = self.targets.iter().zip(measured);
        Ok(rows.map(|(target, it)| Row::median(target, &it)).collect())
    }

    fn request(&self, kind: Kind, caller: usize) -> RawRequest {
        match kind {
            Kind::List => {
                RawRequest::unary("/runtime.v1.RuntimeService/ListContainers", Vec::new())
            }
            Kind::Unary => RawRequest::unary(kind.method(), Vec::new()),
            Kind::Create => {
                let sandbox = (&*self.sandbox, self.spec.config());
                RawRequest::unary(kind.method(), load::create_request(sandbox, caller))
            }
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        drop(self.relay.kill().and_then(|()| self.relay.wait()));
    }
}

// === impl Link ===

impl Link {
    /// Takes the place of a link that is left from before, and of nothing else: a socket at this path may
    /// be that of the machine's own runtime.
    fn new(path: &Path, runtime: &Path) -> Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink()) {
            fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
        }
        symlink(runtime, path).with_context(|| format!("link {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// The owners of all values of containers in a ledger.
fn deciding(ledger: &Value) -> Vec<&str> {
    let pods = ledger["pods"].as_array().into_iter().flatten();
    let containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
    let settings = containers.flat_map(|it| it["settings"].as_array().into_iter().flatten());
    let owners: BTreeSet<&str> = settings.filter_map(|it| it["owner"].as_str()).collect();
    owners.into_iter().collect()
}

/// Calls of one round: a creation takes containerd milliseconds, and so does a list. Of 40 of them the 99th
/// percentile would be the slowest, which is whatever else the machine did; of these it is the second or the
/// third slowest at least.
fn calls(kind: Kind, callers: usize) -> usize {
    match (kind, callers) {
        (Kind::Unary, 1) => 1_000,
        (Kind::Unary, _) => 100 * callers,
        (Kind::List, 1) => 300,
        (Kind::Create, 1) => 150,
        _ => 2 * callers,
    }
}
