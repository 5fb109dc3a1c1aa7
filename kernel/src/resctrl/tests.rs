//! Over a directory instead of the kernel's file system.

use super::*;

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

#[test]
fn a_group_has_a_name_of_its_own_right_below_the_root() {
    for name in [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "info",
        "mon_data",
        "mon_groups",
        "a b",
        "é",
    ] {
        assert!(
            matches!(check(name), Err(ResctrlError::Name { .. })),
            "{name}"
        );
    }
    for name in ["LSR", "koordlet-5f2b8a9e-1", "pod_1.x"] {
        assert!(check(name).is_ok(), "{name}");
    }
}
