use super::*;
use koord_hooks::{Adjustment, Merged};
use koord_model::{Bind, CpuBurst, CpuShares, DeviceNode, Env, OomScoreAdj, Setting};
use prost::Message as _;

const LIMITS: Limits<'_> = Limits {
    message: b"",
    max_message_bytes: 16 << 20,
    runtime: Some(RuntimeName::Containerd),
    cpus: None,
};

fn asked() -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_period: 20_000,
        cpu_quota: 10_000,
        cpu_shares: 512,
        cpuset_cpus: "0-3".to_owned(),
        ..Default::default()
    }
}

fn config(linux: cri::LinuxContainerResources) -> cri::ContainerConfig {
    cri::ContainerConfig {
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(linux),
        }),
        ..Default::default()
    }
}

fn target(adjustment: Adjustment, requested: &Requested) -> Target {
    let mut merged = Merged::default();
    merged.merge("Hook", adjustment).unwrap();
    let mut target = Target::default();
    target.decide(
        &merged,
        |_| Route::Request,
        |setting| match setting {
            Setting::CpuShares => requested.cpu_shares.map(Value::from),
            Setting::CpuQuota => requested.cpu_quota.map(Value::from),
            Setting::CpusetCpus => requested
                .cpuset_cpus
                .clone()
                .map(|cpus| CpusetCpus::Only(cpus).into()),
            Setting::OomScoreAdj => requested.oom_score_adj.map(Value::from),
            _ => None,
        },
    );
    target
}

/// What a runtime gets: the patch merged over the request.
fn created(
    config: &cri::ContainerConfig,
    requested: &Requested,
    target: &mut Target,
) -> Option<cri::ContainerConfig> {
    let request = cri::CreateContainerRequest {
        config: Some(config.clone()),
        ..Default::default()
    };
    let mut bytes = request.encode_to_vec();
    bytes.extend(create(config, requested, target, LIMITS).unwrap()?);
    cri::CreateContainerRequest::decode(&*bytes).unwrap().config
}

#[test]
fn a_creation_carries_what_differs_and_the_originals() {
    let requested = crate::view::requested(Some(&asked()));
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_quota: Some(CpuQuota::Micros(100_000)),
        cpuset_cpus: Some(CpusetCpus::All),
        ..Adjustment::default()
    };
    let mut target = target(adjustment, &requested);
    let config = created(&config(asked()), &requested, &mut target).unwrap();
    let linux = config.resources().unwrap();
    // A whole CPU in the caller's period of 20 ms.
    assert_eq!((linux.cpu_quota, linux.cpu_period), (20_000, 20_000));
    assert_eq!((linux.cpu_shares, linux.cpuset_cpus.as_str()), (512, ""));
    assert_eq!(
        config.annotations["runtimeproxy.koordinator.sh/originals"],
        r#"{"cpuShares":512,"cpuQuota":10000,"cpuPeriod":20000,"cpusetCpus":"0-3","ours":{"cpuQuota":100000,"cpusetCpus":""}}"#
    );
}

/// A container of a kubelet whose `cpuCFSQuotaPeriod` is 10 ms.
fn in_periods_of_10_ms() -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_period: 10_000,
        ..Default::default()
    }
}

fn with_quota(quota_us: u64, requested: &Requested) -> Target {
    let adjustment = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(quota_us)),
        ..Adjustment::default()
    };
    target(adjustment, requested)
}

#[test]
fn a_share_too_small_for_the_callers_period_is_said_in_a_longer_one() {
    let requested = crate::view::requested(Some(&in_periods_of_10_ms()));
    for (decided, quota, period) in [
        (1_000, 1_000, 100_000),
        (9_999, 9_999, 100_000),
        (10_000, 1_000, 10_000),
        (50_000, 5_000, 10_000),
    ] {
        let mut target = with_quota(decided, &requested);
        let config = created(&config(in_periods_of_10_ms()), &requested, &mut target);
        let linux = config.unwrap();
        let linux = linux.resources().unwrap();
        assert_eq!(
            (linux.cpu_quota, linux.cpu_period),
            (quota, period),
            "{decided}"
        );
    }
}

