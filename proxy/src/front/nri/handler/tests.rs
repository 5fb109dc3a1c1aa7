use super::*;
use crate::{
    hub::{
        NodeLock,
        testing::{BATCH, Bench, container, sandbox},
    },
    ledger::{Applied, Life},
    relist::Listed,
};
use koord_hooks::Stage;
use koord_kernel::{
    cgroup::{Controller, Generation, Tree},
    fake::FakeTree,
};
use koord_model::{CgroupPath, Setting};
use koord_proto::{
    keys::{annotation, label},
    nri::{
        ContainerState, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, OptionalInt,
        OptionalInt64, OptionalUInt64, StopContainerRequest,
    },
    policy::NodePolicy,
};
use tokio::{
    task::LocalSet,
    time::{advance, timeout},
};

mod bare;
mod burst;
mod cores;
mod failed;
mod folder;
mod gap;
mod idle;
mod unsaid;
mod wait;

// === impl Handler ===

impl Handler {
    /// Answers a question for which the runtime gives as much time as it has said that it does.
    async fn answer(&self, asked: Asked) -> Answer {
        // Half of that time, of which patience is a quarter.
        let due = Instant::now() + self.patience * 2;
        self.answer_by(asked, due).await
    }
}

/// A plugin on a node where nothing is known yet.
fn plugin() -> (Bench, Handler) {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let handler = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    (bench, handler)
}

/// The best-effort pod of the bench, as NRI tells it.
fn told_pod() -> PodSandbox {
    let text = str::to_owned;
    PodSandbox {
        id: text("sandbox-1"),
        name: text("batch"),
        uid: text("uid-1"),
        namespace: text("default"),
        labels: [(text(label::QOS_CLASS), text("BE"))].into(),
        annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(BATCH))].into(),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: text("/kubepods/besteffort/poduid-1"),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    }
}

fn shares(value: u64) -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value }),
            ..LinuxCpu::default()
        }),
        ..LinuxResources::default()
    }
}

/// Its container, whose spec says 1,024 shares and nothing else.
fn told_container() -> Container {
    Container {
        id: "container-1".to_owned(),
        pod_sandbox_id: "sandbox-1".to_owned(),
        name: "main".to_owned(),
        state: 1,
        linux: Some(LinuxContainer {
            resources: Some(shares(1_024)),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

/// The same as a runtime tells it with an event.
fn told_with(event: Event) -> Container {
    let mut container = told_container();
    container.set_state(match event {
        Event::PostStartContainer | Event::UpdateContainer | Event::PostUpdateContainer => {
            ContainerState::ContainerRunning
        }
        Event::StopContainer | Event::RemoveContainer => ContainerState::ContainerStopped,
        _ => ContainerState::ContainerCreated,
    });
    container
}

fn happened(event: Event) -> Asked {
    Asked::Happened {
        event,
        pod: Some(told_pod()),
        container: Some(told_with(event)),
    }
}

fn creation() -> Asked {
    Asked::CreateContainer(CreateContainerRequest {
        pod: Some(told_pod()),
        container: Some(told_container()),
    })
}

fn update(asked: LinuxResources) -> Asked {
    Asked::UpdateContainer(UpdateContainerRequest {
        pod: Some(told_pod()),
        container: Some(told_with(Event::UpdateContainer)),
        linux_resources: Some(asked),
    })
}

/// 512 shares, a quota of 100 ms and 1 GiB.
fn batch() -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: 512 }),
            quota: Some(OptionalInt64 { value: 100_000 }),
            ..LinuxCpu::default()
        }),
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 {
                value: 1_073_741_824,
            }),
            swap: None,
        }),
        ..LinuxResources::default()
    }
}

/// What the ledger knows of the container.
fn known(bench: &Bench) -> Option<Life> {
    let ledger = bench.hub.ledger().borrow();
    ledger.container(&container()).map(|(_, it)| it.life)
}

#[tokio::test]
async fn a_creation_is_adjusted_and_known_once_the_runtime_has_made_it() {
    let (bench, plugin) = plugin();
    let Answer::Adjust(adjust) = plugin.answer(creation()).await else {
        panic!("not adjusted");
    };
    assert_eq!(adjust.linux.unwrap().resources, Some(batch()));
    assert_eq!(known(&bench), None);
    let made = plugin.answer(happened(Event::PostCreateContainer)).await;
    assert_eq!(made, Answer::Nothing);
    assert_eq!(known(&bench), Some(Life::Created));
    let entry = bench.entry(Setting::CpuShares).unwrap();
    assert_eq!(entry.original.value().unwrap().to_string(), "1024");
}

