//! What there is to be found of groups of pods: by the ledger, and by plain reads past the proxy.

use crate::RunningPod;
use anyhow::{Context, Result, ensure};
use koord_kernel::core_sched::{Cookie, CoreSched as _, Kernel};
use koord_testkit::{CgroupHierarchy, poll::comes_true};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// What was asked, what is decided, by whom, and what the kernel has, of each setting of each group; and
/// what is there by plain reads of the files.
pub(super) type Decided = BTreeMap<String, String>;

/// All that the ledger tells, and the plain reads.
pub(super) type Found = (BTreeMap<String, Value>, Decided);

/// Files of groups in which hooks' values are, each with the controller in whose directory it is: of
/// cgroup v1, of v2, where a group has one directory, and of both. Of CPUs it is those that a group
/// really has: on v2 no list is taken back from one with processes, and all CPUs stay one.
pub(super) const FILES: [(&str, &str); 17] = [
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_burst_us"),
    ("cpuset", "cpuset.effective_cpus"),
    ("memory", "memory.limit_in_bytes"),
    ("cpu", "cpu.weight"),
    ("cpu", "cpu.max"),
    ("cpu", "cpu.max.burst"),
    ("cpuset", "cpuset.cpus.effective"),
    ("memory", "memory.max"),
    ("memory", "memory.min"),
    ("memory", "memory.low"),
    ("memory", "memory.high"),
    ("memory", "memory.oom.group"),
    ("memory", "io.max"),
    ("memory", "io.weight"),
    ("cpu", "cpu.idle"),
];

/// Of a process.
const OF_PROCESS: [&str; 2] = ["oom_score_adj", "cpu_resctrl_groups"];

/// What Terway reads: of classes, and of pods.
const OF_NETWORK: [&str; 2] = ["global_bps_config", "pod.json"];

/// Of the root of all groups of cgroup v2.
const OF_ROOT: [&str; 2] = ["io.cost.qos", "io.cost.model"];

/// Where the kernel has groups of caches.
pub(super) const CACHES: &str = "/sys/fs/resctrl";

/// Those of which the groups of caches are called so.
const CLASSES: [&str; 3] = ["LSR", "LS", "BE"];

/// The weights of 512 and of 256 shares by the two curves from one to the other. Which of them the
/// runtime goes by is known after one of its lists, at no time that anybody promises.
const WEIGHTS: [(&str, &str); 2] = [("20", "59"), ("10", "35")];

/// Fails unless pods have what others like them have, of which nobody has decided anything.
pub(super) fn given_back(pods: &[RunningPod], bare: &[RunningPod]) -> Result<()> {
    let (mut back, mut bare_ones) = (Decided::new(), Decided::new());
    let are_alike = comes_true(|| {
        back = held(pods).unwrap_or_default();
        bare_ones = held(bare).unwrap_or_default();
        !back.is_empty() && back == bare_ones
    });
    ensure!(
        are_alike,
        "given back, and never touched: {:#?}",
        different(&back, &bare_ones)
    );
    Ok(())
}

/// What the kernel has of pods, their containers and a process of each and of its sandbox, in the order
/// of the pods.
pub(super) fn held(pods: &[RunningPod]) -> Result<Decided> {
    let mut held = Decided::new();
    let mut cookies = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        let container = |controller: &str| pod.cgroup.directory(controller).join(&pod.container);
        hold(&at.to_string(), |it| pod.cgroup.directory(it), &mut held)?;
        hold(&format!("container of {at}"), container, &mut held)?;
        for (whose, group) in [("process", &pod.container), ("sandbox", &pod.sandbox)] {
            let group = pod.cgroup.directory("cpu").join(group);
            let processes = fs::read_to_string(group.join("cgroup.procs"))?;
            let first = processes.lines().next().context("the container runs")?;
            let name = format!("{whose} of {at}");
            hold_process(&name, first, &mut cookies, &mut held)?;
        }
    }
    Ok(held)
}

/// What it has of a process. Of cookies it counts who has the same: they are numbered as they are met.
fn hold_process(
    name: &str,
    process: &str,
    cookies: &mut Vec<Cookie>,
    held: &mut Decided,
) -> Result<()> {
    for file in OF_PROCESS {
        if let Some(text) = text(&Path::new("/proc").join(process).join(file))? {
            held.insert(format!("{name} {file}"), text);
        }
    }
    let Ok(kernel) = Kernel::open(false) else {
        return Ok(());
    };
    let cookie = kernel.cookie(process.parse()?)?;
    let cookie = cookie.map(|cookie| {
        let at = cookies.iter().position(|it| *it == cookie);
        at.unwrap_or_else(|| {
            cookies.push(cookie);
            cookies.len() - 1
        })
    });
    let cookie = cookie.map_or("none".to_owned(), |at| at.to_string());
    held.insert(format!("{name} cookie"), cookie);
    Ok(())
}

