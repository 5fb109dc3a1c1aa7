//! `docs/hooks.md` is the table of hooks, printed, with the kernels on which each was shown.

use koord_hooks::{Chain, HookMeta, OptionGate};
use koord_model::Setting;
use std::{collections::BTreeSet, env, fmt::Display, fs, io, path::Path};

const WRITE: &str = "KOORD_WRITE_DOCS";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// On what a setting was seen to be as its hook decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kernel {
    /// Of the machine that runs the tests, with a real runtime.
    V1,
    /// Of a virtual machine, with a real runtime.
    V2,
    /// Of the machine that runs the tests, without a runtime: the rest of the way is shown.
    Alone,
    /// No kernel of cgroup v1 that tests have is able to, only one of v2: the rest of the way is shown.
    FakeV1,
    /// No kernel that tests have is able to: the rest of the way is shown.
    FakeTree,
}

/// A test that fails if these settings of a hook are not what it decides.
struct Shown {
    hook: &'static str,
    settings: &'static [Setting],
    kernel: Kernel,
    test: &'static str,
}

const fn shown(
    hook: &'static str,
    settings: &'static [Setting],
    kernel: Kernel,
    test: &'static str,
) -> Shown {
    Shown {
        hook,
        settings,
        kernel,
        test,
    }
}

const CLASSES: &str =
    "tests/integration/tests/classes.rs::each_class_has_its_values_on_containerd_2";
const CLASSES_V2: &str =
    "tests/integration/tests/vm_node/main.rs::each_class_has_its_values_on_cgroup_v2_by_cri";
const MID: &str = "tests/integration/tests/pods.rs::mid_resources_that_a_file_says_are_in_force";
const CPU: &str = "tests/integration/tests/cpu.rs::quota_and_burst_follow_the_node_on_containerd_2";
const CPU_V2: &str =
    "tests/integration/tests/vm_node/main.rs::quota_and_burst_follow_the_node_on_cgroup_v2_by_cri";
const MEMORY: &str =
    "tests/integration/tests/vm_node/main.rs::memory_is_kept_by_the_policy_and_given_back_by_cri";
const CORES: &str = "tests/integration/tests/vm_node/main.rs::groups_of_pods_have_cookies_from_the_first_instruction_by_cri";
const SWITCH: &str = "proxy/src/reconcile/switch/tests.rs::one_switch_is_off_and_nothing_needs_it_before_the_other_goes_on";

const GPU: &str =
    "tests/integration/tests/gpu.rs::containers_see_their_gpus_on_each_runtime_and_front";
const RDMA: &str =
    "tests/integration/tests/rdma.rs::containers_have_their_rdma_devices_on_each_runtime_and_front";
const TERWAY: &str =
    "tests/integration/tests/terway.rs::terway_is_told_of_pods_and_classes_on_containerd_2";
const TRAFFIC: &str = "proxy/tests/real_traffic.rs::queues_are_made_changed_and_removed_and_nothing_is_done_to_what_is_so_already";
const TRAFFIC_V2: &str = "tests/integration/tests/vm_node/main.rs::pods_send_by_the_queues_of_the_policy_on_cgroup_v2_by_cri";
const OOM_SCORE: &str =
    "tests/integration/tests/oom_score.rs::scores_follow_the_annotations_on_containerd_2";
const CACHES: &str = "tests/integration/tests/vm_node/main.rs::pods_have_their_part_of_the_cache_from_the_first_instruction_by_cri";

const IO: &str = "tests/integration/tests/io.rs::block_devices_are_limited_on_containerd_2";
const IO_V2: &str = "tests/integration/tests/vm_node/main.rs::block_devices_are_limited_and_shared_out_on_cgroup_v2_by_cri";

const RANKS: &str = "proxy/src/reconcile/tests/ranks.rs::directories_of_pods_and_tiers_have_the_default_rank_of_their_class_and_0_without_a_policy";
const LEVELS: &str = "proxy/src/hub/cover/tests.rs::each_level_has_its_part_and_gives_it_back";
const COST: &str = "kernel/src/cgroup/devices/tests.rs::what_shares_out_a_device_is_written_in_the_words_of_its_file_and_given_back";

/// Of all hooks at once.
const EVERY_V2: &str = "tests/integration/tests/vm_node/main.rs::every_hook_is_in_force_and_given_back_on_cgroup_v2_by_cri";

/// The same by the other front. They fail too if what hooks set is not what the rows of their kernel say.
const EVERY_BY_NRI: &str =
    "tests/integration/tests/nri.rs::every_hook_decides_alike_on_cgroup_v1_by_cri_and_by_nri";
const IO_BY_NRI: &str =
    "tests/integration/tests/io.rs::block_devices_are_limited_by_nri_on_containerd_2";
