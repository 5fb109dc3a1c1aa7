use super::*;
use koord_model::{
    Bvt, CacheGroup, CoreGroup, CpuBurst, CpuQuota, CpuSet, CpuShares, CpusetCpus, IoRate,
    MemoryLimit, MemoryProtection, OomPriority, PerBlock, WmarkMinAdj, WmarkRatio, WmarkScale,
};
use proptest::{collection::vec, option, prelude::*, sample::subsequence};

const HOOKS: [&str; 5] = ["A", "B", "C", "D", "E"];

fn shares(shares: i64) -> Adjustment {
    Adjustment {
        cpu_shares: Some(CpuShares::new(shares).unwrap()),
        ..Adjustment::default()
    }
}

#[test]
fn a_value_belongs_to_the_hook_that_set_it() {
    let mut merged = Merged::default();
    let identity = Adjustment {
        cpu_bvt: Some(Bvt::new(2).unwrap()),
        ..Adjustment::default()
    };
    merged.merge("Identity", identity).unwrap();
    merged.merge("Weight", shares(512)).unwrap();
    let (value, owner) = merged.get(Setting::CpuShares).unwrap();
    assert_eq!(value.to_string(), "512");
    assert_eq!(owner.hook, "Weight");
    assert!(owner.overridden.is_empty());
    let order: Vec<Setting> = merged.iter().map(|(value, _)| value.setting()).collect();
    assert_eq!(order, [Setting::CpuShares, Setting::CpuBvt]);
    assert_eq!(merged.get(Setting::CpuIdle), None);
}

#[test]
fn a_second_writer_is_refused_whole_and_both_are_named() {
    let mut merged = Merged::default();
    merged.merge("First", shares(512)).unwrap();
    let before = merged.clone();
    let second = Adjustment {
        cpu_idle: Some(true),
        ..shares(2)
    };
    let error = merged.merge("Second", second).unwrap_err();
    assert_eq!(error.to_string(), "Second and First both set cpu.shares");
    assert_eq!(merged, before);
}

#[test]
fn a_declared_override_takes_over_and_remembers_whom() {
    let mut merged = Merged::default();
    merged.merge("First", shares(512)).unwrap();
    let second = shares(2).overriding(Setting::CpuShares);
    merged.merge("Second", second).unwrap();
    let third = shares(3).overriding(Setting::CpuShares);
    merged.merge("Third", third).unwrap();
    let (value, owner) = merged.get(Setting::CpuShares).unwrap();
    assert_eq!(value.to_string(), "3");
    assert_eq!(owner.hook, "Third");
    assert_eq!(owner.overridden, ["First", "Second"]);

    let error = merged.merge("Fourth", shares(4)).unwrap_err();
    assert_eq!((error.hook, error.with), ("Fourth", "Third"));
}

#[test]
fn a_conflict_in_one_tier_takes_back_all_of_the_hook() {
    let mut merged = NodeMerged::default();
    let one = |tier| NodeAdjustment {
        tiers: BTreeMap::from([(tier, shares(2))]),
        ..NodeAdjustment::default()
    };
    merged.merge("First", one(KubeQos::BestEffort)).unwrap();
    let before = merged.clone();
    let mut second = one(KubeQos::BestEffort);
    second.tiers.insert(KubeQos::Guaranteed, shares(3));
    let path = CgroupPath::parse("host").unwrap();
    second.host_applications.insert(path, shares(4));
    second.root = shares(5);
    let error = merged.merge("Second", second).unwrap_err();
    assert_eq!(error.to_string(), "Second and First both set cpu.shares");
    assert_eq!(merged, before);
}

