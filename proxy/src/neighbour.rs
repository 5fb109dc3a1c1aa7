//! Upstream's koordlet beside us: which hooks are its part, and rest here.
//!
//! A runtime does not tell a plugin who the others are, and what koordlet leaves in files outlives
//! it. So it is looked for among the processes of this machine, and its own command line says which
//! hooks it runs: the flag is the one that we have, with the same names and defaults.
//!
//! Looking at all processes takes milliseconds, so it is done beside the data path.

use crate::{
    config::{BesideKoordlet, Config},
    hub::Hub,
};
use koord_hooks::{Chain, FeatureGates, Maturity};
use koord_kernel::neighbour::command_lines;
use std::{
    collections::BTreeSet,
    error::Error,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::{info, warn};

/// How long between two looks.
const PERIOD: Duration = Duration::from_secs(60);
/// So many looks in which it is not seen make it gone: one that is replaced or restarts comes back
/// sooner.
const GONE_AFTER: u32 = 10;

const NAME: &str = "koordlet";

/// The hooks that rest because koordlet does their part.
pub type Resting = BTreeSet<&'static str>;

/// What is known of koordlet on this node.
#[derive(Debug)]
pub struct Neighbour {
    beside: BesideKoordlet,
    proc_root: PathBuf,
    resting: Resting,
    unseen: u32,
}

// === impl Neighbour ===

impl Neighbour {
    /// Looks once.
    pub fn look(config: &Config) -> Self {
        Self::look_below(config.hooks.beside_koordlet, config.roots.proc.clone())
    }

    fn look_below(beside: BesideKoordlet, proc_root: PathBuf) -> Self {
        let mut neighbour = Self {
            resting: match beside {
                BesideKoordlet::Auto | BesideKoordlet::No => Resting::new(),
                BesideKoordlet::Yes => covered([&FeatureGates::default()]),
            },
            beside,
            proc_root,
            unseen: 0,
        };
        if beside == BesideKoordlet::Auto {
            let seen = seen(&neighbour.proc_root);
            neighbour.take(seen);
        }
        neighbour
    }

    pub fn resting(&self) -> &Resting {
        &self.resting
    }

    /// Keeps looking, and has the hub's hooks rest or work. Never ends.
    pub async fn watch(mut self, hub: Rc<Hub>) {
        if self.beside != BesideKoordlet::Auto {
            std::future::pending::<()>().await;
        }
        loop {
            sleep(PERIOD).await;
            let root = self.proc_root.clone();
            // A look that died saw nothing.
            let seen = spawn_blocking(move || seen(&root)).await.ok().flatten();
            if self.take(seen) {
                hub.set_resting(self.resting.clone());
            }
        }
    }

    /// Takes in what was seen. Whether another set of hooks rests now.
    fn take(&mut self, seen: Option<Resting>) -> bool {
        let resting = match seen {
            Some(covered) => {
                self.unseen = 0;
                covered
            }
            None => {
                self.unseen = self.unseen.saturating_add(1);
                if self.unseen < GONE_AFTER {
                    return false;
                }
                Resting::new()
            }
        };
        if resting == self.resting {
            return false;
        }
        let names: Vec<&str> = resting.iter().copied().collect();
        let hooks = names.join(",");
        if hooks.is_empty() {
            info!("koordlet does the part of no hook any more: all work");
        } else {
            warn!(
                hooks,
                "koordlet runs on this node and does the part of hooks: they rest"
            );
        }
        self.resting = resting;
        true
    }
}

/// The hooks that the koordlets of this machine cover; `None` if there is none.
fn seen(proc_root: &Path) -> Option<Resting> {
    let lines = command_lines(proc_root, NAME).unwrap_or_else(|error| {
        warn!(
            error = &error as &dyn Error,
            "whether koordlet runs here is unknown"
        );
        Vec::new()
    });
    if lines.is_empty() {
        return None;
    }
    let gates: Vec<_> = lines.iter().map(|line| gates(line)).collect();
    Some(covered(&gates))
}

/// The gates that a command line sets. One that we cannot read counts as one that says nothing.
fn gates(line: &[String]) -> FeatureGates {
    let mut values = Vec::new();
    let mut words = line.iter();
    while let Some(word) = words.next() {
        // Go takes one dash as well as two.
        match word.trim_start_matches('-').split_once('=') {
            Some(("feature-gates", value)) => values.push(value),
            None if word.trim_start_matches('-') == "feature-gates" => {
                values.extend(words.next().map(String::as_str));
            }
            _ => {}
        }
    }
    FeatureGates::parse(&values.join(",")).unwrap_or_default()
}

/// The built-in hooks that upstream has too, and that are on there.
fn covered<'a>(gates: impl IntoIterator<Item = &'a FeatureGates>) -> Resting {
    let gates: Vec<_> = gates.into_iter().collect();
    Chain::builtin_table()
        .filter(|meta| meta.maturity != Maturity::Own)
        .filter(|meta| gates.iter().any(|gates| gates.enabled(meta.gate)))
        .map(|meta| meta.name)
        .collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test's own files")]

    use super::*;
    use std::fs;

    fn runs(root: &Path, line: &str) {
        let process = root.join("7");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("comm"), "koordlet\n").unwrap();
        fs::write(process.join("cmdline"), line.replace(' ', "\0")).unwrap();
    }

    #[test]
    fn hooks_rest_that_koordlets_own_command_line_has_on() {
        let all = &[
            "BatchResource",
            "CPUBurst",
            "CPUSetAllocator",
            "GroupIdentity",
        ][..];
        for (line, resting) in [
            ("/koordlet", all),
            (
                "/koordlet --feature-gates=AllAlpha=true,CPUBurst=false -v=4",
                &[
                    "BatchResource",
                    "CPUNormalization",
                    "CPUSetAllocator",
                    "CoreSched",
                    "GroupIdentity",
                ],
            ),
            (
                "/koordlet --feature-gates=GroupIdentity=false,BatchResource=false",
                &all[1..3],
            ),
            ("/koordlet -feature-gates AllBeta=false", &[]),
            (
                "/koordlet --feature-gates=AllBeta=false --feature-gates GroupIdentity=true",
                &all[3..],
            ),
            // What upstream may have one day.
            (
                "/koordlet --feature-gates=Unheard=true,GroupIdentity=false",
                all,
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            runs(root.path(), line);
            let neighbour = Neighbour::look_below(BesideKoordlet::Auto, root.path().into());
            assert!(
                neighbour.resting().iter().eq(resting),
                "{line}: {neighbour:?}"
            );
        }
    }

    #[test]
    fn what_is_said_goes_before_what_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let look = |beside| Neighbour::look_below(beside, root.path().into());
        assert!(look(BesideKoordlet::Auto).resting().is_empty());
        assert_eq!(look(BesideKoordlet::Yes).resting().len(), 4);
        runs(root.path(), "/koordlet --feature-gates=AllBeta=false");
        assert_eq!(look(BesideKoordlet::Yes).resting().len(), 4);
        runs(root.path(), "/koordlet");
        assert!(look(BesideKoordlet::No).resting().is_empty());
    }

    #[test]
    fn one_that_restarts_is_not_gone_and_one_that_is_gone_for_long_is() {
        let root = tempfile::tempdir().unwrap();
        runs(root.path(), "/koordlet");
        let mut neighbour = Neighbour::look_below(BesideKoordlet::Auto, root.path().into());
        let all = neighbour.resting().clone();
        for _ in 0..9 {
            assert!(!neighbour.take(None));
        }
        assert_eq!(neighbour.resting(), &all);
        assert!(!neighbour.take(Some(all.clone())));
        for _ in 0..9 {
            assert!(!neighbour.take(None));
        }
        assert!(neighbour.take(None));
        assert!(neighbour.resting().is_empty());
        assert!(neighbour.take(Some(all)));
    }
}
