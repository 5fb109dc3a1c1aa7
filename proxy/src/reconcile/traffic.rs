//! What queues the node's network has for all pods together.

use super::standing::{self, Standing};
use crate::{
    apply::traffic::{Member, Shape, Traffic, TrafficError},
    hub::Hub,
    ledger::{Addresses, Applied, Ledger, Pod},
    status::chain_of,
    worker::Undone,
};
use koord_model::{CgroupPath, NetQueues, Setting, Value};
use std::{error::Error, mem, net::IpAddr, rc::Rc};
use tracing::{info, warn};

/// Why a pod has no queue whose packets are the node's, where its group has no class id.
const OF_NODE: &str = "it sends from the node's own addresses, as others do";

/// Brings the queues in line, and says whether anything had to be done, if there was anything to look at; an
/// error if there is no thread to do it. Before the first list nobody knows which pods there are.
pub(super) async fn keep(hub: &Rc<Hub>) -> Result<Option<Result<bool, TrafficError>>, Undone> {
    if !hub.enforces() || !hub.is_whole() {
        return Ok(None);
    }
    let shape = match Standing::of(hub, Setting::NodeQueues) {
        Standing::Decided(Value::NodeQueues(queues)) => {
            Some(shape(hub.traffic(), &queues, &hub.ledger().borrow()))
        }
        Standing::Nothing if hub.traffic().is_there() => None,
        _ => return Ok(None),
    };
    let is_wanted = shape.is_some();
    let done = hub.traffic().bring(shape).await.ok_or(Undone::NoThread)?;
    if !is_wanted && matches!(done, Ok(true)) {
        info!("queues of the network that nobody decides any more are gone");
    }
    note(hub, &done, is_wanted);
    Ok(Some(done))
}

/// What there is to be for pods that are there and of which it is known from where they send. As long as
/// that is unknown of one after a start, it keeps for a while what it may have from before.
fn shape(traffic: &Traffic, queues: &NetQueues, ledger: &Ledger) -> Shape {
    let ready = || ledger.pods().filter(|pod| pod.ready);
    let members = ready().filter_map(|pod| member(pod, traffic.knows_groups()));
    let shape = Shape::of(queues, members);
    // One without a queue too may have the address of one that had some.
    let known = ready().flat_map(|pod| match &pod.addresses {
        Addresses::Own(addresses) => addresses.as_slice(),
        Addresses::Unknown(_) | Addresses::OfNode => &[],
    });
    let lacks = ledger.pods().any(Pod::lacks_addresses);
    traffic.left.keep(shape, lacks, known.copied())
}

fn member(pod: &Pod, knows_groups: bool) -> Option<Member<'_>> {
    let addresses: &[IpAddr] = match &pod.addresses {
        Addresses::Unknown(_) => return None,
        Addresses::OfNode => &[],
        Addresses::Own(addresses) => addresses,
    };
    Some(Member {
        uid: pod.view.uid.as_str(),
        queue: pod.queue()?,
        addresses,
        group: pod.own.at.as_ref().filter(|_| knows_groups),
    })
}

/// Notes what became of it with the node and with each pod, and writes a line when it begins to fail. If
/// none is wanted, there were to be no queues.
fn note(hub: &Hub, done: &Result<bool, TrafficError>, is_wanted: bool) {
    let result = applied(done);
    let mut ledger = hub.ledger().borrow_mut();
    let groups = ledger.node.iter_mut().map(|group| &mut group.target);
    standing::note(hub, groups, Setting::NodeQueues, &result);
    for pod in ledger.pods_mut().filter(|pod| pod.ready) {
        let result = match (&pod.addresses, &pod.own.at) {
            // It was no part of it yet.
            (Addresses::Unknown(_), _) => continue,
            (Addresses::OfNode, Some(group)) => of_group(hub, done, group),
            (Addresses::OfNode, None) => Applied::Lacking(OF_NODE.into()),
            (Addresses::Own(_), _) => result.clone(),
        };
        standing::note(hub, [&mut pod.own].into_iter(), Setting::PodQueue, &result);
    }
    let complained = &hub.traffic().complained;
    let Err(error) = done else {
        complained.set(None);
        return;
    };
    let kind = Some((mem::discriminant(error), is_wanted));
    if complained.get() != kind
        && let Some(suppressed) = hub.may_complain("-", Setting::NodeQueues.name())
    {
        complained.set(kind);
        let error = error as &dyn Error;
        match is_wanted {
            true => warn!(
                error,
                suppressed, "not all that is sent goes by the queues that were decided"
            ),
            false => warn!(
                error,
                suppressed, "queues of the network that nobody decides any more cannot be removed"
            ),
        }
    }
}

/// What became of it with a pod that is known by its group alone.
fn of_group(hub: &Hub, done: &Result<bool, TrafficError>, group: &CgroupPath) -> Applied {
    match done {
        _ if !hub.traffic().knows_groups() => Applied::Lacking(OF_NODE.into()),
        Err(TrafficError::Groups(of_groups)) => match of_groups.about(group) {
            Some(about) => Applied::Lacking(chain_of(about).into()),
            None => applied(done),
        },
        done => applied(done),
    }
}

fn applied(done: &Result<bool, TrafficError>) -> Applied {
    match done {
        Ok(true) => Applied::Written,
        // What is not of groups is as it should be.
        Ok(false) | Err(TrafficError::Groups(_)) => Applied::Equal,
        Err(TrafficError::Netlink(error)) if error.is_unsupported() => Applied::Unsupported,
        Err(TrafficError::Netlink(error)) => Applied::Refused(error.errno()),
        Err(
            error @ (TrafficError::Foreign { .. }
            | TrafficError::NoRoute
            | TrafficError::NoInterface),
        ) => Applied::Lacking(chain_of(error).into()),
    }
}