const EVERY_V2_BY_NRI: &str = "tests/integration/tests/vm_node/main.rs::every_hook_is_in_force_and_given_back_on_cgroup_v2_by_nri";
const TRAFFIC_V2_BY_NRI: &str = "tests/integration/tests/vm_node/main.rs::pods_send_by_the_queues_of_the_policy_on_cgroup_v2_by_nri";

/// Every setting of every hook. `.ci/shown` looks whether the tests on real kernels ran and passed, and
/// those of both fronts whether hooks set on each kernel what is said here.
#[rustfmt::skip]
const SHOWN: &[Shown] = &[
    shown("BatchResource", BATCH, Kernel::V1, CLASSES),
    shown("BatchResource", BATCH, Kernel::V2, CLASSES_V2),
    shown("MidResource", BATCH, Kernel::V1, MID),
    shown("MidResource", BATCH, Kernel::V2, EVERY_V2),
    shown("CPUNormalization", &[Setting::CpuQuota], Kernel::V1, CPU),
    shown("CPUNormalization", &[Setting::CpuQuota], Kernel::V2, CPU_V2),
    shown("CPUSetAllocator", &[Setting::CpuQuota, Setting::CpusetCpus], Kernel::V1, CLASSES),
    shown("CPUSetAllocator", &[Setting::CpuQuota, Setting::CpusetCpus], Kernel::V2, CLASSES_V2),
    shown("CPUBurst", &[Setting::CpuBurst], Kernel::V1, CPU),
    shown("CPUBurst", &[Setting::CpuBurst], Kernel::V2, CPU_V2),
    shown("MemoryQOS", OF_MEMORY, Kernel::V2, MEMORY),
    shown("MemoryQOS", OF_MEMORY, Kernel::FakeV1, LEVELS),
    shown("MemoryQOS", OF_VENDORS, Kernel::FakeTree, LEVELS),
    shown("GroupIdentity", &[Setting::CpuBvt], Kernel::FakeTree, RANKS),
    shown("GroupIdentity", &[Setting::CpuBvt], Kernel::FakeTree, "proxy/src/reconcile/tests.rs::a_host_application_that_leaves_the_policy_has_what_it_had_before"),
    shown("GroupIdentity", &[Setting::SchedSwitch], Kernel::FakeTree, SWITCH),
    shown("GroupIdentity", &[Setting::CpuIdle], Kernel::V1, CLASSES),
    shown("GroupIdentity", &[Setting::CpuIdle], Kernel::V2, CLASSES_V2),
    shown("CoreSched", &[Setting::CpuIdle, Setting::CoreSched], Kernel::V2, CORES),
    shown("CoreSched", &[Setting::SchedSwitch], Kernel::FakeTree, SWITCH),
    shown("RdtResctrl", &[Setting::Resctrl], Kernel::V2, CACHES),
    shown("Resctrl", &[Setting::Resctrl], Kernel::V2, CACHES),
    shown("GPUEnvInject", &[Setting::Gpu], Kernel::V1, GPU),
    shown("GPUEnvInject", &[Setting::Gpu], Kernel::V2, EVERY_V2),
    shown("HamiCoreVGPUMonitor", &[Setting::GpuMonitor], Kernel::V1, GPU),
    shown("HamiCoreVGPUMonitor", &[Setting::GpuMonitor], Kernel::V2, EVERY_V2),
    shown("RDMADeviceInject", &[Setting::Rdma], Kernel::V1, RDMA),
    shown("RDMADeviceInject", &[Setting::Rdma], Kernel::V2, EVERY_V2),
    shown("TerwayQoS", &[Setting::PodNetwork, Setting::NodeNetwork], Kernel::V1, TERWAY),
    shown("TerwayQoS", &[Setting::PodNetwork, Setting::NodeNetwork], Kernel::V2, EVERY_V2),
    shown("TCNetworkQoS", &[Setting::PodQueue, Setting::NodeQueues], Kernel::V2, TRAFFIC_V2),
    shown("TCNetworkQoS", &[Setting::PodQueue, Setting::NodeQueues], Kernel::Alone, TRAFFIC),
    shown("OOMScoreAdj", &[Setting::OomScoreAdj], Kernel::V1, OOM_SCORE),
    shown("OOMScoreAdj", &[Setting::OomScoreAdj], Kernel::V2, EVERY_V2),
    shown("BlkIOReconcile", OF_RATES, Kernel::V1, IO),
    shown("BlkIOReconcile", OF_RATES, Kernel::V2, IO_V2),
    shown("BlkIOReconcile", OF_COST, Kernel::V2, IO_V2),
    shown("BlkIOReconcile", OF_COST, Kernel::FakeV1, COST),
];

