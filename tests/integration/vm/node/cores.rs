//! Core scheduling, as the kernel's own cookies tell it.

use crate::{
    check, fronts,
    machine::cpu,
    node,
    pod::{BOMB, Below, Pod, run, run_bomb, sandbox_and_shim, shim_of, start_bomb, threads},
    runtime,
};
use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Node, ProxyOptions};
use koord_kernel::core_sched::{Cookie, CoreSched, Kernel, Tid};
use koord_testkit::{
    ContainerdVersion, PodQos, RuntimeKind,
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::wait_until,
};
use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command},
};

/// The policy that leaves CPU time to core scheduling: LS pods expel, BE pods are idle.
const CORES: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    policies: {cpuPolicy: coreSched}
    lsClass: {cpuQOS: {enable: true, coreExpeller: true}}
    beClass: {cpuQOS: {enable: true, schedIdle: 1}}
";

/// The same node without it.
const NO_CORES: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec: {}
";

pub(super) fn check_all() {
    check("the_machine_has_two_cores", the_machine);
    check("cookies_are_made_inherited_passed_on_and_taken", the_kernel);
    check("a_container_has_the_cookie_of_its_shim", by_the_shim);
    check_the_first_instruction();
    check("groups_keep_their_cookies_over_a_restart_by_cri", || {
        over_a_restart(Front::Cri)
    });
    check("groups_keep_their_cookies_over_a_restart_by_nri", || {
        over_a_restart(Front::Nri)
    });
}

/// What there is to check on each runtime, because each starts containers in its own way.
pub(super) fn check_the_first_instruction() {
    for (front, name) in fronts() {
        check(&format!("groups_have_cookies_by_{name}"), || groups(*front));
    }
    let old = [ContainerdVersion::V1_6, ContainerdVersion::V1_7].map(RuntimeKind::Containerd);
    if old.contains(&runtime()) {
        check(
            "a_second_shim_comes_into_the_group_of_its_pod",
            beside_the_shim,
        );
    }
}

/// There are cores that different groups can have at one time.
async fn the_machine() -> Result<()> {
    for (number, expected) in [(0, ["0", "0-1", "0-3"]), (2, ["0", "2-3", "0-3"])] {
        let found = cpu(number)?;
        ensure!(found == expected, "CPU {number}: {found:?}");
    }
    Ok(())
}

/// What the rest relies on, without anything of ours but the calls.
async fn the_kernel() -> Result<()> {
    let kernel = Kernel::open(false).context("this kernel has core scheduling")?;
    let (mut one, mut other) = (sleeper("sleep 1000 & wait")?, sleeper("wait; sleep 1000")?);
    let (first, second) = (tid(&one), tid(&other));
    ensure!(kernel.cookie(first)?.is_none() && kernel.cookie(second)?.is_none());
    kernel.create(first)?;
    let cookie = kernel.cookie(first)?.context("it was just made")?;
    kernel.create(second)?;
    ensure!(
        kernel.cookie(second)? != Some(cookie),
        "a cookie was made twice"
    );

    kernel.share(first, cookie, second)?;
    ensure!(
        kernel.cookie(second)? == Some(cookie),
        "it was not passed on"
    );
    ensure!(
        kernel.cookie(0)?.is_none(),
        "the one who passed it on has it"
    );
    let mut child = sleeper("sleep 1000")?;
    kernel.share(first, cookie, tid(&child))?;
    kernel.clear(first)?;
    ensure!(kernel.cookie(first)?.is_none(), "it was not taken");
    let stale = kernel.share(first, cookie, second);
    let stale = stale.expect_err("nobody has this cookie to give");
    ensure!(stale.raw_os_error() == Some(3), "{stale}");
    for process in [&mut one, &mut other, &mut child] {
        process.kill()?;
        process.wait()?;
    }
    let ended = kernel.cookie(first);
    let ended = ended.expect_err("the process has ended");
    ensure!(ended.raw_os_error() == Some(3), "{ended}");
    Ok(())
}

