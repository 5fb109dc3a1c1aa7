//! From CRI messages to what hooks look at.

use koord_hooks::{ContainerKind, ContainerView, Map, Parsed, PodView, Requested, Unified};
use koord_kernel::cgroup;
use koord_model::{
    CgroupPath, CpuPeriod, CpuQuota, CpuSet, CpuShares, KubeQos, MemoryLimit, MemoryProtection,
    OomScoreAdj, PodUid,
};
use koord_proto::cri;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The labels and annotations that anybody here reads.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    labels: BTreeSet<Arc<str>>,
    annotations: BTreeSet<Arc<str>>,
    /// All of them, the shortest first.
    keys: Box<[Arc<str>]>,
    /// The shapes of all keys, a bit each: it rules out most of what a pod brings without a look at
    /// the text.
    shapes: [u64; SHAPES / 64],
}

/// How a pod is called.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub namespace: &'a str,
}

/// How many shapes are told apart: several times as many as there are keys.
const SHAPES: usize = 512;

/// The shape of a key: its length and its last byte, which few keys share.
fn shape(key: &[u8]) -> usize {
    let last = key.last().copied().unwrap_or_default();
    ((key.len() << 4) ^ usize::from(last)) % SHAPES
}

// === impl Inputs ===

impl Inputs {
    pub fn new<'a>(
        labels: impl IntoIterator<Item = &'a str>,
        annotations: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let labels: BTreeSet<Arc<str>> = labels.into_iter().map(Arc::from).collect();
        let annotations: BTreeSet<Arc<str>> = annotations.into_iter().map(Arc::from).collect();
        let mut keys: Box<[Arc<str>]> = labels.iter().chain(&annotations).cloned().collect();
        keys.sort_by_key(|key| key.len());
        let mut shapes = [0; SHAPES / 64];
        for shape in keys.iter().map(|key| shape(key.as_bytes())) {
            shapes[shape / 64] |= 1 << (shape % 64);
        }
        Self {
            shapes,
            keys,
            labels,
            annotations,
        }
    }

    /// Whether anybody reads the label or annotation with this key.
    pub fn has(&self, key: &[u8]) -> bool {
        let shape = shape(key);
        if self.shapes[shape / 64] >> (shape % 64) & 1 == 0 {
            return false;
        }
        let first = self.keys.partition_point(|it| it.len() < key.len());
        let mut as_long = self.keys[first..]
            .iter()
            .take_while(|it| it.len() == key.len());
        as_long.any(|it| it.as_bytes() == key)
    }

    /// What is read of a pod's labels and annotations.
    pub fn of<'a>(
        &self,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        annotations: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> (Map, Map) {
        (
            keep(&self.labels, labels),
            keep(&self.annotations, annotations),
        )
    }

    /// The same, shared with what is `known` where that is it.
    pub fn of_known<'a>(
        &self,
        known: Option<(&Map, &Map)>,
        labels: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        annotations: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> (Map, Map) {
        match known {
            Some(known) if known.0.is(labels.clone()) && known.1.is(annotations.clone()) => {
                (known.0.clone(), known.1.clone())
            }
            _ => self.of(labels, annotations),
        }
    }
}

/// The pod's directory as the request for it names it; `None` when it names none or no valid one.
pub fn cgroup_parent(config: &cri::PodSandboxConfig) -> Option<CgroupPath> {
    directory_of(&config.linux.as_ref()?.cgroup_parent)
}

/// The directory that a `cgroup_parent` means, if it means one.
pub fn directory_of(cgroup_parent: &str) -> Option<CgroupPath> {
    let path = cgroup::directory_of_parent(cgroup_parent).ok()?;
    Some(path).filter(|path| !path.is_root())
}

/// The directory that is this pod's alone. A kubelet without a cgroup for each pod, or another CRI
/// client, names a directory that many share: containers are there, but what hooks decide for one
/// pod must not be written to it.
pub fn own_directory(parent: Option<&CgroupPath>, uid: &PodUid) -> Option<CgroupPath> {
    let parent = parent?;
    let name = parent.file_name()?;
    let slice = format!("pod{}.slice", uid.as_str().replace('-', "_"));
    let own = name == format!("pod{uid}")
        || name
            .strip_suffix(&slice)
            .is_some_and(|above| above.is_empty() || above.ends_with('-'));
    own.then(|| parent.clone())
}

/// A pod from the sandbox config of RunPodSandbox; `None` if it names no pod. Only labels and annotations
/// that a hook reads are kept: a node's worth of pods stays small.
pub fn pod(
    config: &cri::PodSandboxConfig,
    runtime_handler: &str,
    parent: Option<&CgroupPath>,
    inputs: &Inputs,
) -> Option<PodView> {
    let metadata = config.metadata.as_ref()?;
    let texts = inputs.of(texts(&config.labels), texts(&config.annotations));
    from_parts(named(metadata), texts, runtime_handler, parent)
}

