use super::*;
use crate::fake::FakeDisks;
use tempfile::TempDir;

fn number(text: &str) -> DeviceNumber {
    text.parse().unwrap()
}

/// A disk with a partition, a volume group on a second disk and a partition of the first, an
/// encrypted device on a volume, and a disk whose name has a slash.
fn machine() -> (TempDir, FakeDisks) {
    let directory = tempfile::tempdir().unwrap();
    let disks = FakeDisks::new(directory.path());
    disks.disk("vda", number("252:0"));
    disks.partition("vda", "vda1", number("252:1"));
    disks.partition("vda", "vda2", number("252:2"));
    disks.disk("nvme0n1", number("259:0"));
    disks.disk("cciss!c0d0", number("104:0"));
    let lvm = "LVM-PqTyXlZ2mV0kRZ6nJcCw0b3ZpL0Y8sQqGx";
    disks.mapper(
        ("dm-0", number("253:0")),
        ("my--vg-fast--lv", lvm),
        &["nvme0n1"],
    );
    disks.mapper(
        ("dm-1", number("253:1")),
        ("my--vg-wide", lvm),
        &["nvme0n1", "vda2"],
    );
    disks.mapper(
        ("dm-2", number("253:2")),
        ("crypt-x", "CRYPT-LUKS2-9f"),
        &["dm-1"],
    );
    disks.mapper(("dm-3", number("253:3")), ("other-lv", lvm), &["vda1"]);
    (directory, disks)
}

fn device(name: &str) -> Block {
    Block::Device(BlockName::device(name).unwrap())
}

fn group(name: &str) -> Block {
    Block::VolumeGroup(BlockName::volume_group(name).unwrap())
}

fn volume(name: &str) -> Block {
    Block::PodVolume {
        pod: PodUid::new("uid-1").unwrap(),
        volume: BlockName::volume(name).unwrap(),
    }
}

/// The claim of the pod, beside these volumes.
fn claim(others: &[&str]) -> Block {
    let others = others.iter().map(|name| BlockName::volume(name).unwrap());
    Block::PodClaim {
        pod: PodUid::new("uid-1").unwrap(),
        volume: BlockName::volume("data").unwrap(),
        others: others.collect(),
    }
}

