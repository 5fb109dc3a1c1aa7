//! One setting at a time: what is equal, what is refused, what is shown.

use super::{Ground, cpus, either, generation, make};
use crate::cgroup::{
    Applied, Controller, Directories, Generation, Note, ReadError, WeightCurve, WriteError, Written,
};
use koord_model::{
    CgroupPath, CpuPeriod, CpuQuota, CpuShares, CpusetCpus, MemoryLimit, Setting, Value,
};
use rustix::io::Errno;

/// The text of the file behind a setting.
pub(super) fn shown(ground: &dyn Ground, at: &CgroupPath, setting: Setting) -> String {
    let raw = ground.cgroups().raw(at, setting);
    raw.expect("a group that was made has its files").1
}

fn written(answer: Applied) -> Written {
    answer.expect("the kernel takes a value in range")
}

fn shares(shares: i64) -> Value {
    CpuShares::new(shares).expect("a number of a check").into()
}

pub(super) fn shares_are_equal_when_their_weights_are(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let cgroups = ground.cgroups();
    let write = |value: i64| written(cgroups.write(at, &shares(value)));
    assert!(matches!(write(2_048), Written::Changed { .. }));
    assert_eq!(
        shown(ground, at, Setting::CpuShares),
        either(ground, "2048", "79")
    );
    assert_eq!(write(2_048), Written::Equal);
    let near = write(2_049) == Written::Equal;
    assert_eq!(near, generation(ground) == Generation::V2);

    cgroups.set_weight_curve(WeightCurve::Quadratic);
    assert!(matches!(write(1_024), Written::Changed { .. }));
    assert_eq!(
        shown(ground, at, Setting::CpuShares),
        either(ground, "1024", "100")
    );
    let weight = cgroups.weight(at).expect("it can be read");
    assert_eq!(
        weight.map(|weight| weight.get()),
        (generation(ground) == Generation::V2).then_some(100)
    );
    // What was read can be written, and nothing changes.
    let old = cgroups
        .read(at, Setting::CpuShares)
        .expect("it can be read");
    assert_eq!(written(cgroups.write(at, &old)), Written::Equal);
}

pub(super) fn memory_is_counted_in_pages(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let write = |limit: MemoryLimit| written(ground.cgroups().write(at, &limit.into()));
    let odd = MemoryLimit::Bytes(50_000_000);
    assert_eq!(
        write(odd),
        Written::Changed {
            old: MemoryLimit::Unlimited.into()
        }
    );
    assert_eq!(shown(ground, at, Setting::MemoryLimit), "49999872");
    assert_eq!(write(odd), Written::Equal);
    assert_eq!(
        write(MemoryLimit::Unlimited),
        Written::Changed {
            old: MemoryLimit::Bytes(49_999_872).into()
        }
    );
    let unlimited = either(ground, "9223372036854771712", "max");
    assert_eq!(shown(ground, at, Setting::MemoryLimit), unlimited);
    assert_eq!(write(MemoryLimit::Unlimited), Written::Equal);
}

pub(super) fn a_quota_leaves_the_period_alone(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let cgroups = ground.cgroups();
    assert_eq!(
        cgroups.period(at).expect("it can be read"),
        CpuPeriod::DEFAULT
    );
    let (file, text) = match generation(ground) {
        Generation::V1 => ("cpu.cfs_period_us", "20000"),
        Generation::V2 => ("cpu.max", "max 20000"),
    };
    let period = cgroups.tree.write(Controller::Cpu, at, file, text);
    period.expect("the kernel takes a period in range");
    for (quota, text) in [
        (
            CpuQuota::Micros(5_000),
            either(ground, "5000", "5000 20000"),
        ),
        (CpuQuota::Unlimited, either(ground, "-1", "max 20000")),
    ] {
        let changed = written(cgroups.write(at, &quota.into()));
        assert!(matches!(changed, Written::Changed { .. }));
        assert_eq!(shown(ground, at, Setting::CpuQuota), text);
        assert_eq!(written(cgroups.write(at, &quota.into())), Written::Equal);
        assert_eq!(cgroups.period(at).expect("it can be read").micros(), 20_000);
    }
}

