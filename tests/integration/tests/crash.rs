//! Kill -9 in the middle of everything: what the runtime lists is what the ledger holds, and every
//! container that lives has its values, those too whose creation was answered to nobody.
//!
//! That there is one of the latter is not left to chance: the proxy stands still amid a creation until
//! the runtime has made that container, and is killed before it can say so.
//!
//! Values are right from creation on, so there would be nothing to repair: while the proxy is dead the node
//! gets another policy, and pods and containers get values that are not theirs.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Node, ProxyOptions, RunningPod,
    churn::{living, pod},
    classes::{
        self, PodSpecOf,
        Scope::{self, Container as OfContainer, Pod as OfPod},
    },
    promise,
};
use koord_testkit::{
    ContainerdVersion,
    cri::{
        CriClient,
        message::{Container, ContainerState},
    },
    poll::wait_until_async,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// More pods than are begun before the kill.
const PODS: usize = 300;
/// Callers at a time, as a kubelet has workers.
const CALLERS: usize = 8;
/// The proxy is killed when so many pods have been begun.
const KILL_AT: usize = 200;
/// From the start of the next proxy until everything has its values, as promised; a tenth of it is usual.
const MOST: Duration = Duration::from_secs(2);

/// The CPUs that are shared by the policy of the next proxy. Where there is another, they were not before.
const NEXT_POOL: &str = "0";
/// Containers that the next proxy has to repair, at least: of 200 pods every second is LSR or BE, 34 of
/// these 100 are removed, and 8 callers are at something. Where there is another pool, all others join them.
const WRONG: usize = 58;

/// What is written while the proxy is dead: class, whose group, controller, file and value. A limit of a pod
/// goes before those of its containers, as the kernel wants it.
#[rustfmt::skip]
const SPOILS: &[(&str, Scope, &str, &str, &str)] = &[
    ("LSR", OfPod, "cpu", "cpu.cfs_quota_us", "50000"),
    ("LSR", OfContainer, "cpu", "cpu.cfs_quota_us", "50000"),
    ("BE", OfPod, "cpu", "cpu.idle", "0"),
    ("BE", OfPod, "cpu", "cpu.cfs_quota_us", "-1"),
    ("BE", OfPod, "memory", "memory.limit_in_bytes", "-1"),
    ("BE", OfContainer, "cpu", "cpu.cfs_quota_us", "-1"),
    ("BE", OfContainer, "cpu", "cpu.shares", "2"),
    ("BE", OfContainer, "memory", "memory.limit_in_bytes", "67108864"),
];

/// Looks for a container that the runtime makes while the proxy stands still.
const LOOKS: usize = 50;
/// Before each of them.
const PAUSE: Duration = Duration::from_millis(10);

/// What callers have begun and heard.
#[derive(Debug, Default)]
struct Scene {
    /// The number of the next pod.
    next: Cell<usize>,
    /// Creations that have no answer yet.
    creating: Cell<usize>,
    /// Containers whose creation was answered.
    created: RefCell<BTreeSet<String>>,
}

// === impl Scene ===

impl Scene {
    /// Begins pods until none is left or a call fails; every third is removed again.
    async fn work(&self, node: &Node, share_pool: &str) {
        let Ok(client) = node.client().await else {
            return;
        };
        loop {
            let number = self.next.get();
            if number >= PODS {
                return;
            }
            self.next.set(number + 1);
            let pod = pod(number, share_pool);
            let Ok(running) = self.run(node, &client, &pod).await else {
                return;
            };
            if number.is_multiple_of(3) && running.remove(&client).await.is_err() {
                return;
            }
        }
    }

    async fn run(&self, node: &Node, client: &CriClient, pod: &PodSpecOf) -> Result<RunningPod> {
        let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        let spec = pod.pod.clone().cgroup(&cgroup);
        let sandbox = client.run_pod(&spec).await?;
        self.creating.set(self.creating.get() + 1);
        let created = client.create_container(&sandbox, &pod.container, &spec);
        let created = created.await;
        self.creating.set(self.creating.get() - 1);
        let container = created?;
        self.created.borrow_mut().insert(container.clone());
        client.start_container(&container).await?;
        Ok(RunningPod {
            sandbox,
            container,
            cgroup,
        })
    }

    /// Kills the proxy when the runtime has made a container that nobody was told of.
    async fn kill(&self, node: &Node, runtime: &CriClient) -> Result<()> {
        loop {
            while self.next.get() < KILL_AT || self.creating.get() == 0 {
                ensure!(self.next.get() < PODS, "the kill came when all was done");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            node.proxy.stand_still()?;
            let made = self.is_one_made(runtime).await;
            if !matches!(made, Ok(false)) {
                // Where that cannot be known too: callers would wait for it without end.
                node.proxy.send_kill()?;
                return made.map(drop);
            }
            // The runtime had not heard of it yet.
            node.proxy.go_on()?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether the runtime makes a container for which a caller waits, of a pod of which the other policy
    /// says something else: the others are right as they were made.
    async fn is_one_made(&self, runtime: &CriClient) -> Result<bool> {
        for _ in 0..LOOKS {
            // What was answered before is heard meanwhile.
            tokio::time::sleep(PAUSE).await;
            let unanswered = self.unanswered(runtime).await?;
            let pods = runtime.list_pods().await?;
            let shares = |sandbox: &String| {
                let pod = pods.iter().find(|pod| pod.id == *sandbox);
                let class = pod.and_then(|pod| pod.labels.get(classes::QOS_CLASS));
                pod.is_some() && class.is_none_or(|class| class == "LS")
            };
            if unanswered.values().any(shares) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Containers that are made and do not run, and whose ids no caller got, with their sandboxes.
    async fn unanswered(&self, runtime: &CriClient) -> Result<BTreeMap<String, String>> {
        let mut containers = runtime.list_containers().await?;
        let answered = self.created.borrow();
        let is_made = |it: &Container| it.state() == ContainerState::Created;
        containers.retain(|it| is_made(it) && !answered.contains(&it.id));
        let ids = containers.into_iter().map(|it| (it.id, it.pod_sandbox_id));
        Ok(ids.collect())
    }
}

/// Gives the node another policy, and pods and containers values that are not theirs. The containers that
/// have something wrong then: a third of those that live, at least.
async fn spoil(node: &Node, runtime: &CriClient) -> Result<BTreeSet<String>> {
    node.proxy.write_policy(&classes::node_policy(NEXT_POOL))?;
    for it in living(runtime, &node.cgroups, NEXT_POOL).await? {
        let rows = SPOILS.iter().filter(|(class, ..)| *class == it.pod.class);
        for (_, scope, controller, file, value) in rows {
            let container = (*scope == OfContainer).then_some(&*it.container);
            let written = it.cgroup.write(controller, container, file, value);
            // The runtime is still finishing what it had begun, removals among it.
            let is_gone = || !it.cgroup.file(controller, container, file).exists();
            ensure!(written.is_ok() || is_gone(), "{}: {written:?}", it.pod.name);
        }
    }
    let living = living(runtime, &node.cgroups, NEXT_POOL).await?;
    let wrong = living.iter().filter(|it| !it.wrong().is_empty());
    let wrong: BTreeSet<_> = wrong.map(|it| it.container.clone()).collect();
    let (found, alive) = (wrong.len(), living.len());
    ensure!(3 * found >= alive, "{found} of {alive} have wrong values");
    Ok(wrong)
}

/// Starts the proxy again, and waits until every living container has its values, these too.
async fn repair(node: &mut Node, runtime: &CriClient, wrong: &BTreeSet<String>) -> Result<()> {
    let begun = Instant::now();
    node.launch_proxy()?;
    // The runtime is still finishing what it had begun, stops among it: who lives is asked anew.
    let alive = RefCell::new(Vec::new());
    wait_until_async("every living container has its values", || async {
        let Ok(living) = living(runtime, &node.cgroups, NEXT_POOL).await else {
            return false;
        };
        let right = living.iter().all(|it| it.wrong().is_empty());
        alive.replace(living);
        right
    })
    .await;
    let took = begun.elapsed();
    let alive = alive.into_inner();
    let repaired = alive.iter().filter(|it| wrong.contains(&it.container));
    let (repaired, alive) = (repaired.count(), alive.len());
    ensure!(repaired >= WRONG, "{repaired} of {alive} were wrong before");
    let what = format!(
        "{alive} living containers, {repaired} of them wrong before, have their values after the start"
    );
    promise::within(&what, took, MOST)
}

/// Starts these containers, and waits until they have their values.
async fn start(node: &Node, runtime: &CriClient, ids: &BTreeMap<String, String>) -> Result<()> {
    let client = node.client().await?;
    for id in ids.keys() {
        let started = client.start_container(id).await;
        started.with_context(|| format!("start {id}"))?;
    }
    wait_until_async(
        "those of unanswered creations have their values",
        || async {
            let Ok(living) = living(runtime, &node.cgroups, NEXT_POOL).await else {
                return false;
            };
            let theirs = living.iter().filter(|it| ids.contains_key(&it.container));
            theirs.filter(|it| it.wrong().is_empty()).count() == ids.len()
        },
    )
    .await;
    Ok(())
}

/// What there is: of each sandbox its pod and whether it is ready, of each container where it is and how.
type Known = (
    BTreeMap<String, (String, bool)>,
    BTreeMap<String, (String, String)>,
);

async fn listed(client: &CriClient) -> Result<Known> {
    let pods = client.list_pods().await?;
    let containers = client.list_containers().await?;
    let word = |state| match state {
        ContainerState::Created => "created",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Unknown => "unknown",
    };
    let pods = pods.into_iter().map(|pod| {
        let it = pod.metadata.unwrap_or_default();
        let name = format!("{}/{} {}", it.namespace, it.name, it.uid);
        (pod.id, (name, pod.state == 0))
    });
    let containers = containers.into_iter().map(|it| {
        let state = word(it.state()).to_owned();
        let name = it.metadata.unwrap_or_default().name;
        (it.id, (format!("{name} in {}", it.pod_sandbox_id), state))
    });
    Ok((pods.collect(), containers.collect()))
}

fn in_ledger(node: &Node) -> Result<Known> {
    let ledger = node.proxy.ledger()?;
    let pods = ledger["pods"].as_array().context("pods")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut known = Known::default();
    for pod in pods {
        let [sandbox, namespace, name, uid] =
            ["sandbox", "namespace", "name", "uid"].map(|key| text(&pod[key]));
        for it in pod["containers"].as_array().context("containers")? {
            let place = format!("{} in {sandbox}", text(&it["name"]));
            known.1.insert(text(&it["id"]), (place, text(&it["state"])));
        }
        let name = format!("{namespace}/{name} {uid}");
        known.0.insert(sandbox, (name, pod["ready"] == true));
    }
    Ok(known)
}

#[tokio::test]
async fn killed_amid_churn_it_finds_everything_again() -> Result<()> {
    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        as_shipped: true,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(ContainerdVersion::V1_7, options)?;
    let runtime = CriClient::connect(&node.runtime.socket()).await?;
    let scene = Scene::default();
    let workers = futures(&node, &scene, &share_pool);
    let (killed, ()) = tokio::join!(scene.kill(&node, &runtime), workers);
    killed?;
    node.proxy.kill9()?;

    let wrong = spoil(&node, &runtime).await?;
    repair(&mut node, &runtime, &wrong).await?;
    let unanswered = scene.unanswered(&runtime).await?;
    ensure!(!unanswered.is_empty(), "every creation was answered");
    let begun = Instant::now();
    start(&node, &runtime, &unanswered).await?;
    let what = "containers of unanswered creations have their values after their start";
    promise::within(what, begun.elapsed(), MOST)?;
    wait_until_async("the ledger is what the runtime lists", || async {
        let lists = listed(&runtime).await;
        lists.is_ok_and(|lists| in_ledger(&node).is_ok_and(|ledger| ledger == lists))
    })
    .await;
    Ok(())
}

async fn futures(node: &Node, scene: &Scene, share_pool: &str) {
    let worker = || scene.work(node, share_pool);
    const { assert!(CALLERS == 8, "as many as are joined here") };
    tokio::join!(
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker(),
        worker()
    );
}
