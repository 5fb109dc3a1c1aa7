//! `make conformance CRITEST=PATH`: a critest binary, straight at containerd and through the proxy, on
//! every generation, or on the one that is named. With `--front nri` both runs go to containerd's own
//! socket, the first without and the second with the proxy as its plugin; a critest that has specs of
//! NRI (`--nri-socket`) runs those too.
//!
//! critest is no part of this tree. It pulls its images from registries on the internet and gives
//! its pods a network; here a registry on loopback serves stand-ins made of one busybox, and all of
//! it runs in a network namespace of its own, so that the machine's network is left alone. Specs
//! that need more than that fail both ways, and are named; what counts is that none is lost through
//! the proxy.
//!
//! usage: critest [--containerd 1.6|1.7|2] [--front cri|nri] PATH [CRITEST-FLAG...]
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{
    Front, Node, Proxy, ProxyOptions, classes,
    every_hook::{self, BusyPolicy},
};
use koord_testkit::{
    Cache, ContainerdVersion, Options, PodCgroups, Runtime, Testbed,
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

const USAGE: &str =
    "usage: critest [--containerd 1.6|1.7|2] [--front cri|nri] PATH [CRITEST-FLAG...]";

/// The generations that have NRI.
const WITH_NRI: [ContainerdVersion; 2] = [ContainerdVersion::V1_7, ContainerdVersion::V2];

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
    front: Front,
    critest: &'a OsStr,
    flags: &'a [OsString],
}

fn parse(args: &[OsString]) -> Result<Run<'_>> {
    let (version, args) = match args {
        [flag, version, rest @ ..] if flag == "--containerd" => (Some(version), rest),
        _ => (None, args),
    };
    let (front, args) = match args {
        [flag, front, rest @ ..] if flag == "--front" => (front.to_str(), rest),
        _ => (Some("cri"), args),
    };
    let (front, all): (_, &'static [ContainerdVersion]) = match front {
        Some("cri") => (Front::Cri, &ContainerdVersion::ALL),
        Some("nri") => (Front::Nri, &WITH_NRI),
        _ => bail!(USAGE),
    };
    let versions = version.map_or(Ok(all), |version| named(version))?;
    ensure!(
        versions.iter().all(|version| all.contains(version)),
        "containerd 1.6 has no NRI"
    );
    let (critest, flags) = args.split_first().context(USAGE)?;
    // What is left is no flag of ours; `--help` is one of those.
    ensure!(!critest.as_encoded_bytes().starts_with(b"-"), USAGE);
    Ok(Run {
        versions,
        front,
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
        let nri = self.front == Front::Nri;
        let options = Options {
            nri,
            registry_config: Some(images.to_owned()),
            pod_network: true,
            ..Options::default()
        };
        let containerd = Runtime::start(version, &options)?;
        let mut flags = self.flags.to_vec();
        if nri && self.has_nri_specs()? {
            flags.extend(["--nri-socket".into(), containerd.nri_socket().into()]);
        }
        let reports = containerd.testbed().directory().join("reports");
        let reports = ["direct.xml", "through.xml"].map(|name| reports.join(name));
        let [direct, through] = &reports;
        let run = |containerd: &Runtime, socket: &Path, report: &Path| {
            let mut command = containerd.testbed().command(conformance("critest-run.sh"));
            succeed(
                command
                    .arg(self.critest)
                    .arg(socket)
                    .arg(report)
                    .args(&flags),
            )
        };
        run(&containerd, &containerd.socket(), direct)?;
        // A plugin must not be there before: it would be in both runs.
        let node = Node {
            cgroups: PodCgroups::new(containerd.testbed())?,
            proxy: Proxy::start(
                containerd.testbed(),
                &containerd.socket(),
                options_of(self.front)?,
            )?,
            runtime: containerd,
        };
        run(&node.runtime, &node.socket(), through)?;
        ensure!(!nri || node.proxy.serves(), "the plugin is not connected");
        succeed(Command::new(program()?).arg("junit").args(&reports))
    }

    fn has_nri_specs(&self) -> Result<bool> {
        let help = Command::new(self.critest).arg("--help").output();
        let help = help.context("ask critest for its flags")?;
        let text = [help.stdout, help.stderr].concat();
        Ok(String::from_utf8_lossy(&text).contains("-nri-socket"))
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

/// With every hook on.
fn options_of(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        front,
        policy: Some(BusyPolicy::new(&classes::share_pool()?).text()),
        args: ["--feature-gates", every_hook::FEATURE_GATES]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_is_not_known_has_the_usage_said_and_nothing_started() {
        for args in [&["--help"][..], &["--front", "nri", "-h"], &[]] {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let error = parse(&args).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some(USAGE), "{args:?}");
        }
        let args = ["./critest", "--help"].map(OsString::from);
        assert!(parse(&args).is_ok_and(|run| run.flags == ["--help"]));
    }
}
