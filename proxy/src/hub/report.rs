//! The ledger for people and programs: what every pod, every container and every group of the node's
//! own should have, who decided it, what was there before, and what the kernel holds now.

use super::Hub;
use crate::ledger::{
    Applied, Entry, Exemption, LeftOut, Life, NodeGroup, NodeGroupKind, Original, Pod, Rival,
    Route, Target,
};
use koord_hooks::PodView;
use koord_model::{CgroupPath, KubeQos, Setting};
use koord_proto::keys::label;
use serde::Serialize;
use tokio::time::Instant;

/// All pods, in order of namespace, name and UID, and the node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// About which nothing is decided, because others do.
    pub left_settings: Vec<&'static str>,
    pub pods: Vec<PodReport>,
    /// Tiers and host applications, in order of their directories.
    pub node: Vec<NodeGroupReport>,
    /// Hooks that failed for all of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_left_out: Vec<LeftOutReport>,
}

#[derive(Debug, Serialize)]
pub struct NodeGroupReport {
    pub cgroup: String,
    pub kind: &'static str,
    pub settings: Vec<SettingReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// The class label as it stands; empty without one.
    pub class: String,
    pub kube_qos: &'static str,
    pub sandbox: String,
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    pub settings: Vec<SettingReport>,
    /// Hooks that failed for the pod's own directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutReport>,
    pub sandbox_settings: Vec<SettingReport>,
    /// In order of name and id: a runtime lists them in none.
    pub containers: Vec<ContainerReport>,
}

/// A hook of which nothing is set but what it has at least, and why.
#[derive(Debug, Serialize)]
pub struct LeftOutReport {
    pub hook: &'static str,
    pub reason: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    pub id: String,
    pub name: String,
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    pub settings: Vec<SettingReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutReport>,
}

#[derive(Debug, Serialize)]
pub struct SettingReport {
    pub setting: &'static str,
    /// What was asked for or was there before, or `default` if nobody asked for anything; absent if
    /// it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    pub desired: String,
    pub owner: &'static str,
    pub route: &'static str,
    pub applied: String,
    /// What the kernel holds at this moment; absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// Where to read the kernel's value of a setting, in the order in which settings are reported.
type Wanted = Vec<Option<(CgroupPath, Setting)>>;

// === impl Hub ===

impl Hub {
    /// The ledger, all of it or what `filter` names: the UID, the name, the namespace and the name
    /// with a slash between them, the sandbox of a pod or the id of a container (a prefix of eight
    /// characters or more will do for ids), the directory of a group of the node's own, or `node`
    /// for all of these.
    pub async fn report(&self, filter: Option<&str>) -> Report {
        let (mut report, wanted) = self.snapshot(filter);
        let places: Vec<_> = wanted.iter().flatten().cloned().collect();
        let mut kernel = self.writer.read(&places).await.into_iter();
        let mut slots = wanted.iter();
        for setting in report.settings_mut() {
            if let Some(Some(_)) = slots.next() {
                setting.kernel = kernel.next().flatten();
            }
        }
        report
    }

    fn snapshot(&self, filter: Option<&str>) -> (Report, Wanted) {
        let ledger = self.ledger.borrow();
        let named = |pod: &&Pod| filter.is_none_or(|filter| names_pod(filter, pod));
        let mut pods: Vec<_> = ledger.pods().filter(named).collect();
        pods.sort_by_key(|Pod { view, sandbox, .. }| {
            (&view.namespace, &view.name, &view.uid, sandbox)
        });
        let mut wanted = Wanted::new();
        let pods = pods.into_iter().map(|pod| pod_report(pod, &mut wanted));
        let pods = pods.collect();
        let groups = ledger.node.iter();
        let node: Vec<_> = groups
            .filter(|group| filter.is_none_or(|filter| names_group(filter, group)))
            .map(|group| NodeGroupReport {
                cgroup: group
                    .target
                    .at
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string),
                kind: kind(group.kind),
                settings: settings(&group.target, &mut wanted),
            })
            .collect();
        let asks_of_node = filter.is_none_or(|filter| filter == "node") || !node.is_empty();
        let policy = self.policy.borrow();
        let left = policy.chain().left().iter();
        let report = Report {
            left_settings: left.map(|setting| setting.name()).collect(),
            pods,
            node,
            node_left_out: match asks_of_node {
                true => left_out(&ledger.node.left_out),
                false => Vec::new(),
            },
        };
        (report, wanted)
    }
}

// === impl Report ===

impl Report {
    /// In the order in which the kernel is asked.
    fn settings_mut(&mut self) -> impl Iterator<Item = &mut SettingReport> {
        let node = self.node.iter_mut().flat_map(|group| &mut group.settings);
        self.pods
            .iter_mut()
            .flat_map(PodReport::settings_mut)
            .chain(node)
    }
}

// === impl PodReport ===

impl PodReport {
    fn settings_mut(&mut self) -> impl Iterator<Item = &mut SettingReport> {
        let containers = self.containers.iter_mut().flat_map(|c| &mut c.settings);
        self.settings
            .iter_mut()
            .chain(&mut self.sandbox_settings)
            .chain(containers)
    }
}