#[test]
fn an_update_names_the_period_that_its_quota_is_for() {
    let update_of_shares = cri::LinuxContainerResources {
        cpu_shares: 2,
        ..Default::default()
    };
    for (period_us, decided, quota, named) in [
        (None, 50_000, 50_000, 0),
        (Some(100_000), 50_000, 50_000, 0),
        // The runtime may have stored a longer one with a smaller share.
        (Some(10_000), 50_000, 5_000, 10_000),
        (Some(10_000), 5_000, 5_000, 100_000),
    ] {
        let period = period_us.map(|micros| CpuPeriod::new(micros).unwrap());
        let mut target = with_quota(decided, &Requested::default());
        let asked = Asked {
            period,
            ..only(&update_of_shares)
        };
        let patch = update(&asked, &mut target, LIMITS).unwrap();
        let request = cri::UpdateContainerResourcesRequest::read(&patch.unwrap());
        let linux = request.and_then(|request| request.linux).unwrap();
        assert_eq!(
            (linux.cpu_quota, linux.cpu_period),
            (quota, named),
            "{period_us:?}"
        );
    }
}

#[test]
fn a_creation_that_asks_for_what_was_decided_is_not_touched() {
    let requested = crate::view::requested(Some(&cri::LinuxContainerResources::default()));
    let adjustment = Adjustment {
        cpu_quota: Some(CpuQuota::Unlimited),
        memory_limit: Some(MemoryLimit::Unlimited),
        cpuset_cpus: Some(CpusetCpus::All),
        ..Adjustment::default()
    };
    let mut target = target(adjustment, &requested);
    let untouched = config(cri::LinuxContainerResources::default());
    assert_eq!(
        create(&untouched, &requested, &mut target, LIMITS),
        Ok(None)
    );
}

#[test]
fn what_was_asked_goes_with_what_no_request_can_say() {
    let resources = cri::LinuxContainerResources {
        cpu_quota: 50_000,
        ..Default::default()
    };
    let requested = crate::view::requested(Some(&resources));
    let adjustment = Adjustment {
        cpu_burst: Some(CpuBurst::from_micros(50_000).unwrap()),
        ..Adjustment::default()
    };
    let mut target = Target::default();
    let mut merged = Merged::default();
    merged.merge("CPUBurst", adjustment).unwrap();
    target.decide(&merged, |_| Route::Kernel, |_| None);
    let patch = create(&config(resources), &requested, &mut target, LIMITS);
    let patch = patch.unwrap().unwrap();
    let request = cri::CreateContainerRequest::decode(&*patch).unwrap();
    let annotations = request.config.unwrap().annotations;
    assert_eq!(
        annotations["runtimeproxy.koordinator.sh/originals"],
        r#"{"cpuQuota":50000}"#
    );
}

#[test]
fn resources_that_were_not_there_are_not_made() {
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::MIN),
        ..Adjustment::default()
    };
    let mut target = target(adjustment, &Requested::default());
    let bare = cri::ContainerConfig::default();
    let patch = create(&bare, &Requested::default(), &mut target, LIMITS);
    assert_eq!(patch, Ok(None));
    assert_eq!(target.entries()[0].route, Route::Kernel);
}

fn with_score(score: i64) -> Adjustment {
    Adjustment {
        oom_score_adj: OomScoreAdj::new(score).ok(),
        ..Adjustment::default()
    }
}

/// A creation that asks for the score of a best-effort pod.
fn killed_first() -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        oom_score_adj: 1_000,
        ..Default::default()
    }
}

#[test]
fn a_creation_carries_the_score_zero_too() {
    let requested = crate::view::requested_at_creation(Some(&killed_first()));
    for score in [-900, 0, 500] {
        let mut target = target(with_score(score), &requested);
        let config = created(&config(killed_first()), &requested, &mut target).unwrap();
        assert_eq!(config.resources().unwrap().oom_score_adj, score);
        assert_eq!(
            config.annotations["runtimeproxy.koordinator.sh/originals"],
            format!(r#"{{"oomScoreAdj":1000,"ours":{{"oomScoreAdj":{score}}}}}"#)
        );
        assert_eq!(target.entries()[0].route, Route::Request);
    }
    let mut as_asked = target(with_score(1_000), &requested);
    let patch = create(&config(killed_first()), &requested, &mut as_asked, LIMITS);
    assert_eq!(patch, Ok(None));
}

#[test]
fn a_score_that_is_not_replaced_does_not_travel() {
    let asked = cri::LinuxContainerResources {
        cpu_shares: 2,
        ..killed_first()
    };
    let requested = crate::view::requested_at_creation(Some(&asked));
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        ..Adjustment::default()
    };
    let config = created(
        &config(asked),
        &requested,
        &mut target(adjustment, &requested),
    )
    .unwrap();
    assert_eq!(
        config.annotations["runtimeproxy.koordinator.sh/originals"],
        r#"{"cpuShares":2,"ours":{"cpuShares":512}}"#
    );
}

