//! The plain byte relay as a process of its own, for the benchmark.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

use clap::Parser;
use koord_testkit::byte_relay::relay;
use tokio::net::UnixListener;

/// Relays bytes between unix sockets.
#[derive(Debug, Parser)]
struct Arguments {
    /// The socket to listen on; must not exist.
    #[arg(long)]
    listen: PathBuf,
    /// The socket to connect to.
    #[arg(long)]
    target: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    relay(UnixListener::bind(&arguments.listen)?, &arguments.target).await
}
