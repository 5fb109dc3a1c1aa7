//! Over a directory instead of the kernel's file system.

use super::*;
use koord_model::{Bandwidth, CacheRange, PerCache};

#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn mounted() -> (tempfile::TempDir, Resctrl) {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("schemata"), "L3:0=7ff\n").unwrap();
    let resctrl = Resctrl::open(root.path(), Vendor::Intel).unwrap();
    (root, resctrl)
}

#[test]
fn groups_that_somebody_else_made_are_not_ours_unless_they_have_our_name() {
    let (root, resctrl) = mounted();
    for foreign in ["vendor", "LS", "info", "mon_groups"] {
        std::fs::create_dir(root.path().join(foreign)).unwrap();
    }
    assert!(resctrl.own("BE").unwrap());
    assert_eq!(resctrl.owned().unwrap(), ["BE"]);
    assert_eq!(resctrl.all().unwrap(), ["BE", "LS", "vendor"]);
    assert!(!resctrl.own("LS").unwrap());
    assert_eq!(resctrl.owned().unwrap(), ["BE", "LS"]);
    // Another process of ours finds them.
    let again = Resctrl::open(root.path(), Vendor::Intel).unwrap();
    assert!(!again.own("BE").unwrap());
    assert_eq!(again.owned().unwrap(), ["BE", "LS"]);
    again.remove("BE").unwrap();
    again.remove("BE").unwrap();
    assert_eq!(again.owned().unwrap(), ["LS"]);
}

/// Five ids and three classes, of which the root has one, leave two to monitoring groups.
#[test]
#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn monitoring_groups_leave_an_id_to_every_class_and_are_found_again() {
    let (root, _) = mounted();
    let at = root.path();
    for directory in [
        "info/L3",
        "info/MB",
        "info/L3_MON",
        "mon_groups",
        "LS/mon_groups",
    ] {
        std::fs::create_dir_all(at.join(directory)).unwrap();
    }
    for (file, text) in [
        ("info/L3/num_closids", "4\n"),
        ("info/MB/num_closids", "3\n"),
        ("info/L3_MON/num_rmids", "5\n"),
    ] {
        std::fs::write(at.join(file), text).unwrap();
    }
    let open = || Resctrl::open(at, Vendor::Intel).unwrap();
    let resctrl = open();
    std::fs::create_dir(at.join("mon_groups/vendor")).unwrap();
    assert!(resctrl.own("LS/mon_groups/a").unwrap());
    assert!(!resctrl.own("LS/mon_groups/a").unwrap());
    let short = resctrl.own("LS/mon_groups/b").unwrap_err();
    let expected =
        "the processor has no more monitoring ids (RMIDs) to spare for group LS/mon_groups/b";
    assert_eq!((&*short.to_string(), short.errno()), (expected, Some(28)));
    assert!(resctrl.own("BE").unwrap(), "a class has its id");

    let again = open();
    assert!(!again.own("LS/mon_groups/a").unwrap());
    assert_eq!(again.monitors().unwrap(), ["LS/mon_groups/a"]);
    assert_eq!(again.owned().unwrap(), ["BE"]);
    assert_eq!(again.all().unwrap(), ["BE", "LS"]);
    again.remove("LS/mon_groups/a").unwrap();
    assert!(again.own("LS/mon_groups/b").unwrap());
    let homeless = again.own("BE/mon_groups/b").unwrap_err();
    assert!(
        matches!(homeless, ResctrlError::NoMoreMonitors { .. }),
        "{homeless}"
    );
}

/// The kernel counts the root's, and with code and data apart says half as many of the cache.
#[test]
#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn there_are_as_many_classes_as_the_resource_with_the_fewest_has() {
    for (resources, most) in [
        (&[("L3", "16\n"), ("MB", "8\n")][..], Some(7)),
        (
            &[("L3CODE", "4\n"), ("L3DATA", "4\n"), ("MB", "8\n")],
            Some(3),
        ),
        (&[("L2", "2\n"), ("L3", "16\n")], Some(1)),
        (&[], None),
    ] {
        let (root, _) = mounted();
        for (resource, text) in resources {
            let folder = root.path().join("info").join(resource);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("num_closids"), text).unwrap();
        }
        let resctrl = Resctrl::open(root.path(), Vendor::Intel).unwrap();
        assert_eq!(resctrl.most(), most, "{resources:?}");
    }
}

