//! The first program of a virtual machine that is a node in small: containerd, pods' control groups
//! of cgroup v2, and the proxy. Runs the checks that `KOORD_CHECKS` names, one after the other, says on
//! the console how each went, and switches the machine off. With `show` it is for people: the demo, and
//! a shell.
//!
//! What it is on top of: a kernel with core scheduling and cache allocation, and an initramfs with
//! busybox, containerd and the proxy at the places below.
#![forbid(unsafe_code)]

mod caches;
mod classes;
mod cores;
mod cpu;
mod every;
mod idle;
mod io;
mod machine;
mod memory;
mod nodes;
mod own;
mod pod;
mod policy;
mod show;
mod traffic;
mod volumes;

use koord_integration::{Front, Node, ProxyOptions, vm::RUNTIME};
use koord_testkit::{ContainerdVersion, Parts, RuntimeKind, setup::Programs};
use std::{
    any::Any,
    env,
    future::Future,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    panic, process,
};

/// A node of a check. All go with the machine, since to clear one away takes longer than all the rest where
/// every instruction is emulated; but its proxy goes with the check: each minute it would clear away what
/// another one makes, as the groups of caches are the machine's.
struct SmallNode(ManuallyDrop<Node>);

fn main() {
    if process::id() != 1 && (io::work_if_told() || pod::be_many_if_told()) {
        return;
    }
    assert_eq!(process::id(), 1, "this is the first program of a machine");
    if let Err(reason) = panic::catch_unwind(run) {
        println!("koord-guest: broken: {}", message(&*reason));
    }
    machine::power_off();
}

fn run() {
    machine::prepare();
    let wanted = env::var("KOORD_CHECKS").expect("the command line says which checks are wanted");
    match wanted.as_str() {
        "caches" => caches::check_all(),
        "classes" => {
            classes::check_all();
            cpu::check_all();
            idle::check_all();
        }
        "cores" => cores::check_all(),
        "every" => every::check_all(),
        "first" => {
            caches::check_the_first_instruction();
            cores::check_the_first_instruction();
        }
        "io" => {
            volumes::check_all();
            io::check_all();
        }
        "memory" => {
            memory::check_all();
            own::check_all();
            policy::check_all();
        }
        "nodes" => nodes::check_all(),
        "show" => return show::until_the_shell_ends(),
        "traffic" => traffic::check_all(),
        other => panic!("there are no checks of {other}"),
    }
    println!("koord-guest: end");
}

/// The machine's runtime with the proxy, as the checks want it.
fn node(options: ProxyOptions) -> SmallNode {
    let parts = Parts {
        kind: runtime(),
        programs: Programs::at(RUNTIME),
        images: "/opt/images.tar".into(),
        network: Some("/opt/network".into()),
    };
    let node = Node::start_with(parts, options).expect("a node");
    SmallNode(ManuallyDrop::new(node))
}

/// The runtime that the machine has.
fn runtime() -> RuntimeKind {
    let name = env::var("KOORD_RUNTIME").expect("the command line says which runtime is there");
    name.parse().expect("a runtime's name")
}

/// The fronts that it can serve, with their names.
fn fronts() -> &'static [(Front, &'static str)] {
    match runtime() {
        RuntimeKind::Containerd(ContainerdVersion::V1_6) => &[(Front::Cri, "cri")],
        _ => &[(Front::Cri, "cri"), (Front::Nri, "nri")],
    }
}

/// Runs one check, and says how it went.
fn check<F: Future<Output = anyhow::Result<()>>>(name: &str, check: impl FnOnce() -> F) {
    let Err(reason) = went(check) else {
        return println!("koord-guest: ok {name}");
    };
    let reason = reason.replace('\n', "\nkoord-guest: ");
    println!("koord-guest: failed {name}\nkoord-guest: {reason}");
}

/// Runs something to its end, and says why it did not come to that.
fn went<F: Future<Output = anyhow::Result<()>>>(run: impl FnOnce() -> F) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for one thread");
    match panic::catch_unwind(panic::AssertUnwindSafe(|| runtime.block_on(run()))) {
        Ok(went) => went.map_err(|error| format!("{error:?}")),
        Err(reason) => Err(message(&*reason)),
    }
}

fn message(reason: &(dyn Any + Send)) -> String {
    let text = reason.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| reason.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

// === impl SmallNode ===

impl Deref for SmallNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.0
    }
}

impl DerefMut for SmallNode {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.0
    }
}

impl Drop for SmallNode {
    fn drop(&mut self) {
        // A check that failed with the proxy gone has said so.
        self.0.proxy.kill9().ok();
    }
}