fn library() -> Bind {
    Bind {
        path: "/a.so".into(),
        source: None,
        read_only: true,
    }
}

/// A list that is put before what the container has, and a mount.
fn gpu() -> Adjustment {
    Adjustment {
        gpu: Some(
            Injection {
                envs: vec![Env::is("A", "1"), Env::before("LD_PRELOAD", "/a.so")],
                binds: vec![library()],
                ..Injection::default()
            }
            .into(),
        ),
        ..Adjustment::default()
    }
}

#[test]
fn what_a_container_is_made_with_is_appended_even_where_no_resources_are() {
    let request = CreateContainerPatch {
        envs: vec![("LD_PRELOAD".to_owned(), "/b.so".to_owned())],
        ..Default::default()
    };
    let request = request.encode();
    let limits = Limits {
        message: &request,
        ..LIMITS
    };
    let expected = CreateContainerPatch {
        envs: [("A", "1"), ("LD_PRELOAD", "/a.so:/b.so")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        binds: vec![library()],
        annotations: vec![(annotation::ORIGINALS.to_owned(), "{}".to_owned())],
        ..Default::default()
    };
    let requested = Requested::default();
    let mut target = target(gpu(), &requested);
    let bare = cri::ContainerConfig::default();
    let patch = create(&bare, &requested, &mut target, limits);
    assert_eq!(patch, Ok(Some(expected.encode())));
    let entry = &target.entries()[0];
    assert_eq!(
        (entry.route, &entry.applied),
        (Route::Request, &Applied::Written)
    );

    assert_eq!(update(&only(&asked()), &mut target, LIMITS), Ok(None));
    assert_eq!(target.entries()[0].route, Route::Request);
}

#[test]
fn a_device_that_is_asked_for_is_not_said_twice() {
    let device = |path: &str| DeviceNode {
        path: path.into(),
        number: "231:192".parse().unwrap(),
    };
    let rdma = || Adjustment {
        rdma: Some(
            Injection {
                devices: vec![device("/dev/a"), device("/dev/b")],
                ..Injection::default()
            }
            .into(),
        ),
        ..Adjustment::default()
    };
    let asks_for = |devices: &[&str]| CreateContainerPatch {
        devices: devices.iter().map(|&path| path.into()).collect(),
        ..Default::default()
    };
    let ours = || vec![(annotation::ORIGINALS.to_owned(), "{}".to_owned())];
    for (asked, said) in [
        (&[][..], &["/dev/a", "/dev/b"][..]),
        (&["/dev/b"], &["/dev/a"]),
        (&["/dev/b", "/dev/a"], &[]),
    ] {
        let request = asks_for(asked).encode();
        let limits = Limits {
            message: &request,
            ..LIMITS
        };
        let mut target = target(rdma(), &Requested::default());
        let bare = cri::ContainerConfig::default();
        let patch = create(&bare, &Requested::default(), &mut target, limits).unwrap();
        let expected = CreateContainerPatch {
            annotations: ours(),
            ..asks_for(said)
        };
        let expected = (!said.is_empty()).then(|| expected.encode());
        assert_eq!(patch, expected, "{asked:?}");
        assert_eq!(target.entries()[0].applied, Applied::Written);
    }
}

#[test]
fn what_does_not_fit_a_container_is_not_made_with() {
    let mut target = target(gpu(), &Requested::default());
    let limits = Limits {
        max_message_bytes: 10,
        ..LIMITS
    };
    let bare = cri::ContainerConfig::default();
    let Err(PatchError::TooLarge { hooks, .. }) =
        create(&bare, &Requested::default(), &mut target, limits)
    else {
        panic!("it fits");
    };
    assert_eq!(hooks, ["Hook"]);
    assert_eq!(target.entries()[0].route, Route::Kernel);
}

#[test]
fn no_update_carries_a_score() {
    let mut target = target(with_score(500), &Requested::default());
    assert_eq!(
        update(&only(&killed_first()), &mut target, LIMITS),
        Ok(None)
    );
    assert_eq!(target.entries()[0].route, Route::Kernel);
}

/// A request before which nothing was asked for.
fn only(linux: &cri::LinuxContainerResources) -> Asked<'_> {
    Asked {
        linux,
        period: None,
        memory: None,
        swap: view::swap_said(Some(linux)),
    }
}

