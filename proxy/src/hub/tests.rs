use super::{
    testing::{BATCH, Bench, container, listed_pod, sandbox},
    *,
};
use crate::{
    ledger::{Applied, Container, Exemption, Life, Original, Route},
    reconcile,
};
use koord_hooks::{
    Adjustment, Chain, FailPolicies, FeatureGates, Hook, HookError, NodeAdjustment, NodeView,
    Requested, Stage, View,
};
use koord_kernel::{
    cgroup::{Controller, Generation, Tree},
    fake::FakeTree,
};
use koord_model::{
    CgroupPath, ContainerId, CpuBurst, CpuQuota, MemoryLimit, PodQueue, PodUid, SandboxId, Setting,
    Value,
};
use koord_proto::{
    cri,
    keys::{annotation, label},
    wire,
};
use prost::Message;
use rustix::io::Errno;
use std::{collections::BTreeSet, sync::Arc, time::Instant};

mod beside;
mod devices;
mod folders;
mod lost;
mod rank;
mod updates;

/// A call that the runtime answers with success.
fn call(bench: &Bench, method: Method, request: &impl Message, reply: &impl Message) -> Answer {
    let opening = bench.hub.open(method, &request.encode_to_vec(), None);
    let Opening::Now(Decision { answer, pending }) = opening else {
        panic!("nothing to wait for");
    };
    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some(reply.encode_to_vec()),
    };
    bench.hub.close(pending, reply);
    answer
}

/// The pod as calls have it, of this class.
fn sandbox_config(class: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: listed_pod().metadata,
        labels: [(label::QOS_CLASS.to_owned(), class.to_owned())].into(),
        annotations: [(
            annotation::EXTENDED_RESOURCE_SPEC.to_owned(),
            BATCH.to_owned(),
        )]
        .into(),
        ..Default::default()
    }
}

/// The pod gets a second container, and by then it has this label too.
fn create_with_label(bench: &Bench, key: &str, value: &str) -> Answer {
    let text = |text: &str| text.to_owned();
    let labels = [(label::QOS_CLASS, "BE"), (key, value)];
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: text("sandbox-1"),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig {
            labels: labels.map(|(key, value)| (text(key), text(value))).into(),
            ..sandbox_config("BE")
        }),
    };
    // A text is a message with one field, and so is the reply: its field 1 is the new id.
    let reply = text("container-2");
    call(bench, Method::CreateContainer, &request, &reply)
}

/// The limit of memory that the runtime is told for a new container, which may have 8 MiB.
fn small_limit(bench: &Bench) -> i64 {
    let text = |text: &str| text.to_owned();
    let small = r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-memory":"8Mi"}}}}"#;
    let metadata = cri::ContainerMetadata {
        name: text("main"),
        ..Default::default()
    };
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: text("sandbox-1"),
        config: Some(cri::ContainerConfig {
            metadata: Some(metadata),
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources::default()),
            }),
            ..Default::default()
        }),
        sandbox_config: Some(cri::PodSandboxConfig {
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: text("/kubepods/besteffort/poduid-1"),
            }),
            annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(small))].into(),
            ..sandbox_config("BE")
        }),
    };
    let mut bytes = request.encode_to_vec();
    let Opening::Now(decision) = bench.hub.open(Method::CreateContainer, &bytes, None) else {
        panic!("nothing to wait for");
    };
    if let Answer::Patched(patch) = decision.answer {
        bytes.extend(patch);
    }
    let told = cri::CreateContainerRequest::decode(&*bytes).unwrap();
    let resources = told.config.unwrap().linux.and_then(|it| it.resources);
    resources.map_or(0, |it| it.memory_limit_in_bytes)
}

#[tokio::test]
async fn until_the_runtime_has_said_who_it_is_it_is_told_no_limit_that_crio_would_refuse() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    assert_eq!(small_limit(&bench), 0);
    bench.hub.set_runtime("cri-o", "1.34.0");
    assert_eq!(small_limit(&bench), 0);
    bench.hub.set_runtime("containerd", "v2.2.0");
    assert_eq!(small_limit(&bench), 8 << 20);
}

