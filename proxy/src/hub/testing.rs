//! A hub over a fake tree of control groups, which has a best-effort pod with one container that
//! ran before it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::{Effects, Hub, Parts, Policy};
use crate::{
    apply::{
        caches::Caches, cores::Cores, kernel::Writer, terway::Terway, testing::ReclaimingTree,
        threads::ThreadGroups, traffic::Traffic,
    },
    config::Exclusions,
    hami_core::{Folders, ROOT},
    ledger::{Container, Entry, Life, Pod, Target},
    metrics::Metrics,
    node::Probe,
    rdma::RdmaProbe,
    reconcile, view,
};
use koord_hooks::{
    Adjustment, Chain, FailPolicies, FailPolicy, FeatureGates, Hook, HookError, HookOptions,
    Requested, Stage, View,
};
use koord_kernel::{
    block::BlockDevices,
    cgroup::{Cgroups, Controller, Generation, Tree},
    core_sched::CoreSched,
    fake::{FakeResctrl, FakeTree},
    task::Procfs,
};
use koord_model::{CgroupPath, ContainerId, CpuShares, KubeQos, SandboxId, Setting};
use koord_proto::{
    cri,
    keys::{annotation, label},
};
use koord_testkit::scripted::{Otherwise, Reply, Script};
use prost::Message;
use std::{
    collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path, rc::Rc, sync::mpsc,
    time::Duration,
};
use tempfile::TempDir;

/// What is decided: 512 shares, a quota of 100 ms, 1 GiB.
pub(crate) const BATCH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"500"},
    "limits":{"kubernetes.io/batch-cpu":"1000","kubernetes.io/batch-memory":"1Gi"}}}}"#;

/// The gates of what gives containers HAMi-core.
const HAMI_CORE: &str = "GPUEnvInject=true,HamiCoreVGPUMonitor=true";

/// Where its container is.
const CONTAINER: &str = "kubepods/besteffort/poduid-1/container-1";

pub(crate) struct Bench {
    pub(crate) hub: Rc<Hub>,
    pub(crate) tree: FakeTree,
    pub(crate) pod: CgroupPath,
    pub(crate) container: CgroupPath,
    /// What is shown of the processes in the tree.
    _procfs: Option<TempDir>,
}

/// Fails for every pod and every container.
struct Insisting;

impl Hook for Insisting {
    fn decide(&self, _view: &View<'_>) -> Result<Adjustment, HookError> {
        Err(HookError::HostApplication {
            name: "nginx".to_owned(),
            source: CgroupPath::parse("../up").unwrap_err(),
        })
    }
}

// === impl Bench ===

impl Bench {
    /// A hub that knows no pod yet.
    pub(crate) fn new(tree: FakeTree) -> Self {
        Self::asked(tree, ThreadGroups::none(), false)
    }

    /// The same on a machine with block devices, whose hook is on.
    pub(crate) fn with_devices(tree: FakeTree, devices: BlockDevices) -> Self {
        let cgroups = Cgroups::over(tree.clone()).with_devices(devices);
        let parts = (cgroups, ThreadGroups::none(), no_network());
        Self::over(tree, parts, ("BlkIOReconcile=true", None), false)
    }

    /// The same where a device takes what is written to it once `done` says so.
    pub(crate) fn with_slow_devices(
        tree: FakeTree,
        devices: BlockDevices,
        done: mpsc::Receiver<()>,
    ) -> Self {
        let slow = ReclaimingTree::new(tree.clone(), done).of_devices();
        let cgroups = Cgroups::over(slow).with_devices(devices);
        let parts = (cgroups, ThreadGroups::none(), no_network());
        Self::over(tree, parts, ("BlkIOReconcile=true", None), false)
    }