#[test]
fn an_update_that_says_nothing_of_swap_leaves_what_there_was() {
    let unlimited = Some(MemoryLimit::Unlimited);
    let bytes = |bytes| Some(MemoryLimit::Bytes(bytes));
    // Memory that is asked for, memory and swap together that was asked for before and by the request, what
    // hooks let it have, and what is said for it.
    let cases = [
        (None, None, 0, bytes(4_096), (4_096, 0)),
        (None, bytes(9_000), 0, bytes(4_096), (4_096, 9_000)),
        (None, bytes(9_000), 9_000, bytes(4_096), (4_096, 9_000)),
        (None, bytes(1_000), 0, bytes(4_096), (4_096, 4_096)),
        (None, bytes(1_000), 1_000, bytes(4_096), (4_096, 4_096)),
        (None, unlimited, 0, bytes(4_096), (4_096, -1)),
        (None, bytes(9_000), 0, unlimited, (-1, -1)),
        (None, None, 0, unlimited, (-1, 0)),
        (bytes(8_000), bytes(9_000), 0, bytes(4_096), (4_096, 9_000)),
        // It was not to swap.
        (bytes(9_000), bytes(9_000), 0, bytes(4_096), (4_096, 4_096)),
        (
            bytes(9_000),
            bytes(9_000),
            9_000,
            bytes(4_096),
            (4_096, 4_096),
        ),
        (
            bytes(9_000),
            bytes(9_000),
            0,
            bytes(12_288),
            (12_288, 12_288),
        ),
    ];
    for (memory, before, now, decided, said) in cases {
        let adjustment = Adjustment {
            memory_limit: decided,
            ..Adjustment::default()
        };
        let mut target = target(adjustment, &Requested::default());
        let linux = cri::LinuxContainerResources {
            cpu_shares: 2,
            memory_swap_limit_in_bytes: now,
            ..Default::default()
        };
        let asked = Asked {
            memory,
            swap: before,
            ..only(&linux)
        };
        let patch = update(&asked, &mut target, LIMITS).unwrap().unwrap();
        let mut request = cri::UpdateContainerResourcesRequest {
            linux: Some(linux),
            ..Default::default()
        }
        .encode_to_vec();
        request.extend(patch);
        let linux = cri::UpdateContainerResourcesRequest::read(&request)
            .and_then(|request| request.linux)
            .unwrap();
        let patched = (
            linux.memory_limit_in_bytes,
            linux.memory_swap_limit_in_bytes,
        );
        assert_eq!(patched, said, "{memory:?}, {before:?}, {now}, {decided:?}");
    }
}

#[test]
fn swap_is_never_less_than_memory() {
    let mut linux = asked();
    linux.memory_swap_limit_in_bytes = 1 << 20;
    let adjustment = Adjustment {
        memory_limit: Some(MemoryLimit::Bytes(4 << 20)),
        ..Adjustment::default()
    };
    let mut target = target(adjustment, &Requested::default());
    let config = created(&config(linux), &Requested::default(), &mut target).unwrap();
    let linux = config.resources().unwrap();
    assert_eq!(linux.memory_limit_in_bytes, 4_194_304);
    assert_eq!(linux.memory_swap_limit_in_bytes, 4_194_304);
}

