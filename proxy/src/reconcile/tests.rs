//! The best-effort pod of the bench: its container ran before us, with 1,024 shares, and should
//! have 512.

use super::*;
use crate::hub::testing::{Bench, sandbox};
use koord_kernel::{
    cgroup::{Generation, WeightCurve},
    fake::FakeTree,
};

async fn check(bench: &Bench) {
    pod(&bench.hub, &sandbox()).await;
}

fn applied(bench: &Bench) -> Applied {
    bench.entry(Setting::CpuShares).unwrap().applied
}

#[tokio::test]
async fn where_only_cgroup_v1_has_the_cpu_shares_are_written_whatever_is_mounted_beside_it() {
    for tree in [
        FakeTree::new(Generation::V1, 2),
        FakeTree::new(Generation::V1, 2).beside_v2(),
    ] {
        let bench = Bench::with_pod(tree);
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
        bench.write("cpu.shares", "77");
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
    }
}

#[tokio::test]
async fn on_cgroup_v2_a_container_that_ran_before_us_is_weighed_once_it_is_known_how() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2));
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "100");
    assert_eq!(applied(&bench), Applied::Pending);
    // What needs no curve does not wait for it.
    assert_eq!(bench.shown("cpu.max"), "100000 100000");

    let cgroups = bench.hub.writer().cgroups();
    cgroups.set_weight_curve(WeightCurve::Quadratic);
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "59");
    assert_eq!(applied(&bench), Applied::Written);
}

#[tokio::test]
async fn on_cgroup_v2_the_weight_that_a_runtime_makes_of_our_shares_is_its_own() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2));
    let cgroups = bench.hub.writer().cgroups();
    cgroups.set_weight_curve(WeightCurve::Quadratic);
    // By the other curve: a handler may have a runtime of another age.
    bench.write("cpu.weight", "20");
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "20");
    assert_eq!(applied(&bench), Applied::Equal);
    // By none.
    bench.write("cpu.weight", "21");
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "59");
}
