//! The plugin that says nothing as a process of its own, for the benchmark.

#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Parser;
use koord_testkit::nri::{NriError, echo};

/// An NRI plugin that answers every question at once and with nothing.
#[derive(Debug, Parser)]
struct Arguments {
    /// The runtime's socket for plugins.
    #[arg(long)]
    socket: PathBuf,
}

fn main() -> Result<(), NriError> {
    let arguments = Arguments::parse();
    echo(UnixStream::connect(&arguments.socket)?)
}