    /// The same on a machine whose devices of RDMA are below `sys`. The hook is on.
    pub(crate) fn with_rdma(tree: FakeTree, sys: &Path) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let parts = (cgroups, ThreadGroups::none(), no_network());
        let probe = RdmaProbe {
            sys_root: sys.to_owned(),
            nodes: None,
        };
        Self::over(tree, parts, ("RDMADeviceInject=true", Some(probe)), false)
    }

    /// The same on a node that has HAMi-core where this library is, whose hooks are on.
    pub(crate) fn with_hami_core(tree: FakeTree, library: &Path) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let parts = (cgroups, ThreadGroups::none(), no_network());
        let bench = Self::over(tree, parts, (HAMI_CORE, None), false);
        bench.have_hami_core(library, "Open");
        bench
    }

    /// The same where the thread that makes folders waits for a word before each.
    pub(crate) fn holding_folders(mut self, may_go_on: mpsc::Receiver<()>) -> Self {
        let hub = Rc::get_mut(&mut self.hub).unwrap();
        hub.folders = Folders::held(ROOT, may_go_on);
        self
    }

    /// Has it be there, and the hook of folders have this policy.
    pub(crate) fn have_hami_core(&self, library: &Path, policy: &str) {
        let gates = FeatureGates::parse(HAMI_CORE).unwrap();
        let policies = FailPolicies::parse(&format!("HamiCoreVGPUMonitor={policy}")).unwrap();
        let mut node = self.hub.policy().node().clone();
        node.options.hami_core_library = library.to_str().unwrap().into();
        let chain = Chain::new(&gates, &policies);
        self.hub.policy.replace(Policy::new(chain, node, "skip"));
        let around = fs::metadata(library.parent().unwrap()).unwrap();
        self.hub.folders().set_owner(around.uid());
    }

    /// The same with this network plugin, whose hook is on, or is not here.
    pub(crate) fn with_terway(tree: FakeTree, terway: Terway, is_on: bool) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let parts = (cgroups, ThreadGroups::none(), (terway, no_network().1));
        Self::over(tree, parts, (&format!("TerwayQoS={is_on}"), None), false)
    }

    /// The same with these queues of the network, whose hook is on, or is not here.
    pub(crate) fn with_traffic(tree: FakeTree, traffic: Traffic, is_on: bool) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let parts = (cgroups, ThreadGroups::none(), (no_network().0, traffic));
        Self::over(tree, parts, (&format!("TCNetworkQoS={is_on}"), None), false)
    }

    /// The same where nobody asks it.
    pub(crate) fn watching(tree: FakeTree) -> Self {
        Self::asked(tree, ThreadGroups::none(), true)
    }

    /// The same where everybody uses 1 GiB, and limits of memory are written once `done` says so.
    pub(crate) fn reclaiming(tree: FakeTree, done: mpsc::Receiver<()>) -> Self {
        Self::over_reclaiming(tree.clone(), ReclaimingTree::new(tree, done))
    }

    /// The same where that is so of one group alone, for values below that. The test is told when such
    /// a write has `begun`.
    pub(crate) fn reclaiming_at(
        tree: FakeTree,
        at: CgroupPath,
        (begun, done): (mpsc::Sender<()>, mpsc::Receiver<()>),
    ) -> Self {
        let reclaiming = ReclaimingTree::new(tree.clone(), done).only_at(at, begun);
        Self::over_reclaiming(tree, reclaiming)
    }

    fn over_reclaiming(tree: FakeTree, reclaiming: ReclaimingTree) -> Self {
        let cgroups = Cgroups::over(reclaiming);
        let parts = (cgroups, ThreadGroups::none(), no_network());
        Self::over(tree, parts, ("CgroupReconcile=true", None), false)
    }

    /// The same with a processor that shares its caches out.
    pub(crate) fn sharing(tree: FakeTree, processor: &FakeResctrl) -> Self {
        let procfs = procfs_of(&tree);
        let groups = caches_of(processor, &procfs);
        Self {
            _procfs: Some(procfs),
            ..Self::asked(tree, groups, false)
        }
    }

    /// The same where every pod of a class is monitored.
    pub(crate) fn monitoring(tree: FakeTree, processor: &FakeResctrl) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let procfs = procfs_of(&tree);
        let parts = (cgroups, caches_of(processor, &procfs), no_network());
        Self {
            _procfs: Some(procfs),
            ..Self::over(tree, parts, ("ResctrlMonitor=true", None), false)
        }
    }

    /// The same with cores that run several threads each, and the switches that the tree has. The hook is
    /// on.
    pub(crate) fn with_cores(tree: FakeTree, kernel: impl CoreSched + 'static) -> Self {
        let cgroups = Cgroups::over(tree.clone()).with_sysctls(tree.clone());
        let procfs = procfs_of(&tree);
        let groups = ThreadGroups {
            cores: Cores::over(kernel, Procfs::at(procfs.path())),
            ..ThreadGroups::none()
        };
        let parts = (cgroups, groups, no_network());
        Self {
            _procfs: Some(procfs),
            ..Self::over(tree, parts, ("CoreSched=true", None), false)
        }
    }

    /// The same as [`Self::with_cores`], which leaves this setting to others.
    pub(crate) fn leaving(self, setting: Setting) -> Self {
        let gates = FeatureGates::parse("CoreSched=true").unwrap();
        let chain = Chain::new(&gates, &FailPolicies::default()).leaving([setting].into());
        let node = self.hub.policy().node().clone();
        self.hub.policy.replace(Policy::new(chain, node, "skip"));
        self
    }

    /// The same where all pods are taken to be below this directory.
    pub(crate) fn below(self, kubepods: &CgroupPath) -> Self {
        let mut node = self.hub.policy().node().clone();
        node.tiers.kubepods = kubepods.clone();
        let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
        self.hub.policy.replace(Policy::new(chain, node, "skip"));
        self
    }

    fn asked(tree: FakeTree, groups: ThreadGroups, watches: bool) -> Self {
        let cgroups = Cgroups::over(tree.clone());
        let gates = "CPUNormalization=true,CgroupReconcile=true,OOMScoreAdj=true,GPUEnvInject=true";
        Self::over(
            tree,
            (cgroups, groups, no_network()),
            (gates, None),
            watches,
        )
    }

    fn over(
        tree: FakeTree,
        (cgroups, groups, (terway, traffic)): (Cgroups, ThreadGroups, (Terway, Traffic)),
        (gates, rdma): (&str, Option<RdmaProbe>),
        watches: bool,
    ) -> Self {
        let container = CgroupPath::parse(CONTAINER).unwrap();
        let pod = container.parent().unwrap();
        tree.make(&container);
        tree.make(&pod.join("sandbox-1").unwrap());
        let hold_timeout = match gates {
            // Folders are made on a thread, which may have to wait for a CPU.
            HAMI_CORE => Duration::from_secs(30),
            _ => Duration::from_millis(500),
        };
        let gates = FeatureGates::parse(gates).unwrap();
        let probe = Probe {
            sys_root: "/sys".into(),
            cgroup_root: CgroupPath::root(),
            options: HookOptions::new(&gates, false, HookOptions::HAMI_CORE_LIBRARY),
            core_sched: groups.cores.is_supported(),
            resctrl: groups.caches.is_supported(),
            hami_core: false,
            rdma,
        };
        let node = probe.look(&cgroups, Default::default()).unwrap();
        let chain = Chain::new(&gates, &FailPolicies::default());
        let hub = Hub::new(Parts {
            policy: Policy::new(chain, node, "skip"),
            probe,
            effects: Effects::Enforce,
            exclusions: Exclusions {
                skip_label: ("skip".to_owned(), "true".to_owned()),
                namespaces: BTreeSet::new(),
                runtime_handlers: BTreeSet::new(),
            },
            writer: Writer::new(cgroups, groups),
            terway,
            traffic,
            metrics: Rc::new(Metrics::new()),
            max_message_bytes: 16 << 20,
            hold_timeout,
            watches,
        });
        Self {
            hub,
            tree,
            pod,
            container,
            _procfs: None,
        }
    }

    /// A hub that knows the pod.
    pub(crate) fn with_pod(tree: FakeTree) -> Self {
        Self::new(tree).knowing_pod()
    }

    /// The same hub once it knows the pod.
    pub(crate) fn knowing_pod(self) -> Self {
        let bench = self;
        let listed = listed_pod();
        let metadata = listed.metadata.as_ref().unwrap();
        let inputs = bench.hub.policy().inputs();
        let texts = inputs.of(
            view::texts(&listed.labels),
            view::texts(&listed.annotations),
        );
        let view = view::from_parts(view::named(metadata), texts, "", Some(&bench.pod));
        let requested = Requested {
            cpu_shares: CpuShares::new(1_024).ok(),
            ..Requested::default()
        };
        let mut container = Container::new(container(), "main".to_owned(), requested);
        container.life = Life::Running;
        container.target = Target::at(Some(bench.container.clone()));
        let parent = Some(bench.pod.clone());
        let mut pod = Pod {
            own: Target::at(parent.clone()),
            ..Pod::new(sandbox(), view.unwrap(), Default::default(), parent)
        };
        pod.containers.push(container);
        bench.hub.decide_again(&mut pod);
        let container = pod.containers.pop().unwrap();
        let mut ledger = bench.hub.ledger().borrow_mut();
        ledger.list_pod(pod);
        ledger.list_container(&sandbox(), container);
        drop(ledger);
        bench
    }

    /// A hub that knows the pod as a burstable one without batch resources, and has it idle by the gate
    /// `BECPUIdle`. Its kubelet has given it 500 shares, or on cgroup v2 the kernel's default.
    pub(crate) async fn idling(generation: Generation) -> Self {
        let bench = Self::to_idle(FakeTree::new(generation, 2), true);
        if generation == Generation::V1 {
            let (tree, at) = (&bench.tree, &bench.pod);
            let written = tree.write(Controller::Cpu, at, "cpu.shares", "500");
            written.unwrap();
        }
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
        bench.hub.queue().drain();
        bench
    }

    /// The same before it was looked at, with the gate on or off.
    pub(crate) fn to_idle(tree: FakeTree, is_on: bool) -> Self {
        Self::without_idle(tree, is_on).knowing_burstable()
    }

    /// The same before it knows the pod.
    pub(crate) fn without_idle(tree: FakeTree, is_on: bool) -> Self {
        let mut bench = Self::new(tree);
        // What is written first is so on a thread, which may have to wait for a CPU.
        let hub = Rc::get_mut(&mut bench.hub).expect("nobody has it yet");
        hub.hold_timeout = Duration::from_secs(30);
        let mut node = bench.hub.policy().node().clone();
        node.kernel.bvt = false;
        node.options.be_cpu_idle = is_on;
        let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
        bench.hub.policy.replace(Policy::new(chain, node, "skip"));
        bench
    }

    pub(crate) fn knowing_burstable(self) -> Self {
        let bench = self.knowing_pod();
        {
            let mut ledger = bench.hub.ledger().borrow_mut();
            let pod = ledger.pod_mut(&sandbox()).unwrap();
            pod.view.kube_qos = KubeQos::Burstable;
            pod.view.annotations = Default::default();
            pod.own = Target::at(Some(bench.pod.clone()));
            bench.hub.decide_again(pod);
        }
        bench
    }

    /// What a file of the pod's own directory shows.
    pub(crate) fn shown_of_pod(&self, file: &str) -> String {
        let text = self.tree.read(Controller::Cpu, &self.pod, file).unwrap();
        text.trim_end().to_owned()
    }

    /// Has a hook fail at these stages that must not: its policy is `Closed`.
    pub(crate) fn insist(&self, stages: &'static [Stage]) {
        let mut meta = *Chain::builtin_table().next().unwrap();
        (meta.name, meta.stages) = ("Insisting", stages);
        meta.fail_policy = FailPolicy::Closed;
        let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
        let chain = chain.with_hook(meta, Box::new(Insisting));
        let node = self.hub.policy().node().clone();
        self.hub.policy.replace(Policy::new(chain, node, "skip"));
    }

    /// What a file of the container shows.
    pub(crate) fn shown(&self, file: &str) -> String {
        let text = self.tree.read(Controller::Cpu, &self.container, file);
        text.unwrap().trim_end().to_owned()
    }

    /// Writes a file of the container past the hub.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let written = self
            .tree
            .write(Controller::Cpu, &self.container, file, text);
        written.unwrap();
        self.tree.take_writes();
    }

    /// What the ledger says of a setting of the container.
    pub(crate) fn entry(&self, setting: Setting) -> Option<Entry> {
        let mut ledger = self.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox())?;
        let container = pod.container_mut(&container())?;
        container.target.entry_mut(setting).cloned()
    }
}

