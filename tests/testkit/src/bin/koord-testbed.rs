//! The testbed's parts for a shell: fetch them beforehand, or run a private runtime by hand.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use koord_testkit::setup::{
    Cache, ContainerdVersion, RuntimeKind, ensure_containerd, ensure_crio, ensure_image_archive,
    ensure_kernel, ensure_kubelet, ensure_qemu,
};
use koord_testkit::{Options, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

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
    /// Runs a private runtime until SIGINT or SIGTERM, then removes every trace of it; needs root.
    /// The exit status is 130 if it was interrupted before the runtime was there.
    Run {
        runtime: Name,
        /// Serve NRI beside the CRI socket.
        #[arg(long)]
        nri: bool,
        /// A directory of HOST/hosts.toml files for images from a registry on loopback.
        #[arg(long)]
        registry_config: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Name {
    #[value(name = "containerd-1.6")]
    Containerd1_6,
    #[value(name = "containerd-1.7")]
    Containerd1_7,
    #[value(name = "containerd-2")]
    Containerd2,
    #[value(name = "cri-o")]
    Crio,
}

impl From<Name> for RuntimeKind {
    fn from(name: Name) -> Self {
        match name {
            Name::Containerd1_6 => ContainerdVersion::V1_6.into(),
            Name::Containerd1_7 => ContainerdVersion::V1_7.into(),
            Name::Containerd2 => ContainerdVersion::V2.into(),
            Name::Crio => Self::Crio,
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
    #[value(name = "cri-o")]
    Crio,
    Image,
    Qemu,
    Kernel,
    Kubelet,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Setup { parts } if parts.is_empty() => set_up(Part::value_variants()),
        Command::Setup { parts } => set_up(&parts),
        Command::Run {
            runtime,
            nri,
            registry_config,
        } => {
            let options = Options {
                nri,
                registry_config,
                ..Options::default()
            };
            run(runtime.into(), &options).await
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("koord-testbed: {}", chain_of(&*error));
        ExitCode::FAILURE
    })
}

/// What an error says, and what each says that it comes from.
fn chain_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn set_up(parts: &[Part]) -> Result<ExitCode, Box<dyn Error>> {
    let cache = Cache::open()?;
    for part in parts {
        match part {
            Part::Containerd1_6 => drop(ensure_containerd(&cache, ContainerdVersion::V1_6)?),
            Part::Containerd1_7 => drop(ensure_containerd(&cache, ContainerdVersion::V1_7)?),
            Part::Containerd2 => drop(ensure_containerd(&cache, ContainerdVersion::V2)?),
            Part::Containerd1_7_6 => drop(ensure_containerd(&cache, ContainerdVersion::V1_7_6)?),
            Part::Containerd2_1 => drop(ensure_containerd(&cache, ContainerdVersion::V2_1)?),
            Part::Containerd2_2 => drop(ensure_containerd(&cache, ContainerdVersion::V2_2)?),
            Part::Crio => drop(ensure_crio(&cache)?),
            Part::Image => drop(ensure_image_archive(&cache)?),
            Part::Qemu => drop(ensure_qemu(&cache)?),
            Part::Kernel => drop(ensure_kernel(&cache)?),
            Part::Kubelet => drop(ensure_kubelet(&cache)?),
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn run(kind: RuntimeKind, options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // Installed first: from here on a signal is waited for, not died of.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let runtime = match Runtime::start(kind, options) {
        Ok(runtime) => runtime,
        // What fetches and builds is in our process group, and was interrupted with us.
        Err(error) if has_come(&mut interrupt).await || has_come(&mut terminate).await => {
            eprintln!("koord-testbed: interrupted: {}", chain_of(&error));
            return Ok(ExitCode::from(130));
        }
        Err(error) => return Err(error.into()),
    };
    let mut out = std::io::stdout();
    writeln!(out, "socket {}", runtime.socket().display())?;
    writeln!(out, "cgroup {}", runtime.testbed().cgroup_root())?;
    out.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a signal has come. It is known a moment later than whoever else got it has ended by it.
async fn has_come(signal: &mut Signal) -> bool {
    timeout(Duration::from_millis(200), signal.recv())
        .await
        .is_ok()
}
