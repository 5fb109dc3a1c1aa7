//! A node in a virtual machine for people who want to look: containerd with the proxy before it on
//! cgroup v2, the pods of the demo, and a shell. With `2` as its argument it has two sockets, each a NUMA
//! node.
//!
//! The machine is this process: whatever ends it ends all of it, and nothing is left behind.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use koord_integration::vm::{NodeMachine, ONE_CORE, TWO_NODES};
use koord_testkit::ContainerdVersion;
use std::{
    convert::Infallible,
    env,
    io::{IsTerminal, stdin},
    process::ExitCode,
};

const HELP: &str = "\
Boots a virtual machine with containerd, the proxy before it on cgroup v2 and the pods of the demo, and
gives a shell there; `exit` ends all of it. Needs no root, and a terminal.

usage: vm [1|2]

How many sockets the machine has, each a NUMA node; 1 by default.";

fn main() -> ExitCode {
    if matches!(env::args().nth(1).as_deref(), Some("-h" | "--help")) {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let Err(error) = show();
    eprintln!("no machine: {error:#}");
    ExitCode::FAILURE
}

fn show() -> Result<Infallible> {
    let hardware = match env::args().nth(1).as_deref() {
        None | Some("1") => ONE_CORE,
        Some("2") => TWO_NODES,
        Some(other) => bail!("no machine with {other} NUMA nodes; 1 or 2, and --help says more"),
    };
    // The machine loses what comes before its shell does, and one without an end would be on for ever.
    if !stdin().is_terminal() {
        bail!("it is for people: standard input is no terminal");
    }
    eprintln!("booting; every instruction is emulated, so this takes a while");
    NodeMachine::with(hardware, ContainerdVersion::V2)?.show()
}
