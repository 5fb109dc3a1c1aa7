//! Scores over a `/proc` of the tests' own and a fake tree of control groups.

use super::*;
use crate::{apply::threads::ThreadGroup, status::chain_of};
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use std::fs;
use tempfile::TempDir;

/// A container with processes in it.
struct Node {
    tree: FakeTree,
    cgroups: Cgroups,
    scores: OomScores,
    procfs: TempDir,
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let tree = FakeTree::new(Generation::V2, 2);
        let procfs = tempfile::tempdir().unwrap();
        tree.make(&at("container/nested"));
        Self {
            scores: OomScores::over(Procfs::at(procfs.path())),
            cgroups: Cgroups::over(tree.clone()),
            tree,
            procfs,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a /proc of this test's own")]
    fn start(&self, group: &str, process: u32, score: i64) {
        self.tree.enter(&at(group), process);
        let own = self.procfs.path().join(process.to_string());
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("oom_score_adj"), format!("{score:<5}\n")).unwrap();
    }

    fn score(&self, process: u32) -> String {
        let file = self.procfs.path().join(format!("{process}/oom_score_adj"));
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    fn give(&self, group: &str, score: i64) -> Result<Joined, JoinError> {
        let score = OomScoreAdj::new(score).unwrap();
        let member = Member {
            at: at(group),
            group: ThreadGroup::OomScore(score),
            with_shim: false,
        };
        self.scores.give(&self.cgroups, &member, score)
    }
}

fn at(group: &str) -> CgroupPath {
    CgroupPath::parse(group).unwrap()
}

#[test]
fn every_process_of_a_container_has_the_score_and_no_other_has() {
    let node = Node::new();
    node.tree.make(&at("other"));
    for (group, process, score) in [
        ("container", 10, 999),
        ("container/nested", 11, -5),
        ("container", 12, 300),
        ("other", 20, 0),
    ] {
        node.start(group, process, score);
    }
    assert_eq!(node.give("container", 300).unwrap(), Joined::Moved);
    let all = [10, 11, 12, 20].map(|process| node.score(process));
    assert_eq!(all, ["300", "300", "300", "0"]);
    assert_eq!(node.give("container", 300).unwrap(), Joined::Equal);
}

#[test]
fn one_that_cannot_have_it_keeps_it_from_no_other_and_is_told() {
    let node = Node::new();
    for process in [10, 11, 12] {
        node.start("container", process, 0);
    }
    // One whose file nobody can open, as that of a process that is hidden from us.
    fs::remove_file(node.procfs.path().join("11/oom_score_adj")).unwrap();
    let error = node.give("container", 500).unwrap_err();
    let told = "process 11 of cgroup /container cannot have the OOM score 500: ";
    assert!(chain_of(&error).starts_with(told), "{}", chain_of(&error));
    // ENOENT.
    assert_eq!((error.errno(), error.is_gone()), (Some(2), false));
    assert_eq!([10, 12].map(|it| node.score(it)), ["500", "500"]);
}

#[test]
fn a_container_that_has_gone_is_no_error_of_the_kernel() {
    let node = Node::new();
    assert!(node.give("gone", 1).unwrap_err().is_gone());
    assert_eq!(node.give("container", 1).unwrap(), Joined::Equal);
}

#[test]
fn the_scores_of_a_container_are_shown_each_once() {
    let node = Node::new();
    for (process, score) in [(10, 1000), (11, -5), (12, 1000)] {
        node.start("container", process, score);
    }
    let shown = node.scores.describe(&node.cgroups, &at("container"));
    assert_eq!(shown.as_deref(), Some("-5 1000"));
    assert_eq!(node.scores.describe(&node.cgroups, &at("gone")), None);
}

#[test]
fn more_processes_than_are_looked_at_at_once_all_have_it() {
    let node = Node::new();
    // One of the first part cannot have it.
    for process in 1..1_200 {
        node.start("container", process, 0);
    }
    fs::remove_file(node.procfs.path().join("7/oom_score_adj")).unwrap();
    assert!(node.give("container", 500).is_err());
    for process in [1, 6, 8, 512, 513, 1_024, 1_025, 1_199] {
        assert_eq!(node.score(process), "500", "{process}");
    }
}

#[test]
fn a_look_whose_time_is_over_has_given_some_their_score_and_says_that_others_are_left() {
    let node = Node::new();
    for process in 1..=1_200 {
        node.start("container", process, 0);
    }
    let look = || {
        let mut turn = Turn::until(std::time::Instant::now());
        let score = OomScoreAdj::new(500).unwrap();
        let found = node
            .scores
            .look(&node.cgroups, &at("container"), score, &mut turn);
        let have = (1..=1_200).filter(|it| node.score(*it) == "500").count();
        (found.unwrap().0, have)
    };
    assert_eq!(look(), (Found::Moved, 512));
    assert_eq!(look(), (Found::Moved, 1_024));
    assert_eq!(look(), (Found::Moved, 1_200));
    assert_eq!(look(), (Found::Nothing, 1_200));
}

#[test]
fn of_one_that_has_ended_before_it_had_its_score_it_is_known_that_others_may_be_left() {
    let node = Node::new();
    node.start("container", 10, 500);
    let score = OomScoreAdj::new(500).unwrap();
    node.start("container", 12, 0);
    let others = node.scores.others(&[10, 11, 12], score);
    assert_eq!(others, [(11, Found::Unknown), (12, Found::Ended)]);
    node.tree.leave(12);
    let give = |processes: &[(Tid, Found)]| {
        let given = node
            .scores
            .give_all(&node.cgroups, &at("container"), processes, score);
        given.unwrap().0
    };
    assert_eq!(give(&[]), Found::Nothing);
    assert_eq!(give(&others[..1]), Found::Unknown);
    assert_eq!(give(&others), Found::Ended);
    assert_eq!(give(&[(10, Found::Ended), others[0]]), Found::Moved);
}