/// That the way of the CRI front works at all: whatever containerd starts for a pod comes from the
/// pod's shim by fork.
async fn by_the_shim() -> Result<()> {
    let kernel = Kernel::open(false)?;
    let node = node(ProxyOptions::default());
    let client = CriClient::connect(&node.runtime.socket()).await?;
    let spec = PodSpec::new("bomb");
    let cgroup = node.cgroups.pod(spec.uid(), PodQos::BestEffort)?;
    let spec = spec.cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    let (_, shim) = sandbox_and_shim(&cgroup, &sandbox)?.context("a pod has a shim")?;
    ensure!(
        kernel.cookie(shim)?.is_none(),
        "the shim has a cookie of its own"
    );
    kernel.create(shim)?;
    let own = BTreeSet::from([kernel.cookie(shim)?]);

    let container = ContainerSpec::new("main").command(BOMB);
    let container = client.create_container(&sandbox, &container, &spec).await?;
    let at = (&cgroup, &*container);
    let found = start_bomb(&client, at, move |it| kernel.cookie(it).ok()).await?;
    ensure!(found == own, "{found:?}, not {own:?}");
    Ok(())
}

/// A shim beside the pod's own, such as a containerd before 2.0 starts on a busy machine, comes into the group
/// with what it has started, and so does whatever it starts from then on.
async fn beside_the_shim() -> Result<()> {
    let kernel = Kernel::open(false)?;
    let node = node(options(Front::Cri));
    let client = node.client().await?;
    let spec = spec("web", "LS", &[GROUP_A]);
    let cgroup = node.cgroups.pod(spec.uid(), PodQos::BestEffort)?;
    let spec = spec.cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    let (_, shim) = sandbox_and_shim(&cgroup, &sandbox)?.context("a pod has a shim")?;
    wait_until("the pod's shim is in a group", || {
        kernel.cookie(shim).is_ok_and(|it| it.is_some())
    });
    let group = kernel.cookie(shim)?;

    let container = ContainerSpec::new("main");
    let container = client.create_container(&sandbox, &container, &spec).await?;
    // A shim that does not answer by its socket is taken for one that has gone.
    let address = fs::read_to_string(format!("/proc/{shim}/cwd/address"))?;
    let socket = address.trim().strip_prefix("unix://");
    fs::remove_file(socket.with_context(|| address.clone())?)?;
    client.start_container(&container).await?;
    let threads = threads(&cgroup, &container)?;
    let first = threads.first().context("the container has no process")?;
    let second = shim_of(*first)?;
    ensure!(second != shim, "the pod's shim has started the container");
    wait_until("the second shim and the container are in the group", || {
        let cookies = cookies(&kernel, &[&threads[..], &[second]].concat());
        cookies == BTreeSet::from([group])
    });
    Ok(())
}

/// Groups by label, by class and by policy, from the first instruction on, and given back.
async fn groups(front: Front) -> Result<()> {
    let kernel = Kernel::open(false)?;
    let node = node(options(front));
    let client = node.client().await?;
    let web = spec("web", "LS", &[GROUP_A]);
    let look = (front, move |thread| cookie_or_tell(&kernel, thread));
    let (web, of_bomb) = run_bomb(&node, &client, &web, look).await?;
    let shop = run_pod(&node, &client, "shop", "LS", &[GROUP_A]).await?;
    let batch = run_pod(&node, &client, "batch", "BE", &[GROUP_A]).await?;
    let alone = run_pod(
        &node,
        &client,
        "alone",
        "LS",
        &[GROUP_A, (POLICY, "exclusive")],
    )
    .await?;
    let free = run_pod(&node, &client, "free", "LS", &[GROUP_A, (POLICY, "none")]).await?;

    let own = |pod: &Pod| only_cookie(&kernel, &threads(&pod.cgroup, &pod.container)?);
    let [of_web, of_shop, of_batch] = [own(&web)?, own(&shop)?, own(&batch)?];
    let (of_alone, of_free) = (own(&alone)?, own(&free)?);
    ensure!(
        of_bomb == BTreeSet::from([of_web]),
        "{of_bomb:?} while processes were started, then {of_web:?}"
    );
    ensure!(of_web == of_shop, "{of_web:?} and {of_shop:?} of one group");
    ensure!(of_free.is_none(), "{of_free:?} of a pod in no group");
    let three = BTreeSet::from([of_web, of_batch, of_alone]);
    ensure!(
        three.len() == 3 && !three.contains(&None),
        "{three:?} of three groups"
    );
    for (pod, cookie) in [(&web, of_web), (&batch, of_batch), (&free, None)] {
        if let Some((pause, _)) = sandbox_and_shim(&pod.cgroup, &pod.sandbox)? {
            wait_until("the sandbox is in its group", || {
                only_cookie(&kernel, &pause).is_ok_and(|held| held == cookie)
            });
        }
    }
    let idle = |pod: &Pod| pod.cgroup.read("cpu", None, "cpu.idle");
    ensure!(
        (idle(&batch)?, idle(&web)?) == ("1".into(), "0".into()),
        "idleness"
    );

    node.proxy.write_policy(NO_CORES)?;
    let none = |pod: &Pod| own(pod).is_ok_and(|cookie| cookie.is_none());
    wait_until("all is given back", || {
        [&web, &shop, &batch, &alone].into_iter().all(none)
    });
    if let Some((_, shim)) = sandbox_and_shim(&web.cgroup, &web.sandbox)? {
        wait_until("so is the shim", || {
            kernel.cookie(shim).is_ok_and(|it| it.is_none())
        });
    }
    Ok(())
}