pub(super) fn a_period_leaves_the_quota_alone_where_the_kernel_takes_it(ground: &mut dyn Ground) {
    let paths = make(ground, &["p", "p/c"]);
    let (pod, container) = (&paths[0], &paths[1]);
    let cgroups = ground.cgroups();
    let period = |micros| CpuPeriod::new(micros).expect("a number of a check");
    let quota = |at| shown(ground, at, Setting::CpuQuota);
    assert!(cgroups.set_period(pod, period(10_000)));
    assert_eq!(quota(pod), either(ground, "-1", "max 10000"));
    for at in [pod, container] {
        written(cgroups.write(at, &CpuQuota::Micros(5_000).into()));
    }
    assert_eq!(quota(pod), either(ground, "5000", "5000 10000"));

    // In longer periods the parent would have a twentieth of a CPU and its child a half.
    assert!(cgroups.set_period(container, period(10_000)));
    let taken = cgroups.set_period(pod, CpuPeriod::DEFAULT);
    assert_eq!(taken, generation(ground) == Generation::V2);
    assert_eq!(quota(pod), either(ground, "5000", "5000 100000"));
    assert!(cgroups.set_period(container, CpuPeriod::DEFAULT));
    assert_eq!(quota(container), either(ground, "5000", "5000 100000"));

    let missing = ground.base().join("none").expect("a name of a check");
    assert!(!cgroups.set_period(&missing, CpuPeriod::DEFAULT));
}

pub(super) fn all_cpus_are_the_parents(ground: &mut dyn Ground) {
    let paths = make(ground, &["p", "p/c"]);
    let (pod, container) = (&paths[0], &paths[1]);
    let all = Value::from(CpusetCpus::All);
    let write = |ground: &dyn Ground, at: &CgroupPath, value: &Value| {
        written(ground.cgroups().write(at, value))
    };
    // A new group of cgroup v2 has them without being told.
    let first = write(ground, pod, &all);
    assert_eq!(
        first == Written::Equal,
        generation(ground) == Generation::V2
    );
    assert_eq!(
        shown(ground, pod, Setting::CpusetCpus),
        either(ground, "0-1", "")
    );

    write(ground, container, &cpus("0").into());
    ground.enter(container);
    assert_eq!(
        write(ground, container, &all),
        Written::Changed {
            old: cpus("0").into()
        }
    );
    assert_eq!(shown(ground, container, Setting::CpusetCpus), "0-1");
    assert_eq!(write(ground, container, &all), Written::Equal);
}

pub(super) fn what_a_group_below_may_be_given_is_known_before_it_is_there(ground: &mut dyn Ground) {
    let (v1, base) = (generation(ground) == Generation::V1, ground.base().clone());
    let pod = &make(ground, &["p"])[0];
    let below = |ground: &dyn Ground, at: &CgroupPath| {
        let cpus = ground.cgroups().cpus_below(at);
        cpus.map(|cpus| cpus.to_string())
    };
    let on_v1 = |list: &str| v1.then(|| list.to_owned());
    // A new group has none, and a runtime would give it those of its parent.
    assert_eq!(below(ground, pod), on_v1("0-1"));
    written(ground.cgroups().write(pod, &cpus("1").into()));
    assert_eq!(below(ground, pod), on_v1("1"));
    assert_eq!(below(ground, &base), on_v1("0-1"));
    let missing = base.join("none").expect("a name of a check");
    assert_eq!(below(ground, &missing), None);

    let container = &make(ground, &["p/c"])[0];
    let refused = ground.cgroups().write(container, &cpus("0-1").into());
    assert_eq!(refused.is_err(), v1, "{refused:?}");
}

pub(super) fn a_value_out_of_range_is_not_written(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    for value in [
        Value::from(CpuQuota::Micros(999)),
        CpuQuota::Micros(1 << 44).into(),
        MemoryLimit::Bytes(4_095).into(),
        CpusetCpus::Only(Default::default()).into(),
    ] {
        let before = shown(ground, at, value.setting());
        let answer = ground.cgroups().write(at, &value);
        assert!(matches!(answer, Err(WriteError::Range { .. })), "{value}");
        assert_eq!(shown(ground, at, value.setting()), before);
    }
}

