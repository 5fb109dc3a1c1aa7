//! `make conformance CRITEST=PATH`: a critest binary, straight at containerd and through the proxy, on
//! every generation, or on the one that is named.
//!
//! critest is no part of this tree. It pulls its images from registries on the internet and gives
//! its pods a network; here a registry on loopback serves stand-ins made of one busybox, and all of
//! it runs in a network namespace of its own, so that the machine's network is left alone. Specs
//! that need more than that fail both ways, and are named; what counts is that none is lost through
//! the proxy.
//!
//! usage: critest [--containerd 1.6|1.7|2] PATH [CRITEST-FLAG...]
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{Node, Proxy, ProxyOptions, classes};
use koord_testkit::{
    Cache, Containerd, ContainerdVersion, Options, PodCgroups, Testbed,
    setup::{ensure_busybox, ensure_containerd, ensure_image_archive, ensure_pod_network},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

const USAGE: &str = "usage: critest [--containerd 1.6|1.7|2] PATH [CRITEST-FLAG...]";

/// Says that this process is in the network namespace already.
const ALONE: &str = "--alone";

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let result = match args.split_first() {
        Some((first, rest)) if first == ALONE => parse(rest).and_then(|run| run.compare()),
        _ => parse(&args)
            .and_then(|run| run.set_up())
            .and_then(|()| go_alone(&args)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("critest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line asks for.
struct Run<'a> {
    versions: &'static [ContainerdVersion],
    critest: &'a OsStr,
    flags: &'a [OsString],
}

fn parse(args: &[OsString]) -> Result<Run<'_>> {
    let (versions, args) = match args {
        [flag, version, rest @ ..] if flag == "--containerd" => (named(version)?, rest),
        _ => (ContainerdVersion::ALL.as_slice(), args),
    };
    let (critest, flags) = args.split_first().context(USAGE)?;
    Ok(Run {
        versions,
        critest,
        flags,
    })
}

fn named(version: &OsStr) -> Result<&'static [ContainerdVersion]> {
    Ok(match version.to_str() {
        Some("1.6") => &[ContainerdVersion::V1_6],
        Some("1.7") => &[ContainerdVersion::V1_7],
        Some("2") => &[ContainerdVersion::V2],
        _ => bail!(USAGE),
    })
}

impl Run<'_> {
    /// Everything that needs the internet.
    fn set_up(&self) -> Result<()> {
        let cache = Cache::open()?;
        ensure_busybox(&cache)?;
        ensure_image_archive(&cache)?;
        ensure_pod_network(&cache)?;
        for version in self.versions {
            ensure_containerd(&cache, *version)?;
        }
        succeed(
            Command::new("go")
                .args(["build", "-mod=readonly", "-o"])
                .arg(program()?)
                .arg(".")
                .current_dir(conformance(""))
                .env("GOTOOLCHAIN", "local"),
        )
    }

    /// Every generation is compared, also after one that loses a spec.
    fn compare(&self) -> Result<()> {
        let busybox = ensure_busybox(&Cache::open()?)?;
        succeed(Command::new(&busybox).args(["ip", "link", "set", "lo", "up"]))?;
        let registry = Testbed::new()?;
        let images = serve_images(&registry, &busybox)?;

        let mut failed = false;
        for version in self.versions {
            println!("{version}:");
            if let Err(error) = self.compare_on(*version, &images) {
                eprintln!("critest: {version}: {error:#}");
                failed = true;
            }
        }
        ensure!(!failed, "not every comparison held");
        Ok(())
    }

    fn compare_on(&self, version: ContainerdVersion, images: &Path) -> Result<()> {
        let options = Options {
            registry_config: Some(images.to_owned()),
            pod_network: true,
            ..Options::default()
        };
        let containerd = Containerd::start(version, &options)?;
        let node = Node {
            cgroups: PodCgroups::new(containerd.testbed())?,
            proxy: Proxy::start(containerd.testbed(), &containerd.socket(), all_hooks()?)?,
            containerd,
        };
        let status = node
            .testbed()
            .command(conformance("critest-compare.sh"))
            .arg(self.critest)
            .arg(node.containerd.socket())
            .arg(node.proxy.socket())
            .arg(node.testbed().directory().join("reports"))
            .args(self.flags)
            .status()
            .context("run critest-compare.sh")?;
        ensure!(status.success(), "the comparison ended with {status}");
        Ok(())
    }
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

fn all_hooks() -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: [
            "--feature-gates",
            "AllAlpha=true,AllBeta=true,BECPUIdle=true",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..ProxyOptions::default()
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
