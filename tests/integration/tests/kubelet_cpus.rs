//! A real kubelet whose CPU manager gives CPUs away, beside hooks that do: each container's CPUs
//! have one owner, and nothing goes back and forth.
//!
//! The node policy says that the kubelet's policy is static. So pods that nobody gave a class are the
//! kubelet's; those with CPUs of the scheduler, of class LS, and best-effort ones are ours.

use anyhow::{Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions,
    classes::{self, PodSpecOf},
    static_pod::{manifest, ready, settled},
};
use koord_testkit::{
    ContainerdVersion, Kubelet, PodCgroup, PodQos,
    poll::{wait_patiently, wait_until},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

/// CPUs that our policy gives to pods that share some; the kubelet keeps CPU 0 for the system, so it
/// gives 1 away.
const OURS: &str = "1";
/// Several of the kubelet's rounds, of one second each.
const QUIET: Duration = Duration::from_millis(3_500);
const SAMPLE: Duration = Duration::from_millis(5);

fn start(version: ContainerdVersion, front: Front) -> Result<(Node, Kubelet)> {
    let policy = classes::node_policy(OURS).replace(
        "  annotations:\n",
        "  annotations:\n    kubelet.koordinator.sh/cpu-manager-policy: '{\"policy\":\"static\"}'\n",
    );
    let options = ProxyOptions {
        policy: Some(policy),
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(version, options)?;
    let changes = json!({
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "1s",
        "systemReserved": {"cpu": "100m"},
    });
    let kubelet = Kubelet::start(node.testbed(), &node.socket(), changes)?;
    Ok((node, kubelet))
}

/// A guaranteed pod of one whole CPU, which the kubelet gives it alone.
fn exclusive() -> PodSpecOf {
    let mut pod = classes::plain("exclusive", OURS);
    pod.qos = PodQos::Guaranteed {
        milli_cpu: 1_000,
        memory_bytes: 64 << 20,
    };
    pod.expected.clear();
    pod
}

/// A container whose CPUs are looked at.
struct Watched {
    name: String,
    cgroup: PodCgroup,
    container: String,
}

impl Watched {
    fn of(node: &Node, pod: &PodSpecOf, container: String) -> Self {
        Self {
            name: pod.name.clone(),
            cgroup: node.cgroups.existing_pod(pod.pod.uid(), pod.qos),
            container,
        }
    }

    fn cpus(&self) -> String {
        let read = self
            .cgroup
            .read("cpuset", Some(&self.container), "cpuset.cpus");
        read.unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Each value that these had while `done`, in order.
fn seen(all: &[Watched], done: impl FnOnce()) -> BTreeMap<&str, Vec<String>> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            while !over.load(SeqCst) {
                for it in all {
                    let values = seen.entry(&it.name).or_default();
                    let now = it.cpus();
                    if values.last() != Some(&now) {
                        values.push(now);
                    }
                }
                thread::sleep(SAMPLE);
            }
            seen
        });
        // What fails in there must not leave the watcher at work.
        let done = panic::catch_unwind(AssertUnwindSafe(done));
        over.store(true, SeqCst);
        let seen = watcher.join().expect("the watcher");
        match done {
            Ok(()) => seen,
            Err(panicked) => panic::resume_unwind(panicked),
        }
    })
}

/// One pod of each class, at the kubelet.
fn pods(kubelet: &Kubelet) -> Result<Vec<PodSpecOf>> {
    let mut pods = classes::all(OURS);
    for pod in &mut pods {
        // Those without a class are the kubelet's, and this is about CPUs alone.
        pod.expected
            .retain(|it| it.setting == "cpuset.cpus" && pod.class != "-");
        // Small enough for one of a whole CPU beside them.
        if let PodQos::Burstable { milli_cpu } = &mut pod.qos {
            *milli_cpu = 100;
        }
        kubelet.apply(&manifest(pod))?;
    }
    Ok(pods)
}

fn each_has_one_owner(version: ContainerdVersion, front: Front) -> Result<()> {
    let (node, kubelet) = start(version, front)?;
    let pods = pods(&kubelet)?;
    let containers = settled(&node.cgroups, &kubelet, &pods);
    let watched = pods.iter().zip(containers);
    let watched = watched.map(|(pod, container)| Watched::of(&node, pod, container));
    let watched: Vec<Watched> = watched.collect();
    let of = |name: &str| {
        let found = watched.iter().find(|it| it.name == name);
        found.map(Watched::cpus).unwrap_or_default()
    };
    // What the kubelet shares out at first, and what best-effort pods always may use.
    wait_until("the kubelet has given CPUs to all", || {
        of("plain") == "0-1" && of("batch") == "0-1"
    });
    let at_rest = [
        ("batch", "0-1"),
        ("plain", "0-1"),
        ("redis", "0"),
        ("web", "1"),
    ];
    let at_rest = at_rest.map(|(name, cpus)| (name, vec![cpus.to_owned()]));
    assert_eq!(
        seen(&watched, || thread::sleep(QUIET)),
        at_rest.clone().into()
    );

    // A CPU goes to one pod alone: all others of the kubelet's leave it.
    let single = exclusive();
    let during = seen(&watched, || {
        kubelet.apply(&manifest(&single)).expect("a manifest");
        wait_patiently("the pod has a CPU of its own", || {
            let container = ready(&kubelet, &single);
            container.is_some_and(|it| Watched::of(&node, &single, it).cpus() == "1")
        });
        wait_until("the others leave it", || of("plain") == "0");
        thread::sleep(QUIET);
    });
    println!("while a CPU is given away: {during:?}");
    ensure!(
        during["redis"] == ["0"] && during["web"] == ["1"],
        "{during:?}"
    );
    ensure!(during["plain"] == ["0-1", "0"], "{during:?}");
    // The kubelet's list comes and goes, more than once where an update was late and is made again. It never
    // has the CPU that was given away alone, and once all is as decided nothing comes and goes any more.
    let batch = &during["batch"];
    let of_all = |it: Option<&String>| it.is_some_and(|it| it == "0-1");
    ensure!(
        of_all(batch.first()) && of_all(batch.last()) && batch.iter().all(|it| it != "1"),
        "{during:?}"
    );
    let mut given_away = BTreeMap::from(at_rest.clone());
    given_away.insert("plain", vec!["0".to_owned()]);
    assert_eq!(seen(&watched, || thread::sleep(QUIET)), given_away);

    kubelet.remove(&single.name)?;
    wait_until("the CPU is shared again", || of("plain") == "0-1");
    wait_until("best-effort pods have all", || of("batch") == "0-1");
    assert_eq!(seen(&watched, || thread::sleep(QUIET)), at_rest.into());
    let fought = node
        .proxy
        .metric("koord_runtime_proxy_contested_settings_total", &[])?;
    println!("settings written over: {fought}");
    // At most once for each of our three containers and each of the two changes, if each was late: whoever
    // fights without an end does so while nothing changes, too, which is seen above.
    ensure!(fought <= 6.0, "{fought} settings were written over");
    Ok(())
}

#[test]
fn a_static_cpu_manager_and_hooks_have_each_their_own_containers() -> Result<()> {
    each_has_one_owner(ContainerdVersion::V2, Front::Cri)
}

#[test]
fn a_static_cpu_manager_and_hooks_have_each_their_own_containers_on_containerd_1_7() -> Result<()> {
    each_has_one_owner(ContainerdVersion::V1_7, Front::Cri)
}

#[test]
fn a_static_cpu_manager_and_hooks_have_each_their_own_containers_by_nri() -> Result<()> {
    each_has_one_owner(ContainerdVersion::V2, Front::Nri)
}