#[tokio::test]
async fn a_creation_of_which_the_runtime_was_not_told_is_known_to_lack_what_it_needed_then() {
    for is_told in [true, false] {
        let (bench, plugin) = plugin();
        let mut pod = told_pod();
        pod.annotations.insert(
            annotation::DEVICE_ALLOCATED.to_owned(),
            r#"{"gpu":[{"minor":3}]}"#.to_owned(),
        );
        let asked = Asked::CreateContainer(CreateContainerRequest {
            pod: Some(pod),
            container: Some(told_container()),
        });
        let Answer::Adjust(adjust) = plugin.answer(asked).await else {
            panic!("not adjusted");
        };
        assert_eq!(adjust.env.len(), 1);
        if !is_told {
            plugin.unsaid("container-1");
        }
        plugin.answer(happened(Event::PostCreateContainer)).await;
        plugin.answer(happened(Event::StartContainer)).await;
        let applied = bench.entry(Setting::Gpu).unwrap().applied;
        let expected = match is_told {
            true => Applied::Written,
            false => Applied::Unsupported,
        };
        assert_eq!(applied, expected);
    }
}

#[tokio::test]
async fn of_an_update_that_came_to_nothing_nothing_is_known_when_its_container_starts() {
    let (bench, plugin) = plugin();
    plugin.answer(creation()).await;
    plugin.answer(happened(Event::PostCreateContainer)).await;
    plugin.answer(update(shares(4_096))).await;
    plugin.answer(happened(Event::StartContainer)).await;
    let original = bench.entry(Setting::CpuShares).unwrap().original;
    assert_eq!(original.value().unwrap().to_string(), "1024");
}

#[tokio::test]
async fn a_pods_values_are_in_the_kernel_before_the_runtime_goes_on() {
    let (bench, plugin) = plugin();
    let quota = |bench: &Bench| {
        let text = bench
            .tree
            .read(Controller::Cpu, &bench.pod, "cpu.cfs_quota_us");
        text.unwrap().trim_end().to_owned()
    };
    assert_eq!(quota(&bench), "-1");
    plugin.answer(happened(Event::RunPodSandbox)).await;
    // One of which nothing is known: it was made while nobody asked us.
    assert_eq!(bench.shown("cpu.shares"), "1024");
    plugin.answer(happened(Event::StartContainer)).await;
    assert_eq!(quota(&bench), "100000");
    assert_eq!(bench.shown("cpu.shares"), "512");
    assert_eq!(known(&bench), Some(Life::Running));
}

#[tokio::test]
async fn a_start_waits_for_what_is_new_alone_and_the_rest_is_looked_at_after_it() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.hub.queue().drain();
    bench
        .tree
        .write(Controller::Cpu, &bench.pod, "cpu.cfs_quota_us", "-1")
        .unwrap();
    bench.tree.take_writes();
    plugin.answer(happened(Event::StartContainer)).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    let writes = bench.tree.take_writes();
    assert!(
        writes.iter().all(|write| write.at == bench.container),
        "{writes:?}"
    );
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

#[tokio::test]
async fn what_is_held_already_is_looked_at_at_once_only_where_it_was_written_over() {
    let (bench, plugin) = plugin();
    let queue = bench.hub.queue();
    let events = [
        Event::RunPodSandbox,
        Event::StartContainer,
        Event::PostStartContainer,
        Event::PostUpdatePodSandbox,
    ];
    for event in events {
        plugin.answer(happened(event)).await;
        assert!(!queue.is_pressed(), "{event:?}");
        assert_eq!(queue.drain(), [sandbox()], "{event:?}");
    }
    plugin.answer(happened(Event::PostUpdateContainer)).await;
    assert!(queue.is_pressed());
}

#[tokio::test]
async fn a_start_has_a_value_that_the_kernel_refuses_below_what_somebody_wrote_above_it() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    // Less than the container is to have.
    bench
        .tree
        .write(Controller::Cpu, &bench.pod, "cpu.cfs_quota_us", "70000")
        .unwrap();
    plugin.answer(happened(Event::StartContainer)).await;
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "100000");
    let metrics = bench.hub.metrics().encode().unwrap();
    assert!(!metrics.contains("refused"), "{metrics}");
}

#[tokio::test]
async fn a_pod_beside_the_kubelets_tiers_is_told_where_a_synchronisation_brings_it() {
    for (cgroup_parent, expected) in [
        ("/kubepods/besteffort/poduid-1", None),
        ("/other/kubepods/poduid-1", Some("/other/kubepods/poduid-1")),
    ] {
        let (bench, plugin) = plugin();
        let mut pod = told_pod();
        pod.linux = Some(LinuxPodSandbox {
            cgroup_parent: cgroup_parent.to_owned(),
            ..LinuxPodSandbox::default()
        });
        let asked = Asked::Synchronize {
            pods: vec![pod],
            containers: Vec::new(),
        };
        plugin.answer(asked).await;
        let told = bench.hub.pod_elsewhere().map(|at| at.to_string());
        assert_eq!(told.as_deref(), expected);
    }
}

