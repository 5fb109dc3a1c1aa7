use super::*;
use crate::{block::Layer, fake::FakeDisks};
use koord_model::Block;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const POD: &str = "uid-1";

/// A disk, and a volume on it.
fn machine() -> (TempDir, FakeDisks) {
    let directory = tempfile::tempdir().unwrap();
    let disks = FakeDisks::new(directory.path());
    disks.disk("vdb", "252:16".parse().unwrap());
    let volume = ("dm-0", "253:0".parse().unwrap());
    disks.mapper(volume, ("data-lv", "LVM-x"), &["vdb"]);
    (directory, disks)
}

fn named(volume: &str) -> Block {
    Block::PodVolume {
        pod: PodUid::new(POD).unwrap(),
        volume: BlockName::volume(volume).unwrap(),
    }
}

/// The only claim of the pod that is a device.
fn only() -> Block {
    Block::RawClaim {
        pod: PodUid::new(POD).unwrap(),
        volume: BlockName::volume("data").unwrap(),
    }
}

/// The number that is found, or why none is, with the place in the kubelet's directory.
fn found(disks: &(TempDir, FakeDisks), block: &Block, layer: Layer) -> String {
    let kubelet = disks.0.path().join("kubelet").display().to_string();
    match disks.1.devices().look().find(block, layer) {
        Ok(numbers) => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            numbers.join(" ")
        }
        Err(error) => error.to_string().replace(&kubelet, "K"),
    }
}

#[test]
fn a_claim_without_a_file_system_is_the_device_that_the_kubelet_has_mapped() {
    let machine = machine();
    let (_, disks) = &machine;
    let itself = |block: &Block| found(&machine, block, Layer::Itself);
    assert_eq!(
        itself(&only()),
        "no claim of the pod is mapped as a device, and its volume data is one"
    );
    disks.map("253:0", POD, "pvc-1");
    disks.map("252:16", "uid-2", "pvc-2");
    for block in [named("pvc-1"), only()] {
        assert_eq!(itself(&block), "253:0");
        assert_eq!(found(&machine, &block, Layer::Disks), "252:16");
    }
    // Of another pod alone.
    let none = "nothing is mounted at K/pods/uid-1/volumes/kubernetes.io~csi/pvc-2/mount";
    assert_eq!(itself(&named("pvc-2")), none);
    let local = "kubernetes.io~local-volume";
    disks.link(Path::new("/mnt/disks/a"), POD, &format!("{local}/pv-3"));
    let at = format!("plugins/{local}/volumeDevices/pv-3/{POD}");
    disks.node("252:16", &at);
    assert_eq!(itself(&named("pv-3")), "252:16");
    assert_eq!(
        itself(&only()),
        "more is mapped for the pod as a device than data"
    );
}

#[test]
fn what_is_mapped_is_found_where_the_kubelets_directory_is_a_link() {
    let machine = machine();
    let (_, disks) = &machine;
    disks.move_kubelet();
    disks.map("253:0", POD, "pvc-1");
    let itself = |block: &Block| found(&machine, block, Layer::Itself);
    assert_eq!(itself(&named("pvc-1")), "253:0");
    assert_eq!(itself(&only()), "253:0");
    let at = "K/plugins/kubernetes.io/csi/volumeDevices";
    disks.map("a file", POD, "pvc-2");
    let expected = format!("what is mapped at {at}/pvc-2/dev/uid-1 is no block device");
    assert_eq!(itself(&named("pvc-2")), expected);
    disks.unmount_all();
    let expected = format!("nothing is mounted at {at}/pvc-1/dev/uid-1");
    assert_eq!(itself(&named("pvc-1")), expected);
}

#[test]
fn what_is_mapped_and_is_no_block_device_is_none() {
    let machine = machine();
    let (_, disks) = &machine;
    let itself = |name| found(&machine, &named(name), Layer::Itself);
    let at = "K/plugins/kubernetes.io/csi/volumeDevices";
    disks.map("a file", POD, "pvc-1");
    let expected = format!("what is mapped at {at}/pvc-1/dev/uid-1 is no block device");
    assert_eq!(itself("pvc-1"), expected);
    // One whose disk has gone.
    disks.map("252:32", POD, "pvc-2");
    let expected = format!("what is mounted at {at}/pvc-2/dev/uid-1 is on no block device");
    assert_eq!(itself("pvc-2"), expected);
    // A file that nobody has mounted there is not looked at.
    disks.map("253:0", POD, "pvc-3");
    disks.unmount_all();
    let expected = format!("nothing is mounted at {at}/pvc-3/dev/uid-1");
    assert_eq!(itself("pvc-3"), expected);
}

#[test]
fn a_link_of_another_driver_leads_to_a_device_by_its_name_and_to_nothing_else() {
    let machine = machine();
    let (_, disks) = &machine;
    let itself = |name: &str| found(&machine, &named(name), Layer::Itself);
    let inside = machine.0.path().join("kubelet/pods/uid-1/volumes/x");
    for (name, target) in [
        ("a", Path::new("/dev/vdb")),
        ("b", Path::new("/dev/data/lv")),
        ("c", Path::new("/dev/../etc/vdb")),
        ("d", Path::new("vdb")),
        ("e", inside.as_path()),
    ] {
        disks.link(target, POD, &format!("kubernetes.io~iscsi/{name}"));
    }
    assert_eq!(itself("a"), "252:16");
    assert_eq!(itself("b"), "253:0");
    for name in ["c", "d", "e"] {
        let at = format!("K/pods/uid-1/volumeDevices/kubernetes.io~iscsi/{name}");
        let expected = format!("what is mapped at {at} is no block device");
        assert_eq!(itself(name), expected);
    }
}

#[test]
fn a_volume_that_is_mounted_goes_before_one_that_is_mapped() {
    let machine = machine();
    let (_, disks) = &machine;
    disks.map("253:0", POD, "pvc-1");
    disks.mount("252:16".parse().unwrap(), POD, "pvc-1");
    let itself = |block: &Block| found(&machine, block, Layer::Itself);
    assert_eq!(itself(&named("pvc-1")), "252:16");
    assert_eq!(itself(&only()), "253:0");
}

#[test]
fn devices_that_are_mapped_and_cannot_be_read_are_not_taken_for_none() {
    let machine = machine();
    let (_, disks) = &machine;
    disks.map("253:0", POD, "pvc-1");
    for path in [
        "kubelet/pods/uid-1/volumeDevices",
        "kubelet/pods/uid-1/volumeDevices/kubernetes.io~csi",
        "kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/uid-1",
        "proc/self/mountinfo",
    ] {
        disks.spoil(path);
        let error = disks.devices().look().find(&only(), Layer::Itself);
        let error = error.unwrap_err();
        assert!(matches!(error, BlockError::Io { .. }), "{path}: {error}");
        disks.mend(path);
        assert_eq!(found(&machine, &only(), Layer::Itself), "253:0", "{path}");
    }
}

#[test]
fn a_link_a_directory_and_a_device_of_characters_are_no_block_devices() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    symlink("/dev/null", &link).unwrap();
    for path in [&*link, directory.path(), Path::new("/dev/null")] {
        assert_eq!(device_of_node(path).unwrap(), None, "{}", path.display());
    }
    let none = device_of_node(&directory.path().join("none")).unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
}