/// The same from the creation of a container, which shares its texts with what is `known` of the pod where
/// they say the same.
pub fn lent_pod(
    pod: &cri::LentPod<'_>,
    known: Option<(&Map, &Map)>,
    runtime_handler: &str,
    parent: Option<&CgroupPath>,
    inputs: &Inputs,
) -> Option<PodView> {
    let (labels, annotations) = (pod.labels.iter().copied(), pod.annotations.iter().copied());
    let texts = inputs.of_known(known, labels, annotations);
    let named = Named {
        name: pod.name,
        uid: pod.uid,
        namespace: pod.namespace,
    };
    from_parts(named, texts, runtime_handler, parent)
}

/// What a pod's metadata says that it is called.
pub fn named(metadata: &cri::PodSandboxMetadata) -> Named<'_> {
    Named {
        name: &metadata.name,
        uid: &metadata.uid,
        namespace: &metadata.namespace,
    }
}

/// A pod from what lists and requests both have: `texts` are what is read of its labels and annotations.
pub fn from_parts(
    named: Named<'_>,
    (labels, annotations): (Map, Map),
    runtime_handler: &str,
    parent: Option<&CgroupPath>,
) -> Option<PodView> {
    Some(PodView {
        uid: PodUid::new(named.uid).ok()?,
        namespace: named.namespace.to_owned(),
        name: named.name.to_owned(),
        labels,
        annotations,
        spec: None,
        kube_qos: parent
            .and_then(cgroup::kube_qos)
            .unwrap_or(KubeQos::Guaranteed),
        runtime_handler: runtime_handler.to_owned(),
        parsed: Parsed::default(),
    })
}

/// The entries of a map.
pub fn texts<'a, I: Iterator<Item = (&'a String, &'a String)> + Clone>(
    map: impl IntoIterator<IntoIter = I>,
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    let entries = map.into_iter();
    entries.map(|(key, text)| (key.as_str(), text.as_str()))
}

fn keep<'a>(wanted: &BTreeSet<Arc<str>>, map: impl Iterator<Item = (&'a str, &'a str)>) -> Map {
    map.filter_map(|(key, text)| Some((wanted.get(key)?.clone(), text)))
        .collect()
}

pub fn container(config: &cri::ContainerConfig, requested: Requested) -> ContainerView {
    ContainerView {
        name: config
            .metadata
            .as_ref()
            .map(|metadata| metadata.name.clone())
            .unwrap_or_default(),
        kind: ContainerKind::Regular,
        requested,
        heard: true,
        found_quota: None,
    }
}

/// What a creation asks for. Runtimes take its OOM score as it is there, zero too, and never look at
/// that of an update.
pub fn requested_at_creation(linux: Option<&cri::LinuxContainerResources>) -> Requested {
    Requested {
        oom_score_adj: linux.and_then(|linux| OomScoreAdj::new(linux.oom_score_adj).ok()),
        ..requested(linux)
    }
}

/// What a request asks for. In CRI zero and the empty string mean "not said"; a number that is out
/// of the kernel's range is the runtime's to refuse, and not said to hooks.
pub fn requested(linux: Option<&cri::LinuxContainerResources>) -> Requested {
    let Some(linux) = linux else {
        return Requested::default();
    };
    Requested {
        cpu_shares: CpuShares::new(linux.cpu_shares).ok(),
        cpu_quota: said(linux.cpu_quota).and_then(|quota| CpuQuota::from_micros(quota).ok()),
        cpu_period: CpuPeriod::new(linux.cpu_period).ok(),
        memory_limit: said(linux.memory_limit_in_bytes).map(MemoryLimit::from_bytes),
        cpuset_cpus: Some(&linux.cpuset_cpus)
            .filter(|list| !list.is_empty())
            .and_then(|list| list.parse().ok()),
        oom_score_adj: None,
        unified: unified(|file| linux.unified.get(file).map(String::as_str)),
    }
}

/// The limit of memory and swap together that a request names.
pub fn swap_said(linux: Option<&cri::LinuxContainerResources>) -> Option<MemoryLimit> {
    said(linux?.memory_swap_limit_in_bytes).map(MemoryLimit::from_bytes)
}

/// That limit once a request is done that asks for this and says `said` of it; none if the container is
/// not to swap. Runtimes let one that is told of memory alone swap no more.
pub fn swap_after(
    before: Option<MemoryLimit>,
    said: Option<MemoryLimit>,
    asked: &Requested,
) -> Option<MemoryLimit> {
    match asked.memory_limit {
        Some(_) => said,
        None => said.or(before),
    }
}

