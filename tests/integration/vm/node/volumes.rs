//! Limits of a volume group, and of a pod's claims by what the source of pods says, on logical volumes:
//! of one that is mounted, and of one that the pod has as a device.

use crate::{
    check,
    machine::{command, make},
    node,
};
use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, ProxyOptions,
    classes::{NO_POLICY, PodSpecOf},
};
use koord_kernel::proof::map_linear;
use koord_model::DeviceNumber;
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, PodSpec},
    poll::comes_true,
};
use rustix::mount::mount_bind;
use std::{fs, os::unix::fs::symlink, path::Path};

/// Where the source of pods is.
const SOURCE: &str = "/tmp/pods.json";

const LIMIT: &str = "koordinator.sh/blkioQOS";

/// What the pod asks for its claims, by their names in its spec.
const OWN: &str = r#"{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"writeBPS":4194304}},
    {"name":"raw","type":"podvolume","ioCfg":{"writeIOPS":13}}]}"#;

/// The disk below the volume group: the third loop device, of 64 MiB.
const DISK: DeviceNumber = DeviceNumber { major: 7, minor: 2 };
const SECTORS: u64 = 131_072;

/// That many operations of best-effort pods on the volume group `data`.
fn policy(operations: u32) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    beClass: {{blkioQOS: {{enable: true, blocks: [
      {{name: data, type: volumegroup, ioCfg: {{writeIOPS: {operations}}}}}]}}}}
"
    )
}

pub(super) fn check_all() {
    check("a_volume_group_and_a_claim_are_limited_by_cri", || {
        make_disk().expect("this kernel maps devices");
        follows(Front::Cri, "claimed")
    });
    check("a_volume_group_and_a_claim_are_limited_by_nri", || {
        follows(Front::Nri, "claimed-too")
    });
}

/// The volume group, and two logical volumes of it.
fn make_disk() -> Result<()> {
    command("truncate", &["-s", "64M", "/tmp/loop2"]);
    command("losetup", &["/dev/loop2", "/tmp/loop2"]);
    // As LVM calls the volume `pvc-7` of that group.
    map_linear("data-pvc--7", "LVM-guest", DISK, SECTORS).context("map a device")?;
    map_linear("data-pvc--8", "LVM-guest-8", DISK, SECTORS).context("map a second one")?;
    command("mke2fs", &["/dev/dm-0"]);
    Ok(())
}

async fn follows(front: Front, name: &str) -> Result<()> {
    let pod = claimant(name)?;
    let mut node = node(ProxyOptions {
        front,
        policy: Some(policy(9)),
        args: vec![
            "--feature-gates=BlkIOReconcile=true".to_owned(),
            format!("--pods={SOURCE}"),
        ],
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    let pod = node.run(&client, &pod).await?;
    let own = pod.cgroup.directory("io");
    // Of the directory of best-effort pods, and of the pod.
    let held = || [own.join("../io.max"), own.join("io.max")].map(|file| text(&file));
    let wait = |when: &str, expected: [&str; 2]| {
        let came = comes_true(|| held() == expected);
        let held = held();
        ensure!(came, "{when}: {held:#?}, not {expected:#?}");
        Ok(())
    };

    let number = |device: &str| text(&Path::new("/sys/class/block").join(device).join("dev"));
    let claims = format!(
        "{} rbps=max wbps=4194304 riops=max wiops=max, {} rbps=max wbps=max riops=max wiops=13",
        number("dm-0"),
        number("dm-1")
    );
    let claims = claims.as_str();
    let group = "7:2 rbps=max wbps=max riops=max wiops=9";
    wait("at the start", [group, claims])?;
    node.proxy.write_policy(&policy(11))?;
    let group = "7:2 rbps=max wbps=max riops=max wiops=11";
    wait("under another policy", [group, claims])?;
    for (state, expected) in [("off", ["", ""]), ("on", [group, claims])] {
        node.proxy.switch(&format!("BlkIOReconcile={state}"))?;
        wait(state, expected)?;
    }
    node.proxy.write_policy(NO_POLICY)?;
    wait("without a policy", ["", claims])?;
    tell(name, false)?;
    wait("once the pod asks for no limit", ["", ""])?;
    node.proxy.stop()?;
    Ok(())
}

fn claiming(name: &str) -> PodSpec {
    PodSpec::new(name).label("koordinator.sh/qosClass", "BE")
}

/// Says of the pod what its source says: its volumes, and the limits if it asks for some.
fn tell(name: &str, asks: bool) -> Result<()> {
    let mut pod = claiming(name);
    if asks {
        pod = pod.annotation(LIMIT, OWN);
    }
    let config = pod.config();
    let told = serde_json::json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": pod.uid(),
            "labels": config.labels,
            "annotations": config.annotations,
        },
        "spec": {
            "volumes": [
                {"name": "scratch", "csi": {"driver": "d"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-claimed-0"}},
                {"name": "raw", "persistentVolumeClaim": {"claimName": "raw-claimed-0"}},
            ],
            "containers": [{
                "name": "main",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
            }],
        },
    });
    fs::write(SOURCE, told.to_string())?;
    Ok(())
}

/// A best-effort pod with a claim that is mounted beside an inline volume and one that is a device, as
/// its source says.
fn claimant(name: &str) -> Result<PodSpecOf> {
    let pod = claiming(name).annotation(LIMIT, OWN);
    let uid = pod.uid();
    let csi = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi");
    for (kind, device, volume) in [
        ("ext4", "/dev/dm-0", "pvc-7"),
        ("tmpfs", "tmpfs", "scratch"),
    ] {
        let at = format!("{csi}/{volume}/mount");
        make(&at);
        command("mount", &["-t", kind, device, &at]);
    }
    map("/dev/dm-1", uid, "pvc-8")?;
    tell(name, true)?;
    Ok(PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos: PodQos::BestEffort,
        pod,
        container: ContainerSpec::new("main"),
        expected: Vec::new(),
    })
}

/// Gives a pod a claim as a device, as a CSI driver and the kubelet do together.
fn map(device: &str, uid: &str, volume: &str) -> Result<()> {
    let devices = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices";
    let publish = format!("{devices}/publish/{volume}");
    let own = format!("{devices}/{volume}/dev");
    for directory in [&publish, &own] {
        make(directory);
        let at = format!("{directory}/{uid}");
        fs::write(&at, "")?;
        mount_bind(device, &at)?;
    }
    let links = format!("/var/lib/kubelet/pods/{uid}/volumeDevices/kubernetes.io~csi");
    make(&links);
    symlink(format!("{publish}/{uid}"), format!("{links}/{volume}"))?;
    Ok(())
}

/// What is in a file, its lines sorted and joined.
fn text(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join(", ")
}
