//! Shares of the cache and of the way to memory, by the kernel's own file system.

use crate::{
    check, fronts, node,
    pod::{BOMB, Below, Pod, run, run_bomb, sandbox_and_shim, threads},
};
use anyhow::{Context, Result, bail, ensure};
use koord_integration::{Front, Node, ProxyOptions};
use koord_kernel::{
    core_sched::Tid,
    resctrl::{Granularity, Groups, Resctrl, ResctrlError, Resource, Schemata, Vendor, ways},
};
use koord_testkit::{
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::wait_until,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Where the kernel has it.
pub(super) const ROOT: &str = "/sys/fs/resctrl";

pub(super) fn check_all() {
    check("classes_are_made_filled_and_run_out", the_kernel);
    check_the_first_instruction();
    check("groups_are_found_again_and_run_out_by_cri", || {
        over_a_restart(Front::Cri)
    });
    check("groups_are_found_again_and_run_out_by_nri", || {
        over_a_restart(Front::Nri)
    });
    check(
        "monitoring_groups_are_made_filled_and_run_out",
        the_kernel_monitors,
    );
    check("pods_of_a_class_are_monitored_by_cri", || {
        monitored(Front::Cri)
    });
    check("pods_of_a_class_are_monitored_by_nri", || {
        monitored(Front::Nri)
    });
}

/// What there is to check on each runtime, because each starts containers in its own way.
pub(super) fn check_the_first_instruction() {
    for (front, name) in fronts() {
        check(&format!("pods_share_by_class_and_by_pod_by_{name}"), || {
            shares(*front)
        });
    }
}

/// What an applier may count on.
async fn the_kernel() -> Result<()> {
    let resctrl = Resctrl::of_machine(Path::new("/sys"), Path::new("/proc"))?;
    ensure!(resctrl.ways() == Some(0x7ff), "{:?}", resctrl.ways());
    ensure!(resctrl.vendor() == Vendor::Intel, "{:?}", resctrl.vendor());
    let told = resctrl.granularity();
    let expected = Granularity {
        ways: Some(1),
        least_bandwidth: Some(10),
        bandwidth_step: Some(10),
    };
    ensure!(told == expected, "{told:?}");
    let whole = lines(&[(Resource::L3, 0x7ff), (Resource::Mb, 100)]);
    ensure!(*resctrl.whole() == whole, "{:?}", resctrl.whole());

    ensure!(resctrl.own("BE")? && !resctrl.own("BE")?, "it is made once");
    ensure!(
        resctrl.schemata("BE")? == whole,
        "a new class has everything"
    );
    let part = ways(0x7ff, 0, 30).context("a part of the cache")?;
    let share = lines(&[(Resource::L3, part), (Resource::Mb, 30)]);
    ensure!(resctrl.set_schemata("BE", &share)?, "it had more");
    ensure!(!resctrl.set_schemata("BE", &share)?, "it was written again");
    ensure!(
        resctrl.schemata("BE")? == share,
        "{:?}",
        resctrl.schemata("BE")?
    );
    holes_are_refused(&resctrl)?;
    threads_and_their_children(&resctrl)?;

    // The root's class is one of eight.
    for made in 2..=7 {
        ensure!(resctrl.own(&format!("pod-{made}"))?, "{made} of seven");
    }
    match resctrl.own("one-too-many") {
        Err(ResctrlError::NoMoreClasses { .. }) => {}
        other => bail!("{other:?} where no class is left"),
    }
    ensure!(resctrl.all()?.len() == 7, "{:?}", resctrl.all()?);
    resctrl.remove("pod-7")?;
    resctrl.remove("pod-7")?;
    ensure!(resctrl.own("another")?, "the class is free again");
    let gone = resctrl.schemata("pod-7").expect_err("it was removed");
    ensure!(gone.is_gone(), "{gone}");
    drop(resctrl);
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

fn holes_are_refused(resctrl: &Resctrl) -> Result<()> {
    let holes = lines(&[(Resource::L3, 0b101)]);
    match resctrl.set_schemata("BE", &holes) {
        Err(ResctrlError::Refused { status, .. }) if status.contains("non-consecutive") => Ok(()),
        other => bail!("{other:?} for a mask with a hole"),
    }
}

/// A child is in the group of its parent, and in the root's once that has gone.
fn threads_and_their_children(resctrl: &Resctrl) -> Result<()> {
    let script = "read line; sleep 1000 & echo $!; wait";
    let mut parent = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()?;
    let own = Tid::try_from(parent.id())?;
    ensure!(resctrl.add("BE", own)?, "it has not ended");
    drop(parent.stdin.take());
    wait_until("its child is in the group", || {
        resctrl
            .threads("BE")
            .is_ok_and(|threads| threads.len() == 2 && threads.contains(&own))
    });
    resctrl.release(own)?;
    let left = resctrl.threads("BE")?;
    ensure!(left.len() == 1 && !left.contains(&own), "{left:?}");
    parent.kill()?;
    parent.wait()?;
    ensure!(!resctrl.add("BE", own)?, "it has ended");
    Ok(())
}

/// A line each for the one cache of this machine.
fn lines(shares: &[(Resource, u64)]) -> Schemata {
    let line = |(resource, share): &(Resource, u64)| (*resource, [(0, *share)].into());
    Schemata(shares.iter().map(line).collect())
}

/// What the policy gives the classes: of eleven ways 3 to 10 and 0 to 3.
const SHARES: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    lsClass: {resctrlQOS: {enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
    beClass: {resctrlQOS: {enable: true, mbaPercent: 20}}
";

/// The same with LSR too, which has ways 0 to 8.
const OF_THREE: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    lsrClass: {resctrlQOS: {enable: true, catRangeEndPercent: 80, mbaPercent: 70}}
    lsClass: {resctrlQOS: {enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
    beClass: {resctrlQOS: {enable: true, mbaPercent: 20}}
";

/// The same again with more for BE and less for LSR.
const MORE: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    lsrClass: {resctrlQOS: {enable: true, catRangeEndPercent: 40, mbaPercent: 50}}
    lsClass: {resctrlQOS: {enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
    beClass: {resctrlQOS: {enable: true, catRangeEndPercent: 50, mbaPercent: 35}}
";

/// The same without BE.
const LS_ALONE: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    lsClass: {resctrlQOS: {enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
";

/// The annotation of a pod with a group of its own.
const HALF: (&str, &str) = (
    "node.koordinator.sh/resctrl",
    r#"{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":55}}}"#,
);

/// Groups of classes and of pods from the first instruction on, with what they are to have, and given
/// back.
async fn shares(front: Front) -> Result<()> {
    let mut node = node(ProxyOptions {
        policy: Some(OF_THREE.to_owned()),
        ..options(front)
    });
    let client = node.client().await?;
    let look = (front, |thread| Some(group_and_monitor(thread)?.0));
    let (web, found) = run_bomb(&node, &client, &spec("web", "LS"), look).await?;
    ensure!(found == set(["LS"]), "{found:?}");
    let batch = start(&node, &client, &spec("batch", "BE")).await?;
    let system = start(&node, &client, &spec("system", "SYSTEM")).await?;
    let exact = start(&node, &client, &spec("exact", "LSR")).await?;
    let own = spec("own", "LS").annotation(HALF.0, HALF.1);
    let (own, found) = run_bomb(&node, &client, &own, look).await?;
    ensure!(found == set(["koordlet-uid-own"]), "{found:?}");
    for (pod, group) in [(&batch, "BE"), (&system, ""), (&exact, "LSR")] {
        let found = groups(pod)?;
        ensure!(found == set([group]), "{found:?}, not {group:?}");
    }
    if let Some((pause, shim)) = sandbox_and_shim(&batch.cgroup, &batch.sandbox)? {
        wait_until("so are the sandbox and its shim", || {
            groups_of(&[&pause[..], &[shim]].concat()).is_ok_and(|it| it == set(["BE"]))
        });
    }
    for (group, expected) in [
        ("LSR", "L3:0=1ff MB:0=70"),
        ("LS", "L3:0=7f8 MB:0=90"),
        ("BE", "L3:0=00f MB:0=20"),
        ("koordlet-uid-own", "L3:0=03f MB:0=60"),
    ] {
        let found = schemata(group)?;
        ensure!(found == expected, "{group}: {found}, not {expected}");
    }

    node.proxy.write_policy(MORE)?;
    for (group, expected) in [("BE", "L3:0=03f MB:0=40"), ("LSR", "L3:0=01f MB:0=50")] {
        wait_until("others have more and less", || {
            schemata(group).is_ok_and(|it| it == expected)
        });
    }
    let found = schemata("LS")?;
    ensure!(found == "L3:0=7f8 MB:0=90", "of LS nothing else: {found}");
    remove(&client, &own).await?;
    wait_until("the group has gone with its pod", || {
        names().is_ok_and(|it| it == set(["BE", "LS", "LSR"]))
    });
    node.proxy.switch("RdtResctrl=off")?;
    wait_until("nothing is left once it is switched off", || {
        let left = |pod| groups(pod).is_ok_and(|it| it == set([""]));
        names().is_ok_and(|it| it.is_empty()) && left(&web) && left(&exact)
    });
    node.proxy.kill9()?;
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

/// On a processor with code and data apart, which leaves three classes: one is somebody else's.
async fn over_a_restart(front: Front) -> Result<()> {
    mount("resctrl", ROOT, "resctrl", MountFlags::empty(), c"cdp")?;
    let others = Path::new(ROOT).join("vendor");
    fs::create_dir(&others)?;
    let mut node = node(options(front));
    node.proxy.stop()?;
    let straight = CriClient::connect(&node.runtime.socket()).await?;
    let batch = start(&node, &straight, &spec("batch", "BE")).await?;
    ensure!(groups(&batch)? == set([""]), "nobody was there");
    let below = Below::enter(&batch)?;

    node.launch_proxy()?;
    wait_until("it is adopted", || {
        groups(&batch).is_ok_and(|it| it == set(["BE"]))
    });
    wait_until("so is every thread in a group below", || {
        groups_of(&below.threads).is_ok_and(|it| it == set(["BE"]))
    });
    below.end()?;
    let found = schemata("BE")?;
    ensure!(found == "L3CODE:0=00f L3DATA:0=00f MB:0=20", "{found}");
    let client = node.client().await?;
    let web = without_a_class(&node, &client).await?;
    let own = spec("own", "LS").annotation(HALF.0, HALF.1);
    let own = start(&node, &client, &own).await?;
    let shared = groups(&own)?;
    ensure!(shared == set(["LS"]), "without a class: {shared:?}");
    let told = "the processor has no more classes for group koordlet-uid-own";
    ensure!(node.proxy.log().contains(told), "{}", node.proxy.log());

    remove(&client, &batch).await?;
    wait_until("the class of another is left to it", || {
        names().is_ok_and(|it| it == set(["LS", "vendor"]))
    });
    node.proxy.write_policy(LS_ALONE)?;
    wait_until("the class of another is taken once it is free", || {
        groups(&own).is_ok_and(|it| it == set(["koordlet-uid-own"]))
    });
    let found = schemata("koordlet-uid-own")?;
    ensure!(found == "L3CODE:0=03f L3DATA:0=03f MB:0=60", "{found}");

    node.proxy.kill9()?;
    remove(&straight, &web).await?;
    node.launch_proxy()?;
    wait_until(
        "what was ours is known, and what nobody wants is gone",
        || names().is_ok_and(|it| it == set(["koordlet-uid-own", "vendor"])),
    );
    ensure!(groups(&own)? == set(["koordlet-uid-own"]), "it was lost");

    node.proxy.kill9()?;
    node.proxy
        .set_args(&["--feature-gates", "RdtResctrl=false"]);
    node.launch_proxy()?;
    wait_until("without the hooks nothing of ours is left", || {
        names().is_ok_and(|it| it == set(["vendor"]))
    });
    ensure!(groups(&own)? == set([""]), "it is in a group still");
    node.proxy.kill9()?;
    fs::remove_dir(others)?;
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

/// A pod that is started while the last class of the processor is somebody else's: it runs in the root's, and
/// comes into the group of its class once there is one.
async fn without_a_class(node: &Node, client: &CriClient) -> Result<Pod> {
    let last = Path::new(ROOT).join("last");
    fs::create_dir(&last)?;
    let web = start(node, client, &spec("web", "LS")).await?;
    let found = groups(&web)?;
    ensure!(found == set([""]), "without a class: {found:?}");
    let told = "the processor has no more classes for group LS";
    wait_until("it is told", || node.proxy.log().contains(told));
    fs::remove_dir(last)?;
    wait_until("the class is taken once it is free", || {
        groups(&web).is_ok_and(|it| it == set(["LS"]))
    });
    let found = schemata("LS")?;
    ensure!(
        found == "L3CODE:0=7f8 L3DATA:0=7f8 MB:0=90",
        "of the free one: {found}"
    );
    Ok(web)
}

/// What an applier may count on of monitoring.
async fn the_kernel_monitors() -> Result<()> {
    let resctrl = Resctrl::of_machine(Path::new("/sys"), Path::new("/proc"))?;
    let monitor = |number: u32| format!("BE/mon_groups/pod-{number}");
    ensure!(resctrl.own("BE")?, "it was not there");
    ensure!(
        resctrl.own(&monitor(1))? && !resctrl.own(&monitor(1))?,
        "it is made once"
    );
    counted_within_its_group(&resctrl, &monitor(1))?;

    // Sixteen ids, of which eight are for classes. One that has gone may be busy for a second.
    wait_until("eight are made", || {
        (1..=8).all(|number| resctrl.own(&monitor(number)).is_ok())
    });
    match resctrl.own(&monitor(9)) {
        Err(ResctrlError::NoMoreMonitors { .. }) => {}
        other => bail!("{other:?} where no id is to spare"),
    }
    let made = resctrl.monitors()?;
    ensure!(made.len() == 8, "{made:?}");
    wait_until("so are all seven classes", || {
        (2..=7).all(|number| resctrl.own(&format!("class-{number}")).is_ok())
    });
    resctrl.remove("BE")?;
    let left = resctrl.monitors()?;
    ensure!(left.is_empty(), "they outlive their group: {left:?}");
    drop(resctrl);
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

/// A monitoring group takes a thread of its group alone, loses one that comes into the group anew, and
/// leaves those that it has to the group.
fn counted_within_its_group(resctrl: &Resctrl, monitor: &str) -> Result<()> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "exec sleep 1000"])
        .spawn()?;
    let own = Tid::try_from(child.id())?;
    match resctrl.add(monitor, own) {
        Err(ResctrlError::Refused { status, .. }) if status.contains("different control") => {}
        other => bail!("{other:?} for a thread of another group"),
    }
    let has = |group: &str| Ok::<_, ResctrlError>(resctrl.threads(group)?.contains(&own));
    resctrl.add("BE", own)?;
    resctrl.add(monitor, own)?;
    ensure!(has("BE")? && has(monitor)?, "it is in both");
    resctrl.add("BE", own)?;
    ensure!(has("BE")? && !has(monitor)?, "it came into the group anew");
    resctrl.add(monitor, own)?;
    resctrl.remove(monitor)?;
    ensure!(has("BE")?, "it has left its group");
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Pods that share with their class are counted apart from the first instruction on, over a restart, and
/// until they go or nobody asks for it.
async fn monitored(front: Front) -> Result<()> {
    let mut node = node(ProxyOptions {
        args: gates("Resctrl=true,ResctrlMonitor=true"),
        ..options(front)
    });
    let client = node.client().await?;
    let container = ContainerSpec::new("main").command(BOMB);
    let web = run(&node, &client, &spec("web", "LS"), container).await?;
    let at_first = monitors(&web)?;
    ensure!(at_first == set([WEB]), "at first: {at_first:?}");
    let batch = start(&node, &client, &spec("batch", "BE")).await?;
    let system = start(&node, &client, &spec("system", "SYSTEM")).await?;
    let own = spec("own", "LS").annotation(HALF.0, HALF.1);
    let own = start(&node, &client, &own).await?;
    for (pod, monitor) in [
        (&batch, BATCH),
        (&system, ""),
        // What its own group counts is its own.
        (&own, "koordlet-uid-own"),
    ] {
        let found = monitors(pod)?;
        ensure!(found == set([monitor]), "{found:?}, not {monitor:?}");
    }
    wait_until("all have started", || {
        threads(&web.cgroup, &web.container).is_ok_and(|threads| threads.len() > 200)
    });
    let later = monitors(&web)?;
    ensure!(later == set([WEB]), "later: {later:?}");
    let sandbox = sandbox_and_shim(&batch.cgroup, &batch.sandbox)?;
    let (_, shim) = sandbox.context("a pod has a shim")?;
    wait_until("the shim is counted with its pod", || {
        counted(BATCH).is_ok_and(|it| it.contains(&shim))
    });
    let (all, inside) = (threads(&batch.cgroup, &batch.container)?, counted(BATCH)?);
    ensure!(
        all.iter().all(|it| inside.contains(it)),
        "{all:?} are not all of {inside:?}"
    );
    let occupied = Path::new(ROOT).join(BATCH);
    let occupied = fs::read_to_string(occupied.join("mon_data/mon_L3_00/llc_occupancy"))?;
    ensure!(occupied.trim().parse::<u64>().is_ok(), "{occupied}");
    monitored_until_the_end(&mut node, &web, &batch).await
}

async fn monitored_until_the_end(node: &mut Node, web: &Pod, batch: &Pod) -> Result<()> {
    node.proxy.kill9()?;
    node.launch_proxy()?;
    let client = node.client().await?;
    remove(&client, batch).await?;
    wait_until("it has gone with its pod", || {
        !Path::new(ROOT).join(BATCH).exists()
    });
    let still = monitors(web)?;
    ensure!(still == set([WEB]), "after a restart: {still:?}");

    node.proxy.kill9()?;
    node.proxy.set_args(&["--feature-gates", "Resctrl=true"]);
    node.launch_proxy()?;
    wait_until("without the gate all are counted with their class", || {
        monitors(web).is_ok_and(|it| it == set(["LS"]))
    });
    for hook in ["RdtResctrl=off", "Resctrl=off"] {
        node.proxy.switch(hook)?;
    }
    wait_until("nothing is left once both are switched off", || {
        names().is_ok_and(|it| it.is_empty())
    });
    node.proxy.kill9()?;
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

/// The threads of a monitoring group, as the kernel lists them.
fn counted(monitor: &str) -> Result<BTreeSet<Tid>> {
    let text = fs::read_to_string(Path::new(ROOT).join(monitor).join("tasks"))?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

const WEB: &str = "LS/mon_groups/koordlet-uid-web";
const BATCH: &str = "BE/mon_groups/koordlet-uid-batch";

fn options(front: Front) -> ProxyOptions {
    ProxyOptions {
        policy: Some(SHARES.to_owned()),
        args: gates("Resctrl=true"),
        front,
        ..ProxyOptions::default()
    }
}

fn gates(on: &str) -> Vec<String> {
    vec!["--feature-gates".to_owned(), on.to_owned()]
}

fn spec(name: &str, class: &str) -> PodSpec {
    PodSpec::new(name).label("koordinator.sh/qosClass", class)
}

/// A pod whose container sleeps.
async fn start(node: &Node, client: &CriClient, spec: &PodSpec) -> Result<Pod> {
    run(node, client, spec, ContainerSpec::new("main")).await
}

async fn remove(client: &CriClient, pod: &Pod) -> Result<()> {
    client.stop_container(&pod.container, 0).await?;
    client.stop_pod(&pod.sandbox).await?;
    Ok(client.remove_pod(&pod.sandbox).await?)
}

/// The groups in which the threads of a pod's container are; the root's has no name.
fn groups(pod: &Pod) -> Result<BTreeSet<String>> {
    groups_of(&threads(&pod.cgroup, &pod.container)?)
}

pub(super) fn groups_of(threads: &[Tid]) -> Result<BTreeSet<String>> {
    let group = |thread: &Tid| Some(group_and_monitor(*thread)?.0);
    let groups: BTreeSet<_> = threads.iter().filter_map(group).collect();
    ensure!(!groups.is_empty(), "no thread is there");
    Ok(groups)
}

/// Where the threads of a pod's container are counted: in monitoring groups, or with the whole group.
fn monitors(pod: &Pod) -> Result<BTreeSet<String>> {
    let monitor = |thread: &Tid| {
        let (group, monitor) = group_and_monitor(*thread)?;
        match &*monitor {
            "" => Some(group),
            _ => Some(format!("{group}/mon_groups/{monitor}")),
        }
    };
    let threads = threads(&pod.cgroup, &pod.container)?;
    let monitors: BTreeSet<_> = threads.iter().filter_map(monitor).collect();
    ensure!(!monitors.is_empty(), "no thread is there");
    Ok(monitors)
}

/// What the kernel says of a thread; the root's group, and no monitoring group, has no name.
fn group_and_monitor(thread: Tid) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{thread}/cpu_resctrl_groups")).ok()?;
    let named = |key| text.lines().find_map(|line| line.strip_prefix(key));
    // The root's is `/`.
    let group = named("res:")?.trim().trim_start_matches('/').to_owned();
    Some((group, named("mon:")?.trim().to_owned()))
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// All groups, as the kernel lists them.
pub(super) fn names() -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(ROOT)?.map(|entry| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kept = entry.file_type()?.is_dir();
        Ok(Some(name).filter(|_| kept))
    });
    let names: Vec<Option<String>> = entries.collect::<Result<_>>()?;
    let own = ["info", "mon_data", "mon_groups"];
    let groups = names.into_iter().flatten();
    Ok(groups.filter(|it| !own.contains(&it.as_str())).collect())
}

/// What a group has, a word a line in the order of the alphabet.
pub(super) fn schemata(group: &str) -> Result<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(group).join("schemata"))?;
    let lines: BTreeSet<String> = text.lines().map(|line| line.replace(' ', "")).collect();
    Ok(lines.into_iter().collect::<Vec<_>>().join(" "))
}
