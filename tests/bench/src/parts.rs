//! The processes that are measured, alone in a testbed.

use crate::load::{Kind, Stack};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{
    Proxy, ProxyOptions, binary, classes,
    every_hook::{self, BusyPolicy},
};
use koord_testkit::{Testbed, poll::wait_until, process};
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

/// From the start of a proxy, or from the end of what was asked of it, until it has nothing to do: its
/// lists and looks are done, and connections that were closed have ended. The last list of a start comes six
/// seconds after the first.
pub(crate) const SETTLED: Duration = Duration::from_secs(10);

/// Another proxy, started by the caller.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    name: String,
    socket: PathBuf,
}

/// Reads NAME=SOCKET.
pub(crate) fn peer(text: &str) -> Result<Peer> {
    let (name, socket) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("{text:?} is not NAME=SOCKET"))?;
    Ok(Peer {
        name: name.to_owned(),
        socket: socket.into(),
    })
}

/// A way to the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    /// The process whose CPU time and memory count.
    pub(crate) pid: Option<u32>,
}

/// Waits until a peer listens; it has to be started in front of `runtime`.
pub(crate) fn await_peer(peer: &Peer, runtime: &Path) -> Target {
    let Peer { name, socket } = peer;
    eprintln!(
        "waiting for {name}: start it in front of {}",
        runtime.display()
    );
    let mut pid = None;
    wait_until("the peer listens", || {
        let Ok(stream) = UnixStream::connect(socket) else {
            return false;
        };
        pid = process::of_peer(&stream);
        true
    });
    Target {
        name: name.clone(),
        socket: socket.clone(),
        pid,
    }
}

/// A runtime that answers at once, the byte relay and the proxy in front of it.
pub(crate) struct Parts {
    targets: Vec<Target>,
    proxy: Proxy,
    // Last: whatever is left is killed and removed when it goes.
    testbed: Testbed,
    children: Vec<Child>,
}

/// Every hook on, and something to decide for each that this machine has something for.
pub(crate) fn proxy_options() -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(BusyPolicy::new(&classes::share_pool()?).text()),
        args: ["--feature-gates", every_hook::FEATURE_GATES]
            .map(str::to_owned)
            .into(),
        as_shipped: true,
        ..ProxyOptions::default()
    })
}

/// The same by the demo's policy, of whose values there are literals.
pub(crate) fn demo_options() -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        ..proxy_options()?
    })
}

/// Starts a runtime that answers at once, with `more` arguments on `socket`.
pub(crate) fn instant_runtime(
    stack: Stack,
    testbed: &Testbed,
    socket: &Path,
    more: &[&str],
) -> Result<Child> {
    let mut command = match stack {
        Stack::Frames => testbed.command(binary("koord-scripted-runtime")?),
        Stack::Grpc => {
            let mut command = testbed.command(binary("grpc-bench")?);
            command.arg("serve");
            command
        }
    };
    command.arg("--socket").arg(socket).args(more);
    let child = command.stdout(Stdio::null()).spawn();
    let child = child.context("start the runtime")?;
    wait_until("the runtime listens", || {
        UnixStream::connect(socket).is_ok()
    });
    Ok(child)
}

/// Starts a byte relay in front of a runtime; says where it listens.
pub(crate) fn byte_relay(testbed: &Testbed, runtime: &Path) -> Result<(Child, PathBuf)> {
    let socket = testbed.directory().join("relay.sock");
    let mut command = testbed.command(binary("koord-byte-relay")?);
    command.arg("--listen").arg(&socket);
    command.arg("--target").arg(runtime);
    let child = command.spawn().context("start the byte relay")?;
    wait_until("the byte relay listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    Ok((child, socket))
}

/// Fails unless a proxy has changed all creations that were sent by it since: one that does not look at
/// them would be the faster one.
pub(crate) fn all_were_patched(proxy: &Proxy, before: f64, sent: usize) -> Result<()> {
    let patched = proxy.creations(Some("patched"))? - before;
    let sent = f64::from(u32::try_from(sent)?);
    ensure!(
        (patched - sent).abs() < 0.5,
        "{patched} of {sent} creations were changed"
    );
    Ok(())
}

// === impl Parts ===

impl Parts {
    pub(crate) fn start(
        stack: Stack,
        runtime_socket: Option<PathBuf>,
        peers: &[Peer],
    ) -> Result<Self> {
        let testbed = Testbed::new()?;
        let own = testbed.directory().join("runtime.sock");
        let runtime = runtime_socket.unwrap_or(own);
        // The runtime of the stack before left its socket where peers expect it.
        drop(std::fs::remove_file(&runtime));
        let mut children = vec![instant_runtime(stack, &testbed, &runtime, &[])?];
        let (relaying, relay) = byte_relay(&testbed, &runtime)?;
        children.push(relaying);
        let proxy = Proxy::start(&testbed, &runtime, proxy_options()?)?;
        let target = |name: &str, socket: &Path, pid| Target {
            name: name.to_owned(),
            socket: socket.to_owned(),
            pid,
        };
        let mut targets = vec![
            target("direct", &runtime, None),
            target("relay", &relay, Some(children[1].id())),
            target("proxy", &proxy.socket(), proxy.pid()),
        ];
        targets.extend(peers.iter().map(|peer| await_peer(peer, &runtime)));
        Ok(Self {
            targets,
            proxy,
            testbed,
            children,
        })
    }

    pub(crate) fn targets(&self) -> &[Target] {
        &self.targets
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub(crate) fn proxy_resident(&self) -> Result<u64> {
        let pid = self.proxy.pid().context("the proxy runs")?;
        process::resident_bytes(pid).context("the proxy's memory")
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        eprintln!("clearing away {}", self.testbed.directory().display());
        for child in &mut self.children {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

impl Target {
    /// CPU time spent so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        let time = process::cpu_time(self.pid?)?;
        u64::try_from(time.total().as_micros()).ok()
    }

    /// Memory that its process has now.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        process::resident_bytes(self.pid?)
    }
}

impl Kind {
    /// Calls of one round: enough for a stable 99th percentile, few enough for many rounds.
    pub(crate) fn calls(self, callers: usize) -> usize {
        match (self, callers) {
            (Self::List, 1) => 300,
            (Self::List, _) => 20 * callers,
            (_, 1) => 3_000,
            _ => 250 * callers,
        }
    }
}
