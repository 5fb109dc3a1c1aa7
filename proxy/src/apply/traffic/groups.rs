//! Class ids of control groups, which name the class by which a pod sends (`net_cls.classid`).
//!
//! A pod's own group has it and every group below: what is made there later has that of the group in which
//! it is made, and what was there before has none until it is given one. Ids are ours by the major number
//! of our queues; those of others are left.

use super::shape::{QDISC, Shape};
use koord_kernel::{
    cgroup::{ClassIds, kube_qos},
    netlink::{NetlinkError, traffic::Handle},
};
use koord_model::CgroupPath;
use std::io;
use thiserror::Error;
use tracing::debug;

/// That of a group that was given none.
const NONE: Handle = Handle::of_number(0);

/// Why pods are not known by their control groups.
#[derive(Debug, Error)]
pub enum GroupsError {
    #[error("packets cannot be told apart by them")]
    Filter(#[source] NetlinkError),
    #[error("control group {at} has the class id {id}, which is not ours")]
    Another { at: CgroupPath, id: Handle },
    #[error("class ids cannot be brought in line at control group {at}")]
    Id { at: CgroupPath, source: io::Error },
}

/// Brings the ids of all groups in line, a group before those below it, and says whether any was written.
/// What fails for one keeps it from no other: it is the first error. Without a shape none of ours stays
/// in or below a group of pods.
pub fn bring_ids(ids: &ClassIds, shape: Option<&Shape>) -> Result<bool, GroupsError> {
    let mut written = false;
    let mut failed = None;
    let mut left = vec![(CgroupPath::root(), None)];
    while let Some((group, above)) = left.pop() {
        let class = shape.and_then(|shape| shape.of_group(&group)).or(above);
        let given = match wanted(&group, class, shape) {
            Some(wanted) => give(ids, &group, wanted),
            None => Ok(false),
        };
        match given {
            Ok(is_new) => written |= is_new,
            Err(error) => failed = failed.or(Some(error)),
        }
        match ids.below(&group) {
            Ok(below) => left.extend(below.into_iter().map(|below| (below, class))),
            Err(source) => failed = failed.or(Some(GroupsError::Id { at: group, source })),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(written),
    }
}

/// What a group is to have; `None` where nothing is known of it, or it is no pod's.
fn wanted(group: &CgroupPath, class: Option<Handle>, shape: Option<&Shape>) -> Option<Handle> {
    let is_known = !shape.is_some_and(Shape::keeps_others);
    let has_none = is_known && kube_qos(group).is_some();
    class.or_else(|| has_none.then_some(NONE))
}

fn give(ids: &ClassIds, group: &CgroupPath, wanted: Handle) -> Result<bool, GroupsError> {
    let failed = |source| GroupsError::Id {
        at: group.clone(),
        source,
    };
    let Some(held) = ids.of(group).map_err(failed)?.map(Handle::of_number) else {
        return Ok(false);
    };
    let may_change = held == NONE || held.major() == QDISC.major();
    if held == wanted || (wanted == NONE && !may_change) {
        return Ok(false);
    }
    if !may_change {
        let at = group.clone();
        return Err(GroupsError::Another { at, id: held });
    }
    ids.set(group, wanted.number()).map_err(failed)?;
    debug!(cgroup = %group, old = %held, new = %wanted, "class id written");
    Ok(true)
}
