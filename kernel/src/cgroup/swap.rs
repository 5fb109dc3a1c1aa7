//! Memory and swap together, on cgroup v1.
//!
//! `memory.memsw.limit_in_bytes` is at no time below `memory.limit_in_bytes`: the kernel refuses a
//! write of either that would make it so (`EINVAL`; `mem_cgroup_resize_max` in `mm/memcontrol.c`).
//! Runtimes give a container the same number in both, which leaves it no swap. So where a limit rises
//! above that with swap, this rises before it, and where both were the same they stay so.
//!
//! Once a limit is given back neither is limited, and it shows no more who has opened swap. So it is
//! noted on the group that both were the same, for when it is limited again. Before a limit is lowered it is
//! noted what both were: swap cannot be closed while more of both is in use, as where some has just been swapped
//! out, or we may end in between, and it is closed later. Until it fits it is not tried: each time the kernel
//! would reclaim all that is not in swap before it refuses (`EBUSY`). Who can write to its own group
//! can write to these files too, so there is no use in forging that.

use super::{Cgroups, Controller, Generation, table};
use koord_model::{CgroupPath, MemoryLimit, Setting, Value};
use tracing::debug;

const FILE: &str = "memory.memsw.limit_in_bytes";
const USED: &str = "memory.memsw.usage_in_bytes";

/// The note on a group whose swap we have opened. With a limit behind it: that is what memory and swap
/// together were when the limit of memory was lowered, and are to follow it.
const NONE: &str = "no swap";

/// What a group may have of memory and swap together; nothing where the kernel does not count swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together(Option<MemoryLimit>);

// === impl Cgroups ===

impl Cgroups {
    /// Has memory and swap together take a limit that is about to be written.
    pub(super) fn make_room_with_swap(
        &self,
        at: &CgroupPath,
        old: &Value,
        new: &Value,
    ) -> Together {
        let (Value::MemoryLimit(held), Value::MemoryLimit(limit)) = (old, new) else {
            return Together(None);
        };
        if self.generation(Setting::MemoryLimit) != Some(Generation::V1) {
            return Together(None);
        }
        // What both may have is never below it: nothing is in the way.
        if *held == MemoryLimit::Unlimited {
            return Together(self.was_without_swap(at).then_some(*held));
        }
        let Some(found) = self.together(at) else {
            return Together(None);
        };
        // What could not be closed with the last limit is ours to close all the same.
        let is_open = found > *held && self.is_to_be_closed(at, found);
        let together = if is_open { *held } else { found };
        if *limit == MemoryLimit::Unlimited {
            self.note_swap(at, if together == *held { NONE } else { "" });
        } else if together == *held && limit < held {
            self.note_swap(at, &self.note_of(found));
        }
        let is_put = together < *limit && self.put_with_swap(at, new);
        if is_put && is_open && *limit != MemoryLimit::Unlimited {
            self.note_swap(at, "");
        }
        Together(Some(together))
    }

    /// A limit was lowered: where memory and swap together were no more than the old one, they are no
    /// more than the new. Where others have left them open they stay so.
    pub(super) fn keep_from_swap(
        &self,
        at: &CgroupPath,
        Together(together): Together,
        (old, new): (&Value, &Value),
    ) {
        if let (Some(held), Value::MemoryLimit(old), Value::MemoryLimit(limit)) =
            (together, old, new)
            && held == *old
            && limit < old
        {
            let is_closed = self.fits_with_swap(at, limit) && self.put_with_swap(at, new);
            if is_closed && self.is_noted(at) {
                self.note_swap(at, "");
            }
        }
    }

    /// Closes what could not be closed when the limit that is in force was written, or what nobody was there
    /// to close.
    pub(super) fn close_swap(&self, at: &CgroupPath, value: &Value) {
        let Value::MemoryLimit(limit @ MemoryLimit::Bytes(_)) = value else {
            return;
        };
        if self.generation(Setting::MemoryLimit) != Some(Generation::V1) || !self.is_noted(at) {
            return;
        }
        let Some(together) = self.together(at) else {
            return;
        };
        let is_open = together > *limit && self.is_to_be_closed(at, together);
        // Where it is not as it was noted, somebody else has decided about it since.
        if !is_open || self.fits_with_swap(at, limit) && self.put_with_swap(at, value) {
            self.note_swap(at, "");
        }
    }

    /// What a group may have of memory and swap together.
    fn together(&self, at: &CgroupPath) -> Option<MemoryLimit> {
        let text = self.tree.read(Controller::Memory, at, FILE).ok()?;
        match table::parse(Setting::MemoryLimit, Generation::V1, &text, self.terms())? {
            Value::MemoryLimit(limit) => Some(limit),
            _ => None,
        }
    }

    /// Whether a group uses no more memory and swap than this; also where that cannot be read.
    fn fits_with_swap(&self, at: &CgroupPath, limit: &MemoryLimit) -> bool {
        self.bytes(at, USED)
            .is_none_or(|used| MemoryLimit::Bytes(used) <= *limit)
    }

    /// Whether a group had no swap when its limit was given back.
    fn was_without_swap(&self, at: &CgroupPath) -> bool {
        self.noted_of_swap(at) == NONE
    }

    /// Whether it is for us to close what memory and swap together are open to.
    fn is_to_be_closed(&self, at: &CgroupPath, together: MemoryLimit) -> bool {
        let noted = self.noted_of_swap(at);
        noted == NONE && together == MemoryLimit::Unlimited || noted == self.note_of(together)
    }

    fn is_noted(&self, at: &CgroupPath) -> bool {
        !self.noted_of_swap(at).is_empty()
    }

    fn noted_of_swap(&self, at: &CgroupPath) -> String {
        let noted = self.noted(Controller::Memory, at, Setting::MemoryLimit);
        noted.unwrap_or_default()
    }

    fn note_of(&self, together: MemoryLimit) -> String {
        let text = table::render(&together.into(), Generation::V1, self.terms());
        format!("{NONE} {text}")
    }

    fn note_swap(&self, at: &CgroupPath, text: &str) {
        let place = (at, Setting::MemoryLimit);
        self.set_noted(Controller::Memory, place, text.to_owned());
    }

    /// Whether it was taken. What the limit itself comes to is told in any case.
    fn put_with_swap(&self, at: &CgroupPath, new: &Value) -> bool {
        let text = table::render(new, Generation::V1, self.terms());
        let result = self.tree.write(Controller::Memory, at, FILE, &text);
        debug!(cgroup = %at, file = FILE, %new, ?result, "memory and swap together");
        result.is_ok()
    }
}