#[tokio::test]
async fn a_pod_that_gets_the_skip_label_has_what_was_asked_for_again() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let pod = |file: &str| bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "100000");
    assert_eq!(pod("cpu.cfs_quota_us"), "100000\n");

    _ = create_with_label(&bench, "skip", "true");
    let exemption = bench
        .hub
        .ledger()
        .borrow()
        .pod(&sandbox())
        .unwrap()
        .exemption;
    assert_eq!(exemption, Some(Exemption::SkipLabel));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "-1");
    assert_eq!(pod("cpu.cfs_quota_us"), "-1\n");
    assert_eq!(bench.entry(Setting::CpuShares).unwrap().owner, "-");

    // The kubelet's own update passes, and is not written over.
    let update = cri::UpdateContainerResourcesRequest {
        container_id: container().to_string(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 2_048,
            ..Default::default()
        }),
    };
    let answer = call(&bench, Method::UpdateContainerResources, &update, &());
    assert!(matches!(answer, Answer::AsIs(Untouched::Exempt)));
    bench.write("cpu.shares", "2048");
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "2048");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "-1");

    // Without the label hooks decide again.
    _ = create_with_label(&bench, "skip", "false");
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
}

#[tokio::test]
async fn what_a_hook_that_rests_gave_back_is_whoevers_writes_it_until_the_runtime_writes_its_spec()
{
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let after = async |shares: &str| {
        bench.write("cpu.shares", shares);
        reconcile::pod(&bench.hub, &sandbox()).await;
        bench.shown("cpu.shares")
    };
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    bench.hub.set_resting(["BatchResource"].into());
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    // Who does the hook's part now writes its own, and keeps it.
    assert_eq!(after("300").await, "300");
    assert_eq!(after("400").await, "400");

    // The runtime writes its whole spec with each update, and ours may still be in it.
    let update = cri::UpdateContainerResourcesRequest {
        container_id: container().to_string(),
        linux: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 1 << 30,
            ..Default::default()
        }),
    };
    call(&bench, Method::UpdateContainerResources, &update, &());
    assert_eq!(after("512").await, "1024");
    assert_eq!(after("300").await, "300");
}

/// Fails for the node.
struct Odd;

impl Hook for Odd {
    fn decide(&self, _view: &View<'_>) -> Result<Adjustment, HookError> {
        Ok(Adjustment::default())
    }

    fn decide_node(&self, _node: &NodeView) -> Result<NodeAdjustment, HookError> {
        Err(HookError::HostApplication {
            name: "nginx".to_owned(),
            source: CgroupPath::parse("../up").unwrap_err(),
        })
    }
}

#[tokio::test]
async fn a_hook_that_insists_refuses_nothing_while_another_acts() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.insist(&[Stage::Container]);
    let create = || create_with_label(&bench, "any", "label");
    assert!(matches!(create(), Answer::Refused(_)));
    bench.hub.set_lock(NodeLock::Anothers);
    assert!(matches!(create(), Answer::AsIs(Untouched::StandingBy)));
    bench.hub.set_lock(NodeLock::None);
    assert!(matches!(create(), Answer::Refused(_)));
}

#[tokio::test]
async fn a_hook_that_fails_for_the_node_is_told_once_for_each_policy() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let mut meta = *Chain::builtin_table().next().unwrap();
    (meta.name, meta.stages) = ("Odd", &[Stage::Node]);
    let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
    let chain = chain.with_hook(meta, Box::new(Odd));
    let node = bench.hub.policy().node().clone();
    bench.hub.policy.replace(Policy::new(chain, node, "skip"));
    let is_said = || {
        let mut complaints = bench.hub.complaints.borrow_mut();
        let said = complaints.about(None, "Odd", "spec.hostApplications", Instant::now());
        said.is_none()
    };
    for _ in 0..2 {
        bench.hub.decide_node();
        assert!(is_said());
        for filter in [None, Some("node"), Some("nobody")] {
            let report = bench.hub.report(filter).await;
            let left_out = report.node_left_out.iter();
            let left_out: Vec<_> = left_out.map(|it| (it.hook, &*it.reason)).collect();
            let reason = "host application \"nginx\" has no control group: \
                          component \"..\" of a cgroup path leads elsewhere";
            let expected = match filter {
                Some("nobody") => vec![],
                _ => vec![("Odd", reason)],
            };
            assert_eq!(left_out, expected, "{filter:?}");
        }
        bench.hub.set_node_policy(Default::default());
        assert!(!is_said());
        bench.hub.set_node_policy(Default::default());
    }
}

async fn is_list_wanted(bench: &Bench) -> bool {
    let wanted = bench.hub.relist_wanted();
    tokio::time::timeout(Duration::ZERO, wanted).await.is_ok()
}

