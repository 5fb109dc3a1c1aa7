//! The machine that is a node in small: containerd and the proxy on a kernel with core scheduling and
//! cache allocation. Its first program is `koord-vm-node` (`vm/node/`).

use super::{Console, Initramfs, boot, machine};
use crate::binary;
use anyhow::{Context, Result};
use koord_testkit::{
    Cache, RuntimeKind,
    poll::SLOWNESS,
    setup::{
        Qemu, ensure_busybox, ensure_conmon, ensure_image_archive, ensure_own_kernel,
        ensure_pod_network, ensure_qemu, ensure_runtime,
    },
};
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
};

/// Where the machine has its runtime.
pub const RUNTIME: &str = "/opt/runtime";

/// One core of two threads, emulated by one thread: with cookies the two wait for each other at every
/// turn, which takes for ever where each has to be given time by itself.
pub const ONE_CORE: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "Icelake-Server,check=off",
    "-smp",
    "2,sockets=1,cores=1,threads=2",
    "-m",
    "1536",
];

/// One socket of two such cores, emulated in the same way.
pub const TWO_CORES: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "Icelake-Server,check=off",
    "-smp",
    "4,sockets=1,cores=2,threads=2",
    "-m",
    "1536",
];

/// Two sockets of such a core, each with memory of its own.
pub const TWO_NODES: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "Icelake-Server,check=off",
    "-smp",
    "4,sockets=2,cores=1,threads=2",
    "-m",
    "1536",
    "-object",
    "memory-backend-ram,size=768M,id=m0",
    "-object",
    "memory-backend-ram,size=768M,id=m1",
    "-numa",
    "node,nodeid=0,memdev=m0,cpus=0-1",
    "-numa",
    "node,nodeid=1,memdev=m1,cpus=2-3",
];

/// Such a machine, switched off.
#[derive(Debug)]
pub struct NodeMachine {
    hardware: &'static [&'static str],
    runtime: RuntimeKind,
    qemu: Qemu,
    kernel: PathBuf,
    files: Initramfs,
}

// === impl NodeMachine ===

impl NodeMachine {
    /// Puts one together, of parts that are fetched or built once.
    pub fn with(
        hardware: &'static [&'static str],
        runtime: impl Into<RuntimeKind>,
    ) -> Result<Self> {
        let (cache, runtime) = (Cache::open()?, runtime.into());
        let mut files = Initramfs::default();
        files.add_program("init", &binary("koord-vm-node")?)?;
        files.add_program("koord-runtime-proxy", &binary("koord-runtime-proxy")?)?;
        files.add_file(Path::new("bin/busybox"), &ensure_busybox(&cache)?)?;
        add_runtime(&mut files, &cache, runtime, RUNTIME)?;
        let network = ensure_pod_network(&cache)?;
        for plugin in ["host-local", "loopback", "portmap", "ptp"] {
            files.add_program(&format!("opt/network/{plugin}"), &network.join(plugin))?;
        }
        files.add_file(Path::new("opt/images.tar"), &ensure_image_archive(&cache)?)?;
        Ok(Self {
            hardware,
            runtime,
            qemu: ensure_qemu(&cache)?,
            kernel: ensure_own_kernel(&cache)?,
            files,
        })
    }

    /// Boots it for the checks of that name, and returns when it has switched itself off.
    pub fn check(self, checks: &str) -> Result<Console> {
        let variables = self.variables(checks);
        boot(
            &self.qemu,
            self.hardware,
            &self.kernel,
            self.files,
            &variables,
        )
    }

    /// Becomes this machine, with the demo and a shell on our terminal.
    pub fn show(self) -> Result<Infallible> {
        let variables = self.variables("show");
        let initramfs = self.files.finish()?;
        machine::become_one(
            &self.qemu,
            self.hardware,
            &self.kernel,
            &initramfs,
            &variables,
        )
    }

    /// The environment of the first program.
    fn variables(&self, checks: &str) -> String {
        let runtime = self.runtime.name();
        // A kernel without random numbers shows no cookies. Collecting garbage is a sixth of what runtimes do
        // in their short lives on an emulated processor, and there is memory enough to do it later.
        format!(
            "PATH={RUNTIME}:/bin HOME=/root GOGC=400 random.trust_cpu=on {SLOWNESS}=8 \
             KOORD_CHECKS={checks} KOORD_RUNTIME={runtime}"
        )
    }
}

/// Puts the programs of a runtime into a directory.
pub(super) fn add_runtime(
    files: &mut Initramfs,
    cache: &Cache,
    runtime: RuntimeKind,
    directory: &str,
) -> Result<()> {
    let bin = ensure_runtime(cache, runtime)?.bin().to_owned();
    let names: &[&str] = match runtime {
        RuntimeKind::Containerd(_) => &["containerd", "containerd-shim-runc-v2", "ctr", "runc"],
        RuntimeKind::Crio => &["conmon", "copyimg", "crio", "pinns", "runc"],
    };
    for name in names {
        let from = match *name {
            // Beside the others is a script that finds its libraries.
            "conmon" => ensure_conmon(cache)?.join("bin/conmon"),
            name => bin.join(name),
        };
        let from = from.canonicalize();
        let from = from.with_context(|| format!("{runtime} has no {name}"))?;
        let at = Path::new(directory.trim_start_matches('/')).join(name);
        files.add_program(at.to_str().context("a path is not UTF-8")?, &from)?;
    }
    Ok(())
}
