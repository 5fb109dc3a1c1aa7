//! The units of `systemd/`, as systemd itself judges them, and what they promise about the proxy.
//!
//! systemd need not run here: `systemd-analyze` reads unit files without it, and what it does for the
//! service that counts is done in its place.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Proxy, ProxyOptions, RunningPod, binary, classes};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroups, PodQos, Runtime, Testbed,
    cri::CriClient,
    poll::{self, wait_until_async},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};
use tempfile::TempDir;

const SERVICE: &str = "koord-runtime-proxy.service";
const SOCKET: &str = "koord-runtime-proxy.socket";
const INSTALLED_BINARY: &str = "/usr/local/bin/koord-runtime-proxy";

/// Has a program begin with what the service leaves it of root's rights.
const NO_CAPABILITY: [&str; 3] = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

/// `systemd-analyze security` gives 0 (safe) to 10 (exposed).
const MOST_EXPOSED: f64 = 4.0;

fn systemd() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd")
}

fn unit(name: &str) -> Result<String> {
    let path = systemd().join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What a unit file says for `key`, line by line.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, value)| value)
        .collect()
}

/// The units as on a node, and a kubelet beside them.
struct Installed(TempDir);

impl Installed {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let binary = binary("koord-runtime-proxy")?;
        let service = unit(SERVICE)?.replace(INSTALLED_BINARY, &binary.to_string_lossy());
        fs::write(dir.path().join(SERVICE), service)?;
        fs::write(dir.path().join(SOCKET), unit(SOCKET)?)?;
        fs::write(
            dir.path().join("kubelet.service"),
            "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/bin/true\n",
        )?;
        let installed = Self(dir);
        installed.drop_in(
            "kubelet.service",
            "kubelet.service.d/10-koord-runtime-proxy.conf",
        )?;
        Ok(installed)
    }

    fn drop_in(&self, unit_name: &str, from: &str) -> Result<()> {
        let directory = self.0.path().join(format!("{unit_name}.d"));
        fs::create_dir_all(&directory)?;
        let name = Path::new(from).file_name().context("a file")?;
        Ok(fs::write(directory.join(name), unit(from)?)?)
    }

    /// Everything that systemd has to say against the units; nothing if all is well.
    fn verify(&self) -> Result<String> {
        self.verify_these(&[SERVICE, SOCKET, "kubelet.service"])
    }

    fn verify_these(&self, units: &[&str]) -> Result<String> {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .args(units.iter().map(|name| self.0.path().join(name)))
            // The colon at the end: and where units are on this machine.
            .env("SYSTEMD_UNIT_PATH", format!("{}:", self.0.path().display()))
            .output();
        let output = found(output)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(
            output.status.success() || !said.is_empty(),
            "systemd-analyze ended with {}",
            output.status
        );
        Ok(said)
    }
}

/// The arguments that the service has, with another file for its configuration.
fn arguments(config: &Path) -> Result<Vec<String>> {
    let service = unit(SERVICE)?;
    let starts = values(&service, "ExecStart");
    let mut words = starts.first().context("no ExecStart")?.split(' ');
    assert_eq!(words.next(), Some(INSTALLED_BINARY));
    let args: Vec<_> = words
        .map(|word| match word.split_once("--config=") {
            Some(_) => format!("--config={}", config.display()),
            None => word.to_owned(),
        })
        .collect();
    assert!(args.iter().any(|arg| arg.starts_with("--config=")));
    Ok(args)
}

/// A drop-in of the service, once systemd has nothing to say against it.
fn taken(drop_in: &str) -> Result<String> {
    let installed = Installed::new()?;
    installed.drop_in(SERVICE, drop_in)?;
    assert_eq!(installed.verify()?, "");
    unit(drop_in)
}

fn found(output: std::io::Result<Output>) -> Result<Output> {
    output.context("systemd-analyze is missing: install the Debian package systemd")
}