#[tokio::test]
async fn a_score_is_said_at_the_creation_and_what_was_asked_is_known() {
    let (bench, plugin) = plugin();
    let (mut pod, mut container) = (told_pod(), told_container());
    let key = annotation::OOM_SCORE_ADJ.to_owned();
    pod.annotations.insert(key, "500".to_owned());
    let linux = container.linux.as_mut().unwrap();
    linux.oom_score_adj = Some(OptionalInt { value: 2 });
    let happened = Asked::Happened {
        event: Event::PostCreateContainer,
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    };
    let creation = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod),
        container: Some(container),
    });
    let Answer::Adjust(adjust) = plugin.answer(creation).await else {
        panic!("not adjusted");
    };
    let said = adjust.linux.unwrap().oom_score_adj;
    assert_eq!(said, Some(OptionalInt { value: 500 }));
    plugin.answer(happened).await;
    let entry = bench.entry(Setting::OomScoreAdj).unwrap();
    assert_eq!(entry.original.value().unwrap().to_string(), "2");
}

#[tokio::test]
async fn a_synchronisation_takes_in_what_is_there_and_drops_what_is_not() {
    let (bench, plugin) = plugin();
    let all = |pods: Vec<_>, containers: Vec<_>| Asked::Synchronize { pods, containers };
    let told = all(vec![told_pod()], vec![told_container()]);
    let Answer::Update(updates) = plugin.answer(told).await else {
        panic!("not updated");
    };
    let [update] = &*updates else {
        panic!("{updates:?}");
    };
    assert_eq!(
        (&*update.container_id, update.ignore_failure),
        ("container-1", true)
    );
    let resources = update.linux.clone().unwrap().resources;
    assert_eq!(resources, Some(batch()));
    assert!(bench.hub.is_whole() && bench.hub.plugin_is_up());
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    // When the runtime has done it is not said.
    assert_eq!(bench.hub.told_lately(), [sandbox()]);

    let mut right = told_container();
    right.linux.as_mut().unwrap().resources = Some(batch());
    let told = all(vec![told_pod()], vec![right]);
    assert_eq!(plugin.answer(told).await, Answer::Update(Vec::new()));

    assert_eq!(
        plugin.answer(all(vec![], vec![])).await,
        Answer::Update(Vec::new())
    );
    assert_eq!(known(&bench), None);
    assert_eq!(bench.hub.ledger().borrow().pods_len(), 0);
}

/// A guaranteed pod on a bench that lets what has a limit save up for bursts, with a limit and what it has
/// saved in its directory and in that of its container, which come beside.
fn saving(bench: &Bench, burst: &str) -> (PodSandbox, [CgroupPath; 2]) {
    let own = CgroupPath::parse("kubepods/poduid-2").unwrap();
    let groups = [own.join("container-1").unwrap(), own];
    bench.tree.make(&groups[0]);
    let files = [("cpu.cfs_quota_us", "50000"), ("cpu.cfs_burst_us", burst)];
    for at in groups.iter().rev() {
        for (file, text) in files {
            bench.tree.write(Controller::Cpu, at, file, text).unwrap();
        }
    }
    let policy = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\n\
                  metadata: {name: node-1}\nspec: {cpuBurstStrategy: {policy: cpuBurstOnly}}\n";
    let policy = NodePolicy::parse_stream(policy, None).unwrap().policy;
    bench.hub.set_node_policy(policy.into());
    let mut pod = told_pod();
    pod.labels.clear();
    pod.annotations.clear();
    pod.uid = "uid-2".to_owned();
    pod.linux.as_mut().unwrap().cgroup_parent = "/kubepods/poduid-2".to_owned();
    (pod, groups)
}

/// Its container, which runs and has asked for a quota of 50 ms.
fn running_and_saving() -> Container {
    let asked = r#"{"cpuQuota":50000,"cpuPeriod":100000,"of":"container-1"}"#;
    Container {
        state: ContainerState::ContainerRunning.into(),
        annotations: [(annotation::ORIGINALS.to_owned(), asked.to_owned())].into(),
        ..told_container()
    }
}

#[tokio::test]
async fn a_start_waits_for_what_a_pods_directory_has_for_its_containers() {
    // Whatever the runtime says that the container does.
    for state in [
        ContainerState::ContainerCreated,
        ContainerState::ContainerRunning,
        ContainerState::ContainerUnknown,
    ] {
        a_start_waits_for_its_pods_directory(state).await;
    }
}

