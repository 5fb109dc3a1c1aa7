//! A private CRI-O: everything below one directory.
//!
//! What it stores images with keeps notes at a fixed place, `/var/lib/containers`. So it runs in a
//! namespace of mounts where `/var/lib` is its own, which stays over its restarts: what is mounted for
//! containers is there again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CONFIG, NRI_SOCKET, Options, RuntimeError, failed, write};
use crate::command::run;
use crate::setup::{BUSYBOX_IMAGE, PAUSE_IMAGE, Programs};
use crate::testbed::Testbed;

/// Where the kernel holds the namespace, in the folder.
const MOUNTS: &str = "mounts/namespace";

/// usage: sh -c MAKE_MOUNTS sh FILE
const MAKE_MOUNTS: &str = r#"set -e
directory=${1%/*}
mkdir "$directory"
mount --bind "$directory" "$directory"
mount --make-private "$directory"
: >"$1"
unshare --mount="$1" --propagation slave mount -t tmpfs -o mode=0755 koord-testkit /var/lib"#;

/// Images of any origin are trusted.
const SIGNATURES: &str = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;

/// The socket of CRI. A kubelet knows CRI-O by its end.
pub(super) fn socket(testbed: &Testbed) -> PathBuf {
    testbed.directory().join("run/crio/crio.sock")
}

/// Makes the namespace of mounts, and in it the store with the images of an archive.
pub(super) fn prepare(
    testbed: &Testbed,
    programs: &Programs,
    images: &Path,
) -> Result<(), RuntimeError> {
    let directory = testbed.directory();
    let make = ["-c", MAKE_MOUNTS, "sh"];
    run(Command::new("sh").args(make).arg(directory.join(MOUNTS))).map_err(RuntimeError::Mounts)?;
    write(directory, "signatures.json", SIGNATURES)?;
    for name in ["conf.d", "hooks"] {
        fs::create_dir_all(directory.join(name)).map_err(failed("make CRI-O's directories"))?;
    }
    for image in [PAUSE_IMAGE, BUSYBOX_IMAGE] {
        let mut import = inside(testbed, &programs.bin().join("copyimg"));
        import.arg("--root").arg(directory.join("root"));
        import.arg("--runroot").arg(directory.join("state"));
        import.args(["--storage-driver", "overlay", "--signature-policy"]);
        import.arg(directory.join("signatures.json"));
        import.args(["--image-name", image, "--import-from"]);
        import.arg(format!("docker-archive:{}:{image}", images.display()));
        run(&mut import).map_err(RuntimeError::Import)?;
    }
    Ok(())
}

pub(super) fn command(testbed: &Testbed, programs: &Programs) -> Command {
    let directory = testbed.directory();
    let mut command = inside(testbed, &programs.bin().join("crio"));
    command.arg("--config").arg(directory.join(CONFIG));
    command.arg("--config-dir").arg(directory.join("conf.d"));
    command
}

/// The program in the namespace of mounts; it keeps the process id.
fn inside(testbed: &Testbed, program: &Path) -> Command {
    let mut command = testbed.command("nsenter");
    let mounts = testbed.directory().join(MOUNTS);
    command.arg(format!("--mount={}", mounts.display()));
    command.arg("--").arg(program);
    command
}

/// The text of the configuration of a CRI-O whose files are all below `directory`.
pub(super) fn config(
    directory: &Path,
    programs: &Programs,
    plugins: &Path,
    options: &Options,
) -> String {
    let dir = directory.display();
    let bin = programs.bin().display();
    let plugins = plugins.display();
    let nri = options.nri;
    let nri_patience = options.nri_patience.map_or(String::new(), |limit| {
        format!("nri_plugin_request_timeout = \"{}s\"", limit.as_secs())
    });
    // - conmon's cgroup: a pod's own, as containerd's shims are in; the default is systemd's.
    // - host ports, the balance of interrupts: of the machine, which is none of ours.
    // - the image of the pause container has a command; the default names one that it lacks.
    format!(
        r#"[crio]
root = "{dir}/root"
runroot = "{dir}/state"
storage_driver = "overlay"
log_dir = "{dir}/logs"
version_file = "{dir}/version"
version_file_persist = "{dir}/version-persist"
clean_shutdown_file = "{dir}/clean"

[crio.api]
listen = "{dir}/run/crio/crio.sock"

[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
disable_hostport_mapping = true
irqbalance_config_file = ""
irqbalance_config_restore_file = "disable"
apparmor_profile = "unconfined"
cdi_spec_dirs = ["{dir}/cdi"]
hooks_dir = ["{dir}/hooks"]
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
namespaces_dir = "{dir}/namespaces"
pinns_path = "{bin}/pinns"
default_runtime = "runc"
enable_pod_events = true

[crio.runtime.runtimes.runc]
runtime_path = "{bin}/runc"
runtime_root = "{dir}/runc"
monitor_path = "{bin}/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = "{PAUSE_IMAGE}"
pause_command = ""
signature_policy = "{dir}/signatures.json"
signature_policy_dir = "{dir}/policies"

[crio.network]
network_dir = "{dir}/cni"
plugin_dirs = ["{plugins}"]

[crio.nri]
enable_nri = {nri}
nri_listen = "{dir}/{NRI_SOCKET}"
nri_plugin_dir = "{dir}/nri-plugins"
nri_plugin_config_dir = "{dir}/nri-conf"
{nri_patience}
"#
    )
}