#[test]
fn systemd_has_nothing_to_say_against_the_units() -> Result<()> {
    assert_eq!(Installed::new()?.verify()?, "");
    Ok(())
}

#[test]
fn nor_against_those_for_cri_o() -> Result<()> {
    let installed = Installed::new()?;
    installed.drop_in(SOCKET, "crio/10-crio.conf")?;
    assert_eq!(installed.verify()?, "");
    Ok(())
}

/// As a plugin's and a watcher's, which have no socket for clients.
#[test]
fn nor_against_the_service_without_the_socket_that_it_requires() -> Result<()> {
    let installed = Installed::new()?;
    fs::remove_file(installed.0.path().join(SOCKET))?;
    let service = installed.0.path().join(SERVICE);
    let required = format!("Requires={SOCKET}\n");
    let text = fs::read_to_string(&service)?;
    assert_eq!(text.matches(&required).count(), 1);
    fs::write(&service, text.replace(&required, ""))?;
    assert_eq!(installed.verify_these(&[SERVICE])?, "");
    Ok(())
}

#[test]
fn nor_against_that_for_core_scheduling_which_may_do_one_thing_more() -> Result<()> {
    let file = "koord-runtime-proxy.service.d/10-core-scheduling.conf";
    let said = taken(file)?;
    assert_eq!(values(&said, "CapabilityBoundingSet"), ["CAP_SYS_PTRACE"]);
    Ok(())
}

#[test]
fn nor_against_that_for_oom_scores_which_may_do_two_things_more() -> Result<()> {
    let file = "koord-runtime-proxy.service.d/10-oom-score.conf";
    let said = taken(file)?;
    let capabilities = ["CAP_SYS_RESOURCE CAP_DAC_OVERRIDE"];
    assert_eq!(values(&said, "CapabilityBoundingSet"), capabilities);
    Ok(())
}

#[test]
fn nor_against_that_for_hami_core_which_shows_the_nodes_temporary_files() -> Result<()> {
    let file = "koord-runtime-proxy.service.d/10-hami-core.conf";
    let said = taken(file)?;
    assert_eq!(values(&said, "PrivateTmp"), ["no"]);
    assert_eq!(values(&said, "ReadWritePaths"), ["-/usr/local/vgpu"]);
    Ok(())
}

#[test]
fn nor_against_that_for_rdma_which_shows_devices_and_opens_none() -> Result<()> {
    let file = "koord-runtime-proxy.service.d/10-rdma.conf";
    let installed = Installed::new()?;
    installed.drop_in(SERVICE, file)?;
    assert_eq!(installed.verify()?, "");
    let said = unit(file)?;
    assert_eq!(values(&said, "PrivateDevices"), ["no"]);
    assert_eq!(values(&unit(SERVICE)?, "DevicePolicy"), ["closed"]);
    Ok(())
}

#[test]
fn nor_against_that_for_terway_which_opens_one_directory_more() -> Result<()> {
    let file = "koord-runtime-proxy.service.d/10-terway.conf";
    let said = taken(file)?;
    assert_eq!(values(&said, "ReadWritePaths"), ["-/var/lib/terway"]);
    Ok(())
}

#[test]
fn nor_against_that_for_queues_of_the_network_which_opens_that_and_no_port() -> Result<()> {
    let said = taken("koord-runtime-proxy.service.d/10-traffic.conf")?;
    assert_eq!(values(&said, "PrivateNetwork"), ["no"]);
    assert_eq!(values(&said, "RestrictAddressFamilies"), ["AF_NETLINK"]);
    assert_eq!(values(&said, "CapabilityBoundingSet"), ["CAP_NET_ADMIN"]);
    Ok(())
}

#[test]
fn nor_against_those_that_let_it_ask_the_kubelet() -> Result<()> {
    taken("koord-runtime-proxy.service.d/10-kubelet.conf")?;
    Ok(())
}

