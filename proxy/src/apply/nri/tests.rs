use super::*;
use crate::{front::nri::view, hub::asked, ledger::Applied};
use koord_hooks::{Adjustment, Merged};
use koord_model::{Bind, CgroupPath, CpuShares, DeviceNode, Env, Injection, OomScoreAdj};
use koord_proto::nri::LinuxContainer;

const CONTAINERD: Limits<'_> = Limits {
    runtime: RuntimeName::Containerd,
    cpus: None,
    sets: &|_| false,
};
const CRI_O: Limits<'_> = Limits {
    runtime: RuntimeName::CriO,
    ..CONTAINERD
};

const MIB: i64 = 1 << 20;

/// A container that asked for half a CPU in periods of 20 ms, 512 shares, four CPUs and 64 MiB.
fn now() -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: 512 }),
            quota: Some(OptionalInt64 { value: 10_000 }),
            period: Some(OptionalUInt64 { value: 20_000 }),
            cpus: "0-3".to_owned(),
            mems: String::new(),
        }),
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 { value: 64 * MIB }),
            swap: None,
        }),
        ..LinuxResources::default()
    }
}

fn with_swap(swap: i64) -> LinuxResources {
    let mut now = now();
    now.memory.as_mut().unwrap().swap = Some(OptionalInt64 { value: swap });
    now
}

fn target(adjustment: Adjustment) -> Target {
    let requested = view::requested(Some(&now()));
    let mut merged = Merged::default();
    merged.merge("Hook", adjustment).unwrap();
    let mut target = Target::default();
    target.decide(
        &merged,
        |_| Route::Request,
        |setting| asked(&requested, setting),
    );
    target
}

fn only(cpus: &str) -> Adjustment {
    Adjustment {
        cpuset_cpus: Some(CpusetCpus::Only(cpus.parse().unwrap())),
        ..Adjustment::default()
    }
}

fn memory(limit: MemoryLimit) -> Adjustment {
    Adjustment {
        memory_limit: Some(limit),
        ..Adjustment::default()
    }
}

fn quota(quota: CpuQuota) -> Adjustment {
    Adjustment {
        cpu_quota: Some(quota),
        ..Adjustment::default()
    }
}

/// What is said of a container that has `now`, and how many decisions go by the kernel.
fn said(
    now: &LinuxResources,
    adjustment: Adjustment,
    limits: Limits<'_>,
) -> (Option<LinuxResources>, usize) {
    let mut target = target(adjustment);
    let update = update("c", now, &mut target, limits);
    let resources = update.map(|update| {
        assert_eq!(update.container_id, "c");
        update.linux.unwrap().resources.unwrap()
    });
    let kernel = target.entries().iter().filter(|e| e.route == Route::Kernel);
    (resources, kernel.count())
}

/// A container that is being made.
fn made(resources: LinuxResources, score: Option<i64>) -> Container {
    Container {
        id: "c".to_owned(),
        linux: Some(LinuxContainer {
            resources: Some(resources),
            oom_score_adj: score.map(|value| OptionalInt { value }),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

fn said_memory(value: i64) -> LinuxResources {
    LinuxResources {
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 { value }),
            swap: None,
        }),
        ..LinuxResources::default()
    }
}

fn said_cpu(cpu: LinuxCpu) -> LinuxResources {
    LinuxResources {
        cpu: Some(cpu),
        ..LinuxResources::default()
    }
}

#[test]
fn a_creation_is_told_what_differs_and_the_originals() {
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_quota: Some(CpuQuota::Micros(100_000)),
        cpuset_cpus: Some(CpusetCpus::Only("1".parse().unwrap())),
        memory_limit: Some(MemoryLimit::Bytes(1 << 30)),
        ..Adjustment::default()
    };
    let requested = view::requested(Some(&now()));
    let mut target = target(adjustment);
    let adjust = create(&made(now(), None), &requested, &mut target, CONTAINERD).unwrap();
    let mut expected = said_memory(1_073_741_824);
    expected.cpu = Some(LinuxCpu {
        // A whole CPU in the caller's period of 20 ms.
        quota: Some(OptionalInt64 { value: 20_000 }),
        cpus: "1".to_owned(),
        ..LinuxCpu::default()
    });
    let linux = adjust.linux.unwrap();
    assert_eq!(linux.resources, Some(expected));
    assert_eq!(linux.oom_score_adj, None);
    assert_eq!(
        adjust.annotations["runtimeproxy.koordinator.sh/originals"],
        r#"{"cpuShares":512,"cpuQuota":10000,"cpuPeriod":20000,"memoryLimit":67108864,"cpusetCpus":"0-3","ours":{"cpuQuota":100000,"memoryLimit":1073741824,"cpusetCpus":"1"},"of":"c"}"#
    );
}