/// The groups of a processor that shares its caches out.
fn caches_of(processor: &FakeResctrl, procfs: &TempDir) -> ThreadGroups {
    ThreadGroups {
        caches: Caches::over(processor.clone(), Procfs::at(procfs.path())),
        ..ThreadGroups::none()
    }
}

/// A procfs that shows where the processes of a tree are.
fn procfs_of(tree: &FakeTree) -> TempDir {
    let procfs = tempfile::tempdir().unwrap();
    tree.show_in(procfs.path());
    procfs
}

fn no_network() -> (Terway, Traffic) {
    let terway = Terway::reading("/not/there".into());
    (terway, Traffic::by(|_| Ok(false)))
}

pub(crate) fn sandbox() -> SandboxId {
    SandboxId::new("sandbox-1").unwrap()
}

pub(crate) fn container() -> ContainerId {
    ContainerId::new("container-1").unwrap()
}

/// The pod as the runtime lists it.
pub(crate) fn listed_pod() -> cri::PodSandbox {
    let text = |text: &str| text.to_owned();
    cri::PodSandbox {
        id: text("sandbox-1"),
        metadata: Some(cri::PodSandboxMetadata {
            name: text("batch"),
            uid: text("uid-1"),
            namespace: text("default"),
            ..Default::default()
        }),
        labels: [(text(label::QOS_CLASS), text("BE"))].into(),
        annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(BATCH))].into(),
        ..Default::default()
    }
}