#[test]
fn a_word_that_systemd_does_not_know_is_found() -> Result<()> {
    let installed = Installed::new()?;
    let path = installed.0.path().join(SOCKET);
    fs::write(&path, unit(SOCKET)?.replace("SocketMode=", "SocketModus="))?;
    let said = installed.verify()?;
    assert!(said.contains("SocketModus"), "{said}");
    Ok(())
}

#[test]
fn the_service_is_exposed_to_four_of_ten_at_most() -> Result<()> {
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(systemd().join(SERVICE))
        .output();
    let said = String::from_utf8(found(output)?.stdout)?;
    let exposure = said
        .lines()
        .find_map(|line| line.split("Overall exposure level for ").nth(1))
        .and_then(|rest| rest.split_whitespace().nth(1))
        .with_context(|| format!("no exposure in: {said}"))?;
    println!("exposure: {exposure}");
    let exposure: f64 = exposure.parse()?;
    ensure!(exposure <= MOST_EXPOSED, "exposure is {exposure}:\n{said}");
    Ok(())
}

#[test]
fn the_socket_is_where_the_kubelet_is_told_it_is_and_for_root_alone() -> Result<()> {
    let socket = unit(SOCKET)?;
    let listens = ["/run/koord-runtimeproxy/runtimeproxy.sock"];
    assert_eq!(values(&socket, "ListenStream"), listens);
    assert_eq!(values(&socket, "SocketMode"), ["0600"]);
    // /var/run is /run.
    let endpoint = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock";
    for file in [
        "kubelet/config.yaml",
        "kubelet/crictl.yaml",
        "kubelet/kubeadm.yaml",
    ] {
        let text = unit(file)?;
        let endpoints: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(": unix:"))
            .map(|(_, rest)| format!("unix:{rest}"))
            .collect();
        assert!(!endpoints.is_empty(), "{file} tells no endpoint");
        assert!(endpoints.iter().all(|told| told == endpoint), "{file}");
    }
    Ok(())
}

#[test]
fn the_socket_for_cri_o_ends_as_the_kubelet_knows_cri_o() -> Result<()> {
    let drop_in = unit("crio/10-crio.conf")?;
    let listens = ["", "/run/koord-runtimeproxy/run/crio/crio.sock"];
    assert_eq!(values(&drop_in, "ListenStream"), listens);
    let config = unit("crio/config.yaml")?;
    let endpoint = "koord-runtimeproxy-endpoint: /run/koord-runtimeproxy/run/crio/crio.sock";
    assert!(config.lines().any(|line| line == endpoint), "{config}");
    Ok(())
}

#[test]
fn the_proxy_takes_the_command_line_of_the_service_and_the_configuration_for_cri_o() -> Result<()> {
    let args = arguments(&systemd().join("crio/config.yaml"))?;
    let dir = tempfile::tempdir()?;
    let nobody = dir.path().join("nobody.sock");
    let output = Command::new(binary("koord-runtime-proxy")?)
        .args(&args)
        .arg("--admin-endpoint")
        .arg(&nobody)
        .arg("health")
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    // 64 would be a flag or a key that it does not know; here only nobody answers.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot reach a proxy"), "{said}");
    Ok(())
}

#[test]
fn root_without_any_capability_can_write_control_groups() -> Result<()> {
    assert_eq!(values(&unit(SERVICE)?, "CapabilityBoundingSet"), [""]);
    let testbed = Testbed::new()?;
    let pods = PodCgroups::new(&testbed)?;
    let pod = pods.pod("capabilities", PodQos::BestEffort)?;
    let unified = testbed.hierarchies().iter().all(|one| !one.has("cpu"));
    let (file, value) = if unified {
        ("cpu.weight", "77")
    } else {
        ("cpu.shares", "777")
    };
    let path = pod.directory("cpu").join(file);
    let output = Command::new("setpriv")
        .args(NO_CAPABILITY)
        .args([
            "sh",
            "-c",
            "grep CapEff /proc/self/status && echo $1 >$2",
            "sh",
        ])
        .arg(value)
        .arg(&path)
        .output()
        .context("setpriv is missing: install the Debian package util-linux")?;
    let said = String::from_utf8(output.stdout)?;
    assert_eq!(said, "CapEff:\t0000000000000000\n");
    assert!(output.status.success());
    assert_eq!(fs::read_to_string(&path)?.trim(), value);
    Ok(())
}

