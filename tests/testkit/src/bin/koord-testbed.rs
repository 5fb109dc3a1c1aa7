//! The testbed's parts for a shell: fetch them beforehand, or run a private containerd by hand.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use koord_testkit::setup::{
    Cache, ContainerdVersion, ensure_containerd, ensure_image_archive, ensure_kernel,
    ensure_kubelet, ensure_qemu,
};
use koord_testkit::{Containerd, Options};
use tokio::signal::unix::{SignalKind, signal};

/// Parts of the tests' machine room.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetches and builds parts into the cache; without a name all of them.
    Setup { parts: Vec<Part> },
    /// Runs a private containerd until SIGINT or SIGTERM, then removes every trace of it.
    Containerd {
        generation: Generation,
        /// Serve NRI beside the CRI socket.
        #[arg(long)]
        nri: bool,
        /// A directory of HOST/hosts.toml files for images from a registry on loopback.
        #[arg(long)]
        registry_config: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Generation {
    #[value(name = "1.6")]
    V1_6,
    #[value(name = "1.7")]
    V1_7,
    #[value(name = "2")]
    V2,
}

impl From<Generation> for ContainerdVersion {
    fn from(generation: Generation) -> Self {
        match generation {
            Generation::V1_6 => Self::V1_6,
            Generation::V1_7 => Self::V1_7,
            Generation::V2 => Self::V2,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    #[value(name = "containerd-1.6")]
    Containerd1_6,
    #[value(name = "containerd-1.7")]
    Containerd1_7,
    #[value(name = "containerd-2")]
    Containerd2,
    #[value(name = "containerd-1.7.6")]
    Containerd1_7_6,
    #[value(name = "containerd-2.1")]
    Containerd2_1,
    #[value(name = "containerd-2.2")]
    Containerd2_2,
    Image,
    Qemu,
    Kernel,
    Kubelet,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().command {
        Command::Setup { parts } if parts.is_empty() => set_up(Part::value_variants()),
        Command::Setup { parts } => set_up(&parts),
        Command::Containerd {
            generation,
            nri,
            registry_config,
        } => {
            let options = Options {
                nri,
                registry_config,
                ..Options::default()
            };
            run(generation.into(), &options).await
        }
    }
}

fn set_up(parts: &[Part]) -> Result<(), Box<dyn Error>> {
    let cache = Cache::open()?;
    for part in parts {
        match part {
            Part::Containerd1_6 => drop(ensure_containerd(&cache, ContainerdVersion::V1_6)?),
            Part::Containerd1_7 => drop(ensure_containerd(&cache, ContainerdVersion::V1_7)?),
            Part::Containerd2 => drop(ensure_containerd(&cache, ContainerdVersion::V2)?),
            Part::Containerd1_7_6 => drop(ensure_containerd(&cache, ContainerdVersion::V1_7_6)?),
            Part::Containerd2_1 => drop(ensure_containerd(&cache, ContainerdVersion::V2_1)?),
            Part::Containerd2_2 => drop(ensure_containerd(&cache, ContainerdVersion::V2_2)?),
            Part::Image => drop(ensure_image_archive(&cache)?),
            Part::Qemu => drop(ensure_qemu(&cache)?),
            Part::Kernel => drop(ensure_kernel(&cache)?),
            Part::Kubelet => drop(ensure_kubelet(&cache)?),
        }
    }
    Ok(())
}

async fn run(version: ContainerdVersion, options: &Options) -> Result<(), Box<dyn Error>> {
    // Installed first: from here on a signal is waited for, not died of.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let containerd = Containerd::start(version, options)?;
    let mut out = std::io::stdout();
    writeln!(out, "socket {}", containerd.socket().display())?;
    writeln!(out, "cgroup {}", containerd.testbed().cgroup_root())?;
    out.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
