//! A private containerd: everything below one directory.
//!
//! One text in the second version of the format serves 1.6 and 1.7 as it is; 2.x carries it over to
//! its own third version by itself.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CONFIG, NRI_SOCKET, Options};
use crate::setup::{PAUSE_IMAGE, Programs};
use crate::testbed::Testbed;

/// The socket of CRI and of containerd's own API, in the folder. The janitor knows shims by it.
const SOCKET: &str = "containerd.sock";

/// Beside containerd's own, for pods that name one.
pub const OTHER_HANDLER: &str = "other";

pub(super) fn socket(testbed: &Testbed) -> PathBuf {
    testbed.directory().join(SOCKET)
}

pub(super) fn command(testbed: &Testbed, programs: &Programs) -> Command {
    let mut command = testbed.command(programs.bin().join("containerd"));
    command
        .arg("--config")
        .arg(testbed.directory().join(CONFIG));
    command
}

/// Has a running one take the images of an archive.
pub(super) fn import(testbed: &Testbed, programs: &Programs, images: &Path) -> Command {
    let mut command = testbed.command(programs.bin().join("ctr"));
    command.arg("--address").arg(socket(testbed));
    command.args(["--namespace", "k8s.io", "images", "import"]);
    command.arg(images);
    command
}

/// The text of the configuration of a containerd whose files are all below `directory`.
pub(super) fn config(
    directory: &Path,
    programs: &Programs,
    plugins: &Path,
    options: &Options,
) -> String {
    let dir = directory.display();
    let runc = programs.bin().join("runc");
    let runc = runc.display();
    let plugins = plugins.display();
    let imports = imports(directory, options);
    let nri = !options.nri;
    let nri_patience = options.nri_patience.map_or(String::new(), |limit| {
        format!("plugin_request_timeout = \"{}s\"", limit.as_secs())
    });
    let registries = options
        .registry_config
        .as_ref()
        .map(|path| format!("config_path = \"{}\"", path.display()))
        .unwrap_or_default();
    let runtimes = ["runc", OTHER_HANDLER].map(|handler| handler_of(handler, &runc, &dir));
    let runtimes = runtimes.concat();
    // - restrict_oom_score_adj: without CAP_SYS_RESOURCE no score can be lowered, and no pod starts.
    // - runc's Root and the netns directory: their defaults lie outside of the directory.
    // - opt: 1.x and 2.x make /opt/containerd otherwise.
    // - the disabled plugins look at the machine's block devices, which are none of ours.
    format!(
        r#"version = 2
{imports}
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{dir}/{SOCKET}"

[ttrpc]
  address = "{dir}/{SOCKET}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"

[plugins."io.containerd.nri.v1.nri"]
  disable = {nri}
  socket_path = "{dir}/{NRI_SOCKET}"
  plugin_path = "{dir}/nri-plugins"
  plugin_config_path = "{dir}/nri-conf"
  {nri_patience}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{dir}/cni"

  [plugins."io.containerd.grpc.v1.cri".registry]
    {registries}

{runtimes}"#
    )
}

/// A runtime handler that starts pods by runc.
fn handler_of(name: &str, runc: &dyn Display, dir: &dyn Display) -> String {
    format!(
        r#"  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
      BinaryName = "{runc}"
      Root = "{dir}/runc"
      SystemdCgroup = false

"#
    )
}

/// What has [`Options::drop_in`] read, if there is one.
fn imports(directory: &Path, options: &Options) -> String {
    match options.drop_in {
        Some(_) => format!("imports = [\"{}/conf.d/*.toml\"]", directory.display()),
        None => String::new(),
    }
}

/// The text of `10-pods.conflist`: a pair of interfaces for each pod, which goes with the pod. No
/// bridge, and no address is translated but for the host ports that a pod asks for.
pub(super) fn pod_network(directory: &Path) -> String {
    let dir = directory.display();
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {{"type": "ptp",
    "ipam": {{"type": "host-local", "subnet": "10.213.0.0/16", "dataDir": "{dir}/cni-addresses"}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}