async fn a_start_waits_for_its_pods_directory(state: ContainerState) {
    let (bench, plugin) = plugin();
    let (pod, groups) = saving(&bench, "0");
    let mut container = told_container();
    container.set_state(state);
    let cpu = LinuxCpu {
        quota: Some(OptionalInt64 { value: 50_000 }),
        period: Some(OptionalUInt64 { value: 100_000 }),
        ..LinuxCpu::default()
    };
    container.linux.as_mut().unwrap().resources = Some(LinuxResources {
        cpu: Some(cpu),
        ..LinuxResources::default()
    });
    let happened = |event| Asked::Happened {
        event,
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    };
    let creation = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    });
    plugin.answer(happened(Event::RunPodSandbox)).await;
    plugin.answer(creation).await;
    plugin.answer(happened(Event::StartContainer)).await;
    for at in &groups {
        let held = bench.tree.read(Controller::Cpu, at, "cpu.cfs_burst_us");
        assert_eq!(held.unwrap().trim_end(), "50000", "{at}, {state:?}");
    }
}

#[tokio::test]
async fn the_burst_of_a_pod_goes_though_its_policy_does_before_it_is_looked_at() {
    let (bench, plugin) = plugin();
    let (pod, groups) = saving(&bench, "50000");
    let container = running_and_saving();
    plugin
        .answer(Asked::Synchronize {
            pods: vec![pod],
            containers: vec![container],
        })
        .await;
    bench.hub.set_node_policy(NodePolicy::default().into());
    crate::reconcile::pod(&bench.hub, &sandbox()).await;
    for at in &groups {
        let held = bench.tree.read(Controller::Cpu, at, "cpu.cfs_burst_us");
        assert_eq!(held.unwrap().trim_end(), "0", "{at}");
    }
}

#[tokio::test]
async fn an_update_is_answered_for_the_container_itself_unless_that_would_lose_a_part() {
    let (bench, plugin) = plugin();
    let told = Asked::Synchronize {
        pods: vec![told_pod()],
        containers: vec![told_container()],
    };
    plugin.answer(told).await;
    let Answer::Update(updates) = plugin.answer(update(shares(7))).await else {
        panic!("not updated");
    };
    let updated: Vec<_> = updates.iter().map(|it| &*it.container_id).collect();
    assert_eq!(updated, ["container-1"]);
    // What was asked counts once the runtime has done it.
    let asked = || {
        let ledger = bench.hub.ledger().borrow();
        let (_, known) = ledger.container(&container()).unwrap();
        known.view.requested.cpu_shares.map(|it| it.get())
    };
    assert_eq!(asked(), None);
    plugin.answer(happened(Event::PostUpdateContainer)).await;
    assert_eq!(asked(), Some(7));

    let mut with_swap = batch();
    with_swap.memory.as_mut().unwrap().swap = Some(OptionalInt64 { value: 1 << 31 });
    let asked = update(with_swap.clone());
    assert_eq!(plugin.answer(asked).await, Answer::Nothing);
    // Nor is it answered where the container may swap, for containerd tells of no swap in it.
    for (there, is_updated) in [(batch(), true), (with_swap, false)] {
        let mut container = told_container();
        container.linux.as_mut().unwrap().resources = Some(there);
        let mut asked = batch();
        asked.cpu = shares(7).cpu;
        let asked = Asked::UpdateContainer(UpdateContainerRequest {
            pod: Some(told_pod()),
            container: Some(container),
            linux_resources: Some(asked),
        });
        let answer = plugin.answer(asked).await;
        let updated = matches!(answer, Answer::Update(_));
        assert_eq!(updated, is_updated, "{answer:?}");
    }
}

/// What is known to be asked of the container: shares and memory.
fn known_to_be_asked(bench: &Bench) -> (Option<i64>, Option<String>) {
    let ledger = bench.hub.ledger().borrow();
    let requested = &ledger.container(&container()).unwrap().1.view.requested;
    let shares = requested.cpu_shares.map(|it| i64::from(it.get()));
    (shares, requested.memory_limit.map(|it| it.to_string()))
}

/// The runtime tells of an update that is done, when the container has these.
fn updated(shares: u64, memory: Option<i64>) -> Asked {
    let mut container = told_container();
    let mut there = self::shares(shares);
    there.memory = memory.map(limited);
    container.linux.as_mut().unwrap().resources = Some(there);
    Asked::Happened {
        event: Event::PostUpdateContainer,
        pod: Some(told_pod()),
        container: Some(container),
    }
}

fn limited(value: i64) -> LinuxMemory {
    LinuxMemory {
        limit: Some(OptionalInt64 { value }),
        ..LinuxMemory::default()
    }
}