/// What is asked for by the names of files of cgroup v2, where it is what the kernel takes.
pub fn unified<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Unified {
    let limit = |file| match text(file)?.trim() {
        "max" => Some(MemoryLimit::Unlimited),
        bytes => Some(MemoryLimit::Bytes(bytes.parse().ok()?)),
    };
    let kept = |file| {
        limit(file).map(|limit| match limit {
            MemoryLimit::Bytes(bytes) => MemoryProtection::Bytes(bytes),
            MemoryLimit::Unlimited => MemoryProtection::All,
        })
    };
    Unified {
        memory_min: kept("memory.min"),
        memory_low: kept("memory.low"),
        memory_high: limit("memory.high"),
        memory_oom_group: match text("memory.oom.group").map(str::trim) {
            Some("0") => Some(false),
            Some("1") => Some(true),
            _ => None,
        },
    }
}

/// The same as texts, by file.
pub fn unified_texts(unified: Unified) -> BTreeMap<String, String> {
    let limit = |limit: MemoryLimit| match limit {
        MemoryLimit::Bytes(bytes) => bytes.to_string(),
        MemoryLimit::Unlimited => "max".to_owned(),
    };
    let kept = |kept: MemoryProtection| match kept {
        MemoryProtection::Bytes(bytes) => bytes.to_string(),
        MemoryProtection::All => "max".to_owned(),
    };
    let Unified {
        memory_min,
        memory_low,
        memory_high,
        memory_oom_group,
    } = unified;
    let texts = [
        ("memory.min", memory_min.map(kept)),
        ("memory.low", memory_low.map(kept)),
        ("memory.high", memory_high.map(limit)),
        (
            "memory.oom.group",
            memory_oom_group.map(|on| u8::from(on).to_string()),
        ),
    ];
    let texts = texts.into_iter();
    texts
        .filter_map(|(file, text)| text.map(|text| (file.to_owned(), text)))
        .collect()
}

/// What a kubelet writes to a pod's directory: what its containers ask for together, and what the
/// runtime itself needs for it. A sum with something unlimited is unlimited.
pub fn requested_of_pod(
    resources: Option<&cri::LinuxContainerResources>,
    overhead: Option<&cri::LinuxContainerResources>,
) -> Requested {
    let mut sum = resources.cloned().unwrap_or_default();
    if let Some(more) = overhead {
        sum.cpu_shares = sum.cpu_shares.saturating_add(more.cpu_shares);
        sum.cpu_quota = limits_together(sum.cpu_quota, more.cpu_quota);
        sum.memory_limit_in_bytes =
            limits_together(sum.memory_limit_in_bytes, more.memory_limit_in_bytes);
    }
    requested(Some(&sum))
}

/// Whether everything that a request says is what this node's kernel could take. A request that is
/// not so is the runtime's to refuse: a value of ours in place of a bad one would hide it.
pub fn is_sound(linux: &cri::LinuxContainerResources, usable: &CpuSet) -> bool {
    let requested = requested(Some(linux));
    let agree = |said: bool, understood: bool| said == understood;
    agree(linux.cpu_shares != 0, requested.cpu_shares.is_some())
        && agree(linux.cpu_quota != 0, requested.cpu_quota.is_some())
        && agree(linux.cpu_period != 0, requested.cpu_period.is_some())
        && agree(
            !linux.cpuset_cpus.is_empty(),
            requested.cpuset_cpus.is_some(),
        )
        && OomScoreAdj::new(linux.oom_score_adj).is_ok()
        && requested
            .cpuset_cpus
            .is_none_or(|cpus| cpus.is_subset(usable))
}

/// The sum of two limits as CRI says them: 0 is not said, below it is unlimited.
fn limits_together(one: i64, other: i64) -> i64 {
    match (one, other) {
        (1.., 1..) => one.saturating_add(other),
        (1.., ..=-1) => other,
        _ => one,
    }
}

fn said(number: i64) -> Option<i64> {
    (number != 0).then_some(number)
}

/// What was asked before, with what an update asks on top.
pub fn overlaid(before: &Requested, now: Requested) -> Requested {
    Requested {
        cpu_shares: now.cpu_shares.or(before.cpu_shares),
        cpu_quota: now.cpu_quota.or(before.cpu_quota),
        cpu_period: now.cpu_period.or(before.cpu_period),
        memory_limit: now.memory_limit.or(before.memory_limit),
        cpuset_cpus: now.cpuset_cpus.or_else(|| before.cpuset_cpus.clone()),
        oom_score_adj: now.oom_score_adj.or(before.oom_score_adj),
        unified: Unified {
            memory_min: now.unified.memory_min.or(before.unified.memory_min),
            memory_low: now.unified.memory_low.or(before.unified.memory_low),
            memory_high: now.unified.memory_high.or(before.unified.memory_high),
            memory_oom_group: now
                .unified
                .memory_oom_group
                .or(before.unified.memory_oom_group),
        },
    }
}

#[cfg(test)]
mod tests;