#[test]
fn a_score_is_said_unless_the_runtime_may_not_give_it() {
    for (there, decided, said, route) in [
        (Some(0), 500, Some(500), Route::Request),
        (Some(-998), 0, Some(0), Route::Request),
        (Some(500), 500, None, Route::Request),
        (Some(1_000), 999, None, Route::Kernel),
        (Some(0), -1, None, Route::Kernel),
        (None, 500, None, Route::Kernel),
    ] {
        let score = Adjustment {
            oom_score_adj: OomScoreAdj::new(decided).ok(),
            ..Adjustment::default()
        };
        let mut target = target(score);
        let container = made(LinuxResources::default(), there);
        let adjust = create(&container, &Requested::default(), &mut target, CONTAINERD);
        let linux = adjust.clone().and_then(|adjust| adjust.linux);
        let score = linux.and_then(|linux| linux.oom_score_adj);
        assert_eq!(score.map(|score| score.value), said, "{there:?} {decided}");
        assert_eq!(target.entries()[0].route, route, "{there:?} {decided}");
        let annotations = adjust.map(|adjust| adjust.annotations);
        let ours = annotations.and_then(|mut it| it.remove(annotation::ORIGINALS));
        let expected = said.map(|said| format!(r#"{{"ours":{{"oomScoreAdj":{said}}},"of":"c"}}"#));
        assert_eq!(ours, expected);
    }
}

#[test]
fn a_creation_is_told_what_the_container_is_made_with_and_no_update_is() {
    let gpu = Adjustment {
        gpu: Some(
            Injection {
                envs: vec![Env::is("A", "1"), Env::before("LD_PRELOAD", "/a.so")],
                binds: [("/a.so", true), ("/lock", false)]
                    .map(|(path, read_only)| Bind {
                        path: path.into(),
                        source: None,
                        read_only,
                    })
                    .into(),
                ..Injection::default()
            }
            .into(),
        ),
        ..Adjustment::default()
    };
    let mut container = made(now(), None);
    container.env = ["LD_PRELOAD=/x.so", "LD_PRELOAD=/b=c.so"]
        .map(str::to_owned)
        .into();
    let requested = view::requested(Some(&now()));
    let mut target = target(gpu.clone());
    let adjust = create(&container, &requested, &mut target, CONTAINERD).unwrap();
    let env = adjust.env.iter().map(|it| (&*it.key, &*it.value));
    assert!(env.eq([("A", "1"), ("LD_PRELOAD", "/a.so:/b=c.so")]));
    let mount = |path: &str, options: &[&str]| Mount {
        destination: path.to_owned(),
        r#type: "bind".to_owned(),
        source: path.to_owned(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    };
    let mounts = vec![mount("/a.so", &["rbind", "ro"]), mount("/lock", &["rbind"])];
    assert_eq!((adjust.mounts, adjust.linux), (mounts, None));
    let entry = &target.entries()[0];
    assert_eq!(
        (entry.route, &entry.applied),
        (Route::Request, &Applied::Written)
    );
    assert_eq!(said(&now(), gpu, CONTAINERD), (None, 0));
}

#[test]
fn a_creation_is_told_the_devices_that_the_container_does_not_have() {
    let device = |path: &str, number: &str| DeviceNode {
        path: path.into(),
        number: number.parse().unwrap(),
    };
    let rdma = Adjustment {
        rdma: Some(
            Injection {
                devices: vec![device("/dev/a", "10:58"), device("/dev/b", "231:192")],
                ..Injection::default()
            }
            .into(),
        ),
        ..Adjustment::default()
    };
    let said = |path: &str, major, minor| LinuxDevice {
        path: path.to_owned(),
        r#type: "c".to_owned(),
        major,
        minor,
        file_mode: Some(OptionalFileMode { value: 0o666 }),
    };
    let both = [said("/dev/a", 10, 58), said("/dev/b", 231, 192)];
    let requested = view::requested(Some(&now()));
    for (there, expected) in [(0, &both[..]), (1, &both[1..]), (2, &[])] {
        let mut container = made(now(), None);
        let linux = container.linux.as_mut().unwrap();
        // Of those that are there nothing but the path is read.
        linux.devices = both[..there]
            .iter()
            .map(|it| LinuxDevice {
                path: it.path.clone(),
                ..LinuxDevice::default()
            })
            .collect();
        let mut target = target(rdma.clone());
        let adjust = create(&container, &requested, &mut target, CONTAINERD);
        let linux = adjust.and_then(|adjust| adjust.linux);
        let resources = linux.as_ref().and_then(|linux| linux.resources.clone());
        let devices = linux.map(|linux| linux.devices).unwrap_or_default();
        assert_eq!((&*devices, resources), (expected, None));
        assert_eq!(target.entries()[0].applied, Applied::Written);
    }
}

#[test]
fn no_update_says_a_score() {
    let score = Adjustment {
        oom_score_adj: OomScoreAdj::new(500).ok(),
        ..Adjustment::default()
    };
    assert_eq!(said(&now(), score, CONTAINERD), (None, 1));
}

#[test]
fn what_the_container_has_is_not_said() {
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_quota: Some(CpuQuota::Micros(50_000)),
        cpuset_cpus: Some(CpusetCpus::Only("0-3".parse().unwrap())),
        memory_limit: Some(MemoryLimit::Bytes(64 << 20)),
        ..Adjustment::default()
    };
    let requested = view::requested(Some(&now()));
    assert_eq!(
        create(
            &made(now(), None),
            &requested,
            &mut target(adjustment),
            CONTAINERD
        ),
        None
    );

    let nothing = LinuxResources::default();
    let all = Adjustment {
        cpu_quota: Some(CpuQuota::Unlimited),
        cpuset_cpus: Some(CpusetCpus::All),
        memory_limit: Some(MemoryLimit::Unlimited),
        ..Adjustment::default()
    };
    assert_eq!(said(&nothing, all, CONTAINERD), (None, 0));
}

#[test]
fn a_quota_is_said_in_the_period_of_the_container_or_in_the_usual_one() {
    let cpu = |quota: i64, period: Option<u64>| {
        let cpu = LinuxCpu {
            quota: Some(OptionalInt64 { value: quota }),
            period: period.map(|value| OptionalUInt64 { value }),
            ..LinuxCpu::default()
        };
        (Some(said_cpu(cpu)), 0)
    };
    for (decided, expected) in [
        (CpuQuota::Micros(5_000), cpu(1_000, None)),
        // Less than the kernel takes in 20 ms.
        (CpuQuota::Micros(4_000), cpu(4_000, Some(100_000))),
        (CpuQuota::Unlimited, cpu(-1, None)),
    ] {
        assert_eq!(said(&now(), quota(decided), CONTAINERD), expected);
    }
}

#[test]
fn a_list_of_cpus_stays_within_the_pods_and_cannot_be_taken_away() {
    let most = "0-1".parse().unwrap();
    let limits = Limits {
        cpus: Some(&most),
        ..CONTAINERD
    };
    let cpus = |cpus: &str| {
        said_cpu(LinuxCpu {
            cpus: cpus.to_owned(),
            ..LinuxCpu::default()
        })
    };
    assert_eq!(said(&now(), only("1-2"), limits), (Some(cpus("1")), 0));
    assert_eq!(said(&now(), only("2"), limits), (None, 1));
    assert_eq!(said(&now(), only("2"), CONTAINERD), (Some(cpus("2")), 0));
    let all = Adjustment {
        cpuset_cpus: Some(CpusetCpus::All),
        ..Adjustment::default()
    };
    assert_eq!(said(&now(), all, CONTAINERD), (None, 1));
}

#[test]
fn memory_is_said_unless_it_costs_swap_or_the_runtime_refuses_it() {
    let bytes = |mib: u64| memory(MemoryLimit::Bytes(mib << 20));
    let unlimited = || memory(MemoryLimit::Unlimited);
    let by_kernel = (None, 1);
    // Runtimes would take the swap away.
    assert_eq!(said(&with_swap(96 * MIB), bytes(80), CONTAINERD), by_kernel);
    assert_eq!(said(&with_swap(-1), bytes(80), CONTAINERD), by_kernel);
    // It may not swap, and does not after it.
    let said_32 = (Some(said_memory(33_554_432)), 0);
    assert_eq!(said(&with_swap(64 * MIB), bytes(32), CONTAINERD), said_32);
    // The kernel would refuse less of both than of memory.
    let said_96 = (Some(said_memory(100_663_296)), 0);
    assert_eq!(said(&with_swap(96 * MIB), bytes(96), CONTAINERD), said_96);
    assert_eq!(said(&with_swap(64 * MIB), bytes(96), CONTAINERD), said_96);
    let all = (Some(said_memory(-1)), 0);
    assert_eq!(said(&now(), unlimited(), CONTAINERD), all);
    assert_eq!(said(&now(), unlimited(), CRI_O), by_kernel);
    assert_eq!(said(&now(), bytes(11), CRI_O), by_kernel);
    let least = (Some(said_memory(12_582_912)), 0);
    assert_eq!(said(&now(), bytes(12), CRI_O), least);
}

#[test]
fn an_update_that_an_answer_would_cut_short_is_left_alone() {
    let none = LinuxResources::default();
    assert!(would_lose(&with_swap(64 * MIB), &none));
    assert!(!would_lose(&with_swap(0), &none));
    // containerd says nothing of the swap that is asked for: the spec has what there was.
    for (there, lost) in [(0, false), (64, false), (65, true), (-1, true)] {
        assert_eq!(would_lose(&now(), &with_swap(there * MIB)), lost, "{there}");
    }
    assert!(!would_lose(&none, &with_swap(128 * MIB)));
    let mut target = target(only("1"));
    keep_silent(&mut target);
    assert_eq!(update("c", &now(), &mut target, CONTAINERD), None);
}

#[test]
fn what_comes_back_is_said_only_of_settings_that_are_set_here() {
    let mut target = target(only("1"));
    let four: CpuSet = "0-3".parse().unwrap();
    let asked = |_| Some(CpusetCpus::Only(four.clone()).into());
    target.decide(&Merged::default(), |_| Route::Request, asked);
    let mut now = now();
    now.cpu.as_mut().unwrap().cpus = "1".to_owned();
    // Another plugin may say it, and the runtime fails an update for which two do.
    assert_eq!(update("c", &now, &mut target, CONTAINERD), None);
    // It is still known that the runtime's spec has it.
    assert_eq!(target.entries()[0].route, Route::Request);
    let limits = Limits {
        sets: &|setting| setting == Setting::CpusetCpus,
        ..CONTAINERD
    };
    let said = said_cpu(LinuxCpu {
        cpus: "0-3".to_owned(),
        ..LinuxCpu::default()
    });
    let expected = ContainerUpdate::new("c", said);
    assert_eq!(update("c", &now, &mut target, limits), Some(expected));
}

#[test]
fn what_the_kernel_refuses_is_not_said() {
    let mut target = target(only("1"));
    // EBUSY: a group within the container uses CPU 0.
    target.entry_mut(Setting::CpusetCpus).unwrap().applied = Applied::Refused(Some(16));
    assert_eq!(update("c", &now(), &mut target, CONTAINERD), None);
    assert_eq!(target.entries()[0].route, Route::Request);
    target.entry_mut(Setting::CpusetCpus).unwrap().applied = Applied::Equal;
    let said = said_cpu(LinuxCpu {
        cpus: "1".to_owned(),
        ..LinuxCpu::default()
    });
    let expected = ContainerUpdate::new("c", said);
    assert_eq!(update("c", &now(), &mut target, CONTAINERD), Some(expected));
}

#[test]
fn a_spec_has_what_it_says_as_it_was_decided_and_nothing_that_goes_by_the_kernel() {
    for (adjustment, has_it) in [
        // Half a CPU, as 10 ms of 20.
        (quota(CpuQuota::Micros(50_000)), true),
        (quota(CpuQuota::Micros(60_000)), false),
        (quota(CpuQuota::Unlimited), false),
        (only("0-3"), true),
        (only("0-1"), false),
        (memory(MemoryLimit::Bytes(64 << 20)), true),
        (memory(MemoryLimit::Unlimited), false),
    ] {
        let shown = format!("{adjustment:?}");
        let mut target = target(adjustment);
        let found = |target: &Target| in_spec(&now(), target, RuntimeName::Containerd).len();
        assert_eq!(found(&target), 0, "it is nowhere: {shown}");
        target.at = Some(CgroupPath::parse("pod/c").unwrap());
        assert_eq!(found(&target), usize::from(has_it), "{shown}");
        keep_silent(&mut target);
        assert_eq!(found(&target), 0, "{shown}");
    }
}

#[test]
fn an_update_changes_what_it_says() {
    let mut asked = said_memory(0);
    asked.cpu = Some(LinuxCpu {
        quota: Some(OptionalInt64 { value: -1 }),
        shares: Some(OptionalUInt64 { value: 0 }),
        ..LinuxCpu::default()
    });
    let mut expected = now();
    expected.cpu.as_mut().unwrap().quota = Some(OptionalInt64 { value: -1 });
    assert_eq!(overlaid(&now(), &asked), expected);
    assert_eq!(overlaid(&asked, &now()), now());
}
