//! What a person reads of what came of it.

use super::{Held, PATIENCE, Place, folders::Folders, named, process::Others, targets};
use crate::{
    cli::Answer,
    config::Mode,
    hub::{Hub, state},
    ledger::{Applied, Entry, Ledger, Life},
    log::Name,
    neighbour::Resting,
    reconcile::Shared,
    relist::Unsaid,
    status::chain_of,
    worker::Undone,
};
use koord_model::{CgroupPath, Setting, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Processes of strangers that are named, of which a pod may have any number, and folders that stay.
const NAMED: usize = 20;

/// What came of everything, a line for each.
#[derive(Default)]
pub(super) struct Told {
    back: Vec<String>,
    pub(super) not_back: Vec<String>,
    /// What a person may want to look at.
    remarks: Vec<String>,
    /// The hooks whose values are koordlet's.
    koordlets: Resting,
}

/// Why a value of ours is in force still; `None` if none is. `held` is what the kernel has.
fn stays(hub: &Hub, at: &CgroupPath, entry: &Entry, held: Option<&str>) -> Option<String> {
    let desired = &entry.desired;
    let is_ours = match entry.applied {
        Applied::Equal | Applied::Written | Applied::Absent | Applied::Unsupported => false,
        // It may never have come there.
        Applied::Left if desired.setting().has_file() => {
            hub.writer().holds(at, desired) == Some(true)
        }
        // Some of its processes may have others.
        Applied::Left => held.is_some_and(|held| says(held, desired)),
        _ => true,
    };
    is_ours.then(|| state(entry))
}

/// Whether what threads or processes have is this, of some of them at least: each has its own.
pub(super) fn says(held: &str, value: &Value) -> bool {
    let value = value.to_string();
    held.split(' ').any(|it| it == value)
}

// === impl Told ===

impl Told {
    /// Nothing yet, where koordlet does the part of these hooks.
    pub(super) fn beside(koordlets: Resting) -> Self {
        Self {
            koordlets,
            ..Self::default()
        }
    }

    /// That values are not looked for by this mode which nothing but the kernel shows to be ours.
    pub(super) fn add_mode(&mut self, mode: Mode) {
        if mode != Mode::Enforce {
            self.remarks.push(format!(
                "by mode {mode} only what is marked as ours is given back: values of an earlier run with \
                 mode enforce are not looked for, --mode=enforce has them given back"
            ));
        }
    }

    /// Containers that the runtime will start with what was said of them at their creation, and koordlet does
    /// not decide.
    pub(super) fn add_created(&mut self, ledger: &Ledger, theirs: &BTreeSet<Setting>) {
        for (name, pod) in named(ledger) {
            let containers = pod.containers.iter();
            for container in containers.filter(|it| it.life == Life::Created) {
                let of = Name(&container.view.name);
                let settings = container.ours.iter().map(Value::setting);
                let settings = settings.filter(|setting| !theirs.contains(setting));
                let settings: Vec<_> = settings.map(Setting::name).collect();
                if !settings.is_empty() {
                    self.not_back.push(format!(
                        "{name} {of} is created and not started: it starts with our {}",
                        settings.join(", ")
                    ));
                }
            }
        }
    }

    /// What of these the kernel had before and has now.
    pub(super) fn compare(&mut self, hub: &Hub, places: &[Place], (before, after): (&Held, &Held)) {
        let ledger = hub.ledger().borrow();
        let mut entries = BTreeMap::new();
        for (_, target) in targets(&ledger) {
            if let Some(at) = &target.at {
                let here = target.entries().iter();
                entries.extend(here.map(|entry| ((at, entry.desired.setting()), entry)));
            }
        }
        for Place { of, at, setting } in places {
            let key = (at.clone(), *setting);
            let (before, after) = (before.get(&key), after.get(&key));
            let entry = entries.get(&(at, *setting));
            let held = after.map(String::as_str);
            let why = entry.and_then(|entry| stays(hub, at, entry, held));
            let [old, new] = [before, after].map(|held| match held.map(String::as_str) {
                None | Some("") => "-",
                Some(text) => text,
            });
            match why {
                Some(why) => self
                    .not_back
                    .push(format!("{of} {setting}: {new} stays, {why}")),
                None if before != after => {
                    self.back.push(format!("{of} {setting}: {old} -> {new}"));
                }
                None => {}
            }
        }
    }

    /// What is not known to be done. Something of ours may be there still.
    pub(super) fn add_undone(&mut self, what: &str, undone: Undone) {
        self.not_back.push(match undone {
            Undone::Late => format!("{what}: not done in {} s", PATIENCE.as_secs()),
            Undone::NoThread => format!("{what}: not done, no thread can be had for it"),
            Undone::Unread => format!("{what}: not done, it cannot be read"),
        });
    }

    /// What became of groups of caches, of what the network plugin is told, and of queues.
    pub(super) fn add_shared(&mut self, shared: &Shared) {
        let Shared {
            groups,
            network,
            queues,
        } = shared;
        match groups {
            Ok(groups) => {
                if groups.removed > 0 {
                    let line = format!("groups of caches: {} removed", groups.removed);
                    self.back.push(line);
                }
                if let Some(error) = &groups.failed {
                    let line = format!("groups of caches: {}", chain_of(error));
                    self.not_back.push(line);
                }
            }
            Err(undone) => self.add_undone("groups of threads", *undone),
        }
        let network = match network {
            Ok(network) => network.as_ref(),
            Err(undone) => {
                self.add_undone("Terway's files", *undone);
                None
            }
        };
        let network = network.into_iter();
        for (what, told) in network.flat_map(|it| [("classes", &it.classes), ("pods", &it.pods)]) {
            match told {
                Ok(true) => self.back.push(format!("Terway's file of {what}: removed")),
                Err(error) if !error.is_absent() => {
                    let line = format!("Terway's file of {what}: {}", chain_of(error));
                    self.not_back.push(line);
                }
                Ok(false) | Err(_) => {}
            }
        }
        match queues {
            Ok(Some(Ok(true))) => self.back.push("queues of the network: removed".to_owned()),
            Ok(Some(Err(error))) => {
                let line = format!("queues of the network: {}", chain_of(error));
                self.not_back.push(line);
            }
            Ok(Some(Ok(false)) | None) => {}
            Err(undone) => self.add_undone("queues of the network", *undone),
        }
    }

    /// What became of the folders of HAMi-core. That one stays which a container has mounted is no failure:
    /// the container keeps all that it was made with.
    pub(super) fn add_folders(&mut self, folders: Option<Folders>) {
        const OF: &str = "folders of HAMi-core";
        let Some(Folders { given, is_in_doubt }) = folders else {
            return;
        };
        match given {
            Ok(Ok(given)) => {
                if given.removed > 0 {
                    self.back.push(format!("{OF}: {} removed", given.removed));
                }
                let stuck = given.stuck.iter();
                self.not_back
                    .extend(stuck.map(|error| format!("{OF}: {}", chain_of(error))));
                let used = given.used.iter().take(NAMED).map(|path| {
                    let path = path.display();
                    format!("{path} stays while its pod lives, which may have it mounted")
                });
                self.remarks.extend(used);
                if given.used.len() > NAMED {
                    let more = given.used.len() - NAMED;
                    self.remarks.push(format!("and {more} more of these"));
                }
            }
            // None is made where this is wrong.
            Ok(Err(error)) => {
                let line = format!("{OF} are not looked for: {}", chain_of(&error));
                self.remarks.push(line);
            }
            Err(undone) => self.add_undone(OF, undone),
        }
        if is_in_doubt {
            self.remarks.push(format!(
                "{OF} stay but those that were set aside: it is not known of all pods whether they \
                 live"
            ));
        }
    }

    /// What the runtime has not said though it was asked.
    pub(super) fn add_unsaid(&mut self, unsaid: Unsaid) {
        for (count, of) in [
            (
                unsaid.sandboxes,
                "sandboxes: it is not known where they are",
            ),
            (
                unsaid.containers,
                "containers: the runtime does not say what they asked for",
            ),
        ] {
            if count > 0 {
                self.not_back.push(format!("{count} {of}"));
            }
        }
    }

    /// Pods that run and that the kubelet does not know.
    pub(super) fn add_unknown(&mut self, names: &[String]) {
        let lines = names.iter().map(|name| {
            format!("{name}: the kubelet does not know it: what was set by its word stays")
        });
        self.not_back.extend(lines);
    }

    /// Processes that are called as we are, in pods outside of the operator's namespace.
    pub(super) fn add_strangers(&mut self, ids: &[u32], namespace: &str) {
        let lines = ids.iter().take(NAMED).map(|id| {
            format!(
                "process (pid {id}) is called as a koord-runtime-proxy, in a pod outside of the namespace \
                 {namespace}: it is not taken for one"
            )
        });
        self.remarks.extend(lines);
        if ids.len() > NAMED {
            let more = ids.len() - NAMED;
            self.remarks.push(format!("and {more} more of these"));
        }
    }

    /// Those that are called as we are and act on the same runtime by now, or may. One that stands by as long
    /// as we have the lock acts a second later.
    pub(super) fn add_others(&mut self, others: Option<&Others>) {
        let Some(Others {
            acting, unplaced, ..
        }) = others
        else {
            let line = "whether a koord-runtime-proxy runs by now cannot be known";
            self.not_back.push(line.to_owned());
            return;
        };
        let lines = acting.iter().chain(unplaced).map(|id| {
            format!(
                "process (pid {id}), called as a koord-runtime-proxy, runs by now: it may put in force again \
                 what was given back"
            )
        });
        self.not_back.extend(lines);
    }

    pub(super) fn answer(self) -> Answer {
        let good = self.not_back.is_empty();
        let mut text = String::new();
        for (title, lines) in [
            ("given back", &self.back),
            ("could not be given back", &self.not_back),
        ] {
            if !lines.is_empty() {
                text += &format!("{title}:\n  {}\n", lines.join("\n  "));
            }
        }
        if text.is_empty() {
            text += "there is nothing to give back\n";
        }
        if !self.koordlets.is_empty() {
            let hooks: Vec<_> = self.koordlets.into_iter().collect();
            text += &format!(
                "left to koordlet, which does the part of these hooks here: {}\n",
                hooks.join(", ")
            );
        }
        for remark in self.remarks {
            text += &format!("{remark}\n");
        }
        Answer { text, good }
    }
}