/// The cookie of a thread; of one that has none it is told where it comes from.
fn cookie_or_tell(kernel: &Kernel, thread: Tid) -> Option<Option<Cookie>> {
    let cookie = kernel.cookie(thread).ok()?;
    if cookie.is_none() {
        eprintln!("no cookie: {}", descent(kernel, thread));
    }
    Some(cookie)
}

/// A thread, who started it, and so on, each with the cookie that it has.
fn descent(kernel: &Kernel, thread: Tid) -> String {
    let mut descent = String::new();
    let mut next = Some(thread);
    while let Some(one) = next.filter(|it| *it > 1) {
        let status = fs::read_to_string(format!("/proc/{one}/status")).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let name = field("Name").unwrap_or("gone");
        descent += &format!("{one} {name} {:?}; ", kernel.cookie(one));
        next = field("PPid").and_then(|it| it.parse().ok());
    }
    descent
}

/// Containers that were there before are adopted, and so are the cookies that they have.
async fn over_a_restart(front: Front) -> Result<()> {
    let kernel = Kernel::open(false)?;
    let mut node = node(options(front));
    node.proxy.kill9()?;
    let straight = CriClient::connect(&node.runtime.socket()).await?;
    let before = run_many(&node, &straight, &spec("before", "LS", &[GROUP_A])).await?;
    let beside = run_pod(&node, &straight, "beside", "LS", &[GROUP_A]).await?;
    let batch = run_pod(&node, &straight, "batch", "BE", &[GROUP_A]).await?;
    let own = |pod: &Pod| only_cookie(&kernel, &threads(&pod.cgroup, &pod.container)?);
    for pod in [&before, &beside, &batch] {
        ensure!(own(pod)?.is_none(), "nobody was there to give it one");
    }
    let below = Below::enter(&before)?;

    node.launch_proxy()?;
    wait_until("all are adopted", || {
        are_grouped(&node, &["before", "beside", "batch"])
    });
    let (of_web, of_batch) = (own(&before)?, own(&batch)?);
    ensure!(
        of_web.is_some() && of_batch.is_some() && of_web != of_batch,
        "{of_web:?} and {of_batch:?} of two groups"
    );
    let of_below = cookies(&kernel, &below.threads);
    ensure!(
        of_below == BTreeSet::from([of_web]),
        "{of_below:?} in a group below, {of_web:?} above"
    );
    let client = node.client().await?;
    let later = run_pod(&node, &client, "later", "LS", &[GROUP_A]).await?;
    for pod in [&beside, &later] {
        let cookie = own(pod)?;
        ensure!(cookie == of_web, "{cookie:?} and {of_web:?} of one group");
    }

    node.proxy.kill9()?;
    node.launch_proxy()?;
    wait_until("all are adopted again", || {
        are_grouped(&node, &["before", "beside", "batch", "later"])
    });
    let client = node.client().await?;
    let after = run_pod(&node, &client, "after", "LS", &[GROUP_A]).await?;
    let more = run_pod(&node, &client, "more", "BE", &[GROUP_A]).await?;
    for (pods, cookie) in [
        (&[&before, &beside, &later, &after][..], of_web),
        (&[&batch, &more][..], of_batch),
    ] {
        for pod in pods {
            let held = own(pod)?;
            ensure!(held == cookie, "{held:?}, and {cookie:?} before a restart");
        }
    }
    // One more that was unclean, and it would start with its hooks off.
    node.proxy.stop()?;
    node.proxy.write_policy(NO_CORES)?;
    node.launch_proxy()?;
    let pods = [&before, &beside, &batch, &later, &after, &more];
    all_is_given_back(&kernel, &pods, &below.threads)?;
    below.end()
}

