//! A real kubelet whose CPU manager gives CPUs away, beside hooks that do: each container's CPUs
//! have one owner, and nothing goes back and forth.
//!
//! The node policy says that the kubelet's policy is static. So pods that nobody gave a class are the
//! kubelet's; those with CPUs of the scheduler, of class LS, and best-effort ones are ours, also where the
//! kubelet means to give them a CPU alone.

use anyhow::{Context, Result, ensure};
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
    slice,
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

const CONTESTED: &str = "koord_runtime_proxy_contested_settings_total";
const POLICY_LOADS: &str = "koord_runtime_proxy_policy_loads_total";

/// CPUs to share, on a node whose kubelet gives some away.
fn policy(share_pool: &str) -> String {
    classes::node_policy(share_pool).replace(
        "  annotations:\n",
        "  annotations:\n    kubelet.koordinator.sh/cpu-manager-policy: '{\"policy\":\"static\"}'\n",
    )
}

fn start(version: ContainerdVersion, front: Front) -> Result<(Node, Kubelet)> {
    let options = ProxyOptions {
        policy: Some(policy(OURS)),
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(version, options)?;
    let changes = json!({
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "1s",
        "systemReserved": {"cpu": "100m"},
        // It tells each update that it sends.
        "logging": {"vmodule": [{"filePattern": "cpu_manager", "verbosity": 5}]},
    });
    let kubelet = Kubelet::start(node.testbed(), &node.socket(), changes)?;
    Ok((node, kubelet))
}

/// The pod as a guaranteed one of one whole CPU, which the kubelet gives it alone.
fn whole(mut pod: PodSpecOf) -> PodSpecOf {
    pod.qos = PodQos::Guaranteed {
        milli_cpu: 1_000,
        memory_bytes: 64 << 20,
    };
    pod.expected.retain(|it| it.setting == "cpuset.cpus");
    pod
}

/// How many updates the kubelet has sent, or tried to, that give a container these CPUs.
fn updates(kubelet: &Kubelet, container: &str, cpus: &str) -> usize {
    let parts = [
        "\"updating container\"",
        container,
        &format!("cpuSet=\"{cpus}\""),
    ];
    let log = kubelet.log();
    let told = log
        .lines()
        .filter(|line| parts.iter().all(|it| line.contains(it)));
    told.count()
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

fn cpus_of(all: &[Watched], name: &str) -> String {
    let found = all.iter().find(|it| it.name == name);
    found.map(Watched::cpus).unwrap_or_default()
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

/// What a best-effort container has beside that many updates that give it CPU 0: each puts the kubelet's
/// list in, and the pod's next check takes it out. The kubelet has one reason to send such an update, and
/// sends it again only if it failed.
fn comes_and_goes(times: usize) -> Vec<&'static str> {
    let mut all = vec!["0-1"];
    all.extend(["0", "0-1"].repeat(times));
    all
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

/// Has the pod get CPU 1 of the kubelet.
fn give_away(node: &Node, kubelet: &Kubelet, single: &PodSpecOf) {
    kubelet.apply(&manifest(single)).expect("a manifest");
    wait_patiently("the pod has a CPU of its own", || {
        let container = ready(kubelet, single);
        container.is_some_and(|it| Watched::of(node, single, it).cpus() == "1")
    });
}

fn each_has_one_owner(version: ContainerdVersion, front: Front) -> Result<()> {
    let (node, kubelet) = start(version, front)?;
    let pods = pods(&kubelet)?;
    let containers = settled(&node.cgroups, &kubelet, &pods);
    let watched = pods.iter().zip(containers);
    let watched = watched.map(|(pod, container)| Watched::of(&node, pod, container));
    let watched: Vec<Watched> = watched.collect();
    let of = |name| cpus_of(&watched, name);
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
    let mut single = whole(classes::plain("exclusive", OURS));
    single.expected.clear();
    let during = seen(&watched, || {
        give_away(&node, &kubelet, &single);
        wait_until("the others leave it", || of("plain") == "0");
        thread::sleep(QUIET);
    });
    ensure!(
        during["redis"] == ["0"] && during["web"] == ["1"],
        "{during:?}"
    );
    ensure!(during["plain"] == ["0-1", "0"], "{during:?}");
    let batch = watched.iter().find(|it| it.name == "batch");
    let batch = &batch.context("a best-effort pod")?.container;
    let sent = updates(&kubelet, batch, "0");
    ensure!(sent > 0, "the kubelet has sent nothing");
    // A look may miss it.
    ensure!(
        (0..=sent).any(|times| during["batch"] == comes_and_goes(times)),
        "{sent} updates: {during:?}"
    );
    let mut given_away = BTreeMap::from(at_rest.clone());
    given_away.insert("plain", vec!["0".to_owned()]);
    assert_eq!(seen(&watched, || thread::sleep(QUIET)), given_away);

    kubelet.remove(&single.name)?;
    wait_until("the CPU is shared again", || of("plain") == "0-1");
    wait_until("best-effort pods have all", || of("batch") == "0-1");
    assert_eq!(seen(&watched, || thread::sleep(QUIET)), at_rest.into());
    let fought = node.proxy.metric(CONTESTED, &[])?;
    // Nothing but that list: the kubelet's other updates give what should be.
    let most = f64::from(u32::try_from(updates(&kubelet, batch, "0"))?);
    ensure!((1.0..=most).contains(&fought), "{fought} times");
    Ok(())
}

/// What the kubelet asked for the pod's container. It is in the creation, and in an update only once the
/// kubelet was started anew.
fn asked(node: &Node, pod: &PodSpecOf) -> Result<String> {
    let name = format!("\"{}-node\" \"main\" \"cpuset.cpus\"", pod.name);
    let settings = node.settings()?;
    let setting = settings
        .get(&name)
        .with_context(|| format!("{settings:?}"))?;
    Ok(setting["asked"].as_str().unwrap_or_default().to_owned())
}

/// The pod's container, and the values that it has while the CPUs to share change from 0 to 0-1, both
/// programs are killed, and the kubelet that is started anew sends that it is to have CPU 1.
fn values_beside(
    node: &mut Node,
    kubelet: &mut Kubelet,
    (pod, at_last): (&PodSpecOf, &str),
) -> Result<(Watched, Vec<String>)> {
    node.proxy.write_policy(&policy("0"))?;
    kubelet.apply(&manifest(pod))?;
    let container = settled(&node.cgroups, kubelet, slice::from_ref(pod)).remove(0);
    assert_eq!(asked(node, pod)?, "1");
    let watched = [Watched::of(node, pod, container)];
    let loads = |node: &Node| node.proxy.metric(POLICY_LOADS, &[]).expect("a metric");
    let before = loads(node);
    let mut seen = seen(&watched, || {
        let it = &watched[0];
        node.proxy.write_policy(&policy("0-1")).expect("a policy");
        wait_until("the policy is read", || loads(node) > before);
        wait_until("the policy holds", || it.cpus() == at_last);
        node.proxy.kill9().expect("a kill");
        kubelet.kill().expect("a kill");
        node.launch_proxy().expect("a proxy");
        kubelet.launch(node.testbed()).expect("a kubelet");
        wait_patiently("the kubelet has sent its own", || {
            updates(kubelet, &it.container, "1") >= 1
        });
        thread::sleep(QUIET);
    });
    let values = seen.remove(pod.name.as_str()).unwrap_or_default();
    let [watched] = watched;
    Ok((watched, values))
}

/// The same while the kubelet is started anew, and then a proxy that was not there for its update.
fn values_without(node: &mut Node, kubelet: &mut Kubelet, watched: Watched) -> Result<Vec<String>> {
    let before = watched.cpus();
    let watched = [watched];
    let seen = seen(&watched, || {
        node.proxy.stop().expect("an end");
        kubelet.kill().expect("a kill");
        kubelet.launch(node.testbed()).expect("a kubelet");
        wait_patiently("the kubelet has its way", || watched[0].cpus() == "1");
        node.launch_proxy().expect("a proxy");
        wait_until("the proxy has its own", || watched[0].cpus() == before);
        thread::sleep(QUIET);
    });
    Ok(seen.into_values().next().unwrap_or_default())
}

/// Pods to which the kubelet gives CPU 1 alone, while their CPUs are the proxy's.
fn the_kubelet_gives_a_cpu_to_pods_of_ours(front: Front) -> Result<()> {
    let (mut node, mut kubelet) = start(ContainerdVersion::V2, front)?;
    let web = whole(classes::ls("web", "0"));
    let (_, values) = values_beside(&mut node, &mut kubelet, (&web, "0-1"))?;
    assert_eq!(values, ["0", "0-1"]);
    // One CPU is all that it has to give.
    kubelet.remove(&web.name)?;
    wait_patiently("the kubelet has its CPU back", || {
        kubelet.pods().is_ok_and(|it| it.is_empty())
    });
    let redis = whole(classes::lsr("redis"));
    let (watched, values) = values_beside(&mut node, &mut kubelet, (&redis, "0"))?;
    assert_eq!(values, ["0"]);
    let fought = node.proxy.metric(CONTESTED, &[])?;
    ensure!(fought == 0.0, "{fought} settings were written over");
    // No kubelet gets to the runtime while the proxy before it is away.
    if front == Front::Nri {
        let values = values_without(&mut node, &mut kubelet, watched)?;
        assert_eq!(values, ["0", "1", "0"]);
    }
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

#[test]
fn a_cpu_that_the_kubelet_gives_to_a_pod_of_ours_alone_changes_nothing() -> Result<()> {
    the_kubelet_gives_a_cpu_to_pods_of_ours(Front::Cri)
}

#[test]
fn a_cpu_that_the_kubelet_gives_to_a_pod_of_ours_alone_changes_nothing_by_nri() -> Result<()> {
    the_kubelet_gives_a_cpu_to_pods_of_ours(Front::Nri)
}