fn pod_report(pod: &Pod, wanted: &mut Wanted) -> PodReport {
    let mut containers: Vec<_> = pod.containers.iter().collect();
    containers.sort_by_key(|container| (&container.view.name, &container.id));
    PodReport {
        settings: settings(&pod.own, wanted),
        left_out: left_out(&pod.own.left_out),
        sandbox_settings: settings(&pod.pause, wanted),
        containers: containers
            .into_iter()
            .map(|container| ContainerReport {
                id: container.id.to_string(),
                name: container.view.name.clone(),
                state: life(container.life),
                cgroup: container.target.at.as_ref().map(ToString::to_string),
                settings: settings(&container.target, wanted),
                left_out: left_out(&container.target.left_out),
            })
            .collect(),
        uid: pod.view.uid.to_string(),
        namespace: pod.view.namespace.clone(),
        name: pod.view.name.clone(),
        class: class(&pod.view),
        kube_qos: pod.view.kube_qos.as_str(),
        sandbox: pod.sandbox.to_string(),
        ready: pod.ready,
        exempt: pod.exemption.map(exemption),
        cgroup: pod.own.at.as_ref().map(ToString::to_string),
    }
}

fn names_pod(filter: &str, pod: &Pod) -> bool {
    let mut containers = pod.containers.iter();
    let full_name = (pod.view.namespace.as_str(), pod.view.name.as_str());
    pod.view.uid.as_str() == filter
        || pod.view.name == filter
        || filter.split_once('/') == Some(full_name)
        || is_id(pod.sandbox.as_str(), filter)
        || containers.any(|container| is_id(container.id.as_str(), filter))
}

fn names_group(filter: &str, group: &NodeGroup) -> bool {
    let directory = filter.trim_matches('/');
    let at = group.target.at.as_ref();
    filter == "node" || at.is_some_and(|at| at.as_str() == directory)
}

fn is_id(id: &str, filter: &str) -> bool {
    id == filter || (filter.len() >= 8 && id.starts_with(filter))
}

fn class(pod: &PodView) -> String {
    pod.labels
        .get(label::QOS_CLASS)
        .unwrap_or_default()
        .to_owned()
}

fn settings(target: &Target, wanted: &mut Wanted) -> Vec<SettingReport> {
    target
        .entries()
        .iter()
        .map(|entry| {
            let setting = entry.desired.setting();
            wanted.push(target.at.clone().map(|at| (at, setting)));
            report(entry)
        })
        .collect()
}

fn left_out(left_out: &[LeftOut]) -> Vec<LeftOutReport> {
    let report = |it: &LeftOut| LeftOutReport {
        hook: it.hook,
        reason: it.reason.clone().into(),
    };
    left_out.iter().map(report).collect()
}

fn report(entry: &Entry) -> SettingReport {
    SettingReport {
        setting: entry.desired.setting().name(),
        asked: match &entry.original {
            Original::Value(value) => Some(value.to_string()),
            Original::Default => Some("default".to_owned()),
            Original::Unknown => None,
        },
        desired: entry.desired.to_string(),
        owner: entry.owner,
        route: match entry.route {
            Route::Request => "request",
            Route::Kernel => "kernel",
        },
        applied: state(entry),
        kernel: None,
    }
}

/// What became of a value, for people.
pub(crate) fn state(entry: &Entry) -> String {
    match &entry.applied {
        Applied::Pending if entry.desired.setting().is_injected() => {
            "unknown: the container was made before".to_owned()
        }
        Applied::Pending => "pending".to_owned(),
        Applied::Equal => "equal".to_owned(),
        Applied::Written => "written".to_owned(),
        Applied::Masked => "masked".to_owned(),
        Applied::Absent => "absent".to_owned(),
        Applied::Unsupported => "unsupported here".to_owned(),
        Applied::Refused(None) => "refused".to_owned(),
        Applied::Refused(Some(errno)) => {
            format!("refused: {}", std::io::Error::from_raw_os_error(*errno))
        }
        Applied::Lacking(why) if entry.desired.setting().is_of_devices() => {
            format!("not for all devices: {why}")
        }
        Applied::Lacking(why) => format!("not in force: {why}"),
        Applied::Left => "left: what was before is unknown".to_owned(),
        Applied::Paused | Applied::Yielded => {
            let pause = entry.contest.pause(Instant::now()).unwrap_or_default();
            let writer = Rival::name(entry.contest.rival);
            format!(
                "left to another writer ({writer}) for {} s",
                pause.as_secs()
            )
        }
    }
}

fn kind(kind: NodeGroupKind) -> &'static str {
    match kind {
        NodeGroupKind::Root => "root",
        NodeGroupKind::Tier(KubeQos::Guaranteed) => "all pods",
        NodeGroupKind::Tier(KubeQos::Burstable) => "burstable pods",
        NodeGroupKind::Tier(KubeQos::BestEffort) => "best-effort pods",
        NodeGroupKind::HostApplication => "host application",
    }
}

fn life(life: Life) -> &'static str {
    match life {
        Life::Created => "created",
        Life::Running => "running",
        Life::Exited => "exited",
    }
}

fn exemption(exemption: Exemption) -> &'static str {
    match exemption {
        Exemption::SkipLabel => "skip label",
        Exemption::Namespace => "excluded namespace",
        Exemption::RuntimeHandler => "excluded runtime handler",
    }
}
