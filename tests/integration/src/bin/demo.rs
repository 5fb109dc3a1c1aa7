//! The demo: four pods through the proxy, and what the kernel holds for each. With `nri` as its
//! argument they go straight to the runtime, which asks the proxy as its plugin, with `watch` straight to
//! one that nobody tells of the proxy.
//!
//! Everything runs in a testbed of its own and disappears with it, also when this program is
//! interrupted or killed. The exit status is non-zero if one value is not what it should be, and 130 if
//! it was interrupted, amid its cleaning up too.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use koord_integration::{Front, Node, demo};
use koord_testkit::ContainerdVersion;
use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

const HELP: &str = "\
Runs four pods through the proxy on a private containerd, prints what the kernel holds for each, and
removes all of it again; needs root.

usage: demo [cri|nri|watch]

cri (the default): calls go through the proxy; nri: the proxy is the runtime's plugin;
watch: the runtime is not told of the proxy.";

fn main() -> ExitCode {
    if matches!(std::env::args().nth(1).as_deref(), Some("-h" | "--help")) {
        // Whoever reads may have stopped.
        writeln!(io::stdout(), "{HELP}").ok();
        return ExitCode::SUCCESS;
    }
    match hear_of_interrupt().and_then(run) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Until it is over or interrupted.
#[tokio::main(flavor = "current_thread")]
async fn run(mut interrupted: oneshot::Receiver<()>) -> Result<ExitCode> {
    let status = ExitCode::from(130);
    tokio::select! {
        biased;
        Ok(()) = &mut interrupted => return Ok(status),
        shown = show() => shown?,
    }
    Ok(match interrupted.try_recv() {
        // While it cleaned up.
        Ok(()) => status,
        Err(_) => ExitCode::SUCCESS,
    })
}

/// Answers the first interrupt at once, and then tells of it. It does so on a thread of its own: what the
/// demo does, and its cleaning up, blocks the main one for seconds.
fn hear_of_interrupt() -> Result<oneshot::Receiver<()>> {
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let (mut int, mut term) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = int.recv() => {}
                _ = term.recv() => {}
            }
        });
        eprintln!("interrupted; cleaning up, which takes some seconds");
        tell.send(()).ok();
    });
    Ok(told)
}

async fn show() -> Result<()> {
    let front = match std::env::args().nth(1).as_deref() {
        None | Some("cri") => Front::Cri,
        Some("nri") => Front::Nri,
        Some("watch") => Front::Watch,
        Some(other) => bail!("no front {other}; cri, nri or watch"),
    };
    let node = Node::start(ContainerdVersion::V1_7, demo::options(front)?)?;
    let shown = demo::run(&node).await;
    eprintln!("cleaning up, which takes some seconds");
    shown
}
