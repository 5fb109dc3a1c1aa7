//! The machine that is a node as its administrator knows it: systemd is its first program, and
//! containerd and a kubelet are services with its control groups. What checks is a service beside them,
//! `koord-vm-systemd` (`vm/systemd/`).

use super::{Console, Initramfs, boot, node::add_runtime};
use crate::binary;
use anyhow::{Context, Result};
use koord_testkit::{
    Cache, ContainerdVersion,
    setup::{
        Qemu, System, ensure_busybox, ensure_containerd, ensure_image_archive, ensure_kubelet,
        ensure_own_kernel, ensure_qemu, ensure_system,
    },
};
use std::path::{Path, PathBuf};

/// Where the repository is in the machine: what its users type is typed there.
pub const REPOSITORY: &str = "/srv/koord-runtime-proxy";

/// Two processors, each emulated by a thread of its own, and memory for pods that ask for a GiB.
pub const TWO_CPUS: &[&str] = &[
    "-accel",
    "tcg,thread=multi",
    "-cpu",
    "Icelake-Server,check=off",
    "-smp",
    "2",
    "-m",
    "3072",
];

/// The same with one core of two threads, emulated as [`ONE_CORE`](super::ONE_CORE) is, and for its reason.
pub const ONE_CORE_WITH_PODS: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "Icelake-Server,check=off",
    "-smp",
    "2,sockets=1,cores=1,threads=2",
    "-m",
    "2048",
];

/// The demo in the machine, where cargo puts it.
pub const DEMO: &str = "/srv/koord-runtime-proxy/target/debug/demo";

/// What says where the demo's parts are; see [`Cache::open`].
pub const DEMO_CACHE: &str = "KOORD_TEST_CACHE";

/// Such a machine, switched off.
#[derive(Debug)]
pub struct SystemMachine {
    hardware: &'static [&'static str],
    qemu: Qemu,
    kernel: PathBuf,
    files: Initramfs,
    /// What the kernel hands to the first program.
    variables: String,
}

/// Units that have nobody to log in and no bus, or nothing to do on this machine.
const MASKED: [&str; 4] = [
    "getty.target",
    "systemd-logind.service",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
];

// === impl SystemMachine ===

impl SystemMachine {
    /// Puts one together, of parts that are fetched or built once.
    pub fn with(hardware: &'static [&'static str]) -> Result<Self> {
        let cache = Cache::open()?;
        let mut files = Initramfs::default();
        add_system(&mut files, &ensure_system(&cache)?)?;
        add_node(&mut files, &cache)?;
        add_repository(&mut files)?;
        files.add_program("koord-vm-systemd", &binary("koord-vm-systemd")?)?;
        files.add_link(Path::new("init"), Path::new("/koord-vm-systemd"))?;
        Ok(Self {
            hardware,
            qemu: ensure_qemu(&cache)?,
            kernel: ensure_own_kernel(&cache)?,
            files,
            variables: "random.trust_cpu=on systemd.show_status=0".to_owned(),
        })
    }

    /// Puts the demo in, and the cache that it has its parts from, where that is here: its entries name
    /// each other by their paths.
    pub fn with_demo(mut self) -> Result<Self> {
        let cache = Cache::open()?;
        let runtime = ensure_containerd(&cache, ContainerdVersion::V1_7)?;
        let entry = runtime.bin();
        for program in ["containerd", "containerd-shim-runc-v2", "ctr", "runc"] {
            let program = entry.join(program);
            let from = program.canonicalize().context("a part is not there")?;
            self.files.add_program(below_root(&from)?, &from)?;
            self.files.add_link(below_root(&program)?.as_ref(), &from)?;
        }
        for part in [ensure_busybox(&cache)?, ensure_image_archive(&cache)?] {
            self.files.add_file(below_root(&part)?.as_ref(), &part)?;
        }
        let demo = Path::new(DEMO);
        self.files
            .add_program(below_root(demo)?, &binary("demo")?)?;
        let proxy = demo.with_file_name("koord-runtime-proxy");
        let built = Path::new("../release/koord-runtime-proxy");
        self.files.add_link(below_root(&proxy)?.as_ref(), built)?;
        let cache = entry.parent().context("an entry lies in the cache")?;
        self.variables += &format!(" {DEMO_CACHE}={}", cache.display());
        Ok(self)
    }

    /// Boots it for the checks of that name, and returns when it has switched itself off.
    pub fn check(self, checks: &str) -> Result<Console> {
        let variables = format!("{} KOORD_CHECKS={checks}", self.variables);
        boot(
            &self.qemu,
            self.hardware,
            &self.kernel,
            self.files,
            &variables,
        )
    }
}

