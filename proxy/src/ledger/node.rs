//! What control groups of the node's own should have: tiers of pods, and applications beside
//! Kubernetes.
//!
//! Both follow from the policy. A group that it names no more gets back what it had and is
//! forgotten once it has.

use super::{LeftOut, Route, Scope, Target, Unasked, of_directories};
use koord_hooks::{Merged, NodeMerged, TierPaths};
use koord_kernel::cgroup::{Cgroups, Directories, Original as Noted};
use koord_model::{CgroupPath, KubeQos, Value};
use std::collections::BTreeMap;

/// What a control group of the node's own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeGroupKind {
    /// The root of all control groups.
    Root,
    Tier(KubeQos),
    HostApplication,
}

#[derive(Clone, Debug)]
pub struct NodeGroup {
    pub kind: NodeGroupKind,
    pub target: Target,
    directories: Directories,
}

/// All of them that are ours to set or to give back, by their directory.
#[derive(Clone, Debug, Default)]
pub struct NodeGroups {
    groups: BTreeMap<CgroupPath, NodeGroup>,
    /// Of these nothing is decided for any of them.
    pub left_out: Vec<LeftOut>,
}

// === impl NodeGroupKind ===

impl NodeGroupKind {
    pub fn scope(self) -> Scope {
        match self {
            Self::Root => Scope::Root,
            Self::Tier(_) => Scope::Tier,
            Self::HostApplication => Scope::HostApplication,
        }
    }
}

// === impl NodeGroup ===

impl NodeGroup {
    fn new(kind: NodeGroupKind, at: CgroupPath) -> Self {
        Self {
            kind,
            target: Target::at(Some(at)).unasked(Unasked::Unknown),
            directories: Directories::default(),
        }
    }

    /// Notices that an application's group was made anew since the last time, as with each start of a
    /// service: that ours is not there is nobody's doing then.
    pub fn notice_new_group(&mut self, cgroups: &Cgroups) {
        if let (NodeGroupKind::HostApplication, Some(at)) = (self.kind, &self.target.at)
            && self.directories.are_others(cgroups, at)
        {
            self.target.was_made_anew();
        }
    }
}

// === impl NodeGroups ===

impl NodeGroups {
    pub fn iter(&self) -> impl Iterator<Item = &NodeGroup> {
        self.groups.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut NodeGroup> {
        self.groups.values_mut()
    }

    pub fn get_mut(&mut self, at: &CgroupPath) -> Option<&mut NodeGroup> {
        self.groups.get_mut(at)
    }

    /// Takes over a decision about the whole node: what it does not name is given back.
    pub fn decide(&mut self, merged: &NodeMerged, tiers: &TierPaths) {
        let root = CgroupPath::root();
        let mut wanted = wanted(merged, tiers);
        wanted.insert(&root, (NodeGroupKind::Root, &merged.root));
        for (at, (kind, _)) in &wanted {
            let group = || NodeGroup::new(*kind, (*at).clone());
            self.groups.entry((*at).clone()).or_insert_with(group);
        }
        let nothing = Merged::default();
        for (at, group) in &mut self.groups {
            let merged = match wanted.get(at) {
                Some((kind, merged)) => {
                    group.kind = *kind;
                    merged
                }
                None => &nothing,
            };
            group
                .target
                .decide(merged, |_| Route::Kernel, of_directories);
        }
        self.settle();
    }

    /// Takes over a value of ours at the root from before a restart: if nobody decides it any more it is
    /// given back.
    pub fn recall(&mut self, ours: Value) {
        let root = CgroupPath::root();
        let new = || NodeGroup::new(NodeGroupKind::Root, root.clone());
        let group = self.groups.entry(root.clone()).or_insert_with(new);
        group.target.recall(ours, None);
    }

    /// Takes over what was noted on a group: see [`Target::recall_noted`].
    pub fn recall_noted(&mut self, at: &CgroupPath, kind: NodeGroupKind, noted: &Noted) {
        let new = || NodeGroup::new(kind, at.clone());
        let group = self.groups.entry(at.clone()).or_insert_with(new);
        group.target.recall_noted(noted);
    }

    /// Lets go of what was given back, and of groups that nothing is decided for.
    pub fn settle(&mut self) {
        self.groups.retain(|_, group| {
            group.target.settle();
            !group.target.entries().is_empty()
        });
    }
}

/// What is decided, by directory, but for the root's. An application that names a tier's directory as
/// its own has what the tier has, be that nothing; the root is no tier's and no application's.
fn wanted<'a>(
    merged: &'a NodeMerged,
    tiers: &'a TierPaths,
) -> BTreeMap<&'a CgroupPath, (NodeGroupKind, &'a Merged)> {
    let of_tiers = [&tiers.kubepods, &tiers.burstable, &tiers.best_effort];
    let tiers = merged.tiers.iter().map(|(tier, merged)| {
        let at = match tier {
            KubeQos::Guaranteed => &tiers.kubepods,
            KubeQos::Burstable => &tiers.burstable,
            KubeQos::BestEffort => &tiers.best_effort,
        };
        (at, (NodeGroupKind::Tier(*tier), merged))
    });
    let applications = merged.host_applications.iter();
    let applications = applications.filter(|(at, _)| !of_tiers.contains(at));
    let applications =
        applications.map(|(at, merged)| (at, (NodeGroupKind::HostApplication, merged)));
    let mut wanted = BTreeMap::new();
    for (at, group) in tiers.chain(applications).filter(|(at, _)| !at.is_root()) {
        wanted.entry(at).or_insert(group);
    }
    wanted
}
