//! The testbed's parts for a shell: fetch them beforehand, or run a private runtime by hand.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use koord_testkit::setup::{
    Cache, RuntimeKind, ensure_image_archive, ensure_kernel, ensure_kubelet, ensure_own_kernel,
    ensure_qemu, ensure_runtime,
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
    Setup {
        #[arg(value_parser = one_of(Part::all()))]
        parts: Vec<Part>,
    },
    /// Runs a private runtime until SIGINT or SIGTERM, then removes every trace of it; needs root.
    /// The exit status is 130 if it was interrupted before the runtime was there.
    Run {
        #[arg(value_parser = one_of(RuntimeKind::NAMED.into_iter()))]
        runtime: RuntimeKind,
        /// Serve NRI beside the CRI socket.
        #[arg(long)]
        nri: bool,
        /// A directory of HOST/hosts.toml files for images from a registry on loopback.
        #[arg(long)]
        registry_config: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Runtime(RuntimeKind),
    Image,
    Qemu,
    Kernel,
    OwnKernel,
    Kubelet,
}

impl Part {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        let runtimes = RuntimeKind::NAMED.map(|(name, kind)| (name, Self::Runtime(kind)));
        runtimes.into_iter().chain([
            ("image", Self::Image),
            ("qemu", Self::Qemu),
            ("kernel", Self::Kernel),
            ("own-kernel", Self::OwnKernel),
            ("kubelet", Self::Kubelet),
        ])
    }
}

/// Takes one of these names.
fn one_of<T: Clone + Send + Sync + 'static>(
    named: impl Iterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let named: BTreeMap<_, _> = named.collect();
    let names: Vec<_> = named.keys().copied().collect();
    PossibleValuesParser::new(names).map(move |name| named[&*name].clone())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Setup { parts } if parts.is_empty() => set_up(Part::all().map(|(_, part)| part)),
        Command::Setup { parts } => set_up(parts),
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
            run(runtime, &options).await
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

fn set_up(parts: impl IntoIterator<Item = Part>) -> Result<ExitCode, Box<dyn Error>> {
    let cache = Cache::open()?;
    for part in parts {
        match part {
            Part::Runtime(kind) => drop(ensure_runtime(&cache, kind)?),
            Part::Image => drop(ensure_image_archive(&cache)?),
            Part::Qemu => drop(ensure_qemu(&cache)?),
            Part::Kernel => drop(ensure_kernel(&cache)?),
            Part::OwnKernel => drop(ensure_own_kernel(&cache)?),
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