/// A path as an archive has it.
fn below_root(path: &Path) -> Result<&str> {
    let path = path.strip_prefix("/").ok().and_then(Path::to_str);
    path.context("a path is not absolute, or not UTF-8")
}

/// Debian's user space, where one directory is for `/bin` and `/usr/bin`.
fn add_system(files: &mut Initramfs, system: &System) -> Result<()> {
    for merged in ["bin", "lib", "lib64", "sbin"] {
        let at = format!("usr/{merged}");
        files.add_directory(Path::new(&at))?;
        files.add_link(Path::new(merged), Path::new(&at))?;
    }
    files.add_link(Path::new("var/run"), Path::new("/run"))?;
    for below in [
        "bin", "etc", "lib", "sbin", "usr/bin", "usr/lib", "usr/sbin",
    ] {
        files.add_tree(Path::new(below), &system.root().join(below))?;
    }
    for program in [system.init(), system.root().join("bin/grep")] {
        files.add_libraries(&program, &system.libraries())?;
    }
    for unit in MASKED {
        let at = format!("etc/systemd/system/{unit}");
        files.add_link(Path::new(&at), Path::new("/dev/null"))?;
    }
    // This kernel has room for fewer processes than Debian's.
    files.add_link(
        Path::new("etc/sysctl.d/50-pid-max.conf"),
        Path::new("/dev/null"),
    )?;
    let enabled = "etc/systemd/system/multi-user.target.wants";
    for unit in ["containerd", "kubelet", "koord-guest"] {
        let at = format!("{enabled}/{unit}.service");
        let to = format!("/etc/systemd/system/{unit}.service");
        files.add_link(Path::new(&at), Path::new(&to))?;
    }
    files.add_link(
        Path::new("etc/systemd/system/default.target"),
        Path::new("/lib/systemd/system/multi-user.target"),
    )
}

/// containerd, the kubelet, and how both are configured.
fn add_node(files: &mut Initramfs, cache: &Cache) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/systemd/root");
    files.add_tree(Path::new(""), &root)?;
    add_runtime(files, cache, ContainerdVersion::V2.into(), "usr/local/bin")?;
    files.add_program("usr/bin/kubelet", &ensure_kubelet(cache)?)?;
    files.add_file(Path::new("opt/images.tar"), &ensure_image_archive(cache)?)?;
    // Debian has these from procps, findutils and mawk.
    files.add_file(Path::new("usr/bin/busybox"), &ensure_busybox(cache)?)?;
    for command in ["awk", "find", "kill", "xargs"] {
        let at = format!("usr/bin/{command}");
        files.add_link(Path::new(&at), Path::new("busybox"))?;
    }
    files.add_directory(Path::new("etc/kubernetes/manifests"))
}

/// What a user has of us: the README, the units, and the program where cargo puts it.
fn add_repository(files: &mut Initramfs) -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let there = Path::new(below_root(Path::new(REPOSITORY))?);
    files.add_file(&there.join("README.md"), &here.join("README.md"))?;
    for below in ["docs", "systemd"] {
        files.add_tree(&there.join(below), &here.join(below))?;
    }
    let program = there.join("target/release/koord-runtime-proxy");
    let program = program.to_str().context("a path is not UTF-8")?;
    files.add_program(program, &binary("koord-runtime-proxy")?)
}
