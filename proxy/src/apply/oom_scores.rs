//! How soon the processes of control groups are killed for want of memory.
//!
//! Each process has a score of its own, and what it starts has the same. A runtime gives one to the
//! first process of a container, if it is told; this is for the rest: what it was not told, or could
//! not be, and what has come into the group from outside.
//!
//! The shim of a pod is never touched: when it is killed the whole pod is.

use super::threads::{
    Found, JoinError, Joined, Member, Sight, Turn, has_ended, to_show, until_settled,
};
use koord_kernel::{
    cgroup::{Cgroups, Members, Unseen},
    core_sched::Tid,
    task::Procfs,
};
use koord_model::{CgroupPath, OomScoreAdj};
use std::{
    collections::{BTreeSet, HashSet},
    io,
};

/// The scores of processes.
#[derive(Debug)]
pub struct OomScores {
    procfs: Procfs,
}

/// Processes whose files are open at a time: who makes many is not to take all our descriptors.
const AT_ONCE: usize = 512;

// === impl OomScores ===

impl OomScores {
    pub fn over(procfs: Procfs) -> Self {
        Self { procfs }
    }

    /// Gives all processes of a member a score. One that cannot have it keeps it from no other.
    ///
    /// # Errors
    ///
    /// When the processes cannot be listed, or one of them cannot be given the score. When not all below the
    /// member's control group is looked at ([`JoinError::Unseen`]), or the last look, the 16th or the one in
    /// which 250 ms are over, still finds some that are not as decided ([`JoinError::Unsettled`]).
    pub fn give(
        &self,
        cgroups: &Cgroups,
        member: &Member,
        score: OomScoreAdj,
    ) -> Result<Joined, JoinError> {
        let at = &member.at;
        until_settled(at, |turn| self.look(cgroups, at, score, turn))
    }

    /// Gives all processes of a control group a score, as long as there is time.
    fn look(
        &self,
        cgroups: &Cgroups,
        at: &CgroupPath,
        score: OomScoreAdj,
        turn: &mut Turn,
    ) -> Result<(Found, Option<Unseen>), JoinError> {
        let mut found = Found::Nothing;
        let mut refusal = None;
        let listed = processes(turn.sight(cgroups), at)?;
        let mut unseen = listed.unseen;
        let others = self.others(&listed.ids, score);
        for part in others.chunks(AT_ONCE) {
            match self.give_all(cgroups, at, part, score) {
                Ok((some, left)) => {
                    found = found.max(some);
                    unseen = unseen.or(left);
                }
                Err(error) => refusal = Some(error),
            }
            if turn.is_over_after(part.len()) {
                found = Found::Moved;
                break;
            }
        }
        refusal.map_or(Ok((found, unseen)), Err)
    }

    /// Gives processes a score that they have not, or of which that is not to be seen. Why some may be left
    /// that were not looked at once more.
    fn give_all(
        &self,
        cgroups: &Cgroups,
        at: &CgroupPath,
        others: &[(Tid, Found)],
        score: OomScoreAdj,
    ) -> Result<(Found, Option<Unseen>), JoinError> {
        let others = others.iter();
        let open = |it: &(Tid, Found)| (*it, self.procfs.open_oom_score_adj(it.0));
        let others: Vec<_> = others.map(open).collect();
        // A file is of the process that had the number when it was opened. Who has it still is in the
        // group still; what is not listed any more may have been anybody's. This may not come as far as the
        // look before, though it has as much time: who is not reached by it is told as not looked at.
        let Members { ids, unseen } = processes(Sight::once(cgroups), at)?;
        let there: HashSet<Tid> = ids.into_iter().collect();
        let mut found = Found::Nothing;
        let mut refusal = None;
        for ((process, ended), file) in others {
            if !there.contains(&process) {
                if unseen.is_none() {
                    found = found.max(ended);
                }
                continue;
            }
            match file.and_then(|file| file.write(score)) {
                Ok(()) => found = Found::Moved,
                Err(error) if has_ended(&error) => found = found.max(ended),
                Err(error) => refusal = Some(refused(at, process, score, error)),
            }
        }
        refusal.map_or(Ok((found, unseen)), Err)
    }

    /// The scores of the processes of a control group, as a person may read them.
    pub fn describe(&self, cgroups: &Cgroups, at: &CgroupPath) -> Option<String> {
        let processes = to_show(Sight::once(cgroups).processes(at))?;
        let scores = processes.into_iter();
        let scores = scores.filter_map(|it| self.procfs.oom_score_adj(it).ok());
        let scores: BTreeSet<_> = scores.collect();
        let shown = scores.iter().map(ToString::to_string);
        Some(shown.collect::<Vec<_>>().join(" "))
    }

    /// Those of some processes that have another score, or of which that is not to be seen; and what it means
    /// if one of them has ended before it has this one.
    fn others(&self, processes: &[Tid], score: OomScoreAdj) -> Vec<(Tid, Found)> {
        let other = |process: &Tid| match self.procfs.oom_score_adj(*process) {
            Ok(held) if held == score => None,
            Ok(_) => Some((*process, Found::Ended)),
            Err(_) => Some((*process, Found::Unknown)),
        };
        processes.iter().filter_map(other).collect()
    }
}

fn processes(sight: Sight<'_>, at: &CgroupPath) -> Result<Members, JoinError> {
    let listed = sight.processes(at);
    listed.map_err(|source| JoinError::Unlisted {
        at: at.clone(),
        source,
    })
}

fn refused(at: &CgroupPath, process: Tid, score: OomScoreAdj, source: io::Error) -> JoinError {
    JoinError::OomScore {
        at: at.clone(),
        process,
        score,
        source,
    }
}

#[cfg(test)]
mod tests;