const BATCH: &[Setting] = &[Setting::CpuShares, Setting::CpuQuota, Setting::MemoryLimit];
const OF_MEMORY: &[Setting] = &[
    Setting::MemoryMin,
    Setting::MemoryLow,
    Setting::MemoryHigh,
    Setting::MemoryOomGroup,
];
const OF_VENDORS: &[Setting] = &[
    Setting::MemoryWmarkRatio,
    Setting::MemoryWmarkScale,
    Setting::MemoryWmarkMinAdj,
    Setting::MemoryPriority,
    Setting::MemoryUsePriorityOom,
    Setting::MemoryPageCacheSize,
    Setting::MemoryPageCacheSync,
    Setting::MemoryPageCacheEnable,
];

const OF_RATES: &[Setting] = &[
    Setting::IoReadBps,
    Setting::IoWriteBps,
    Setting::IoReadIops,
    Setting::IoWriteIops,
];
const OF_COST: &[Setting] = &[Setting::IoWeight, Setting::IoCostQos, Setting::IoCostModel];

#[test]
fn every_setting_of_every_hook_is_shown_somewhere_and_the_page_says_where() {
    for meta in Chain::builtin_table() {
        let rows = SHOWN.iter().filter(|row| row.hook == meta.name);
        let shown: BTreeSet<Setting> = rows.flat_map(|row| row.settings).copied().collect();
        let declared: BTreeSet<Setting> = meta.settings.iter().copied().collect();
        assert_eq!(shown, declared, "{}", meta.name);
    }
    let hooks: BTreeSet<&str> = Chain::builtin_table().map(|meta| meta.name).collect();
    assert!(SHOWN.iter().all(|row| hooks.contains(row.hook)));
}