/// How the time of devices is shared out, which no group but the root says.
pub(super) fn shared(hierarchies: &[CgroupHierarchy], held: &mut Decided) -> Result<()> {
    for path in files_of_root(hierarchies) {
        if let (Some(text), Some(file)) = (text(&path)?, path.file_name()) {
            held.insert(file.to_string_lossy().into_owned(), text);
        }
    }
    Ok(())
}

/// The files that say so, as far as they are there.
pub(super) fn files_of_root(hierarchies: &[CgroupHierarchy]) -> Vec<PathBuf> {
    let of = |it: &CgroupHierarchy| OF_ROOT.map(|file| it.mount_point().join(file));
    let files = hierarchies.iter().flat_map(of);
    files.filter(|it| it.exists()).collect()
}

/// What each group of caches has, and who is counted apart in it.
pub(super) fn caches(held: &mut Decided) -> Result<()> {
    let root = Path::new(CACHES);
    for name in names(root)? {
        if CLASSES.contains(&&*name) || name.starts_with("koordlet-") {
            let group = root.join(&name);
            let schemata = text(&group.join("schemata"))?;
            held.extend(schemata.map(|it| (format!("cache group {name}"), it)));
            let monitors: Vec<String> = names(&group.join("mon_groups"))?.into_iter().collect();
            held.insert(format!("counted in {name}"), monitors.join(", "));
        }
    }
    Ok(())
}

/// What is in a directory, if it is there.
fn names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// What the network plugin is told, wherever groups are, and of each pod by itself too.
pub(super) fn network(folder: &Path, root: &str, held: &mut Decided) -> Result<()> {
    for file in OF_NETWORK {
        if let Some(told) = text(&folder.join(file))? {
            held.insert(file.to_owned(), told.replace(root, ""));
        }
    }
    if let Some(told) = held.get("pod.json") {
        let pods: BTreeMap<String, Value> = serde_json::from_str(told)?;
        for (uid, pod) in pods {
            let told = format!("{} {}", pod["prio"], pod["qosConfig"]);
            held.insert(format!("network of {uid}"), told);
        }
    }
    Ok(())
}

/// What the kernel has of one group, by the files that are there.
pub(super) fn hold(
    name: &str,
    directory: impl Fn(&str) -> PathBuf,
    held: &mut Decided,
) -> Result<()> {
    for (controller, file) in FILES {
        let text = text(&directory(controller).join(file))?;
        let text = text.map(|text| match file {
            "cpu.weight" => same_weight(&text).to_owned(),
            _ => text,
        });
        held.extend(text.map(|text| (format!("{name} {file}"), text)));
    }
    Ok(())
}

/// The lines of a file, if there is one.
pub(super) fn text(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => {
            let read = read.with_context(|| file.display().to_string())?;
            Ok(Some(read.lines().collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Some of what the ledger tells of each setting, and the plain reads.
pub(super) fn decided((settings, held): Found, words: &[&str]) -> Decided {
    let told = settings.into_iter().map(|(name, it)| {
        let words = words.iter().map(|word| match (*word, it[word].as_str()) {
            ("kernel", Some(text)) if it["setting"] == "cpu.shares" => {
                format!("{:?}", same_weight(text))
            }
            _ => it[word].to_string(),
        });
        (name, words.collect::<Vec<_>>().join(" "))
    });
    let mut told: Decided = told.collect();
    same_cookies(&mut told);
    told.extend(held);
    told
}

/// What two have not alike.
pub(super) fn different<'a>(
    one: &'a Decided,
    other: &'a Decided,
) -> Vec<(&'a String, Option<&'a String>, Option<&'a String>)> {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let both = keys.into_iter();
    let both = both.map(|it| (it, one.get(it), other.get(it)));
    both.filter(|(_, one, other)| one != other).collect()
}

fn same_weight(text: &str) -> &str {
    let curves = WEIGHTS.iter().find(|(_, other)| *other == text);
    curves.map_or(text, |(one, _)| one)
}

/// Cookies are numbers that the kernel gives but once: what counts is who has the same.
fn same_cookies(all: &mut Decided) {
    let mut known: Vec<String> = Vec::new();
    let of_cores = |(key, _): &(&String, &mut String)| key.ends_with("\"core_sched\"");
    for (_, value) in all.iter_mut().filter(of_cores) {
        let Some((decided, cookie)) = value.rsplit_once(' ') else {
            continue;
        };
        let digits = cookie.trim_matches('"');
        if digits.len() != 8 || u32::from_str_radix(digits, 16).is_err() {
            continue;
        }
        let at = known.iter().position(|it| it == digits);
        let at = at.unwrap_or(known.len());
        if at == known.len() {
            known.push(digits.to_owned());
        }
        *value = format!("{decided} cookie {at}");
    }
}
