//! Class ids of control groups by this machine's own kernel, in a hierarchy that is mounted for the test
//! alone.
//!
//! Needs root, to mount it, `unshare`, `mount`, and a kernel with the controller `net_cls` that nobody has
//! mounted. The groups are removed at the end, and the mount goes with its namespace.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "a test's own file")]

use koord_kernel::cgroup::ClassIds;
use koord_model::{CgroupPath, NetPriority, NetQueues, NetRate, NetShare, PodQueue};
use koord_runtime_proxy::apply::traffic::{GroupsError, Member, Shape, bring_ids};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, id},
};

/// Where control groups are, set where mounts are the test's own.
const ROOT: &str = "KOORD_OWN_CGROUPS";

/// Groups of the test, in the order in which they were made.
struct Groups {
    hierarchy: PathBuf,
    made: Vec<CgroupPath>,
}

/// Runs the test of this name in a mount namespace of its own.
fn with_own_mounts(test: &str, body: impl FnOnce(&Path)) {
    if let Some(root) = env::var_os(ROOT) {
        return body(Path::new(&root));
    }
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--"])
        .arg(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    let done = command.env(ROOT, root.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

// === impl Groups ===

impl Groups {
    fn mount(root: &Path) -> Self {
        let hierarchy = root.join("net_cls");
        fs::create_dir(&hierarchy).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "cgroup", "-o", "net_cls", "net_cls"]);
        assert!(command.arg(&hierarchy).status().unwrap().success());
        Self {
            hierarchy,
            made: Vec::new(),
        }
    }

    fn make(&mut self, parent: &CgroupPath, name: &str) -> CgroupPath {
        let group = parent.join(name).unwrap();
        fs::create_dir(self.hierarchy.join(group.as_path())).unwrap();
        self.made.push(group.clone());
        group
    }

    fn file(&self, group: &CgroupPath) -> PathBuf {
        let directory = self.hierarchy.join(group.as_path());
        directory.join("net_cls.classid")
    }

    fn put(&self, group: &CgroupPath, id: &str) {
        fs::write(self.file(group), id).unwrap();
    }

    fn ids<const N: usize>(&self, groups: [&CgroupPath; N]) -> [String; N] {
        groups.map(|group| {
            let text = fs::read_to_string(self.file(group)).unwrap();
            text.trim_end().to_owned()
        })
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in self.made.iter().rev() {
            fs::remove_dir(self.hierarchy.join(group.as_path())).ok();
        }
    }
}

/// Pods that are known by these groups.
fn shape(pods: &[(&CgroupPath, NetPriority)]) -> Shape {
    let whole = NetRate::of_bytes(125_000_000);
    let share = NetShare {
        min: NetRate::NONE,
        max: whole,
    };
    let queues = NetQueues {
        total: whole,
        system: share,
        latency_sensitive: share,
        best_effort: share,
    };
    let members = pods.iter().map(|&(group, priority)| Member {
        uid: group.as_str(),
        queue: PodQueue {
            priority,
            egress: NetRate::NONE,
        },
        addresses: &[],
        group: Some(group),
    });
    Shape::of(&queues, members)
}

/// Those of the classes 1:3 and 1:4, and another's: 10:1.
const LS: &str = "65539";
const BE: &str = "65540";
const ANOTHERS: &str = "1048577";

#[test]
fn groups_of_pods_have_the_id_of_their_class_and_those_of_others_stay() {
    let name = "groups_of_pods_have_the_id_of_their_class_and_those_of_others_stay";
    with_own_mounts(name, |root| {
        let mut groups = Groups::mount(root);
        let ids = ClassIds::open(root).unwrap().unwrap();
        let base = groups.make(&CgroupPath::root(), &format!("koord-test-{}", id()));
        let kubepods = groups.make(&base, "kubepods");
        let pod = groups.make(&kubepods, "poduid-1");
        let early = groups.make(&pod, "container-1");
        let other = groups.make(&kubepods, "poduid-2");
        groups.put(&other, ANOTHERS);
        let service = groups.make(&base, "service");
        groups.put(&service, BE);

        // What is there already has the id too, and what is made later has it from the beginning.
        let best_effort = shape(&[(&pod, NetPriority::BestEffort)]);
        assert!(bring_ids(&ids, Some(&best_effort)).unwrap());
        let late = groups.make(&early, "below");
        let of_pod = [&pod, &early, &late];
        assert_eq!(groups.ids(of_pod), [BE; 3]);
        assert!(!bring_ids(&ids, Some(&best_effort)).unwrap());
        groups.put(&early, "0");
        assert!(bring_ids(&ids, Some(&best_effort)).unwrap());
        assert_eq!(groups.ids(of_pod), [BE; 3]);

        // One that is another's is named, and keeps no other from its own.
        let class = NetPriority::LatencySensitive;
        let both = shape(&[(&other, class), (&pod, class)]);
        let refused = bring_ids(&ids, Some(&both)).unwrap_err();
        assert!(
            matches!(&refused, GroupsError::Another { at, .. } if *at == other),
            "{refused}"
        );
        assert_eq!(groups.ids(of_pod), [LS; 3]);

        // As long as something is unknown of a pod, it keeps what it has.
        let in_part = shape(&[]).keeping_others();
        assert!(!bring_ids(&ids, Some(&in_part)).unwrap());
        assert_eq!(groups.ids(of_pod), [LS; 3]);
        assert!(bring_ids(&ids, None).unwrap());
        assert_eq!(groups.ids(of_pod), ["0"; 3]);
        assert_eq!(groups.ids([&other, &service]), [ANOTHERS, BE]);
        assert!(!bring_ids(&ids, None).unwrap());
    });
}
