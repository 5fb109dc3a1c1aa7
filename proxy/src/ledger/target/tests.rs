use super::*;
use koord_hooks::Adjustment;
use koord_model::{CpuQuota, CpuShares, CpusetCpus, OomScoreAdj};
use std::sync::Arc;

fn merged(adjustment: Adjustment) -> Merged {
    let mut merged = Merged::default();
    merged.merge("Hook", adjustment).unwrap();
    merged
}

#[test]
fn what_nobody_decides_any_more_is_given_back() {
    let nobody_asked = |_: Setting| None;
    let mut target = Target::default();
    let idle = Adjustment {
        cpu_idle: Some(true),
        cpuset_cpus: Some(CpusetCpus::Only("1".parse().unwrap())),
        ..Default::default()
    };
    let route = |value: &Value| match value {
        Value::CpuIdle(_) => Route::Kernel,
        _ => Route::Request,
    };
    target.decide(&merged(idle), route, nobody_asked);
    target.decide(&Merged::default(), route, nobody_asked);
    let held: Vec<_> = target
        .entries()
        .iter()
        .map(|entry| (entry.desired.to_string(), entry.owner))
        .collect();
    assert_eq!(held, [("all".to_owned(), "-"), ("false".to_owned(), "-")]);
    settle(&mut target);
    // The runtime's own spec still has our cpuset; each update has to carry the original.
    assert_eq!(target.entries().len(), 1);
    target.decide(&Merged::default(), route, |setting| {
        (setting == Setting::CpusetCpus).then(|| CpusetCpus::Only("0".parse().unwrap()).into())
    });
    assert_eq!(target.entries()[0].desired.to_string(), "0");
}

#[test]
fn a_score_that_nobody_asked_for_is_that_of_whoever_started_the_process() {
    let score = |score| {
        merged(Adjustment {
            oom_score_adj: OomScoreAdj::new(score).ok(),
            ..Default::default()
        })
    };
    let mut target = Target::default();
    target.decide(&score(500), |_| Route::Kernel, |_| None);
    assert_eq!(target.entries()[0].original, Original::Unknown);
    target.decide(&Merged::default(), |_| Route::Kernel, |_| None);
    assert_eq!(target.entries()[0].applied, Applied::Left);
    // Somebody asked.
    let asked = |_| OomScoreAdj::new(-997).map(Value::from).ok();
    target.decide(&score(500), |_| Route::Request, asked);
    target.decide(&Merged::default(), |_| Route::Request, asked);
    assert_eq!(desired(&target), [("oom_score_adj=-997".to_owned(), "-")]);
}

#[test]
fn what_a_container_was_made_with_is_not_given_back() {
    let gpu = merged(Adjustment {
        gpu: Some(Arc::default()),
        ..Default::default()
    });
    let mut target = Target::default();
    target.decide(&gpu, |_| Route::Request, |_| None);
    assert_eq!(target.entries().len(), 1);
    target.decide(&Merged::default(), |_| Route::Request, |_| None);
    assert_eq!(target.entries().len(), 0);
}

#[test]
fn what_a_container_was_made_without_it_is_not_made_with_by_being_decided_again() {
    let both = merged(Adjustment {
        gpu: Some(Arc::default()),
        cpu_shares: CpuShares::new(512).ok(),
        ..Default::default()
    });
    let mut target = Target::default();
    for _ in 0..2 {
        target.decide(&both, |_| Route::Request, |_| None);
        // No call carried either.
        for entry in target.entries_mut() {
            entry.route = Route::Kernel;
        }
    }
    target.decide(&both, |_| Route::Request, |_| None);
    let route = |setting| {
        target
            .entries()
            .iter()
            .find(|it| it.desired.setting() == setting)
    };
    assert_eq!(route(Setting::Gpu).unwrap().route, Route::Kernel);
    // The next update may.
    assert_eq!(route(Setting::CpuShares).unwrap().route, Route::Request);
}

fn idle(idle: bool) -> Merged {
    merged(Adjustment {
        cpu_idle: idle.then_some(true),
        ..Default::default()
    })
}

fn desired(target: &Target) -> Vec<(String, &'static str)> {
    let entries = target.entries().iter();
    entries
        .map(|entry| {
            let value = &entry.desired;
            (format!("{}={value}", value.setting()), entry.owner)
        })
        .collect()
}

fn settle(target: &mut Target) {
    for entry in target.entries_mut() {
        entry.applied = Applied::Written;
    }
    target.settle();
}

