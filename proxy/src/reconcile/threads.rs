//! What each thread of a pod should have, which no file of its control groups says.

use super::tell_refusal;
use crate::{
    apply::cores::{JoinError, Joined, Member},
    hub::Hub,
    ledger::{Applied, Container, Life, Pod, Target},
};
use koord_model::{ContainerId, SandboxId, Setting, Value};
use std::rc::Rc;

/// Brings the threads of a pod's running containers, of its sandbox and of the shim that starts
/// them into the groups that were decided.
pub(super) async fn join(hub: &Rc<Hub>, sandbox: &SandboxId) {
    let members = match hub.ledger().borrow().pod(sandbox) {
        Some(pod) => members(pod, |container| container.life == Life::Running),
        None => return,
    };
    if members.is_empty() {
        return;
    }
    let joined = hub.writer().join(members.clone()).await;
    let mut ledger = hub.ledger().borrow_mut();
    // Decisions may have changed meanwhile, so answers find their entry by place and value.
    let Some(pod) = ledger.pod_mut(sandbox) else {
        return;
    };
    let containers = pod.containers.iter_mut().map(|it| &mut it.target);
    let mut targets: Vec<_> = [&mut pod.pause].into_iter().chain(containers).collect();
    for (member, outcome) in members.iter().zip(&joined) {
        let mut targets = targets.iter_mut();
        if let Some(target) = targets.find(|target| target.at.as_ref() == Some(&member.at)) {
            note(hub, target, member, outcome);
        }
    }
    for target in targets {
        target.settle();
    }
}

/// What has to be in its group before a container is started: whoever starts it, and where the
/// runtime has its process waiting already, that.
pub(crate) fn starting(pod: &Pod, id: &ContainerId) -> Vec<Member> {
    members(pod, |container| container.id == *id)
}

fn members(pod: &Pod, wanted: impl Fn(&Container) -> bool) -> Vec<Member> {
    let pause = pod.ready.then(|| member(&pod.pause, true)).flatten();
    let containers = pod.containers.iter().filter(|container| wanted(container));
    let containers = containers.filter_map(|container| member(&container.target, false));
    pause.into_iter().chain(containers).collect()
}

fn member(target: &Target, with_shim: bool) -> Option<Member> {
    let mut values = target.entries().iter().map(|entry| &entry.desired);
    let group = values.find_map(|value| match value {
        Value::CoreSched(group) => Some(group.clone()),
        _ => None,
    })?;
    Some(Member {
        at: target.at.clone()?,
        group,
        with_shim,
    })
}

fn note(hub: &Hub, target: &mut Target, member: &Member, outcome: &Result<Joined, JoinError>) {
    let setting = Setting::CoreSched;
    let result = Applied::from(outcome);
    hub.metrics().kernel_setting(setting, &result);
    let Some(entry) = target.entry_mut(setting) else {
        return;
    };
    if entry.desired != Value::CoreSched(member.group.clone()) {
        return;
    }
    entry.told &= entry.applied == result;
    entry.applied = result;
    if let (Err(error), Applied::Refused(_)) = (outcome, &entry.applied) {
        tell_refusal(hub, entry, error);
    }
}

impl From<&Result<Joined, JoinError>> for Applied {
    fn from(outcome: &Result<Joined, JoinError>) -> Self {
        match outcome {
            Ok(Joined::Moved) => Self::Written,
            Ok(Joined::Equal) => Self::Equal,
            Err(JoinError::Unsupported) => Self::Unsupported,
            Err(error) if error.is_gone() => Self::Absent,
            Err(error) => Self::Refused(error.errno()),
        }
    }
}
