//! The demo: four pods through the proxy, and what the kernel holds for each. With `nri` as its
//! argument they go straight to the runtime, which asks the proxy as its plugin, with `watch` straight to
//! one that nobody tells of the proxy.
//!
//! Everything runs in a testbed of its own and disappears with it, also when this program is
//! interrupted or killed. The exit status is non-zero if one value is not what it should be.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use koord_integration::{Front, Node, demo};
use koord_testkit::ContainerdVersion;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let interrupted = async {
        let (mut int, mut term) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
        Ok::<_, std::io::Error>(())
    };
    tokio::select! {
        biased;
        _ = interrupted => {
            eprintln!("interrupted; cleaning up, which takes some seconds");
            ExitCode::from(130)
        }
        result = run() => match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("demo failed: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

async fn run() -> Result<()> {
    let front = match std::env::args().nth(1).as_deref() {
        None | Some("cri") => Front::Cri,
        Some("nri") => Front::Nri,
        Some("watch") => Front::Watch,
        Some(other) => bail!("no front {other}; cri, nri or watch"),
    };
    let node = Node::start(ContainerdVersion::V1_7, demo::options(front)?)?;
    demo::run(&node).await
}