/// What is decided no more after a restart: of containers, of shims, and of who is in a group below.
fn all_is_given_back(kernel: &Kernel, pods: &[&Pod], below: &[Tid]) -> Result<()> {
    let none = |thread: Tid| kernel.cookie(thread).is_ok_and(|it| it.is_none());
    wait_until("what is decided no more is given back", || {
        pods.iter().all(|pod| {
            let threads = threads(&pod.cgroup, &pod.container);
            threads.is_ok_and(|threads| threads.into_iter().all(none))
        })
    });
    wait_until("it is given back below too", || {
        below.iter().all(|it| none(*it))
    });
    for pod in pods {
        if let Some((_, shim)) = sandbox_and_shim(&pod.cgroup, &pod.sandbox)? {
            wait_until("so is the shim", || none(shim));
        }
    }
    Ok(())
}

/// Whether the proxy has held the threads of all these pods' containers against their groups.
fn are_grouped(node: &Node, pods: &[&str]) -> bool {
    let settings = node.settings().unwrap_or_default();
    pods.iter().all(|pod| {
        let name = format!(r#""{pod}" "main" "core_sched""#);
        let applied = settings.get(&name).and_then(|it| it["applied"].as_str());
        matches!(applied, Some("equal" | "written"))
    })
}

const GROUP: &str = "koordinator.sh/core-sched-group-id";
const POLICY: &str = "koordinator.sh/core-sched-policy";
const GROUP_A: (&str, &str) = (GROUP, "a");

fn options(front: Front) -> ProxyOptions {
    ProxyOptions {
        policy: Some(CORES.to_owned()),
        args: vec!["--feature-gates".to_owned(), "CoreSched=true".to_owned()],
        front,
        ..ProxyOptions::default()
    }
}

/// A pod whose container sleeps.
async fn run_pod(
    node: &Node,
    client: &CriClient,
    name: &str,
    class: &str,
    labels: &[(&str, &str)],
) -> Result<Pod> {
    let container = ContainerSpec::new("main");
    run(node, client, &spec(name, class, labels), container).await
}

/// A pod whose container has many processes.
async fn run_many(node: &Node, client: &CriClient, spec: &PodSpec) -> Result<Pod> {
    let container = ContainerSpec::new("main").command(BOMB);
    let pod = run(node, client, spec, container).await?;
    wait_until("all have started", || {
        threads(&pod.cgroup, &pod.container).is_ok_and(|threads| threads.len() > 200)
    });
    Ok(pod)
}

fn spec(name: &str, class: &str, labels: &[(&str, &str)]) -> PodSpec {
    let spec = PodSpec::new(name).label("koordinator.sh/qosClass", class);
    let labels = labels.iter();
    labels.fold(spec, |spec, (key, value)| spec.label(key, value))
}

fn sleeper(script: &str) -> Result<Child> {
    Ok(Command::new("/bin/sh").args(["-c", script]).spawn()?)
}

fn tid(process: &Child) -> Tid {
    Tid::try_from(process.id()).expect("a process id")
}

fn cookies(kernel: &Kernel, threads: &[Tid]) -> BTreeSet<Option<Cookie>> {
    let cookies = threads.iter().filter_map(|it| kernel.cookie(*it).ok());
    cookies.collect()
}

/// The cookie that all of these threads have.
pub(super) fn only_cookie(kernel: &Kernel, threads: &[Tid]) -> Result<Option<Cookie>> {
    let mut cookies = cookies(kernel, threads).into_iter();
    let (first, more) = (cookies.next(), cookies.next());
    ensure!(more.is_none(), "{first:?} and {more:?} in one container");
    first.context("no thread is there")
}
