//! The machine for people: the demo's pods, and a shell on the console.

use crate::{machine::make, node, went};
use koord_integration::{Front, demo};
use std::{os::unix::fs::symlink, path::Path, process::Command};

/// What to look at.
const WELCOME: &str = "
This is a node with cgroup v2, with containerd and the proxy, on an emulated processor.
  koord-runtime-proxy status          what the proxy is doing
  koord-runtime-proxy ledger          what each pod should have, and has
  koord-runtime-proxy explain web     why
  ctr -n k8s.io tasks ls              what runs
";

/// Returns when the shell has ended.
pub(super) fn until_the_shell_ends() {
    let options = demo::options(Front::Cri).expect("which CPUs are online");
    let node = node(options);
    if let Err(reason) = went(|| demo::run(&node)) {
        println!("{reason}");
    }
    link("/koord-runtime-proxy", "/bin/koord-runtime-proxy");
    link(
        node.proxy.admin_socket(),
        "/run/koord-runtime-proxy/admin.sock",
    );
    link(node.runtime.socket(), "/run/containerd/containerd.sock");
    let pods = format!("/sys/fs/cgroup{}", node.cgroups.root());
    println!("{WELCOME}  ls {pods}/*");
    println!("  exit                                switches the machine off, as does Ctrl-A X\n");
    // Signals of keys reach who has the terminal.
    let shell = Command::new("setsid")
        .args(["cttyhack", "sh"])
        .env("PS1", "node-1 # ")
        .current_dir("/sys/fs/cgroup")
        .status();
    shell.expect("a shell");
}

/// Puts something where programs look for it.
fn link(to: impl AsRef<Path>, at: &str) {
    let parent = Path::new(at).parent().expect("a file is somewhere");
    make(parent.to_str().expect("it was written here"));
    symlink(to, at).unwrap_or_else(|error| panic!("{at}: {error}"));
}