#[tokio::test]
async fn a_pod_that_ends_is_not_asked_from_where_it_sends() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let mut merged = koord_hooks::Merged::default();
        let queue = Adjustment {
            pod_queue: Some(PodQueue::default()),
            ..Adjustment::default()
        };
        merged.merge("Hook", queue).unwrap();
        pod.own.decide(&merged, |_| Route::Kernel, |_| None);
        assert!(pod.lacks_addresses());
    }
    _ = is_list_wanted(&bench).await;
    bench.hub.commit(Effect::StopPod(sandbox()).into(), None);
    assert!(!is_list_wanted(&bench).await);
    assert!(!bench.hub.ledger().borrow().pod(&sandbox()).unwrap().ready);
}

/// An update that asks for nothing.
fn empty_update(id: ContainerId) -> Effect {
    update_that_lowered(id, None)
}

/// One that asks for nothing, and for which these bursts were lowered.
fn update_that_lowered(id: ContainerId, lowering: Option<u64>) -> Effect {
    let update = commit::Update {
        asked: Default::default(),
        swap: None,
        said: Default::default(),
        had: Default::default(),
        lowering,
        earlier: None,
    };
    Effect::Update(id, Box::new(update))
}

#[tokio::test]
async fn what_cannot_be_started_stopped_or_removed_costs_a_look_at_its_own_pod_and_no_list() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let asked_for_a_list = || is_list_wanted(&bench);
    for effect in [
        Effect::Start(container()),
        Effect::Stop(container()),
        Effect::Remove(container()),
        empty_update(container()),
        Effect::StopPod(sandbox()),
        Effect::RemovePod(sandbox()),
        Effect::UpdatePod(sandbox(), Default::default()),
    ] {
        let told = format!("{effect:?}");
        bench.hub.close(effect.into(), answered(2));
        assert_eq!(bench.hub.queue().drain(), [sandbox()], "{told}");
        assert!(!asked_for_a_list().await, "{told}");
    }
    // CANCELLED: whether it runs is not known.
    bench
        .hub
        .close(Effect::Start(container()).into(), answered(1));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert!(asked_for_a_list().await);
    let stranger = ContainerId::new("container-2").unwrap();
    bench.hub.close(Effect::Start(stranger).into(), answered(2));
    assert_eq!(bench.hub.queue().drain(), []);
    assert!(asked_for_a_list().await);
    // DEADLINE_EXCEEDED: whether it is stopped is not known.
    bench
        .hub
        .close(Effect::StopPod(sandbox()).into(), answered(4));
    assert!(asked_for_a_list().await);
    // NOT_FOUND: nothing was done.
    bench
        .hub
        .close(Effect::Start(container()).into(), answered(5));
    assert!(!asked_for_a_list().await);
}

#[tokio::test]
async fn what_cannot_be_made_costs_no_list() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let run = cri::RunPodSandboxRequest {
        config: Some(sandbox_config("BE")),
        ..Default::default()
    };
    let create = cri::CreateContainerRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(sandbox_config("BE")),
    };
    let calls = [
        (Method::RunPodSandbox, run.encode_to_vec()),
        (Method::CreateContainer, create.encode_to_vec()),
    ];
    // UNKNOWN, as the runtime says it of what it could not make; and UNAVAILABLE.
    for (code, is_wanted) in [(2, false), (14, true)] {
        for (method, message) in &calls {
            let opening = bench.hub.open(*method, message, None);
            let decision = opening.decision().await;
            bench.hub.close(decision.pending, answered(code));
            assert_eq!(is_list_wanted(&bench).await, is_wanted, "{method:?} {code}");
        }
    }
}

#[tokio::test]
async fn the_beginning_of_an_id_is_taken_for_it_where_no_other_begins_so() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.list_taken();
    let patched = |container: &str| {
        let update = cri::UpdateContainerResourcesRequest {
            container_id: container.to_owned(),
            linux: Some(cri::LinuxContainerResources {
                cpu_quota: 20_000,
                cpu_period: 100_000,
                ..Default::default()
            }),
        };
        let answer = call(&bench, Method::UpdateContainerResources, &update, &());
        matches!(answer, Answer::Patched(_))
    };
    assert!(patched("container-1"));
    assert!(patched("cont"));
    assert!(!patched("tainer-1"));
    // Two begin so.
    _ = create_with_label(&bench, "any", "label");
    assert!(!patched("cont"));
    assert!(patched("container-1"));

    let ended = |bench: &Bench| {
        let ledger = bench.hub.ledger().borrow();
        let (_, container) = ledger.container(&container()).unwrap();
        container.life == Life::Exited
    };
    // A text is a message whose field 1 it is.
    call(
        &bench,
        Method::StopContainer,
        &"container-1".to_owned(),
        &(),
    );
    assert!(ended(&bench));
    call(&bench, Method::RemovePodSandbox, &"sand".to_owned(), &());
    assert!(bench.hub.ledger().borrow().pod(&sandbox()).is_none());
}

