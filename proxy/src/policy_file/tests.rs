#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use crate::{
    config::{BesideKoordlet, Front, Mode},
    hub::testing::{Bench, sandbox},
    status::chain_of,
};
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use std::{
    cell::{Cell, RefCell},
    os::unix::fs::symlink,
};
use tempfile::TempDir;

/// Long for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than that: what is seen was noticed.
const PERIOD: Duration = Duration::from_secs(3_600);

fn node(ratio: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  annotations:\n    \
         node.koordinator.sh/cpu-normalization-ratio: \"{ratio}\"\n"
    )
}

fn ratio(state: &PolicyState) -> Option<String> {
    let ratio = state.policy.cpu_normalization_ratio()?;
    Some(format!("{ratio:?}"))
}

/// A policy file that is kept in line, and what becomes of it.
struct Kept {
    dir: TempDir,
    state: watch::Receiver<PolicyState>,
    reload: Rc<Notify>,
    metrics: Rc<Metrics>,
}

impl Kept {
    /// Starts with `prepare` having filled the directory. Must run in a `LocalSet`.
    fn start(name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let metrics = Rc::new(Metrics::new());
        let mut file = PolicyFile::open(&dir.path().join(name), "node-1", metrics.clone());
        file.period = PERIOD;
        let state = file.subscribe();
        let reload = Rc::new(Notify::new());
        tokio::task::spawn_local(file.run(reload.clone()));
        Self {
            dir,
            state,
            reload,
            metrics,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn replace(&self, name: &str, text: &str) {
        std::fs::write(self.path("fresh"), text).unwrap();
        std::fs::rename(self.path("fresh"), self.path(name)).unwrap();
    }

    async fn until(&mut self, what: impl FnMut(&PolicyState) -> bool) -> PolicyState {
        let found = tokio::time::timeout(PATIENCE, self.state.wait_for(what)).await;
        found.expect("noticed in time").unwrap().clone()
    }

    fn counts(&self, line: &str) -> bool {
        let text = self.metrics.encode().unwrap();
        text.lines().any(|found| found == line)
    }
}

async fn locally(test: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_file_that_takes_the_place_of_another_is_noticed() {
    locally(async {
        let mut kept = Kept::start("policy.yaml", |dir| {
            std::fs::write(dir.join("policy.yaml"), node("1.20")).unwrap();
        });
        let first = ratio(&kept.state.borrow());
        assert!(first.is_some());
        kept.replace("policy.yaml", &node("1.50"));
        let state = kept.until(|state| ratio(state) != first).await;
        assert!(ratio(&state).is_some() && state.error.is_none());
        assert!(kept.counts("koord_runtime_proxy_policy_loads_total{result=\"ok\"} 2"));
    })
    .await;
}

#[tokio::test]
async fn a_config_map_volume_that_turns_its_link_is_noticed() {
    locally(async {
        let mut kept = Kept::start("policy.yaml", |dir| {
            for (version, value) in [("..v1", "1.20"), ("..v2", "1.50")] {
                std::fs::create_dir(dir.join(version)).unwrap();
                std::fs::write(dir.join(version).join("policy.yaml"), node(value)).unwrap();
            }
            symlink("..v1", dir.join("..data")).unwrap();
            symlink("..data/policy.yaml", dir.join("policy.yaml")).unwrap();
        });
        let first = ratio(&kept.state.borrow());
        assert!(first.is_some());
        symlink("..v2", kept.path("..data_tmp")).unwrap();
        std::fs::rename(kept.path("..data_tmp"), kept.path("..data")).unwrap();
        kept.until(|state| ratio(state).is_some() && ratio(state) != first)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_change_where_a_link_leads_is_noticed() {
    locally(async {
        let elsewhere = tempfile::tempdir().unwrap();
        let real = elsewhere.path().join("real.yaml");
        std::fs::write(&real, node("1.20")).unwrap();
        let mut kept = Kept::start("policy.yaml", |dir| {
            symlink(&real, dir.join("policy.yaml")).unwrap();
        });
        let first = ratio(&kept.state.borrow());
        assert!(first.is_some());
        std::fs::write(&real, node("1.50")).unwrap();
        kept.until(|state| ratio(state).is_some() && ratio(state) != first)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_not_there_yet_is_said_and_taken_when_it_comes() {
    locally(async {
        let mut kept = Kept::start("policy.yaml", |_| {});
        let error = kept.state.borrow().error.clone().unwrap();
        assert!(
            chain_of(&*error).ends_with("policy.yaml: No such file or directory (os error 2)"),
            "{error:?}"
        );
        assert!(!kept.state.borrow().is_of_file);
        kept.replace("policy.yaml", &node("1.20"));
        let state = kept.until(|state| state.error.is_none()).await;
        assert!(ratio(&state).is_some() && state.is_of_file);
    })
    .await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_leaves_the_last_policy_in_force() {
    locally(async {
        let mut kept = Kept::start("policy.yaml", |dir| {
            std::fs::write(dir.join("policy.yaml"), node("1.20")).unwrap();
        });
        let first = ratio(&kept.state.borrow());
        kept.replace("policy.yaml", "a: [");
        let state = kept.until(|state| state.error.is_some()).await;
        assert!(matches!(
            *state.error.clone().unwrap(),
            LoadError::Policy { .. }
        ));
        assert_eq!(ratio(&state), first);
        // What an API server answers is no policy either.
        kept.replace(
            "policy.yaml",
            "{kind: Status, code: 401, message: Unauthorized}",
        );
        let refused = |state: &PolicyState| {
            let error = state.error.as_deref().map(|error| chain_of(error));
            error.is_some_and(|error| error.ends_with(r#"objects: "Unauthorized""#))
        };
        let state = kept.until(refused).await;
        assert_eq!(ratio(&state), first);
        std::fs::remove_file(kept.path("policy.yaml")).unwrap();
        let gone = |state: &PolicyState| {
            let error = state.error.as_deref();
            matches!(error, Some(LoadError::Read { .. }))
        };
        let state = kept.until(gone).await;
        assert_eq!(ratio(&state), first);
        assert!(kept.counts("koord_runtime_proxy_policy_loads_total{result=\"error\"} 3"));
    })
    .await;
}

#[tokio::test]
async fn a_wrong_part_is_an_issue_and_the_rest_is_in_force() {
    locally(async {
        let text = node("1.20") + "---\n{apiVersion: v1, kind: Pod, metadata: {name: p}}\n";
        let kept = Kept::start("policy.yaml", |dir| {
            std::fs::write(dir.join("policy.yaml"), text).unwrap();
        });
        let state = kept.state.borrow().clone();
        assert_eq!(state.issues.count(), 1);
        assert!(ratio(&state).is_some() && state.error.is_none());
        assert!(kept.counts("koord_runtime_proxy_policy_issues 1"));
    })
    .await;
}

#[tokio::test]
async fn a_policy_of_other_nodes_alone_is_known_for_it() {
    locally(async {
        let other = node("1.5").replace("node-1", "node-2");
        let mut kept = Kept::start("policy.yaml", |dir| {
            std::fs::write(dir.join("policy.yaml"), other).unwrap();
        });
        let state = kept.until(|_| true).await;
        assert_eq!((state.other_nodes, ratio(&state)), (1, None));
    })
    .await;
}

#[tokio::test]
async fn a_file_without_end_is_not_read_to_its_end() {
    locally(async {
        let kept = Kept::start("policy.yaml", |dir| {
            let file = std::fs::File::create(dir.join("policy.yaml")).unwrap();
            file.set_len((4 << 20) + 1).unwrap();
        });
        let error = kept.state.borrow().error.clone().unwrap();
        let path = kept.path("policy.yaml");
        assert_eq!(
            chain_of(&*error),
            format!(
                "cannot read {}: it is larger than 4194304 bytes",
                path.display()
            )
        );
        let endless = PolicyFile::open(Path::new("/dev/zero"), "node-1", kept.metrics.clone());
        let error = endless.subscribe().borrow().error.clone().unwrap();
        assert_eq!(
            chain_of(&*error),
            "cannot read /dev/zero: it is a device, and only a regular file is read"
        );
    })
    .await;
}

#[tokio::test]
async fn a_reload_reads_the_file_though_it_is_the_same() {
    locally(async {
        let mut kept = Kept::start("policy.yaml", |dir| {
            std::fs::write(dir.join("policy.yaml"), node("1.20")).unwrap();
        });
        kept.state.mark_unchanged();
        kept.reload.notify_one();
        let changed = tokio::time::timeout(PATIENCE, kept.state.changed()).await;
        changed.expect("read in time").unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_whose_directory_comes_later_is_found() {
    locally(async {
        let mut kept = Kept::start("later/policy.yaml", |_| {});
        assert!(kept.state.borrow().error.is_some());
        std::fs::create_dir(kept.path("later")).unwrap();
        std::fs::write(kept.path("later/policy.yaml"), node("1.20")).unwrap();
        let found = kept.state.wait_for(|state| state.error.is_none()).await;
        assert!(ratio(&found.unwrap()).is_some());
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_says_the_same_again_has_nothing_decided_anew() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let condition = Rc::new(Condition {
        mode: Mode::Enforce,
        front: Front::Cri,
        beside_koordlet: BesideKoordlet::No,
        remarks: Vec::new(),
        runtime: "/run/runtime.sock".into(),
        node_name: "node-1".to_owned(),
        policy: RefCell::default(),
        pods: None,
        draining: Cell::new(false),
    });
    let states = watch::Sender::new(PolicyState::default());
    let saying = |ratio: &str| {
        let parsed = NodePolicy::parse_stream(&node(ratio), None).unwrap();
        states.send_modify(|state| state.policy = parsed.policy.into());
    };
    let heard = async || {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        bench.hub.queue().drain()
    };
    let tell = async {
        assert_eq!(heard().await, [sandbox()]);
        saying("1.50");
        assert_eq!(heard().await, [sandbox()]);
        saying("1.50");
        assert_eq!(heard().await, []);
        states.send_modify(|state| state.other_nodes = 7);
        assert_eq!(heard().await, []);
        let known = condition.policy.borrow().as_ref().map(|it| it.other_nodes);
        assert_eq!(known, Some(7));
        saying("1.60");
        assert_eq!(heard().await, [sandbox()]);
    };
    let follow = follow(bench.hub.clone(), condition.clone(), states.subscribe());
    tokio::select! {
        () = follow => unreachable!("the states go on"),
        () = tell => {}
    }
}
