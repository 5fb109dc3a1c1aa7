//! What there is to be found of groups of pods: by the ledger, and by plain reads past the proxy.

use crate::RunningPod;
use anyhow::{Context, Result, ensure};
use koord_testkit::poll::comes_true;
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
const FILES: [(&str, &str); 17] = [
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

/// What the kernel has of pods, their containers and a process of each, in the order of the pods.
pub(super) fn held(pods: &[RunningPod]) -> Result<Decided> {
    let mut held = Decided::new();
    for (at, pod) in pods.iter().enumerate() {
        let container = |controller: &str| pod.cgroup.directory(controller).join(&pod.container);
        hold(&at.to_string(), |it| pod.cgroup.directory(it), &mut held)?;
        hold(&format!("container of {at}"), container, &mut held)?;
        let processes = fs::read_to_string(container("cpu").join("cgroup.procs"))?;
        let first = processes.lines().next().context("the container runs")?;
        for file in OF_PROCESS {
            if let Some(text) = text(&Path::new("/proc").join(first).join(file))? {
                held.insert(format!("process of {at} {file}"), text);
            }
        }
    }
    Ok(held)
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
