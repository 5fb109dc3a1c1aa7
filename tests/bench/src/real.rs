//! The same in front of a real containerd, where an answer is work.

use crate::{
    load::{self, Kind, Sample},
    parts::{self, Target, proxy_options},
    report::{Report, Row},
};
use anyhow::Result;
use koord_integration::{Node, classes};
use koord_testkit::{
    ContainerdVersion, RawRequest,
    cri::{ContainerSpec, CriClient, PodSpec},
};
use std::process::Child;

/// What [`Arguments::only`](crate::Arguments) may name.
pub(crate) const NAME: &str = "in front of a real containerd";

/// Containers that make a list of 1 MiB, by an annotation of 16 KiB each.
const LISTED: usize = 64;

/// The node, a byte relay beside the proxy, and a pod for containers to be created in.
struct Real {
    node: Node,
    relay: Child,
    targets: Vec<Target>,
    spec: PodSpec,
    sandbox: String,
}

/// Each kind of call by each way, one caller and many.
pub(crate) async fn measure(rounds: usize, report: &mut Report) -> Result<()> {
    let mut real = Real::start().await?;
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
    async fn start() -> Result<Self> {
        let node = Node::start(ContainerdVersion::V1_7, proxy_options()?)?;
        let runtime = node.containerd.socket();
        let (relay, relayed) = parts::byte_relay(node.testbed(), &runtime)?;
        let target = |name: &str, socket, pid| Target {
            name: name.to_owned(),
            socket,
            pid,
        };
        let targets = vec![
            target("direct", runtime, None),
            target("relay", relayed, Some(relay.id())),
            target("proxy", node.proxy.socket(), node.proxy.pid()),
        ];
        let pod = classes::be("batch");
        let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        let mut spec = pod.pod.cgroup(&cgroup);
        spec.request.config = Some(load::grown(spec.config().clone()));
        let sandbox = node.client().await?.run_pod(&spec).await?;
        Ok(Self {
            node,
            relay,
            targets,
            spec,
            sandbox,
        })
    }

    /// Creates containers until a list of all has 1 MiB.
    async fn fill(&mut self) -> Result<()> {
        let client = CriClient::connect(&self.node.containerd.socket()).await?;
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

/// Calls of one round: a creation takes containerd milliseconds, and so does a list.
fn calls(kind: Kind, callers: usize) -> usize {
    match (kind, callers) {
        (Kind::Unary, 1) => 1_000,
        (Kind::Unary, _) => 100 * callers,
        (_, 1) => 40,
        _ => 2 * callers,
    }
}