#[tokio::test]
async fn of_two_updates_at_once_each_counts_once_the_runtime_shows_it() {
    // Of shares we say 512 whatever is asked, and of memory 1 GiB.
    let (both, ours) = ((512, Some(1 << 30)), Some(1_i64 << 30));
    let asked_memory = Some("5368709120".to_owned());
    for (had, told, expected) in [
        // The first is done, then the second; both are; the first has failed.
        (
            1_024,
            vec![(512, None), both],
            (Some(7), asked_memory.clone()),
        ),
        (1_024, vec![both, both], (Some(7), asked_memory.clone())),
        (1_024, vec![(1_024, ours)], (None, asked_memory.clone())),
        (1_024, vec![(512, None)], (Some(7), None)),
        // The first has failed, and what we say was there before it.
        (512, vec![(512, ours)], (None, asked_memory.clone())),
        // Nothing is seen of either: the last one counts, as if it were alone.
        (1_024, vec![(1_024, None)], (None, asked_memory.clone())),
    ] {
        let (bench, plugin) = plugin();
        let mut container = told_container();
        container.linux.as_mut().unwrap().resources = Some(shares(had));
        let there = Asked::Synchronize {
            pods: vec![told_pod()],
            containers: vec![container.clone()],
        };
        plugin.answer(there).await;
        let memory = LinuxResources {
            memory: Some(limited(5 << 30)),
            ..LinuxResources::default()
        };
        for asked in [shares(7), memory] {
            let asked = Asked::UpdateContainer(UpdateContainerRequest {
                pod: Some(told_pod()),
                container: Some(container.clone()),
                linux_resources: Some(asked),
            });
            let answer = plugin.answer(asked).await;
            assert!(matches!(answer, Answer::Update(_)), "{answer:?}");
        }
        for (shares, memory) in &told {
            plugin.answer(updated(*shares, *memory)).await;
        }
        assert_eq!(known_to_be_asked(&bench), expected, "{had}, {told:?}");
    }
}