#[tokio::test]
async fn an_update_of_a_pod_changes_what_its_directory_gets_back_one_day() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let own = |setting| {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let entry = pod.own.entry_mut(setting).unwrap();
        (entry.desired.to_string(), entry.original.clone())
    };
    let limits = |memory, quota| cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: quota,
        memory_limit_in_bytes: memory,
        ..Default::default()
    };
    let request = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        overhead: Some(limits(64 << 20, 10_000)),
        resources: Some(limits(512 << 20, 50_000)),
    };
    let update = |code| {
        let message = request.encode_to_vec();
        let method = Method::UpdatePodSandboxResources;
        let Opening::Now(decision) = bench.hub.open(method, &message, None) else {
            panic!("it waits for nothing");
        };
        bench.hub.close(decision.pending, answered(code));
    };
    let before = [own(Setting::CpuQuota), own(Setting::MemoryLimit)];
    update(5);
    assert_eq!([own(Setting::CpuQuota), own(Setting::MemoryLimit)], before);
    update(0);
    let asked = |value: Value| Original::Value(value);
    assert_eq!(
        [own(Setting::CpuQuota), own(Setting::MemoryLimit)],
        [
            ("100000".to_owned(), asked(CpuQuota::Micros(60_000).into())),
            (
                "1073741824".to_owned(),
                asked(MemoryLimit::Bytes(603_979_776).into())
            ),
        ]
    );
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

fn answered(code: u32) -> Reply {
    Reply::Answered {
        grpc_status: Some(code),
        message: None,
    }
}

#[tokio::test]
async fn a_refusal_that_was_held_back_is_told_when_there_is_room_and_once() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let refused = async || {
        let errno = koord_kernel::fake::Errno::BUSY;
        let container = &bench.container;
        bench.tree.fail_next_write(container, "cpu.shares", errno);
        reconcile::pod(&bench.hub, &sandbox()).await;
        let entry = bench.entry(Setting::CpuShares).unwrap();
        assert!(matches!(entry.applied, Applied::Refused(Some(_))));
        entry.is_logged
    };
    // Other pods have used up what there is of lines.
    let hook = bench.entry(Setting::CpuShares).unwrap().owner;
    while bench.hub.may_complain(hook, "cpu.shares").is_some() {}
    assert!(!refused().await);
    assert!(!refused().await);
    bench.hub.complaints.replace(Complaints::default());
    assert!(refused().await);
    // It is not told again, so a line is there for somebody else.
    assert!(refused().await);
    for _ in 0..4 {
        assert_eq!(bench.hub.may_complain(hook, "cpu.shares"), Some(0));
    }
    assert_eq!(bench.hub.may_complain(hook, "cpu.shares"), None);
    // Once it was taken, another refusal is another matter.
    bench.hub.complaints.replace(Complaints::default());
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.write("cpu.shares", "77");
    while bench.hub.may_complain(hook, "cpu.shares").is_some() {}
    assert!(!refused().await);
}

#[tokio::test]
async fn a_pod_is_explained_by_each_of_its_names() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    for name in ["batch", "default/batch", "uid-1", "sandbox-", "containe"] {
        assert_eq!(bench.hub.report(Some(name)).await.pods.len(), 1, "{name}");
    }
    for other in ["other/batch", "default/", "/batch", "default", "sandbox"] {
        assert_eq!(bench.hub.report(Some(other)).await.pods.len(), 0, "{other}");
    }
}

