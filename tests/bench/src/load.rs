//! Callers: each with a connection of its own, each with one call open at a time, as a kubelet's
//! workers are.

use crate::parts::Target;
use anyhow::{Context, Result, ensure};
use koord_integration::{binary, classes, every_hook};
use koord_testkit::{
    RawClient, RawRequest,
    cri::{
        CriClient,
        message::{
            ContainerId, CreateContainerRequest, LinuxPodSandboxConfig, PodSandboxConfig,
            VersionRequest,
        },
    },
};
use prost::Message;
use serde::Deserialize;
use std::{
    fmt,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// What the two ends are made of. What a proxy adds is a sum of its own; how much that is of a
/// round trip depends on what the round trip costs without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// The least that two ends can do: frames written and read by one thread each.
    Frames,
    /// grpc-go, with which kubelets and container runtimes are built.
    Grpc,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A small call that passes through.
    Unary,
    /// A reply of 1 MiB that passes through.
    List,
    /// CreateContainer of 8 KiB with 60 annotations: opened, decided about, patched.
    Create,
}

/// One measurement of one target.
pub(crate) struct Load {
    pub(crate) stack: Stack,
    pub(crate) kind: Kind,
    pub(crate) callers: usize,
    pub(crate) calls: usize,
    /// Remove what was created, between the measured calls: what stays is not measured then.
    pub(crate) tidy: bool,
}

/// What one measurement gave.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) per_second: f64,
    pub(crate) cpu_us_per_call: Option<f64>,
}

/// What `grpc-bench call` prints.
#[derive(Deserialize)]
struct Figures {
    latencies_ns: Vec<u64>,
    elapsed_ns: u64,
}

// === impl Stack ===

impl Stack {
    pub(crate) const ALL: [Self; 2] = [Self::Frames, Self::Grpc];
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frames => "frames",
            Self::Grpc => "grpc-go",
        })
    }
}

// === impl Kind ===

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Unary, Self::List, Self::Create];

    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Unary => "/runtime.v1.RuntimeService/Version",
            Self::List => "/runtime.v1.ImageService/ListImages",
            Self::Create => "/runtime.v1.RuntimeService/CreateContainer",
        }
    }

    fn message(self, sandbox: &str) -> Vec<u8> {
        match self {
            Self::Unary => VersionRequest::default().encode_to_vec(),
            Self::List => Vec::new(),
            Self::Create => create_request((sandbox, &sandbox_config()), 0),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unary => "small unary",
            Self::List => "1 MiB list",
            Self::Create => "CreateContainer, 8 KiB",
        })
    }
}

/// A best-effort pod that asks something of many hooks, [`grown`].
fn sandbox_config() -> PodSandboxConfig {
    let pod = every_hook::asking(classes::be("batch").pod);
    let mut config = pod.config().clone();
    config.linux = Some(LinuxPodSandboxConfig {
        cgroup_parent: "/kubepods/besteffort/poduid-batch".to_owned(),
        ..Default::default()
    });
    grown(config)
}

/// A pod with 60 annotations.
pub(crate) fn grown(mut config: PodSandboxConfig) -> PodSandboxConfig {
    for number in config.annotations.len()..60 {
        config.annotations.insert(
            format!("example.com/annotation-{number:02}"),
            "x".repeat(64),
        );
    }
    config
}

/// The creation of that pod's container by one of several callers, 8 KiB.
pub(crate) fn create_request(
    (sandbox, config): (&str, &PodSandboxConfig),
    caller: usize,
) -> Vec<u8> {
    const SIZE: usize = 8 * 1024;
    let mut request = CreateContainerRequest {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(classes::be("batch").container.config),
        sandbox_config: Some(config.clone()),
    };
    let missing = SIZE.saturating_sub(request.encoded_len());
    if let Some(config) = &mut request.config {
        if let Some(metadata) = &mut config.metadata {
            // A name may be there once at a time; its attempt tells containers apart.
            metadata.attempt = u32::try_from(caller).unwrap_or_default();
        }
        // Two bytes of tag and length; the exact size does not matter, its order does.
        config.log_path = "l".repeat(missing.saturating_sub(3));
    }
    request.encode_to_vec()
}

// === impl Load ===

impl Load {
    pub(crate) async fn run(&self, target: &Target) -> Result<Sample> {
        let sandbox = self.sandbox(target).await?;
        let message = self.kind.message(&sandbox);
        let cpu_before = target.cpu_us();
        let (latencies, elapsed) = match self.stack {
            Stack::Frames => self.call_by_frames(target, message).await?,
            Stack::Grpc => self.call_by_grpc(target, &message)?,
        };
        let cpu_us = target
            .cpu_us()
            .zip(cpu_before)
            .map(|(now, then)| now - then);
        self.clear(target, &sandbox).await?;
        Ok(Sample::of(latencies, elapsed, cpu_us))
    }

