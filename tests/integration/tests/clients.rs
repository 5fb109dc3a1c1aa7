//! Other people's clients through the proxy: the CRI clients of old kubelets, whose `:authority` is
//! a socket path, and a Go gRPC client under stress.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{Node, Proxy, ProxyOptions, classes};
use koord_testkit::{ContainerdVersion, Testbed, poll::wait_until};
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::LazyLock,
};

/// Builds a Go program of the tests; Go's own cache knows what is unchanged.
fn build(module: &str, package: &str, name: &str) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(module);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(package)
        .current_dir(source)
        .env("GOTOOLCHAIN", "local")
        .status()
        .context("run go")?;
    ensure!(built.success(), "{module} does not build");
    Ok(program)
}

/// A pod's whole life by the client of one Kubernetes version. containerd 1.7 speaks what all of
/// them do.
fn completes_a_life(kubernetes: &str) -> Result<()> {
    let module = format!("criclients/kubernetes-{kubernetes}");
    let program = build(&module, ".", &format!("criclient-{kubernetes}"))?;
    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let root = node.testbed().cgroup_root();
    let mut life = node.testbed().command(program);
    life.arg("--endpoint")
        .arg(node.proxy.socket())
        .arg("--cgroup-parent")
        .arg(format!("{root}/criclient"))
        .args([
            "--image",
            "koord.test/busybox:1",
            "--share-pool",
            &share_pool,
        ]);
    let output = life.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "Kubernetes {kubernetes}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (all, patched) = (
        node.proxy.creations(None)?,
        node.proxy.creations(Some("patched"))?,
    );
    ensure!(
        patched >= 1.0 && all - patched < 0.5,
        "of {all} creations {patched} had what hooks decide"
    );
    Ok(())
}

#[test]
fn the_client_of_kubernetes_1_24_completes_a_life() -> Result<()> {
    completes_a_life("1.24")
}

#[test]
fn the_client_of_kubernetes_1_28_completes_a_life() -> Result<()> {
    completes_a_life("1.28")
}

#[test]
fn the_client_of_kubernetes_1_30_completes_a_life() -> Result<()> {
    completes_a_life("1.30")
}

/// Sizes from 0 to 16 MiB with checksums, 2,000 claimed calls at once, 100,000 calls on one connection,
/// cancels and deadlines: as straight, so through the proxy, but that each creation has what hooks decide
/// about it, and nothing else is changed.
#[test]
fn a_go_client_under_stress_sees_no_difference() -> Result<()> {
    let stress = Stress::start("0", &[])?;
    stress.drive("sizes,streams,creates,cancels,codes,slow-reader,trailers")?;
    let patched = stress.proxy.creations(Some("patched"))?;
    ensure!(patched >= 100_000.0, "{patched} creations were patched");
    Ok(())
}

/// The same before a server that says GOAWAY every 300 ms, so that no connection has many calls.
#[test]
fn a_go_client_loses_no_call_to_a_server_that_says_goaway_all_the_time() -> Result<()> {
    Stress::start("300ms", &[])?.drive("goaway,sizes,streams,cancels")
}

/// Nothing waits for a server that is not there: each call says so within its time.
#[test]
fn a_go_client_hears_at_once_that_the_runtime_is_gone() -> Result<()> {
    let mut stress = Stress::start("0", &[])?;
    stress.drive("codes")?;
    stress.kill_server()?;
    stress.drive("gone")
}

/// 2,000 creations that a hook refuses among 4,000 that it changes, on one connection: the ones never reach
/// the server, the others come to it as they should.
#[test]
fn a_go_client_is_refused_what_a_hook_refuses_and_served_beside_it() -> Result<()> {
    is_refused("0")
}

/// The same while connections end all the time.
#[test]
fn a_go_client_is_refused_the_same_by_goaway_all_the_time() -> Result<()> {
    is_refused("300ms")
}

fn is_refused(age: &str) -> Result<()> {
    let stress = Stress::start(age, &["--hook-fail-policy=BatchResource=Closed"])?;
    stress.drive("refused")?;
    let refused = stress.proxy.creations(Some("refused"))?;
    ensure!(refused >= 2000.0, "{refused} creations were refused");
    Ok(())
}

/// The program of the trials, built once for all tests: what one of them runs no other replaces.
fn stress() -> Result<&'static Path> {
    static PROGRAM: LazyLock<Result<PathBuf>> =
        LazyLock::new(|| build("conformance", "./cmd/grpc-stress", "grpc-stress"));
    match &*PROGRAM {
        Ok(program) => Ok(program),
        Err(error) => bail!("{error:#}"),
    }
}

/// With it as an argument no handler is excluded: the creations are in sandboxes that nobody has run, of
/// which only a list could tell the handler.
const HANDLERS: &str = "--excluded-runtime-handlers=";

/// Before the number of creations that the server has seen with what hooks decide.
const ARRIVED: &str = "creations with what hooks decide: ";

/// A server under stress, and the proxy before it.
struct Stress {
    testbed: Testbed,
    server: PathBuf,
    serving: Child,
    proxy: Proxy,
}

// === impl Stress ===

impl Stress {
    /// Before a server whose connections last so long.
    fn start(age: &str, args: &[&str]) -> Result<Self> {
        let testbed = Testbed::new()?;
        let server = testbed.directory().join("server.sock");
        let serving = testbed
            .command(stress()?)
            .args(["serve", "--listen"])
            .arg(&server)
            .args(["--max-connection-age", age])
            .spawn()?;
        wait_until("the server listens", || {
            UnixStream::connect(&server).is_ok()
        });
        let options = ProxyOptions {
            args: [&[HANDLERS], args]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            ..ProxyOptions::default()
        };
        let proxy = Proxy::start(&testbed, &server, options)?;
        Ok(Self {
            testbed,
            server,
            serving,
            proxy,
        })
    }

    fn kill_server(&mut self) -> Result<()> {
        self.serving.kill()?;
        self.serving.wait()?;
        Ok(())
    }

    /// The same trials straight and through the proxy. The proxy has to know of every creation that came to
    /// the server with what hooks decide.
    fn drive(&self, trials: &str) -> Result<()> {
        let before = self.proxy.creations(Some("patched"))?;
        let mut client = self.testbed.command(stress()?);
        client
            .args(["drive", "--endpoint"])
            .arg(&self.server)
            .arg("--through")
            .arg(self.proxy.socket())
            .args(["--only", trials]);
        let output = client.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        ensure!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let arrived = said.lines().find_map(|line| line.strip_prefix(ARRIVED));
        let arrived: f64 = arrived.context("how many were patched")?.parse()?;
        let patched = self.proxy.creations(Some("patched"))? - before;
        ensure!(
            patched >= arrived,
            "{arrived} creations arrived patched, of {patched}"
        );
        Ok(())
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        drop(self.serving.kill().and_then(|()| self.serving.wait()));
    }
}