#[tokio::test]
async fn pods_and_containers_are_in_order_however_they_came_to_be_known() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.write("cpu.shares", "77");
    let ledger = bench.hub.ledger();
    let known = ledger.borrow().pod(&sandbox()).unwrap().clone();
    for (sandbox, uid, name) in [
        ("sandbox-9", "uid-2", "batch"),
        ("sandbox-8", "uid-3", "batch"),
        ("sandbox-7", "uid-4", "alone"),
    ] {
        let mut pod = known.clone();
        pod.sandbox = SandboxId::new(sandbox).unwrap();
        pod.view.uid = PodUid::new(uid).unwrap();
        pod.view.name = name.to_owned();
        pod.containers.clear();
        ledger.borrow_mut().list_pod(pod);
    }
    for (id, name) in [
        ("container-4", "side"),
        ("container-3", "main"),
        ("container-2", "init"),
        ("container-0", "main"),
    ] {
        let id = ContainerId::new(id).unwrap();
        let container = Container::new(id, name.to_owned(), Requested::default());
        ledger.borrow_mut().list_container(&sandbox(), container);
    }
    let report = bench.hub.report(None).await;
    let pods = report.pods.iter().map(|pod| (&*pod.name, &*pod.uid));
    assert_eq!(
        pods.collect::<Vec<_>>(),
        [
            ("alone", "uid-4"),
            ("batch", "uid-1"),
            ("batch", "uid-2"),
            ("batch", "uid-3")
        ]
    );
    let containers = &report.pods[1].containers;
    let names = containers.iter().map(|it| (&*it.name, &*it.id));
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            ("init", "container-2"),
            ("main", "container-0"),
            ("main", "container-1"),
            ("main", "container-3"),
            ("side", "container-4")
        ]
    );
    // What was read of the kernel is of the one beside which it stands.
    let mut settings = containers[2].settings.iter();
    let shares = settings.find(|it| it.setting == "cpu.shares").unwrap();
    assert_eq!(shares.kernel.as_deref(), Some("77"));
}

#[tokio::test]
async fn a_pod_beside_the_kubelets_tiers_is_told_and_one_in_them_is_not() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let elsewhere_after = |cgroup_parent: &str| {
        let request = cri::RunPodSandboxRequest {
            config: Some(cri::PodSandboxConfig {
                metadata: listed_pod().metadata,
                linux: Some(cri::LinuxPodSandboxConfig {
                    cgroup_parent: cgroup_parent.to_owned(),
                }),
                ..Default::default()
            }),
            runtime_handler: String::new(),
        };
        let message = request.encode_to_vec();
        drop(bench.hub.open(Method::RunPodSandbox, &message, None));
        bench.hub.pod_elsewhere().map(|at| at.to_string())
    };
    assert_eq!(elsewhere_after("/kubepods/besteffort/poduid-1"), None);
    // A directory that many share is nobody's own, wherever it is.
    assert_eq!(elsewhere_after("/shared"), None);
    assert_eq!(
        elsewhere_after("/other/kubepods/poduid-1").as_deref(),
        Some("/other/kubepods/poduid-1")
    );
}

#[tokio::test]
async fn a_hook_that_is_switched_off_gives_back_what_it_had_decided() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    assert!(bench.hub.switch_hook("BatchResource", false));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "-1");
    assert!(bench.hub.switch_hook("BatchResource", true));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    assert!(!bench.hub.switch_hook("batchresource", false));
}

#[tokio::test]
async fn what_cannot_be_looked_at_is_taken_to_be_as_it_was() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2).with_group_identity());
    let known = || {
        let policy = bench.hub.policy();
        (policy.node().kernel.clone(), policy.node().tiers.clone())
    };
    let before = known();
    assert!(before.0.bvt);
    bench.tree.fail_looks(Some(Errno::MFILE));
    bench.hub.look_again();
    assert_eq!(known(), before);
    bench.hub.set_node_policy(Arc::default());
    assert_eq!(known(), before);
    bench.tree.fail_looks(None);
    bench.hub.look_again();
    assert_eq!(known(), before);
}

#[tokio::test]
async fn a_start_that_cannot_look_says_so_and_knows_of_nothing() {
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let bench = Bench::with_pod(tree.clone());
    tree.fail_looks(Some(Errno::MFILE));
    let mut remarks = Vec::new();
    let cgroups = bench.hub.writer().cgroups();
    let node = bench
        .hub
        .probe
        .first_look(cgroups, Arc::default(), &mut remarks);
    assert_eq!(node.kernel.files, BTreeSet::new());
    assert_eq!(
        remarks,
        [
            "what this node has was unknown at the start: which control groups there are cannot be \
             found out: Too many open files (os error 24)"
        ]
    );
}