#[test]
fn an_update_carries_all_values_in_force_that_it_can_say() {
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        cpu_quota: Some(CpuQuota::Unlimited),
        cpuset_cpus: Some(CpusetCpus::All),
        memory_limit: Some(MemoryLimit::Bytes(4 << 20)),
        ..Adjustment::default()
    };
    let requested = Requested::default();
    let mut target = target(adjustment, &requested);
    let update_of_shares = cri::LinuxContainerResources {
        cpu_shares: 2,
        ..Default::default()
    };
    let patch = update(&only(&update_of_shares), &mut target, LIMITS).unwrap();
    let linux = cri::UpdateContainerResourcesRequest::read(&patch.unwrap())
        .and_then(|request| request.linux)
        .unwrap();
    assert_eq!(
        linux,
        cri::LinuxContainerResources {
            cpu_shares: 512,
            cpu_quota: -1,
            memory_limit_in_bytes: 4_194_304,
            ..Default::default()
        }
    );
    let all_cpus = target.entry_mut(Setting::CpusetCpus).unwrap();
    assert_eq!(all_cpus.route, Route::Kernel);
}

#[test]
fn a_cpuset_keeps_within_what_the_kernel_lets_the_container_have() {
    for (most, said) in [
        (None, Some("1-3")),
        (Some("0-7"), Some("1-3")),
        (Some("0-2"), Some("1-2")),
        (Some("0,4"), None),
    ] {
        let most: Option<CpuSet> = most.map(|list| list.parse().unwrap());
        let adjustment = Adjustment {
            cpuset_cpus: Some(CpusetCpus::Only("1-3".parse().unwrap())),
            ..Adjustment::default()
        };
        let requested = Requested::default();
        let mut target = target(adjustment, &requested);
        let limits = Limits {
            cpus: most.as_ref(),
            ..LIMITS
        };
        let patch = update(&only(&asked()), &mut target, limits).unwrap();
        let patched = patch.map(|patch| {
            let request = cri::UpdateContainerResourcesRequest::read(&patch).unwrap();
            request.linux.unwrap().cpuset_cpus
        });
        assert_eq!(patched.as_deref(), said);
        // What was decided stays so, and is written where it cannot be said.
        let entry = &target.entries()[0];
        assert_eq!(entry.desired.to_string(), "1-3");
        let kernel = entry.route == Route::Kernel;
        assert_eq!(kernel, said.is_none());
    }
}

#[test]
fn crio_gets_no_memory_limit_that_it_would_refuse() {
    for limit in [MemoryLimit::Unlimited, MemoryLimit::Bytes(8 << 20)] {
        let adjustment = Adjustment {
            memory_limit: Some(limit),
            ..Adjustment::default()
        };
        let mut target = target(adjustment, &Requested::default());
        let limits = Limits {
            runtime: Some(RuntimeName::CriO),
            ..LIMITS
        };
        assert_eq!(update(&only(&asked()), &mut target, limits), Ok(None));
        assert_eq!(target.entries()[0].route, Route::Kernel);
    }
}

#[test]
fn a_patch_that_would_be_too_much_is_left_out() {
    let adjustment = Adjustment {
        cpu_shares: Some(CpuShares::MIN),
        ..Adjustment::default()
    };
    let mut target = target(adjustment, &Requested::default());
    let limits = Limits {
        message: &[0; 100],
        max_message_bytes: 101,
        ..LIMITS
    };
    let refused = update(&only(&asked()), &mut target, limits);
    assert_eq!(
        refused,
        Err(PatchError::TooLarge {
            patched: 104,
            limit: 101,
            hooks: vec!["Hook"],
        })
    );
}

#[test]
fn a_creation_that_is_too_much_names_the_hooks_whose_values_it_would_have_carried() {
    let requested = crate::view::requested(Some(&asked()));
    let mut merged = Merged::default();
    let as_asked = Adjustment {
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        ..Adjustment::default()
    };
    let other = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(70_000)),
        ..Adjustment::default()
    };
    merged.merge("AsAsked", as_asked).unwrap();
    merged.merge("Other", other).unwrap();
    let mut target = Target::default();
    let shares = requested.cpu_shares.map(Value::from);
    let asked_for = |setting| shares.clone().filter(|_| setting == Setting::CpuShares);
    target.decide(&merged, |_| Route::Request, asked_for);
    let limits = Limits {
        max_message_bytes: 0,
        ..LIMITS
    };
    let PatchError::TooLarge { hooks, .. } =
        create(&config(asked()), &requested, &mut target, limits).unwrap_err();
    assert_eq!(hooks, ["Other"]);
}