pub(super) fn a_group_that_is_gone_is_told_from_a_setting_that_is_not_there(
    ground: &mut dyn Ground,
) {
    let at = &make(ground, &["p"])[0];
    let cgroups = ground.cgroups();
    assert!(cgroups.exists(at).expect("it can be looked at"));
    assert!(
        cgroups
            .supports(Setting::CpuShares, at)
            .expect("it can be looked at")
    );
    assert!(
        !cgroups
            .supports(Setting::CpuBvt, at)
            .expect("it can be looked at")
    );
    let error = cgroups
        .read(at, Setting::CpuBvt)
        .expect_err("there is none");
    assert!(matches!(error, ReadError::Unsupported { .. }), "{error}");
    assert!(!error.is_gone());

    ground.remove(at);
    let cgroups = ground.cgroups();
    assert!(!cgroups.exists(at).expect("it can be looked at"));
    assert!(
        !cgroups
            .supports(Setting::CpuShares, at)
            .expect("it can be looked at")
    );
    let error = cgroups.read(at, Setting::CpuBvt).expect_err("it is gone");
    assert!(error.is_gone(), "{error}");
    let error = cgroups.write(at, &shares(2)).expect_err("it is gone");
    assert!(error.is_gone(), "{error}");
    assert!(cgroups.children(at).expect_err("it is gone").is_gone());
}

pub(super) fn a_group_that_is_made_anew_is_another(ground: &mut dyn Ground) {
    let all = make(ground, &["group", "other"]);
    let (group, other) = (&all[0], &all[1]);
    let mut seen = Directories::default();
    for _ in 0..2 {
        assert!(!seen.are_others(ground.cgroups(), group), "it is as it was");
    }
    ground.remove(group);
    assert!(!seen.are_others(ground.cgroups(), group), "it is not there");
    ground.make(group);
    assert!(seen.are_others(ground.cgroups(), group));
    assert!(!seen.are_others(ground.cgroups(), group));
    assert!(seen.are_others(ground.cgroups(), other));
}

pub(super) fn groups_are_listed_by_name(ground: &mut dyn Ground) {
    let parent = &make(ground, &["p", "p/b", "p/a"])[0];
    let names = ground.cgroups().children(parent);
    assert_eq!(names.expect("it can be listed"), ["a", "b"]);
}

pub(super) fn who_watches_a_setting_is_told_of_writes_to_it(ground: &mut dyn Ground) {
    let all = make(ground, &["p", "q"]);
    let cgroups = ground.cgroups();
    let watch = cgroups.watch(&all[0], Setting::CpuShares);
    let watch = watch.expect("a group that was made has its files");
    let is_told = || match rustix::io::read(&watch, &mut [0; 4_096][..]) {
        Ok(length) => length > 0,
        Err(Errno::AGAIN) => false,
        Err(error) => panic!("a watch can be read: {error}"),
    };
    assert!(!is_told());
    written(cgroups.write(&all[0], &shares(512)));
    assert!(is_told() && !is_told());
    // Nothing but that file of that group.
    written(cgroups.write(&all[0], &CpuQuota::Micros(50_000).into()));
    written(cgroups.write(&all[1], &shares(512)));
    assert!(!is_told());
    let gone = ground.base().join("r").expect("a name of a check");
    assert!(cgroups.watch(&gone, Setting::CpuShares).is_err());
}

pub(super) fn a_note_that_is_taken_can_be_read_again(ground: &mut dyn Ground) {
    let at = &make(ground, &["p"])[0];
    let tree = &ground.cgroups().tree;
    let note = |length: usize| {
        let text = "x".repeat(length);
        let taken = tree.set_note(Controller::Cpu, at, Note::Originals, &text);
        let noted = tree.note(Controller::Cpu, at, Note::Originals);
        let noted = noted.expect("what was taken can be read");
        (taken.is_ok(), noted == text, noted.len())
    };
    for length in [1, 16 << 10, (16 << 10) + 1, 64 << 10] {
        assert_eq!(note(length), (true, true, length));
    }
    // One that is refused leaves what was there.
    assert_eq!(note((64 << 10) + 1), (false, false, 64 << 10));
}
