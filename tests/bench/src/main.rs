//! What the proxy costs: latency, throughput, CPU time and memory, beside no proxy at all and
//! beside the least that any proxy can cost.
//!
//! Every part is a process of its own. Targets are measured in turn within each round, and what is
//! printed is the median over rounds, so a machine whose speed drifts moves all targets alike:
//! ratios hold where absolute times do not.
#![forbid(unsafe_code)]

mod echo;
mod life;
mod load;
mod nri;
mod parts;
mod pod_start;
mod real;
mod report;
mod rest;
mod state;

use anyhow::{Context, Result};
use clap::Parser;
use load::{Kind, Load, Stack};
use parts::{Parts, SETTLED};
use report::{Report, Row};
use serde_json::json;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tokio::time::sleep;

/// Measures the proxy beside a direct connection and a byte relay.
#[derive(Debug, Parser)]
struct Arguments {
    /// Another proxy to measure beside: NAME=SOCKET. It has to stand in front of --runtime-socket.
    #[arg(long, value_parser = parts::peer)]
    peer: Vec<parts::Peer>,
    /// Where the scripted runtime listens; a path in the bench's own folder by default.
    #[arg(long)]
    runtime_socket: Option<PathBuf>,
    /// Another proxy to measure beside in front of the real containerd: NAME=SOCKET. It has to stand in
    /// front of --real-runtime-socket.
    #[arg(long, value_parser = parts::peer, requires = "real_runtime_socket")]
    real_peer: Vec<parts::Peer>,
    /// Where the real containerd is to be found, by a symbolic link that is made there; its socket in the
    /// bench's own folder by default.
    #[arg(long)]
    real_runtime_socket: Option<PathBuf>,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Measure only what has this in its name, such as "frames, small unary"; nothing is written then.
    #[arg(long)]
    only: Option<String>,
    /// Leave out the part with a real containerd.
    #[arg(long)]
    no_real: bool,
    /// Make no control groups for the pods whose lives a plugin is told of: what it takes where there is
    /// nothing to write to, and the machine is not busy with making and removing them. Nothing is promised
    /// of that.
    #[arg(long, requires = "only")]
    no_cgroups: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let mut report = Report::default();
    for stack in Stack::ALL {
        if !wants_any(&arguments, stack) {
            continue;
        }
        let parts = Parts::start(stack, arguments.runtime_socket.clone(), &arguments.peer)?;
        sleep(SETTLED).await;
        report.idle_bytes.push(parts.proxy_resident()?);
        for kind in Kind::ALL {
            for callers in [1, 64] {
                let name = name(stack, kind, callers);
                if !arguments.wants(&name) {
                    continue;
                }
                eprintln!("measuring {name}");
                let load = Load {
                    stack,
                    kind,
                    callers,
                    calls: kind.calls(callers),
                    tidy: false,
                };
                let rows = interleaved(&parts, &load, arguments.rounds).await?;
                report.add(&load, rows);
            }
        }
    }
    let wants = |event: &str, pods| arguments.wants(&format!("nri, {event}, {pods} caller(s)"));
    if nri::wants_any(&wants) {
        eprintln!("measuring as a plugin that knows 1,000 pods and 5,000 containers");
        let has_groups = !arguments.no_cgroups;
        report.add_nri(nri::measure(arguments.rounds, &wants, has_groups)?);
    }
    if !arguments.no_real && arguments.wants(pod_start::NAME) {
        eprintln!("measuring {}", pod_start::NAME);
        report.pod_starts = pod_start::measure()?;
    }
    if arguments.wants(rest::NAME) {
        eprintln!("measuring {}", rest::NAME);
        report.add_rest(rest::measure(arguments.rounds).await?);
    }
    if arguments.wants(state::NAME) {
        eprintln!("measuring {}", state::NAME);
        report.add_state(state::measure(arguments.rounds).await?);
    }
    if !arguments.no_real && arguments.wants(real::NAME) {
        measure_real(&arguments, &mut report).await?;
    }
    if arguments.only.is_some() {
        println!("{report}");
        return Ok(());
    }
    report.weigh();
    println!("{report}");
    write(&report, &arguments.json)
}

fn write(report: &Report, path: &Path) -> Result<()> {
    let figures = json!(report);
    let file = std::fs::File::create(path);
    let mut file = file.with_context(|| format!("create {}", path.display()))?;
    writeln!(file, "{figures:#}")?;
    println!("figures as JSON: {}", path.display());
    Ok(())
}

// === impl Arguments ===

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|part| name.contains(part))
    }
}

/// Whether anything is measured with these ends.
fn wants_any(arguments: &Arguments, stack: Stack) -> bool {
    let kinds = Kind::ALL.iter();
    let mut names = kinds.flat_map(|kind| [1, 64].map(|callers| name(stack, *kind, callers)));
    names.any(|name| arguments.wants(&name))
}

fn name(stack: Stack, kind: Kind, callers: usize) -> String {
    format!("{stack}, {kind}, {callers} caller(s)")
}

async fn measure_real(arguments: &Arguments, report: &mut Report) -> Result<()> {
    eprintln!("measuring {}", real::NAME);
    let peers = (
        arguments.real_runtime_socket.as_deref(),
        &*arguments.real_peer,
    );
    real::measure(arguments.rounds, peers, report).await
}

/// All targets in turn, round by round.
async fn interleaved(parts: &Parts, load: &Load, rounds: usize) -> Result<Vec<Row>> {
    let targets = parts.targets();
    let mut measured: Vec<Vec<load::Sample>> = targets.iter().map(|_| Vec::new()).collect();
    let patched = parts.proxy().creations(Some("patched"))?;
    // The first round warms up and is thrown away.
    for round in 0..=rounds {
        for (target, samples) in targets.iter().zip(&mut measured) {
            let sample = load.run(target).await?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    if load.kind == Kind::Create {
        parts::all_were_patched(parts.proxy(), patched, (rounds + 1) * load.calls)?;
    }
    Ok(targets
        .iter()
        .zip(measured)
        .map(|(target, samples)| Row::median(target, &samples))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_are_left_out_only_where_nothing_is_written() {
        let parsed = |args: &[&str]| Arguments::try_parse_from([&["bench"][..], args].concat());
        let only = ["--only", "nri", "--no-cgroups"];
        assert!(parsed(&only).is_ok_and(|it| it.no_cgroups && it.only.is_some()));
        assert!(parsed(&["--no-cgroups"]).is_err());
    }
}