#[test]
fn a_group_that_is_idle_no_more_gets_its_shares_back() {
    let shares = |number| Value::from(CpuShares::new(number).unwrap());
    let given_back = [
        ("cpu.idle=false".to_owned(), "-"),
        ("cpu.shares=7".to_owned(), "-"),
    ];
    // Those that the kernel had; else what the kubelet writes; else nothing is known.
    for (kubelets, seen, expected) in [
        (Some(2), Some(7), &given_back[..]),
        (Some(7), None, &given_back),
        (None, None, &given_back[..1]),
    ] {
        let mut target = Target {
            undecided_shares: kubelets.map(shares),
            ..Target::default()
        };
        let decide = |target: &mut Target, to_be_idle| {
            target.decide(&idle(to_be_idle), |_| Route::Kernel, |_| None);
        };
        decide(&mut target, true);
        assert_eq!(desired(&target), [("cpu.idle=true".to_owned(), "Hook")]);
        if let Some(seen) = seen {
            target.note_forgotten(shares(seen));
        }
        decide(&mut target, false);
        assert_eq!(desired(&target), expected);
        // Until they are written, and not again after that.
        decide(&mut target, false);
        assert_eq!(desired(&target), expected);
        settle(&mut target);
        decide(&mut target, false);
        assert_eq!(desired(&target), []);
    }
}

#[test]
fn shares_that_are_decided_are_not_given_back_with_idleness() {
    let mut batch = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_idle: Some(true),
        ..Default::default()
    };
    let mut target = Target::default();
    target.decide(&merged(batch.clone()), |_| Route::Kernel, |_| None);
    target.note_forgotten(CpuShares::new(512).unwrap().into());
    batch.cpu_idle = None;
    target.decide(&merged(batch), |_| Route::Kernel, |_| None);
    assert_eq!(
        desired(&target),
        [
            ("cpu.shares=512".to_owned(), "Hook"),
            ("cpu.idle=false".to_owned(), "-")
        ]
    );
}

#[test]
fn of_what_a_hook_that_rests_had_decided_that_comes_back_which_was_given() {
    let limited = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(50_000)),
        oom_score_adj: OomScoreAdj::new(500).ok(),
        ..Default::default()
    };
    let ours = || Some(Box::new(Value::from(CpuQuota::Micros(50_000))));
    for (hook, given, left) in [
        ("Hook", true, &[("unlimited", ours())][..]),
        ("Hook", false, &[]),
        ("Other", true, &[("50000", None), ("500", None)]),
    ] {
        let mut target = Target::default();
        target.decide(&merged(limited.clone()), |_| Route::Request, |_| None);
        target.entries.iter_mut().for_each(|it| it.given = given);
        target.rest(&[hook].into());
        let still = match hook {
            "Hook" => Adjustment::default(),
            _ => limited.clone(),
        };
        target.decide(&merged(still), |_| Route::Request, |_| None);
        let entries = target.entries().iter();
        let entries = entries.map(|it| (it.desired.to_string(), it.over.clone()));
        let left = left
            .iter()
            .map(|(text, over)| ((*text).to_owned(), over.clone()));
        assert!(entries.eq(left), "{hook} {given}: {target:?}");
    }
}

#[test]
fn beside_koordlet_shares_come_back_where_idleness_does() {
    for cpu_shares in [None, CpuShares::new(512).ok()] {
        let idle = Adjustment {
            cpu_idle: Some(true),
            cpu_shares,
            ..Default::default()
        };
        let mut target = Target {
            undecided_shares: Some(CpuShares::MIN.into()),
            ..Target::default()
        };
        target.decide(&merged(idle), |_| Route::Kernel, |_| None);
        target.entries.iter_mut().for_each(|it| it.given = true);
        target.rest(&["Hook"].into());
        target.decide(&Merged::default(), |_| Route::Kernel, |_| None);
        let shares = target.entry_mut(Setting::CpuShares).unwrap();
        assert_eq!(shares.desired.to_string(), "2");
        assert_eq!(shares.over, Some(Box::new(Value::CpuIdle(true))));
    }
}

