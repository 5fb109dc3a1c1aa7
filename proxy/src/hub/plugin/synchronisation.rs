//! What there is, as a runtime tells it whole: with a synchronisation, and with each event of a pod or a
//! container that is not known yet.

use super::{
    super::{
        Hub, Pending, SAID, asked,
        changed::come_about,
        commit::{Effect, Update},
        leave_out,
    },
    resources,
};
use crate::{
    apply::nri as patch,
    front::nri::view as seen,
    ledger::{Life, ToldFirst, Unasked},
    originals,
    relist::{Listed, unread},
    view,
};
use koord_hooks::{Requested, Unified};
use koord_model::{ContainerId, SandboxId};
use koord_proto::{
    keys::annotation,
    nri::{Container, ContainerState, ContainerUpdate, PodSandbox},
};
use std::collections::{HashMap, HashSet};

// === impl Hub ===

impl Hub {
    /// Everything that there is: what is not known is taken in, what is gone is dropped. Answered is
    /// what is to change at once; the kernel's values are checked after it.
    ///
    /// What was decided in an `earlier` session the runtime may have done since, and whatever it was asked for
    /// between the two.
    pub(crate) fn synchronize(
        &self,
        pods: &[PodSandbox],
        containers: &[Container],
        mut earlier: HashMap<String, Pending>,
    ) -> Vec<ContainerUpdate> {
        let there: HashSet<&str> = pods.iter().map(|pod| &*pod.id).collect();
        let containers_there: HashSet<&str> = containers.iter().map(|it| &*it.id).collect();
        self.ledger.borrow_mut().resync(
            |sandbox| there.contains(sandbox.as_str()),
            |id| containers_there.contains(id.as_str()),
        );
        for pod in pods {
            self.meet_pod(pod);
        }
        for container in containers {
            self.meet_container(container);
            self.catch_up(container, earlier.remove(&container.id));
        }
        for pod in self.ledger.borrow_mut().pods_mut() {
            self.decide_directories(pod);
        }
        // The node may have changed too, and then every decision is made anew.
        self.list_taken();
        let mut told = Vec::new();
        let updates = containers.iter().filter_map(|it| {
            let update = self.in_line(it)?;
            told.extend(SandboxId::new(&it.pod_sandbox_id).ok());
            Some(update)
        });
        let updates = updates.collect();
        self.note_told(told);
        for pod in self.ledger.borrow().pods() {
            self.queue.push(pod.sandbox.clone());
        }
        self.queue.push_node();
        self.count_and_forget_the_gone(&self.ledger.borrow());
        updates
    }

    /// Takes in a pod and a container that are not known.
    pub(crate) fn meet(&self, pod: &PodSandbox, container: &Container) {
        self.meet_pod(pod);
        self.meet_container(container);
    }

    /// Whether nobody knew of it.
    pub(super) fn meet_pod(&self, pod: &PodSandbox) -> bool {
        let Ok(sandbox) = SandboxId::new(&pod.id) else {
            return false;
        };
        if self.ledger.borrow().pod(&sandbox).is_some() {
            return false;
        }
        let inputs = self.policy().inputs();
        let Some((view, parent)) = seen::pod(pod, None, &inputs) else {
            return false;
        };
        let pod = self.found_pod(view, parent, sandbox, true);
        self.ledger.borrow_mut().insert_pod(pod);
        true
    }

    fn meet_container(&self, container: &Container) {
        let id = ContainerId::new(&container.id);
        let sandbox = SandboxId::new(&container.pod_sandbox_id);
        let (Ok(id), Ok(sandbox)) = (id, sandbox) else {
            return;
        };
        let life = match container.state() {
            ContainerState::ContainerCreated => Life::Created,
            ContainerState::ContainerRunning | ContainerState::ContainerPaused => Life::Running,
            ContainerState::ContainerStopped | ContainerState::ContainerUnknown => Life::Exited,
        };
        let originals = container.annotations.get(annotation::ORIGINALS);
        let originals = originals.map(String::as_str);
        // What is not this one's for sure is believed of a list alone.
        let originals = originals.filter(|it| originals::is_of(it, &container.id));
        let listed = Listed::new(id, container.name.clone(), life, originals);
        let mut ledger = self.ledger.borrow_mut();
        let moment = ledger.now();
        listed.take(self, &mut ledger, &sandbox, moment);
        // A list that was asked for before must not drop it.
        ledger.tell_pod(&sandbox);
    }

    /// Takes over what somebody has asked for a container while the runtime did not ask us, as far as its spec
    /// shows it.
    fn catch_up(&self, container: &Container, earlier: Option<Pending>) {
        let Ok(id) = ContainerId::new(&container.id) else {
            return;
        };
        let now = seen::requested(Some(&resources(container)));
        if let Some(earlier) = earlier {
            let updates = earlier.apart().into_iter().map(|update| (update, ()));
            let news = {
                let ledger = self.ledger.borrow();
                let known = ledger.container(&id);
                known.map(|(_, container)| unread(now.clone(), container))
            };
            let (done, _) = come_about(updates.collect(), &now, &news.unwrap_or_default());
            for update in done {
                self.commit(update, None);
            }
        }
        let mut ledger = self.ledger.borrow_mut();
        let pod = ledger.pod_of_mut(&id);
        let Some(known) = pod.and_then(|pod| pod.container_mut(&id)) else {
            return;
        };
        let before = known.shown.replace(Box::new(now.clone()));
        // What marks tell may have come to be known since it was shown.
        let spec = before.as_deref().unwrap_or(&now);
        let target = &mut known.target;
        target.hear_spec(|setting| asked(spec, setting));
        let Some(before) = before else {
            return;
        };
        let mut wished = unread(now, known);
        for setting in SAID {
            // What it says as before nobody has asked for since.
            if asked(&wished, setting) == asked(&before, setting) {
                leave_out(&mut wished, setting);
            }
        }
        if wished.unified == before.unified {
            wished.unified = Unified::default();
        }
        if wished != Requested::default() {
            drop(ledger);
            self.commit(
                Effect::Update(id, Box::new(Update::unread(wished))).into(),
                None,
            );
        }
    }

    /// What has to change so that a container that is there has what was decided.
    fn in_line(&self, container: &Container) -> Option<ContainerUpdate> {
        let id = ContainerId::new(&container.id).ok()?;
        // By us now, or by somebody while we were not asked.
        self.spec_changes(&id);
        let mut ledger = self.ledger.borrow_mut();
        let pod = ledger.pod_of_mut(&id)?;
        if self.hands_off(pod.exemption).is_some() {
            return None;
        }
        let parent = pod.parent.clone();
        let known = pod.container_mut(&id)?;
        if known.life == Life::Exited {
            return None;
        }
        let cpus = self.cpus_below(parent.as_ref(), &known.target);
        let policy = self.policy();
        let sets = |setting| policy.says(setting);
        let limits = self.said_within(cpus.as_ref(), &sets);
        let now = resources(container);
        let update = patch::update(id.as_str(), &now, &mut known.target, limits)?;
        if known.target.unasked == Unasked::Unheard {
            let now = seen::requested(Some(&now));
            let said = update.linux.as_ref().and_then(|it| it.resources.as_ref());
            let since = view::overlaid(&now, seen::requested(said));
            let before = match &known.told_first {
                Some(earlier) => earlier.untold(now),
                None => now,
            };
            known.told_first = Some(Box::new(ToldFirst { before, since }));
        }
        Some(ContainerUpdate {
            // One that is gone meanwhile must not take the others with it.
            ignore_failure: true,
            ..update
        })
    }
}