/// What tests on real kernels set is compared with these rows where they run; those on a fake tree have
/// only their source to say it.
#[test]
fn each_row_names_a_test_of_its_kernel_and_of_its_settings() -> io::Result<()> {
    for row in SHOWN {
        let of = |test: &'static str| {
            let (file, _) = test.split_once("::").expect("a file and a test");
            assert!(
                row.kernel.has(file),
                "{file} is no test on {:?}",
                row.kernel
            );
            file
        };
        by_nri(row).map(of);
        let file = of(row.test);
        let source = fs::read_to_string(Path::new(ROOT).join(file))?;
        if matches!(row.kernel, Kernel::FakeV1 | Kernel::FakeTree) {
            for setting in row.settings {
                let names = [setting.name().to_owned(), format!("::{setting:?}")];
                let is_named = names.iter().any(|name| source.contains(name));
                assert!(is_named, "{file} does not name {setting}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_setting_that_one_kernel_lacks_is_left_out_of_what_was_shown_on_it() {
    let told = |name| {
        kernels(
            Chain::builtin_table()
                .find(|it| it.name == name)
                .expect(name),
        )
    };
    assert_eq!(
        told("BlkIOReconcile"),
        "cgroup v1 (without `blkio.cost.weight`, `blkio.cost.qos`, `blkio.cost.model`), cgroup v2"
    );
    assert_eq!(
        told("GroupIdentity"),
        "cgroup v1, cgroup v2; fake tree only: `cpu.bvt_warp_ns`, `sched_switch`"
    );
}

#[test]
fn the_page_of_hooks_is_the_table() -> io::Result<()> {
    let path = Path::new(ROOT).join("docs/hooks.md");
    let page = page();
    if env::var_os(WRITE).is_some() {
        write(&path, &page)?;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/hooks.md is not what the table of hooks says; write it anew:\n\
         {WRITE}=1 cargo test -p koord-hooks --test docs"
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a page under version control, written on demand"
)]
fn write(path: &Path, page: &str) -> io::Result<()> {
    fs::write(path, page)
}

fn page() -> String {
    let mut page = String::from(
        "# Hooks\n\n\
         Every built-in hook, in the order in which they run. This page is printed from the table in\n\
         `hooks/src/builtin/mod.rs`; a test fails when the two differ. What a hook needs of the kernel and\n\
         of the service: [hook-requirements.md](hook-requirements.md). How one is written:\n\
         [adding-a-hook.md](adding-a-hook.md).\n\n\
         A gate is moved by `--feature-gates NAME=true`, a failure policy by\n\
         `--hook-fail-policy HOOK=Closed`. `AllAlpha` and `AllBeta` move the gates of their kind; those\n\
         of the kind \"own\" are moved by their names only.\n\n\
         | Hook | What it does | Gate | Kind | Default | Stages | On failure | Sets | Reads | Shown on |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for meta in Chain::builtin_table() {
        page.push_str(&row(meta));
    }
    page.push_str(
        "\nSome hooks have more to do behind further gates, all off by default:\n\n\
         | Gate | Kind | Hook | What it adds |\n\
         | --- | --- | --- | --- |\n",
    );
    for meta in Chain::builtin_table() {
        for option in meta.options {
            let OptionGate {
                gate,
                maturity,
                doc,
            } = option;
            page.push_str(&format!(
                "| `{gate}` | {maturity} | {} | {doc} |\n",
                meta.name
            ));
        }
    }
    page.push_str(
        "\nShown on cgroup v1 is what a test of the machine's own kernel reads back with a real runtime,\n\
         on v2 the same in a virtual machine, on the kernel alone what a test without one reads back;\n\
         `make test` fails where such a test did not run or did not pass. What no kernel here has is\n\
         shown on a tree that only pretends to be one. The last column names the test that finds the same\n\
         with the NRI front.\n\n\
         Two devices are not real anywhere here. RDMA devices are files in place of those in `/sys`, with the\n\
         nodes of another device. Processors that virtual machines have share out no caches, and the kernel\n\
         in them is built to take them for some that do: its groups, its rules for masks and who is in which\n\
         group are real, and no cache is behind them.\n\n\
         | Hook | Sets | Shown on | By | With the NRI front by |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for row in SHOWN {
        let by_nri = by_nri(row).map_or_else(|| "–".to_owned(), |test| format!("`{test}`"));
        page.push_str(&format!(
            "| {} | {} | {} | `{}` | {by_nri} |\n",
            row.hook,
            names(row.settings),
            row.kernel.name(),
            row.test,
        ));
    }
    page
}

/// The kernels that settings were shown on, each with those that it lacks of them, and what is shown on
/// none.
fn kernels(meta: &HookMeta) -> String {
    let on = |kernel: Kernel| -> BTreeSet<Setting> {
        let rows = SHOWN
            .iter()
            .filter(|row| row.hook == meta.name && row.kernel == kernel);
        rows.flat_map(|row| row.settings).copied().collect()
    };
    let somewhere: BTreeSet<Setting> = Kernel::REAL.into_iter().flat_map(on).collect();
    let of = |pick: &dyn Fn(&Setting) -> bool| -> Vec<Setting> {
        meta.settings.iter().copied().filter(pick).collect()
    };
    let real = Kernel::REAL.into_iter().filter_map(|kernel| {
        let shown = on(kernel);
        let lacking = of(&|it| somewhere.contains(it) && !shown.contains(it));
        match (shown.is_empty(), lacking.is_empty()) {
            (true, _) => None,
            (false, true) => Some(kernel.name().to_owned()),
            (false, false) => Some(format!("{} (without {})", kernel.name(), names(&lacking))),
        }
    });
    let real = list(real);
    let fake = of(&|it| !somewhere.contains(it));
    match fake.is_empty() {
        true => real,
        false => format!("{real}; {}: {}", Kernel::FakeTree.name(), names(&fake)),
    }
}

/// The test with the NRI front of what a row says; none where there is no runtime that has a front.
fn by_nri(row: &Shown) -> Option<&'static str> {
    match row.kernel {
        // Files that tests of every hook at once do not read.
        Kernel::V1 if row.hook == "BlkIOReconcile" => Some(IO_BY_NRI),
        Kernel::V1 => Some(EVERY_BY_NRI),
        Kernel::V2 if row.hook == "TCNetworkQoS" => Some(TRAFFIC_V2_BY_NRI),
        Kernel::V2 => Some(EVERY_V2_BY_NRI),
        Kernel::Alone | Kernel::FakeV1 | Kernel::FakeTree => None,
    }
}

fn names(settings: &[Setting]) -> String {
    list(settings.iter().map(|setting| format!("`{setting}`")))
}

// === impl Kernel ===

impl Kernel {
    const REAL: [Self; 3] = [Self::V1, Self::V2, Self::Alone];

    /// Whether the tests of a file run on it.
    fn has(self, file: &str) -> bool {
        let virtual_machines = "tests/integration/tests/vm_";
        match self {
            Self::V1 => {
                file.starts_with("tests/integration/tests/") && !file.starts_with(virtual_machines)
            }
            Self::V2 => file.starts_with(virtual_machines),
            Self::Alone => file.contains("/tests/real_"),
            Self::FakeV1 | Self::FakeTree => file.contains("/src/"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
            Self::Alone => "the kernel alone",
            Self::FakeV1 => "fake tree of cgroup v1",
            Self::FakeTree => "fake tree only",
        }
    }
}

fn row(meta: &HookMeta) -> String {
    let labels = meta
        .inputs
        .labels
        .iter()
        .map(|key| format!("label `{key}`"));
    let annotations = meta.inputs.annotations.iter();
    let annotations = annotations.map(|key| format!("annotation `{key}`"));
    format!(
        "| {} | {} | `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
        meta.name,
        meta.doc,
        meta.gate,
        meta.maturity,
        if meta.default_on { "on" } else { "off" },
        list(meta.stages.iter()),
        meta.fail_policy,
        names(meta.settings),
        list(labels.chain(annotations)),
        kernels(meta),
    )
}

fn list<T: Display>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    items.join(", ")
}