    async fn call_by_frames(
        &self,
        target: &Target,
        message: Vec<u8>,
    ) -> Result<(Vec<u64>, Duration)> {
        let request = RawRequest::unary(self.kind.method(), message);
        let each = self.calls / self.callers;
        drive(&target.socket, vec![request; self.callers], each, self.tidy).await
    }

    fn call_by_grpc(&self, target: &Target, message: &[u8]) -> Result<(Vec<u64>, Duration)> {
        let mut command = Command::new(binary("grpc-bench")?);
        command.arg("call").arg("-socket").arg(&target.socket);
        command.args(["-method", self.kind.method()]);
        command.arg(format!("-callers={}", self.callers));
        command.arg(format!("-calls={}", self.calls));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut caller = command.spawn().context("run grpc-bench")?;
        let mut input = caller.stdin.take().context("grpc-bench has an input")?;
        input.write_all(message)?;
        drop(input);
        let output = caller.wait_with_output()?;
        ensure!(output.status.success(), "grpc-bench failed");
        let figures: Figures = serde_json::from_slice(&output.stdout)?;
        Ok((
            figures.latencies_ns,
            Duration::from_nanos(figures.elapsed_ns),
        ))
    }

    /// A pod for containers to be created in, run by the same way.
    async fn sandbox(&self, target: &Target) -> Result<String> {
        if self.kind != Kind::Create {
            return Ok(String::new());
        }
        let mut pod = classes::be("batch").pod;
        pod.request.config = Some(sandbox_config());
        let client = CriClient::connect(&target.socket).await?;
        Ok(client.run_pod(&pod).await?)
    }

    /// Takes the pod and its containers out of every ledger again: no node has as many as are
    /// created here.
    async fn clear(&self, target: &Target, sandbox: &str) -> Result<()> {
        if self.kind == Kind::Create {
            let client = CriClient::connect(&target.socket).await?;
            client.remove_pod(sandbox).await?;
        }
        Ok(())
    }
}

/// Has a caller for each of these make its call so often. How long each call took, and all of them.
pub(crate) async fn drive(
    socket: &Path,
    requests: Vec<RawRequest>,
    each: usize,
    tidy: bool,
) -> Result<(Vec<u64>, Duration)> {
    let mut clients = Vec::with_capacity(requests.len());
    for _ in &requests {
        clients.push(RawClient::connect(socket).await?);
    }
    let start = Instant::now();
    let callers: Vec<_> = clients
        .into_iter()
        .zip(requests)
        .map(|(client, request)| tokio::spawn(call(client, request, each, tidy)))
        .collect();
    let mut latencies = Vec::new();
    for caller in callers {
        latencies.extend(caller.await??);
    }
    Ok((latencies, start.elapsed()))
}

async fn call(
    client: RawClient,
    request: RawRequest,
    calls: usize,
    tidy: bool,
) -> Result<Vec<u64>> {
    let mut latencies = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        let reply = client.call(request.clone()).await?;
        latencies.push(u64::try_from(start.elapsed().as_nanos())?);
        ensure!(
            reply.grpc_status() == Some(0),
            "a call failed: {:?}",
            reply.end
        );
        if tidy && let Some(created) = reply.messages.first() {
            let id = ContainerId::decode(created.message.clone())?;
            let path = "/runtime.v1.RuntimeService/RemoveContainer";
            client
                .call(RawRequest::unary(path, id.encode_to_vec()))
                .await?;
        }
    }
    Ok(latencies)
}

// === impl Sample ===

#[allow(
    clippy::cast_precision_loss,
    reason = "counts of a benchmark are far below 2^52"
)]
impl Sample {
    pub(crate) fn of(mut latencies: Vec<u64>, elapsed: Duration, cpu_us: Option<u64>) -> Self {
        latencies.sort_unstable();
        let count = latencies.len();
        let at = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1) - 1;
            latencies.get(rank).copied().unwrap_or_default()
        };
        Self {
            p50_ns: at(50),
            p99_ns: at(99),
            per_second: count as f64 / elapsed.as_secs_f64(),
            cpu_us_per_call: cpu_us.map(|us| us as f64 / count as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sample = Sample::of((1..=100).rev().collect(), Duration::from_secs(2), Some(400));
        assert_eq!((sample.p50_ns, sample.p99_ns), (50, 99));
        assert!((sample.per_second - 50.0).abs() < 1e-9);
        assert_eq!(sample.cpu_us_per_call, Some(4.0));
        assert_eq!(Sample::of(vec![7], Duration::from_secs(1), None).p99_ns, 7);
    }

    #[test]
    fn the_create_request_has_the_size_and_the_annotations_it_says() {
        let bytes = create_request((&"a".repeat(64), &sandbox_config()), 63);
        assert!((8_100..8_300).contains(&bytes.len()), "{}", bytes.len());
        let request = CreateContainerRequest::decode(&*bytes).unwrap();
        assert_eq!(request.sandbox_config.unwrap().annotations.len(), 60);
    }
}
