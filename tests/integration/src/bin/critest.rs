//! `make conformance CRITEST=PATH`: a critest binary, straight at a containerd and through the proxy.
//!
//! critest is no part of this tree. It pulls its images from registries on the internet and gives
//! its pods a network; here a registry on loopback serves one busybox under every name, and all of
//! it runs in a network namespace of its own, so that the machine's network is left alone. Specs
//! that need more than that fail both ways; what counts is that none is lost through the proxy.
//!
//! usage: critest PATH [CRITEST-FLAG...]
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use koord_integration::{Node, Proxy, ProxyOptions, classes};
use koord_testkit::{
    Cache, Containerd, ContainerdVersion, Options, PodCgroups, Testbed,
    setup::{ensure_busybox, ensure_cni_plugins, ensure_containerd, ensure_image_archive},
};
use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

const VERSION: ContainerdVersion = ContainerdVersion::V1_7;

/// Says that this process is in the network namespace already.
const ALONE: &str = "--alone";

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let result = match args.split_first() {
        Some((first, rest)) if first == ALONE => compare(rest),
        Some(_) => set_up().and_then(|()| go_alone(&args)),
        None => Err(anyhow::anyhow!("usage: critest PATH [CRITEST-FLAG...]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("critest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that needs the internet.
fn set_up() -> Result<()> {
    let cache = Cache::open()?;
    ensure_busybox(&cache)?;
    ensure_image_archive(&cache)?;
    ensure_containerd(&cache, VERSION)?;
    ensure_cni_plugins(&cache)?;
    succeed(
        Command::new("go")
            .args(["build", "-mod=readonly", "-o"])
            .arg(program()?)
            .arg(".")
            .current_dir(conformance(""))
            .env("GOTOOLCHAIN", "local"),
    )
}

fn go_alone(args: &[OsString]) -> Result<()> {
    let error = Command::new("unshare")
        .arg("--net")
        .arg(env::current_exe()?)
        .arg(ALONE)
        .args(args)
        .exec();
    Err(error).context("run unshare")
}

fn compare(args: &[OsString]) -> Result<()> {
    let (critest, flags) = args.split_first().context("critest is not named")?;
    let busybox = ensure_busybox(&Cache::open()?)?;
    succeed(Command::new(&busybox).args(["ip", "link", "set", "lo", "up"]))?;

    let registry = Testbed::new()?;
    let options = Options {
        registry_config: Some(serve_images(&registry, &busybox)?),
        pod_network: true,
        ..Options::default()
    };
    let containerd = Containerd::start(VERSION, &options)?;
    let node = Node {
        cgroups: PodCgroups::new(containerd.testbed())?,
        proxy: Proxy::start(containerd.testbed(), &containerd.socket(), all_hooks()?)?,
        containerd,
    };
    let script = conformance("critest-compare.sh");
    succeed(
        node.testbed()
            .command(script)
            .arg(critest)
            .arg(node.containerd.socket())
            .arg(node.proxy.socket())
            .arg(node.testbed().directory().join("reports"))
            .args(flags),
    )
}

fn all_hooks() -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: [
            "--feature-gates",
            "AllAlpha=true,AllBeta=true,BECPUIdle=true",
        ]
        .map(str::to_owned)
        .to_vec(),
    })
}

/// Starts the registry, and answers the directory that points containerd at it.
fn serve_images(testbed: &Testbed, busybox: &Path) -> Result<PathBuf> {
    let hosts = testbed.directory().join("hosts");
    let mut registry = testbed
        .command(program()?)
        .args(["registry", "--busybox"])
        .arg(busybox)
        .arg("--hosts")
        .arg(&hosts)
        .stdout(Stdio::piped())
        .spawn()
        .context("start the registry")?;
    // It says its address once it listens.
    let said = registry.stdout.take().context("its output is a pipe")?;
    let mut address = String::new();
    BufReader::new(said).read_line(&mut address)?;
    ensure!(!address.is_empty(), "the registry does not start");
    Ok(hosts)
}

/// The Go program, beside this one.
fn program() -> Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("conformance"))
}

fn conformance(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../conformance")
        .join(name)
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