#[test]
fn a_kernel_that_monitors_nothing_says_so() {
    let (_root, resctrl) = mounted();
    resctrl.own("LS").unwrap();
    let error = resctrl.own("LS/mon_groups/a").unwrap_err();
    let expected = "the kernel monitors no groups, so there is no LS/mon_groups/a";
    assert_eq!((&*error.to_string(), error.errno()), (expected, None));
    assert_eq!(resctrl.monitors().unwrap(), [""; 0]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn a_group_has_the_smallest_parts_that_the_kernel_takes() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    let whole = "L3:0=7ff\nMB:0=100\n";
    for directory in ["info/L3", "info/MB", "BE"] {
        std::fs::create_dir_all(at.join(directory)).unwrap();
    }
    for (file, text) in [
        ("schemata", whole),
        ("BE/schemata", whole),
        ("info/L3/cbm_mask", "7ff\n"),
        ("info/L3/min_cbm_bits", "2\n"),
        ("info/MB/min_bandwidth", "20\n"),
        ("info/MB/bandwidth_gran", "20\n"),
    ] {
        std::fs::write(at.join(file), text).unwrap();
    }
    let resctrl = Resctrl::open(at, Vendor::Intel).unwrap();
    let shares = CacheShares {
        ranges: PerCache::all(CacheRange::new(0, 1).unwrap()),
        bandwidth: PerCache::all(Bandwidth::new(30).unwrap()),
    };
    assert!(resctrl.share("BE", &shares).unwrap());
    let written = std::fs::read_to_string(at.join("BE/schemata")).unwrap();
    // Behind it is what the file had before: it is no file of the kernel's.
    assert_eq!(written, "L3:0=3\nMB:0=40\n00\n");
}

/// A cache is there once one of its CPUs is online, which may be after the start.
#[test]
#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn a_cache_that_comes_later_is_shared_out_too() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    for directory in ["info/L3", "BE"] {
        std::fs::create_dir_all(at.join(directory)).unwrap();
    }
    std::fs::write(at.join("info/L3/cbm_mask"), "7ff\n").unwrap();
    let show = |text| {
        for file in ["schemata", "BE/schemata"] {
            std::fs::write(at.join(file), text).unwrap();
        }
    };
    show("L3:0=7ff\n");
    let resctrl = Resctrl::open(at, Vendor::Intel).unwrap();
    let shares = CacheShares {
        ranges: PerCache::all(CacheRange::new(0, 30).unwrap()),
        bandwidth: PerCache::default(),
    };
    let written = || std::fs::read_to_string(at.join("BE/schemata")).unwrap();
    // What is written lies over what the file had before: it is no file of the kernel's.
    assert!(resctrl.share("BE", &shares).unwrap());
    assert_eq!(written(), "L3:0=f\nf\n");
    show("L3:0=00f;1=7ff\n");
    assert!(resctrl.share("BE", &shares).unwrap());
    assert_eq!(written(), "L3:1=f\nf;1=7ff\n");
    // Nothing is written at rest, nor for a cache that has gone.
    for text in ["L3:0=00f;1=00f\n", "L3:1=00f\n"] {
        show(text);
        assert!(!resctrl.share("BE", &shares).unwrap());
        assert_eq!(written(), text);
    }
    // Of what could not be counted at the start nothing is.
    show("L3:0=00f;1=00f\nMB:0=50;1=100\n");
    assert!(!resctrl.share("BE", &shares).unwrap());
}

#[test]
fn a_group_has_a_name_of_its_own_right_below_the_root_or_within_a_group() {
    for name in [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "info",
        "mon_data",
        "mon_groups",
        "mon_groups/a",
        "/mon_groups/a",
        "a/mon_groups/",
        "a/mon_groups/..",
        "../mon_groups/a",
        "a/mon_groups/mon_groups",
        "a/mon_groups/b/mon_groups/c",
        "a b",
        "é",
    ] {
        assert!(
            matches!(check(name), Err(ResctrlError::Name { .. })),
            "{name}"
        );
    }
    for name in [
        "LSR",
        "koordlet-5f2b8a9e-1",
        "pod_1.x",
        "LS/mon_groups/koordlet-1",
    ] {
        assert!(check(name).is_ok(), "{name}");
    }
}