/// What a containerd answers that has this pod and this container, of which it says `info`.
pub(crate) fn script(pod: cri::PodSandbox, container: cri::Container, info: &str) -> Script {
    let answer = |method: &str, message: Vec<u8>| {
        let path = format!("/runtime.v1.RuntimeService/{method}");
        (path, Reply::message(message))
    };
    let version = cri::VersionResponse {
        runtime_name: "containerd".to_owned(),
        ..Default::default()
    };
    let status = cri::ContainerStatusResponse {
        info: [("info".to_owned(), info.to_owned())].into(),
    };
    let answers = [
        answer("Version", version.encode_to_vec()),
        answer("ListPodSandbox", list_of([pod])),
        answer("ListContainers", list_of([container])),
        answer("ContainerStatus", status.encode_to_vec()),
    ];
    let none = Script::new(Otherwise::Echo);
    let add = |script: Script, (path, reply): (String, Reply)| script.always(&path, reply);
    answers.into_iter().fold(none, add)
}

/// A reply to ListPodSandbox or ListContainers: both have their entries in field 1.
pub(crate) fn list_of(entries: impl IntoIterator<Item = impl Message>) -> Vec<u8> {
    let entries = entries.into_iter();
    let items = entries.map(|it| it.encode_to_vec().into()).collect();
    cri::ListPodSandboxResponse { items }.encode_to_vec()
}

/// The container as the runtime lists it.
pub(crate) fn listed_container() -> cri::Container {
    let mut listed = cri::Container {
        id: "container-1".to_owned(),
        pod_sandbox_id: "sandbox-1".to_owned(),
        metadata: Some(cri::ContainerMetadata {
            name: "main".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    listed.set_state(cri::ContainerState::ContainerRunning);
    listed
}