/// The numbers that are found, or why none is.
fn found(disks: &FakeDisks, block: &Block, layer: Layer) -> String {
    match disks.devices().look().find(block, layer) {
        Ok(numbers) => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            numbers.join(" ")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_device_is_found_by_every_name_that_it_has() {
    let (_directory, disks) = machine();
    disks.note(number("259:0"), "disk/by-id/nvme-A_1");
    for (name, itself, below) in [
        ("vda", "252:0", "252:0"),
        ("/dev/vda", "252:0", "252:0"),
        // What is asked of a partition is asked of its disk.
        ("/dev/vda2", "252:0", "252:0"),
        ("/dev/cciss/c0d0", "104:0", "104:0"),
        ("/dev/dm-0", "253:0", "259:0"),
        ("/dev/mapper/my--vg-fast--lv", "253:0", "259:0"),
        ("/dev/my-vg/wide", "253:1", "252:0 259:0"),
        // Two steps down.
        ("/dev/mapper/crypt-x", "253:2", "252:0 259:0"),
        ("/dev/disk/by-id/nvme-A_1", "259:0", "259:0"),
    ] {
        assert_eq!(
            found(&disks, &device(name), Layer::Itself),
            itself,
            "{name}"
        );
        assert_eq!(found(&disks, &device(name), Layer::Disks), below, "{name}");
    }
    for name in [
        "vdb",
        "mapper/none",
        "disk/by-id/nvme-A",
        "my-vg/none",
        "null",
    ] {
        let expected = format!("no block device is called /dev/{name}");
        assert_eq!(found(&disks, &device(name), Layer::Itself), expected);
    }
}

#[test]
fn a_volume_group_is_the_disks_that_its_volumes_are_on() {
    let (_directory, disks) = machine();
    for layer in [Layer::Itself, Layer::Disks] {
        assert_eq!(found(&disks, &group("my-vg"), layer), "252:0 259:0");
        assert_eq!(found(&disks, &group("other"), layer), "252:0");
        // The encrypted device is of no group.
        for name in ["crypt", "my", "my--vg"] {
            let expected = format!("no volume group with active volumes is called {name}");
            assert_eq!(found(&disks, &group(name), layer), expected);
        }
    }
}

#[test]
fn a_volume_of_a_pod_is_the_device_that_is_mounted_there() {
    let (directory, disks) = machine();
    disks.mount(number("252:1"), "uid-1", "pvc-1");
    disks.mount(number("253:0"), "uid-1", "pvc-2");
    disks.mount(number("0:45"), "uid-1", "nfs");
    disks.mount(number("252:1"), "uid-2", "pvc-3");
    // The later mount is what is seen there.
    disks.mount(number("0:46"), "uid-1", "pvc-4");
    disks.mount(number("253:1"), "uid-1", "pvc-4");
    let itself = |name| found(&disks, &volume(name), Layer::Itself);
    assert_eq!(itself("pvc-1"), "252:0");
    assert_eq!(itself("pvc-2"), "253:0");
    assert_eq!(itself("pvc-4"), "253:1");
    assert_eq!(found(&disks, &volume("pvc-2"), Layer::Disks), "259:0");
    let at = directory
        .path()
        .join("kubelet/pods/uid-1/volumes/kubernetes.io~csi");
    let at = |name: &str| at.join(name).join("mount").display().to_string();
    let (nfs, none) = (at("nfs"), at("pvc-3"));
    assert_eq!(
        itself("nfs"),
        format!("what is mounted at {nfs} is on no block device")
    );
    assert_eq!(itself("pvc-3"), format!("nothing is mounted at {none}"));
}

#[test]
fn a_volume_that_no_csi_driver_mounts_is_found_too() {
    let (_directory, disks) = machine();
    disks.mount_at(number("252:1"), "uid-1", "kubernetes.io~local-volume/pv-1");
    disks.mount_at(number("253:0"), "uid-1", "vendor~driver/pv-2");
    let itself = |name| found(&disks, &volume(name), Layer::Itself);
    assert_eq!(itself("pv-1"), "252:0");
    assert_eq!(itself("pv-2"), "253:0");
}

#[test]
fn volumes_are_found_where_the_kubelets_directory_is_a_link() {
    let (directory, disks) = machine();
    disks.move_kubelet();
    disks.mount(number("252:1"), "uid-1", "pvc-1");
    assert_eq!(found(&disks, &claim(&[]), Layer::Itself), "252:0");
    disks.mount(number("0:45"), "uid-1", "nfs");
    assert_eq!(found(&disks, &volume("pvc-1"), Layer::Itself), "252:0");
    // A person is told the path that was configured.
    let at = directory
        .path()
        .join("kubelet/pods/uid-1/volumes/kubernetes.io~csi");
    let at = |name: &str| at.join(name).join("mount").display().to_string();
    for (name, expected) in [
        (
            "nfs",
            format!("what is mounted at {} is on no block device", at("nfs")),
        ),
        ("pvc-2", format!("nothing is mounted at {}", at("pvc-2"))),
    ] {
        assert_eq!(found(&disks, &volume(name), Layer::Itself), expected);
    }
}

#[test]
fn what_is_mounted_inside_of_a_volume_is_none() {
    let (_directory, disks) = machine();
    for at in [
        "kubernetes.io~csi/pvc-1/mount/pvc-2",
        "kubernetes.io~csi/pvc-2/inner",
        "kubernetes.io~csi/pvc-2",
        "kubernetes.io~empty-dir/cache/pvc-2",
        "kubernetes.io~empty-dir/pvc-2/mount",
    ] {
        disks.mount_at(number("252:1"), "uid-1", at);
    }
    let none = found(&disks, &volume("pvc-2"), Layer::Itself);
    assert!(none.starts_with("nothing is mounted at "), "{none}");
    let none = found(&disks, &claim(&[]), Layer::Itself);
    assert_eq!(
        none,
        "no claim of the pod is mounted, and its volume data is one"
    );
}

#[test]
fn the_only_claim_of_a_pod_is_what_no_other_volume_is_mounted_for() {
    let (_directory, disks) = machine();
    disks.mount(number("253:0"), "uid-1", "pvc-7f3a");
    disks.mount(number("252:0"), "uid-1", "inline");
    disks.mount_at(number("0:45"), "uid-1", "kubernetes.io~projected/token");
    disks.mount(number("259:0"), "uid-2", "pvc-9");
    let itself = |others: &[&str]| found(&disks, &claim(others), Layer::Itself);
    // One that is kept in a directory is not mounted.
    assert_eq!(itself(&["token", "tmp", "inline"]), "253:0");
    let below = found(&disks, &claim(&["inline", "token"]), Layer::Disks);
    assert_eq!(below, "259:0");
    assert_eq!(
        itself(&["token"]),
        "more is mounted for the pod than its other volumes and data"
    );
    assert_eq!(
        itself(&["token", "inline", "pvc-7f3a"]),
        "no claim of the pod is mounted, and its volume data is one"
    );
    disks.mount(number("0:46"), "uid-1", "pvc-7f3a");
    let elsewhere = itself(&["token", "inline"]);
    assert!(elsewhere.ends_with("is on no block device"), "{elsewhere}");
}

#[test]
fn a_directory_whose_name_is_no_text_hides_no_volume() {
    let (_directory, disks) = machine();
    disks.mount(number("252:1"), "uid-1", "pvc-1");
    disks.bind(number("252:0"), b"/data/\xff\\040\xfe", "uid-2");
    disks.mount(number("253:0"), "uid-1", "pvc-2");
    assert_eq!(found(&disks, &volume("pvc-1"), Layer::Itself), "252:0");
    assert_eq!(found(&disks, &volume("pvc-2"), Layer::Itself), "253:0");
}

#[test]
fn what_cannot_be_read_is_not_taken_for_what_is_not_there() {
    let (_directory, disks) = machine();
    disks.note(number("259:0"), "disk/by-id/a");
    disks.mount(number("252:1"), "uid-1", "pvc-1");
    for (path, block, layer) in [
        ("proc/self/mountinfo", volume("pvc-1"), Layer::Itself),
        ("sys/dev/block", volume("pvc-1"), Layer::Itself),
        ("udev", device("disk/by-id/a"), Layer::Itself),
        ("udev/b259:0", device("disk/by-id/a"), Layer::Itself),
        ("sys/class/block", device("vda"), Layer::Itself),
        ("sys/class/block", group("my-vg"), Layer::Itself),
        // The disk of a partition.
        ("sys/devices/vda/dev", device("vda2"), Layer::Itself),
        (
            "sys/devices/dm-0/dm/name",
            device("my-vg/fast-lv"),
            Layer::Itself,
        ),
        ("sys/devices/dm-0/dm/uuid", group("my-vg"), Layer::Itself),
        // It has no disks of its own then.
        ("sys/devices/dm-0/slaves", device("dm-0"), Layer::Disks),
        ("sys/devices/dm-0/slaves", group("my-vg"), Layer::Disks),
    ] {
        disks.spoil(path);
        let error = disks.devices().look().find(&block, layer).unwrap_err();
        assert!(matches!(error, BlockError::Io { .. }), "{path}: {error}");
        disks.mend(path);
        let error = disks.devices().look().find(&block, layer).err();
        assert!(error.is_none(), "{path}: {error:?}");
    }
}

#[test]
fn a_machine_without_udev_has_no_names_of_it() {
    let (directory, disks) = machine();
    fs::remove_dir(directory.path().join("udev")).unwrap();
    assert_eq!(
        found(&disks, &device("disk/by-id/a"), Layer::Itself),
        "no block device is called /dev/disk/by-id/a"
    );
}

#[test]
fn what_is_mounted_mapped_and_noted_is_read_once_in_a_look() {
    let (_directory, disks) = machine();
    disks.note(number("259:0"), "disk/by-id/a");
    disks.mount(number("252:1"), "uid-1", "pvc-1");
    let devices = disks.devices();
    let look = devices.look();
    let is_found = |look: &Look<'_>, block: &Block| look.find(block, Layer::Itself).is_ok();
    for block in [volume("pvc-1"), group("my-vg"), device("disk/by-id/a")] {
        assert!(is_found(&look, &block), "{block}");
    }
    disks.mount(number("252:1"), "uid-1", "pvc-2");
    disks.mapper(
        ("dm-4", number("253:4")),
        ("new--vg-lv", "LVM-x"),
        &["vda1"],
    );
    disks.note(number("104:0"), "disk/by-id/b");
    for block in [volume("pvc-2"), group("new-vg"), device("disk/by-id/b")] {
        assert!(!is_found(&look, &block), "{block}");
        assert!(is_found(&devices.look(), &block), "{block}");
    }
}

#[test]
fn a_device_that_has_gone_is_not_found_by_its_note() {
    let (_directory, disks) = machine();
    disks.note(number("104:0"), "disk/by-id/old");
    assert_eq!(
        found(&disks, &device("disk/by-id/old"), Layer::Itself),
        "104:0"
    );
    disks.lose("cciss!c0d0", number("104:0"));
    for name in ["disk/by-id/old", "cciss/c0d0"] {
        let expected = format!("no block device is called /dev/{name}");
        assert_eq!(found(&disks, &device(name), Layer::Itself), expected);
    }
}

#[test]
fn paths_of_mounts_are_read_as_the_kernel_escapes_them() {
    assert_eq!(unescaped(br"/a\040b\134c\x"), br"/a b\c\x");
    assert_eq!(unescaped(br"/a\04"), br"/a\04");
    assert_eq!(unescaped(b"/\xff\\040\\\xff\xff"), b"/\xff \\\xff\xff");
}