#[test]
fn what_was_before_us_decides_what_is_given_back() {
    let quota = |micros| Value::from(CpuQuota::Micros(micros));
    let limited = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(50_000)),
        ..Default::default()
    };
    // What was asked, what it means that nothing was, what was seen: what comes of it.
    for (asked, unasked, seen, expected) in [
        (Some(20_000), Unasked::Unknown, None, "20000 Pending"),
        (None, Unasked::Nothing, None, "unlimited Pending"),
        (None, Unasked::Nothing, Some(30_000), "unlimited Pending"),
        (None, Unasked::Unknown, Some(30_000), "30000 Pending"),
        (None, Unasked::Unknown, None, "50000 Left"),
        (None, Unasked::Unheard, None, "50000 Left"),
    ] {
        let mut target = Target::default().unasked(unasked);
        let asked = |_| asked.map(quota);
        target.decide(&merged(limited.clone()), |_| Route::Kernel, asked);
        let entry = target.entry_mut(Setting::CpuQuota).unwrap();
        entry.applied = Applied::Written;
        if let (Some(seen), Original::Unknown) = (seen, &entry.original) {
            entry.original = Original::Value(quota(seen));
        }
        target.decide(&Merged::default(), |_| Route::Kernel, asked);
        let entry = &target.entries()[0];
        assert_eq!(format!("{} {:?}", entry.desired, entry.applied), expected);
        assert_eq!(entry.owner, "-");
    }
}

#[test]
fn what_is_left_is_told_once_and_given_back_when_it_is_known() {
    let limited = || {
        merged(Adjustment {
            cpu_quota: Some(CpuQuota::Micros(50_000)),
            ..Default::default()
        })
    };
    let mut target = Target::default().unasked(Unasked::Unknown);
    // What comes of it, and whether that was told.
    let decide = |target: &mut Target, merged, asked: Option<CpuQuota>| {
        target.decide(&merged, |_| Route::Kernel, |_| asked.map(Value::from));
        let entry = &mut target.entries[0];
        let told = std::mem::replace(&mut entry.is_logged, true);
        (entry.desired.to_string(), entry.applied.clone(), told)
    };
    let quota = |applied, told| ("50000".to_owned(), applied, told);
    decide(&mut target, limited(), None);
    settle(&mut target);
    let left = decide(&mut target, Merged::default(), None);
    assert_eq!(left, quota(Applied::Left, false));
    let left = decide(&mut target, Merged::default(), None);
    assert_eq!(left, quota(Applied::Left, true));
    // Decided again it is ours again.
    let ours = decide(&mut target, limited(), None);
    assert_eq!(ours, quota(Applied::Pending, false));
    decide(&mut target, Merged::default(), None);
    let asked = Some(CpuQuota::Micros(50_000));
    let given_back = decide(&mut target, Merged::default(), asked);
    assert_eq!(given_back, quota(Applied::Pending, false));
}

#[test]
fn what_a_call_has_told_and_the_next_could_not_say_is_in_the_spec_still() {
    let shares = merged(Adjustment {
        cpu_shares: CpuShares::new(512).ok(),
        ..Default::default()
    });
    let mut target = Target::default();
    target.decide(&shares, |_| Route::Request, |_| None);
    target.entries_mut().for_each(Entry::note_told);
    let mut silent = target.clone();
    for entry in silent.entries_mut() {
        entry.route = Route::Kernel;
    }
    target.hear_said(&silent);
    target.decide(&Merged::default(), |_| Route::Request, |_| None);
    settle(&mut target);
    let given_back = [("cpu.shares=1024".to_owned(), "-")];
    assert_eq!(desired(&target), given_back);
}

#[test]
fn the_runtimes_spec_may_have_ours_until_it_has_what_was_asked() {
    let shares = |it: i64| Value::from(CpuShares::new(it).unwrap());
    let is = |it: i64| move |setting| (setting == Setting::CpuShares).then(|| shares(it));
    let mut target = Target::default();
    target.recall_mark(Setting::CpuShares, Some(shares(512)), Route::Request);
    let may_return = |target: &Target| target.entries()[0].may_return();
    assert!(may_return(&target));
    // It has ours, then what somebody has asked for in its place, and what nobody else has.
    target.hear_spec(is(204));
    assert!(may_return(&target));
    target.ask_anew(is(700));
    assert!(may_return(&target));
    // A call that asked for it and said ours in its place.
    let mut said = Target::default();
    said.decide(
        &merged(Adjustment {
            cpu_shares: CpuShares::new(204).ok(),
            ..Default::default()
        }),
        |_| Route::Request,
        |_| None,
    );
    said.entries_mut().for_each(Entry::note_told);
    target.hear_asked(&said, is(700));
    assert!(may_return(&target));
    target.hear_asked(&Target::default(), is(700));
    assert!(!may_return(&target));
    // That is known already.
    target.hear_spec(is(204));
    assert!(!may_return(&target));
}