/// containerd 1.7, whose NRI is off but for what the file for it says.
fn containerd_that_imports_nri_toml() -> Result<Runtime> {
    // The file ends amid the table of NRI. With it go our own places, should it replace that table.
    let places = r#"
  socket_path = "{dir}/nri.sock"
  plugin_path = "{dir}/nri-plugins"
  plugin_config_path = "{dir}/nri-conf"
  plugin_request_timeout = "60s"
"#;
    let options = Options {
        drop_in: Some(unit("containerd/nri.toml")? + places),
        ..Options::default()
    };
    Ok(Runtime::start(ContainerdVersion::V1_7, &options)?)
}

/// The service's process, which does not outlive its test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

/// The process of the service with this configuration, once it has said that it is ready.
fn serve(testbed: &Testbed, directory: &Path, config: &str) -> Result<Service> {
    let file = directory.join("config.yaml");
    fs::write(&file, config)?;
    let notify = directory.join("notify");
    let manager = UnixDatagram::bind(&notify)?;
    manager.set_read_timeout(Some(poll::bound()))?;
    let process = testbed
        .command("setpriv")
        .args(NO_CAPABILITY)
        .arg(binary("koord-runtime-proxy")?)
        .args(arguments(&file)?)
        .env("NOTIFY_SOCKET", &notify)
        .spawn();
    let process = process.context("start the service")?;
    let service = Service(process);
    let mut said = [0; 4096];
    let length = manager.recv(&mut said)?;
    let said = String::from_utf8_lossy(&said[..length]);
    ensure!(said.starts_with("READY=1\n"), "{said}");
    Ok(service)
}

#[tokio::test]
async fn the_service_is_the_plugin_of_a_containerd_1_7_that_imports_nri_toml() -> Result<()> {
    let containerd = containerd_that_imports_nri_toml()?;
    let testbed = containerd.testbed();
    let cgroups = PodCgroups::new(testbed)?;
    let share_pool = classes::share_pool()?;
    // It is asked like one that was started here.
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        front: Front::Nri,
        own_directory: Some("service"),
        ..ProxyOptions::default()
    };
    let proxy = Proxy::new(testbed, &containerd.socket(), options)?;
    let directory = testbed.directory().join("service");
    let config = json!({
        "front": "nri",
        "nri-socket-path": containerd.nri_socket(),
        "remote-runtime-service-endpoint": containerd.socket(),
        "admin-endpoint": proxy.admin_socket(),
        "state-dir": directory.join("state"),
        "cgroup-root": testbed.cgroup_root(),
        "node-name": "node-1",
        "node-policy": proxy.policy_path(),
        "feature-gates": classes::FEATURE_GATES,
        "hold-timeout": "20s",
    });
    let mut service = serve(testbed, &directory, &format!("{config:#}"))?;
    wait_until_async("the runtime asks it", || async { proxy.serves() }).await;

    let client = CriClient::connect(&containerd.socket()).await?;
    let pods = classes::all(&share_pool);
    for pod in &pods {
        let running = RunningPod::start(&cgroups, &client, pod).await?;
        let what = format!("{} has its values", pod.name);
        wait_until_async(&what, || async { pod.wrong(&running).is_empty() }).await;
    }
    let adjusted = proxy.creations(Some("patched"))?;
    ensure!(adjusted >= 4.0, "{adjusted} creations were adjusted");

    kill_process(Pid::from_child(&service.0), Signal::TERM)?;
    let ended = service.0.wait()?;
    ensure!(ended.success(), "it ended with {ended}");
    Ok(())
}
