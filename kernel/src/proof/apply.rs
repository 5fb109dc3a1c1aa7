//! Several groups at once: every way from one valid state to another is taken, whatever the order
//! of the changes.

use super::{Ground, cpus, either, generation, make, settings::shown};
use crate::cgroup::{Change, Generation, Written};
use koord_model::{CgroupPath, CpuBurst, CpuQuota, CpuShares, MemoryLimit, Setting, Value};

fn change(at: &CgroupPath, value: impl Into<Value>) -> Change {
    Change {
        at: at.clone(),
        value: value.into(),
        gives_back: false,
        of_container: false,
        may_return: false,
    }
}

/// Applies changes of which none may fail.
fn apply(ground: &dyn Ground, changes: &[Change]) -> Vec<Written> {
    let answers = ground.cgroups().apply(changes).into_iter();
    let taken = |(answer, change): (crate::cgroup::Applied, &Change)| match answer {
        Ok(written) => written,
        Err(error) => panic!("{change:?} in {changes:?}: {error:?}"),
    };
    answers.zip(changes).map(taken).collect()
}

/// A state of a parent and a child: what is written to each, and what each shows then.
type State = [(Value, &'static str); 2];

/// Walks a setting of a parent and a child through these states.
fn walk(ground: &mut dyn Ground, setting: Setting, states: &[State]) {
    let paths = make(ground, &["p", "p/c"]);
    let changes = |state: &State| -> Vec<Change> {
        let pairs = paths.iter().zip(state);
        pairs
            .map(|(at, (value, _))| change(at, value.clone()))
            .collect()
    };
    between_any_two(ground, states, changes, |ground, from, to| {
        for (at, (_, text)) in paths.iter().zip(to) {
            let now = shown(ground, at, setting);
            assert_eq!(now, *text, "{at} from {from:?} to {to:?}");
        }
    });
}

/// Goes from every state to every other, the changes in both orders.
fn between_any_two<S>(
    ground: &dyn Ground,
    states: &[S],
    changes: impl Fn(&S) -> Vec<Change>,
    check: impl Fn(&dyn Ground, &S, &S),
) {
    for from in states {
        for to in states {
            for backwards in [false, true] {
                apply(ground, &changes(from));
                let mut changes = changes(to);
                if backwards {
                    changes.reverse();
                }
                apply(ground, &changes);
                check(ground, from, to);
            }
        }
    }
}

pub(super) fn quotas_of_parent_and_child_move_between_any_two_states(ground: &mut dyn Ground) {
    let quota = |micros: u64, v1, v2| (CpuQuota::Micros(micros).into(), either(ground, v1, v2));
    let unlimited = || {
        (
            CpuQuota::Unlimited.into(),
            either(ground, "-1", "max 100000"),
        )
    };
    let states = [
        [
            quota(40_000, "40000", "40000 100000"),
            quota(40_000, "40000", "40000 100000"),
        ],
        [
            quota(20_000, "20000", "20000 100000"),
            quota(10_000, "10000", "10000 100000"),
        ],
        [
            quota(30_000, "30000", "30000 100000"),
            quota(30_000, "30000", "30000 100000"),
        ],
        [
            quota(50_000, "50000", "50000 100000"),
            quota(5_000, "5000", "5000 100000"),
        ],
        [quota(15_000, "15000", "15000 100000"), unlimited()],
        [unlimited(), quota(60_000, "60000", "60000 100000")],
        [unlimited(), unlimited()],
    ];
    walk(ground, Setting::CpuQuota, &states);
}

pub(super) fn a_quota_and_its_burst_move_between_any_two_states(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let micros = |quota, burst| (CpuQuota::Micros(quota), burst);
    let states = [
        micros(50_000, 50_000),
        micros(20_000, 20_000),
        micros(80_000, 10_000),
        micros(10_000, 0),
        (CpuQuota::Unlimited, 0),
    ];
    let values = |(quota, burst): &(CpuQuota, u64)| -> [Value; 2] {
        let burst = CpuBurst::from_micros(*burst).expect("a number of a check");
        [(*quota).into(), burst.into()]
    };
    let changes = |state: &_| values(state).map(|value| change(at, value)).into();
    between_any_two(ground, &states, changes, |ground, from, to| {
        let held = [Setting::CpuQuota, Setting::CpuBurst]
            .map(|setting| ground.cgroups().read(at, setting).expect("it can be read"));
        assert_eq!(held, values(to), "from {from:?}");
    });
}

pub(super) fn cpusets_of_parent_and_child_move_between_any_two_states(ground: &mut dyn Ground) {
    let set = |list: &'static str| (cpus(list).into(), list);
    let states = [
        [set("0"), set("0")],
        [set("1"), set("1")],
        [set("0-1"), set("0")],
        [set("0-1"), set("1")],
        [set("0-1"), set("0-1")],
    ];
    walk(ground, Setting::CpusetCpus, &states);
}

pub(super) fn the_naive_order_is_what_cgroup_v1_refuses(ground: &mut dyn Ground) {
    let paths = make(ground, &["p", "p/c"]);
    let (pod, container) = (&paths[0], &paths[1]);
    let wide = CpuQuota::Micros(40_000);
    let narrow = CpuQuota::Micros(20_000);
    apply(
        ground,
        &[
            change(pod, wide),
            change(container, wide),
            change(pod, cpus("0")),
            change(container, cpus("0")),
        ],
    );
    let refused = match generation(ground) {
        Generation::V1 => (Some(libc::EINVAL), Some(libc::EBUSY), Some(libc::EACCES)),
        Generation::V2 => (None, None, None),
    };
    let errno = |at: &CgroupPath, value: Value| match ground.cgroups().write(at, &value) {
        Ok(_) => None,
        Err(error) => error.errno(),
    };
    assert_eq!(
        errno(pod, narrow.into()),
        refused.0,
        "the parent shrinks first"
    );
    assert_eq!(
        errno(pod, cpus("1").into()),
        refused.1,
        "the parent leaves the child's CPU"
    );
    apply(ground, &[change(pod, cpus("0"))]);
    assert_eq!(
        errno(container, cpus("1").into()),
        refused.2,
        "the child grows first"
    );
}

pub(super) fn several_settings_of_several_groups_change_at_once(ground: &mut dyn Ground) {
    let paths = make(ground, &["p", "p/a", "p/b"]);
    let (pod, a, b) = (&paths[0], &paths[1], &paths[2]);
    let shares = CpuShares::new(512).expect("a number of a check");
    let before = [
        change(pod, CpuQuota::Micros(40_000)),
        change(a, CpuQuota::Micros(20_000)),
        change(b, CpuQuota::Micros(20_000)),
        change(pod, cpus("0")),
        change(a, cpus("0")),
        change(b, cpus("0")),
        change(pod, MemoryLimit::Bytes(1 << 26)),
        change(a, MemoryLimit::Bytes(1 << 25)),
    ];
    apply(ground, &before);
    // One child grows as the other shrinks; all move to the other CPU.
    let after = [
        change(a, CpuQuota::Micros(30_000)),
        change(b, CpuQuota::Micros(10_000)),
        change(pod, CpuQuota::Micros(30_000)),
        change(b, koord_model::CpusetCpus::All),
        change(a, cpus("1")),
        change(pod, cpus("1")),
        change(a, MemoryLimit::Unlimited),
        change(pod, MemoryLimit::Bytes(1 << 25)),
        change(pod, shares),
    ];
    let written = apply(ground, &after);
    let changed = |written: &Written| matches!(written, Written::Changed { .. });
    assert!(written.iter().all(changed), "{written:?}");
    assert_eq!(
        written[5],
        Written::Changed {
            old: cpus("0").into()
        }
    );
    everything_has_moved(ground, pod, a, b);
    let again = apply(ground, &after);
    assert!(
        again.iter().all(|written| *written == Written::Equal),
        "{again:?}"
    );
}

fn everything_has_moved(ground: &dyn Ground, pod: &CgroupPath, a: &CgroupPath, b: &CgroupPath) {
    for (at, setting, text) in [
        (
            pod,
            Setting::CpuQuota,
            either(ground, "30000", "30000 100000"),
        ),
        (
            a,
            Setting::CpuQuota,
            either(ground, "30000", "30000 100000"),
        ),
        (
            b,
            Setting::CpuQuota,
            either(ground, "10000", "10000 100000"),
        ),
        (pod, Setting::CpusetCpus, "1"),
        (a, Setting::CpusetCpus, "1"),
        (b, Setting::CpusetCpus, "1"),
        (pod, Setting::MemoryLimit, "33554432"),
        (
            a,
            Setting::MemoryLimit,
            either(ground, "9223372036854771712", "max"),
        ),
        (pod, Setting::CpuShares, either(ground, "512", "20")),
    ] {
        assert_eq!(shown(ground, at, setting), text, "{setting} of {at}");
    }
}

pub(super) fn idle_is_cleared_before_shares_and_set_after(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let shares = |shares| CpuShares::new(shares).expect("a number of a check");
    let written = apply(
        ground,
        &[change(at, Value::CpuIdle(true)), change(at, shares(512))],
    );
    let changed = |old: Value| Written::Changed { old };
    // On cgroup v2 the least shares of the weight that the kernel had.
    let forgotten = match generation(ground) {
        Generation::V1 => 512,
        Generation::V2 => 501,
    };
    assert_eq!(
        written[0],
        Written::Idled {
            shares: Some(shares(forgotten).into())
        }
    );
    assert!(matches!(written[1], Written::Changed { .. }));
    assert_eq!(shown(ground, at, Setting::CpuIdle), "1");

    let again = apply(
        ground,
        &[change(at, shares(700)), change(at, Value::CpuIdle(true))],
    );
    assert_eq!(again, [Written::Masked, Written::Equal]);
    let read = ground.cgroups().read(at, Setting::CpuShares);
    assert!(read.is_err(), "an idle group has no shares: {read:?}");

    let cleared = apply(
        ground,
        &[change(at, shares(700)), change(at, Value::CpuIdle(false))],
    );
    assert_eq!(cleared[1], changed(Value::CpuIdle(true)));
    assert_eq!(shown(ground, at, Setting::CpuIdle), "0");
    assert_eq!(
        shown(ground, at, Setting::CpuShares),
        either(ground, "700", "27")
    );
}

pub(super) fn the_shares_of_an_idle_group_can_be_given_back(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    apply(ground, &[change(at, CpuShares::MIN)]);
    let idled = apply(ground, &[change(at, Value::CpuIdle(true))]).remove(0);
    let Written::Idled {
        shares: Some(shares),
    } = idled
    else {
        panic!("{idled:?}");
    };
    // Clearing alone gives the kernel's default.
    apply(ground, &[change(at, Value::CpuIdle(false))]);
    let default = either(ground, "1024", "100");
    assert_eq!(shown(ground, at, Setting::CpuShares), default);
    apply(ground, &[change(at, Value::CpuIdle(true))]);
    apply(
        ground,
        &[change(at, shares), change(at, Value::CpuIdle(false))],
    );
    assert_eq!(
        shown(ground, at, Setting::CpuShares),
        either(ground, "2", "1")
    );
}

pub(super) fn a_change_that_fails_stops_no_other(ground: &mut dyn Ground) {
    let paths = make(ground, &["p", "p/c"]);
    let missing = ground.base().join("none").expect("a name of a check");
    let answers = ground.cgroups().apply(&[
        change(&paths[1], CpuQuota::Micros(10_000)),
        change(&missing, CpuQuota::Micros(10_000)),
        change(&paths[0], CpuQuota::Micros(1)),
        change(&paths[0], cpus("9")),
        change(&paths[0], CpuShares::MIN),
    ]);
    assert!(answers[0].is_ok(), "{answers:?}");
    assert!(
        answers[1].as_ref().is_err_and(|error| error.is_gone()),
        "{answers:?}"
    );
    assert!(
        answers[2].as_ref().is_err_and(|error| !error.is_gone()),
        "{answers:?}"
    );
    assert!(answers[4].is_ok(), "{answers:?}");
    let quota = either(ground, "10000", "10000 100000");
    assert_eq!(shown(ground, &paths[1], Setting::CpuQuota), quota);
}