#[tokio::test]
async fn what_another_proxy_says_beside_an_update_is_nobodys_wish() {
    for (lock, expected) in [(NodeLock::Anothers, None), (NodeLock::Ours, Some(512))] {
        let (bench, plugin) = plugin();
        bench.hub.set_lock(lock);
        let there = Asked::Synchronize {
            pods: vec![told_pod()],
            containers: vec![told_container()],
        };
        plugin.answer(there).await;
        let mut asked = shares(512);
        // About this no hook decides.
        asked.cpu.as_mut().unwrap().cpus = "1".to_owned();
        plugin.answer(update(asked)).await;
        plugin.answer(updated(512, None)).await;
        assert_eq!(known_to_be_asked(&bench).0, expected, "{lock:?}");
        let ledger = bench.hub.ledger().borrow();
        let requested = &ledger.container(&container()).unwrap().1.view.requested;
        let cpus = requested.cpuset_cpus.as_ref().map(ToString::to_string);
        assert_eq!(cpus.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn of_a_pod_from_before_its_runtime_a_list_is_to_tell_that_it_has_ended() {
    for is_from_before in [false, true] {
        let (bench, plugin) = plugin();
        if is_from_before {
            let there = Asked::Synchronize {
                pods: vec![told_pod()],
                containers: vec![told_container()],
            };
            plugin.answer(there).await;
        } else {
            plugin.answer(happened(Event::RunPodSandbox)).await;
        }
        plugin.answer(happened(Event::StartContainer)).await;
        timeout(Duration::ZERO, bench.hub.relist_wanted())
            .await
            .ok();
        let stop = Asked::StopContainer(StopContainerRequest {
            pod: Some(told_pod()),
            container: Some(told_container()),
        });
        plugin.answer(stop).await;
        let wanted = timeout(Duration::ZERO, bench.hub.relist_wanted()).await;
        assert_eq!(wanted.is_ok(), is_from_before);
    }
}

#[tokio::test]
async fn a_hook_that_insists_refuses_whatever_it_is_asked_about() {
    let (bench, handler) = plugin();
    let told = Asked::Synchronize {
        pods: vec![told_pod()],
        containers: vec![told_container()],
    };
    handler.answer(told).await;
    bench.insist(&[Stage::Pod, Stage::Container]);
    for asked in [
        happened(Event::RunPodSandbox),
        creation(),
        update(shares(7)),
    ] {
        let answer = handler.answer(asked.clone()).await;
        let Answer::Refuse(why) = answer else {
            panic!("{asked:?} is not refused: {answer:?}");
        };
        assert!(why.contains("Insisting"), "{why}");
    }
}

#[tokio::test]
async fn a_container_that_has_ended_is_not_updated() {
    let (_bench, handler) = plugin();
    let mut ended = told_container();
    ended.set_state(ContainerState::ContainerStopped);
    let told = Asked::Synchronize {
        pods: vec![told_pod()],
        containers: vec![ended],
    };
    assert_eq!(handler.answer(told).await, Answer::Update(Vec::new()));
}

#[tokio::test]
async fn a_list_amid_a_start_keeps_no_container_from_being_held() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    plugin.answer(happened(Event::StartContainer)).await;
    {
        // As a list says it that was asked for since: the process does not run yet.
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pods_mut().next().unwrap();
        pod.containers[0].life = Life::Created;
    }
    plugin.answer(happened(Event::PostStartContainer)).await;
    assert_eq!(known(&bench), Some(Life::Running));

    // One that ends at once has been told to before its start is.
    let stop = Asked::StopContainer(StopContainerRequest {
        pod: Some(told_pod()),
        container: Some(told_container()),
    });
    plugin.answer(stop).await;
    plugin.answer(happened(Event::PostStartContainer)).await;
    assert_eq!(known(&bench), Some(Life::Exited));
}

#[tokio::test]
async fn what_ends_and_goes_leaves_the_ledger() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    plugin.answer(happened(Event::StartContainer)).await;
    let stop = Asked::StopContainer(StopContainerRequest {
        pod: Some(told_pod()),
        container: Some(told_container()),
    });
    plugin.answer(stop).await;
    assert_eq!(known(&bench), Some(Life::Exited));
    plugin.answer(happened(Event::RemoveContainer)).await;
    assert_eq!(known(&bench), None);
    plugin.answer(happened(Event::StopPodSandbox)).await;
    plugin.answer(happened(Event::RemovePodSandbox)).await;
    assert_eq!(bench.hub.ledger().borrow().pods_len(), 0);
}

#[tokio::test]
async fn a_hook_that_rests_has_no_part_in_an_answer_until_it_works_again() {
    let (bench, handler) = plugin();
    let adjusted = async || matches!(handler.answer(creation()).await, Answer::Adjust(_));
    assert!(adjusted().await);
    bench.hub.set_resting(["BatchResource"].into());
    assert!(!adjusted().await);
    bench.hub.set_resting([].into());
    assert!(adjusted().await);
}

#[tokio::test]
async fn what_koordlet_decides_now_is_in_no_answer_though_another_hook_sets_it_too() {
    let (bench, plugin) = plugin();
    plugin.answer(creation()).await;
    plugin.answer(happened(Event::PostCreateContainer)).await;
    bench.hub.set_resting(["BatchResource"].into());
    assert!(bench.hub.policy().sayable().contains(&Setting::CpuQuota));
    let mut container = told_container();
    container.linux.as_mut().unwrap().resources = Some(batch());
    let asked = Asked::UpdateContainer(UpdateContainerRequest {
        pod: Some(told_pod()),
        container: Some(container),
        linux_resources: Some(shares(2_048)),
    });
    assert_eq!(plugin.answer(asked).await, Answer::Nothing);
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_until_it_is_known_whether_koordlet_is_there_for_an_eighth_of_its_time() {
    let (bench, plugin) = plugin();
    bench.hub.await_koordlet(Duration::from_secs(2));
    let mut pod = told_pod();
    let allocated = r#"{"gpu":[{"minor":3}]}"#.to_owned();
    pod.annotations
        .insert(annotation::DEVICE_ALLOCATED.to_owned(), allocated);
    let asked = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod),
        container: Some(told_container()),
    });
    let begun = Instant::now();
    assert_eq!(plugin.answer(asked).await, Answer::Nothing);
    assert_eq!(begun.elapsed().as_millis() / 10, 25);

    let made = plugin.answer(happened(Event::PostCreateContainer));
    let known = async { bench.hub.tell_koordlet_known() };
    tokio::join!(biased; made, known);
    plugin.answer(happened(Event::StartContainer)).await;
    // It was made without what it can only be made with.
    let gpu = bench.entry(Setting::Gpu).unwrap();
    assert_eq!(gpu.applied, Applied::Unsupported);

    bench.hub.await_koordlet(Duration::from_secs(2));
    let known = async { bench.hub.tell_koordlet_known() };
    let (answer, ()) = tokio::join!(biased; plugin.answer(creation()), known);
    assert!(matches!(answer, Answer::Adjust(_)));
}