fn adjustment() -> impl Strategy<Value = Adjustment> {
    let quota = prop_oneof![
        Just(CpuQuota::Unlimited),
        (1_000_u64..9_000).prop_map(CpuQuota::Micros)
    ];
    let cpuset = prop_oneof![
        Just(CpusetCpus::All),
        (0_u32..64).prop_map(|cpu| {
            let mut cpus = CpuSet::new();
            cpus.insert(cpu).unwrap();
            CpusetCpus::Only(cpus)
        })
    ];
    let values = (
        option::of((2_i64..9_000).prop_map(|n| CpuShares::new(n).unwrap())),
        option::of(quota),
        option::of((0_u64..9_000).prop_map(|n| CpuBurst::from_micros(n).unwrap())),
        option::of(cpuset),
        option::of((1_u64..9_000).prop_map(MemoryLimit::Bytes)),
        option::of((-1_i64..=2).prop_map(|n| Bvt::new(n).unwrap())),
        option::of(any::<bool>()),
        option::of(Just(CoreGroup::None)),
        option::of(Just(CacheGroup::Root)),
        option::of(Just(PerBlock::<IoRate>::default())),
        memory(),
        subsequence(Setting::ALL, 0..=Setting::ALL.len()),
    );
    values.prop_map(
        |(
            cpu_shares,
            cpu_quota,
            cpu_burst,
            cpuset_cpus,
            memory_limit,
            cpu_bvt,
            cpu_idle,
            core_sched,
            resctrl,
            io_read_bps,
            memory,
            overrides,
        )| {
            Adjustment {
                cpu_shares,
                cpu_quota,
                cpu_burst,
                cpuset_cpus,
                memory_limit,
                cpu_bvt,
                cpu_idle,
                core_sched,
                resctrl,
                io_read_bps,
                overrides,
                ..memory
            }
        },
    )
}

/// Memory QoS alone.
fn memory() -> impl Strategy<Value = Adjustment> {
    let number = |min: i64, max: i64| option::of(min..=max);
    let bytes = || option::of(0_u64..9_000);
    let switch = || option::of(any::<bool>());
    let small = (
        number(0, 100),
        number(1, 1_000),
        number(-25, 50),
        number(0, 12),
    );
    (bytes(), bytes(), bytes(), small, switch(), switch()).prop_map(
        |(min, low, high, (ratio, scale, adj, priority), by_priority, group)| Adjustment {
            memory_min: min.map(MemoryProtection::Bytes),
            memory_low: low.map(MemoryProtection::Bytes),
            memory_high: high.map(MemoryLimit::Bytes),
            memory_wmark_ratio: ratio.map(|it| WmarkRatio::new(it).unwrap()),
            memory_wmark_scale: scale.map(|it| WmarkScale::new(it).unwrap()),
            memory_wmark_min_adj: adj.map(|it| WmarkMinAdj::new(it).unwrap()),
            memory_priority: priority.map(|it| OomPriority::new(it).unwrap()),
            memory_use_priority_oom: by_priority,
            memory_oom_group: group,
            ..Adjustment::default()
        },
    )
}

/// The writers of each setting in order, the last with its value.
type Model = BTreeMap<Setting, (Value, Vec<&'static str>)>;

/// The rule in the simplest words: all values or, if one is owned and not overridden, none.
fn model_merge(model: &mut Model, hook: &'static str, adjustment: &Adjustment) -> bool {
    let refused = |value: &Value| {
        model.contains_key(&value.setting()) && !adjustment.overrides.contains(&value.setting())
    };
    if adjustment.values().any(|value| refused(&value)) {
        return false;
    }
    for value in adjustment.values() {
        let (_, mut writers) = model
            .remove(&value.setting())
            .unwrap_or_else(|| (value.clone(), Vec::new()));
        writers.push(hook);
        model.insert(value.setting(), (value, writers));
    }
    true
}

proptest! {
    #[test]
    fn merging_keeps_order_owners_and_conflicts(
        adjustments in vec(adjustment(), 1..=HOOKS.len())
    ) {
        let mut merged = Merged::default();
        let mut model = Model::new();
        for (hook, adjustment) in HOOKS.into_iter().zip(adjustments) {
            let before = merged.clone();
            let fits = model_merge(&mut model, hook, &adjustment);
            match merged.merge(hook, adjustment) {
                Ok(()) => prop_assert!(fits),
                Err(error) => {
                    prop_assert!(!fits);
                    prop_assert_eq!(error.hook, hook);
                    let (_, owner) = before.get(error.setting).unwrap();
                    prop_assert_eq!(error.with, owner.hook);
                    prop_assert_eq!(&merged, &before);
                }
            }
        }
        let expected: Vec<(Value, Vec<&str>)> = model.into_values().collect();
        let seen: Vec<(Value, Vec<&str>)> = merged
            .iter()
            .map(|(value, owner)| {
                (value.clone(), [owner.overridden, &[owner.hook]].concat())
            })
            .collect();
        prop_assert_eq!(seen, expected);
    }
}
