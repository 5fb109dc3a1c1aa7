//! A kubelet's own pod start, from the manifest to Ready: straight, through the proxy, and with the
//! proxy as the runtime's plugin.

use crate::{parts::demo_options, state::median};
use anyhow::{Context, Result};
use koord_integration::{Front, Node, ProxyOptions, classes, static_pod};
use koord_testkit::{ContainerdVersion, Kubelet, poll::bound};
use serde::Serialize;
use serde_json::json;
use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// What [`Arguments::only`](crate::Arguments) may name.
pub(crate) const NAME: &str = "kubelet, pod start";
/// Pods that are started each way.
const PODS: usize = 50;
const LOOK: Duration = Duration::from_millis(2);

/// What starts took one way, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PodStarts {
    pub(crate) way: &'static str,
    pub(crate) pods: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) most_ms: f64,
}

/// A node with a kubelet on one of its sockets.
struct Way {
    name: &'static str,
    kubelet: Kubelet,
    // Dropped last: it takes the kubelet's pods along.
    node: Node,
}

// === impl Way ===

impl Way {
    fn start(
        name: &'static str,
        options: ProxyOptions,
        socket: impl Fn(&Node) -> PathBuf,
    ) -> Result<Self> {
        let node = Node::start(ContainerdVersion::V2, options)?;
        let kubelet = Kubelet::start(node.testbed(), &socket(&node), json!({}))?;
        Ok(Self {
            name,
            kubelet,
            node,
        })
    }

    fn all() -> Result<[Self; 3]> {
        let nri = ProxyOptions {
            front: Front::Nri,
            ..demo_options()?
        };
        let mut direct = Self::start("direct", demo_options()?, |it| it.runtime.socket())?;
        direct.node.proxy.stop()?;
        Ok([
            direct,
            Self::start("proxy", demo_options()?, |node| node.proxy.socket())?,
            Self::start("plugin", nri, Node::socket)?,
        ])
    }

    /// Starts a pod and removes it, and says how long the start took.
    fn time(&self, number: usize) -> Result<Duration> {
        let name = format!("bench-{number}");
        let mut manifest = static_pod::manifest(&classes::be(&name));
        let container = &mut manifest["spec"]["containers"][0];
        // A probe would be waited for, once a second.
        container["readinessProbe"] = json!(null);
        manifest["spec"]["terminationGracePeriodSeconds"] = json!(0);
        let start = Instant::now();
        self.kubelet.apply(&manifest)?;
        let state = |ready: bool| -> Result<()> {
            while self.is_ready(&name)? != ready {
                anyhow::ensure!(start.elapsed() < bound(), "{name} is late, {}", self.name);
                thread::sleep(LOOK);
            }
            Ok(())
        };
        state(true)?;
        let took = start.elapsed();
        self.kubelet.remove(&name)?;
        state(false)?;
        Ok(took)
    }

    fn is_ready(&self, name: &str) -> Result<bool> {
        let pods = self.kubelet.pods()?;
        let own = pods.iter().find(|pod| {
            let found = pod["metadata"]["name"].as_str();
            found.is_some_and(|found| found.trim_end_matches("-node") == name)
        });
        Ok(own.is_some_and(|pod| pod["status"]["containerStatuses"][0]["ready"] == true))
    }
}

/// All ways in turn, pod by pod.
pub(crate) fn measure() -> Result<Vec<PodStarts>> {
    let ways = Way::all()?;
    let mut measured = [Vec::new(), Vec::new(), Vec::new()];
    // The first warms up.
    for number in 0..=PODS {
        for (way, times) in ways.iter().zip(&mut measured) {
            let took = way.time(number)?;
            if number > 0 {
                times.push(took.as_secs_f64() * 1e3);
            }
        }
    }
    let summed = ways.iter().zip(measured);
    summed.map(|(way, times)| sum(way.name, times)).collect()
}

fn sum(way: &'static str, mut times: Vec<f64>) -> Result<PodStarts> {
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).copied();
    Ok(PodStarts {
        way,
        pods: times.len(),
        p95_ms: at(95).context("times")?,
        most_ms: *times.last().context("times")?,
        p50_ms: median(times),
    })
}