#[tokio::test]
async fn questions_that_wait_for_koordlet_go_on_in_their_order() {
    let (bench, plugin) = plugin();
    bench.hub.await_koordlet(Duration::from_secs(30));
    let (plugin, order) = (Rc::new(plugin), Rc::new(RefCell::new(Vec::new())));
    let questions = LocalSet::new();
    for number in 0..32 {
        let (plugin, order) = (plugin.clone(), order.clone());
        questions.spawn_local(async move {
            plugin.answer(happened(Event::PostUpdatePodSandbox)).await;
            order.borrow_mut().push(number);
        });
    }
    // Once all of them wait.
    questions.spawn_local(async move { bench.hub.tell_koordlet_known() });
    questions.await;
    assert_eq!(*order.borrow(), (0..32).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_creation_that_another_proxy_has_changed_is_left_to_it() {
    let (bench, handler) = plugin();
    handler.answer(happened(Event::RunPodSandbox)).await;
    let originals = r#"{"cpuShares":2,"ours":{"cpuShares":512}}"#;
    let created = changed_creation(told_pod(), originals);
    assert_eq!(handler.answer(created).await, Answer::Nothing);
    let why = bench.hub.standing_by().unwrap();
    assert!(why.contains("changes containers before"), "{why}");
    handler.answer(happened(Event::PostCreateContainer)).await;
    let original = || {
        let entry = bench.entry(Setting::CpuShares).unwrap();
        entry.original.value().map(ToString::to_string)
    };
    assert_eq!(original(), None);
    // A list tells what nobody else can have written.
    let name = "main".to_owned();
    let listed = Listed::new(container(), name, Life::Created, Some(originals));
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let moment = ledger.now();
        assert!(listed.take(&bench.hub, &mut ledger, &sandbox(), moment));
    }
    assert_eq!(original().as_deref(), Some("2"));
}

#[tokio::test]
async fn what_another_plugin_of_ours_has_noted_for_a_container_is_what_was_asked_for() {
    let (bench, handler) = plugin();
    handler.answer(happened(Event::RunPodSandbox)).await;
    let noted = r#"{"cpuShares":2,"ours":{"cpuShares":512},"of":"container-1"}"#;
    let created = changed_creation(told_pod(), noted);
    assert_eq!(handler.answer(created).await, Answer::Nothing);
    assert!(bench.hub.standing_by().is_some());
    handler.answer(happened(Event::PostCreateContainer)).await;
    let entry = bench.entry(Setting::CpuShares).unwrap();
    assert_eq!(entry.original.value().unwrap().to_string(), "2");
}

/// A creation that comes with our annotation already.
fn changed_creation(pod: PodSandbox, originals: &str) -> Asked {
    let mut container = told_container();
    container.annotations = [(annotation::ORIGINALS.to_owned(), originals.to_owned())].into();
    Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod),
        container: Some(container),
    })
}

