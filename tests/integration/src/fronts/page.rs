//! That both fronts come to the same, and to what the page of hooks says.

use super::{Machine, Seen, found::different};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;

/// Says of each setting of each hook on which kernel it was shown.
const PAGE: &str = include_str!("../../../../docs/hooks.md");

impl Machine<'_> {
    /// Fails unless both are alike, and as the page says.
    pub fn compare(&self, by_cri: &Seen, by_nri: &Seen) -> Result<()> {
        ensure!(by_cri.states.len() == by_nri.states.len(), "other states");
        for ((state, by_cri), (_, by_nri)) in by_cri.states.iter().zip(&by_nri.states) {
            let different = different(by_cri, by_nri);
            ensure!(
                different.is_empty(),
                "{state}, by CRI and by NRI: {different:#?}"
            );
        }
        let said = said_of(self.kernel);
        for hook in self.hooks {
            let said: BTreeSet<&str> = of(hook, said.iter().copied());
            for seen in [by_cri, by_nri] {
                let pairs = seen.in_force.iter();
                let shown = of(hook, pairs.map(|(hook, setting)| (&**hook, &**setting)));
                ensure!(
                    shown == said,
                    "{hook} sets {shown:?}, the page says {said:?}"
                );
                ensure!(!shown.is_empty(), "{hook} has decided nothing");
            }
        }
        Ok(())
    }
}

/// Hooks and settings that the page says were shown on a kernel.
fn said_of(kernel: &str) -> Vec<(&'static str, &'static str)> {
    let mut said = Vec::new();
    for line in PAGE.lines() {
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", hook, settings, on, _, _, ""] = row[..]
            && on == kernel
        {
            let settings = settings.split(", ").map(|it| it.trim_matches('`'));
            said.extend(settings.map(|setting| (hook, setting)));
        }
    }
    said
}

/// The settings of one hook.
fn of<'a>(hook: &str, all: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<&'a str> {
    let own = all.filter(|(owner, _)| *owner == hook);
    own.map(|(_, setting)| setting).collect()
}
