//! The instant runtime as a process of its own, for the benchmark.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

use clap::Parser;
use koord_testkit::scripted::instant::{Instant, State};
use tokio::net::UnixListener;

/// A CRI runtime that answers at once and runs nothing.
#[derive(Debug, Parser)]
struct Arguments {
    /// The socket to listen on; must not exist.
    #[arg(long)]
    socket: PathBuf,
    /// Pods in the lists.
    #[arg(long, default_value_t = 0)]
    pods: usize,
    /// Containers in the lists, spread over the pods.
    #[arg(long, default_value_t = 0, requires = "pods")]
    containers: usize,
    /// Size of ListImages' message in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    list_bytes: usize,
    /// List the containers too that clients make.
    #[arg(long)]
    keep: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let state = State {
        pods: arguments.pods,
        containers: arguments.containers,
        list_bytes: arguments.list_bytes,
        keeps: arguments.keep,
    };
    Instant::new(&state)
        .serve(UnixListener::bind(&arguments.socket)?)
        .await
}