#[tokio::test(start_paused = true)]
async fn who_stood_by_puts_all_in_force_when_the_other_is_gone() {
    let (bench, handler) = plugin();
    bench.hub.set_lock(NodeLock::Anothers);
    handler.answer(happened(Event::RunPodSandbox)).await;
    // What the other has changed says nothing that its lock does not.
    let changed = changed_creation(told_pod(), r#"{"cpuShares":2}"#);
    assert_eq!(handler.answer(changed).await, Answer::Nothing);
    handler.answer(happened(Event::PostCreateContainer)).await;
    bench.hub.queue().drain();
    let counted = |count: u8| {
        let metrics = bench.hub.metrics().encode().unwrap();
        metrics.contains(&format!("\nkoord_runtime_proxy_another_acts {count}\n"))
    };
    assert!(counted(1));
    bench.hub.set_lock(NodeLock::Ours);
    assert_eq!(bench.hub.standing_by(), None);
    assert!(counted(0));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert!(matches!(
        handler.answer(creation()).await,
        Answer::Adjust(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn who_met_another_puts_all_in_force_ten_minutes_after_the_last_time() {
    let (bench, handler) = plugin();
    handler.answer(happened(Event::RunPodSandbox)).await;
    let changed = || changed_creation(told_pod(), r#"{"cpuShares":2}"#);
    let counted = || {
        let metrics = bench.hub.metrics().encode().unwrap();
        metrics.contains("\nkoord_runtime_proxy_another_acts 1\n")
    };
    assert!(!counted());
    for _ in 0..2 {
        handler.answer(changed()).await;
        bench.hub.queue().drain();
        advance(Duration::from_secs(599)).await;
        bench.hub.end_spell();
        assert!(bench.hub.standing_by().is_some() && counted());
        assert_eq!(bench.hub.queue().drain(), []);
    }
    advance(Duration::from_secs(1)).await;
    bench.hub.end_spell();
    assert_eq!(bench.hub.standing_by(), None);
    assert!(!counted());
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

#[tokio::test]
async fn who_has_the_lock_stands_by_for_nobody() {
    let (bench, handler) = plugin();
    bench.hub.set_lock(NodeLock::Ours);
    let changed = changed_creation(told_pod(), r#"{"cpuShares":2}"#);
    assert!(matches!(handler.answer(changed).await, Answer::Adjust(_)));
    assert_eq!(bench.hub.standing_by(), None);
}

/// The pod with an annotation of its author's that only we should write.
fn forging_pod(originals: &str) -> PodSandbox {
    let mut pod = told_pod();
    let key = annotation::ORIGINALS.to_owned();
    pod.annotations.insert(key, originals.to_owned());
    pod
}

#[tokio::test]
async fn what_a_container_has_from_its_pod_makes_nobody_stand_by_and_is_no_original() {
    let (bench, handler) = plugin();
    for forged in ["{}", r#"{"cpuShares":262144}"#] {
        let created = changed_creation(forging_pod(forged), forged);
        assert!(matches!(handler.answer(created).await, Answer::Adjust(_)));
        assert_eq!(bench.hub.standing_by(), None);
    }
    handler.answer(happened(Event::PostCreateContainer)).await;
    let original = |bench: &Bench| {
        let entry = bench.entry(Setting::CpuShares).unwrap();
        entry.original.value().map(ToString::to_string)
    };
    assert_eq!(original(&bench).as_deref(), Some("1024"));

    // A synchronisation believes it no more than a creation does.
    let (bench, handler) = plugin();
    let forged = r#"{"cpuShares":262144}"#;
    let Asked::CreateContainer(CreateContainerRequest { pod, container }) =
        changed_creation(forging_pod(forged), forged)
    else {
        unreachable!("it was made as a creation");
    };
    let told = Asked::Synchronize {
        pods: pod.into_iter().collect(),
        containers: container.into_iter().collect(),
    };
    handler.answer(told).await;
    assert_eq!(original(&bench), None);
}

#[tokio::test]
async fn what_a_pods_author_has_written_since_its_sandbox_was_made_is_no_original() {
    // As a runtime tells it that gives a container what the annotation says now.
    for forged in [
        r#"{"cpuShares":262144,"ours":{"cpuShares":1024}}"#,
        r#"{"cpuShares":262144,"ours":{"cpuShares":1024},"of":"container-0"}"#,
    ] {
        let (bench, handler) = plugin();
        bench.hub.set_lock(NodeLock::Ours);
        let created = changed_creation(told_pod(), forged);
        let Answer::Adjust(adjust) = handler.answer(created).await else {
            panic!("not adjusted");
        };
        let note = &adjust.annotations[annotation::ORIGINALS];
        assert!(note.starts_with(r#"{"cpuShares":1024,"#), "{note}");
        assert!(note.ends_with(r#","of":"container-1"}"#), "{note}");

        let (bench, handler) = plugin();
        let Asked::CreateContainer(CreateContainerRequest { pod, container }) =
            changed_creation(told_pod(), forged)
        else {
            unreachable!("it was made as a creation");
        };
        let told = Asked::Synchronize {
            pods: pod.into_iter().collect(),
            containers: container.into_iter().collect(),
        };
        handler.answer(told).await;
        let entry = bench.entry(Setting::CpuShares).unwrap();
        assert_eq!(entry.original.value(), None, "{forged}");
    }
}

#[tokio::test]
async fn what_we_gave_a_container_counts_whatever_its_pod_says() {
    let (bench, handler) = plugin();
    let pod = forging_pod(r#"{"cpuShares":262144}"#);
    let changed = changed_creation(pod, r#"{"cpuShares":2}"#);
    assert_eq!(handler.answer(changed).await, Answer::Nothing);
    assert!(bench.hub.standing_by().is_some());
}

#[tokio::test]
async fn of_too_many_creations_that_fail_the_oldest_are_forgotten() {
    let (bench, handler) = plugin();
    for failed in 0..PENDING {
        let mut container = told_container();
        container.id = format!("failed-{failed}");
        let created = Asked::CreateContainer(CreateContainerRequest {
            pod: Some(told_pod()),
            container: Some(container),
        });
        handler.answer(created).await;
    }
    handler.answer(creation()).await;
    handler.answer(happened(Event::PostCreateContainer)).await;
    // One that is not remembered is taken in without what it asked for.
    let entry = bench.entry(Setting::CpuShares).unwrap();
    assert_eq!(entry.original.value().unwrap().to_string(), "1024");
    let known = |failed| handler.pending.borrow().contains_key(failed);
    assert_eq!((known("failed-0"), known("failed-1")), (false, true));
    assert_eq!(handler.pending.borrow().len(), 4_095);
}
