//! Memory and swap together, on cgroup v1.
//!
//! `memory.memsw.limit_in_bytes` is at no time below `memory.limit_in_bytes`: the kernel refuses a
//! write of either that would make it so (`EINVAL`; `mem_cgroup_resize_max` in `mm/memcontrol.c`).
//! Runtimes give a container the same number in both, which leaves it no swap. So where a limit rises
//! above that with swap, this rises before it, and where both were the same they stay so.

use super::{Cgroups, Controller, Generation, table};
use koord_model::{CgroupPath, MemoryLimit, Setting, Value};
use tracing::debug;

const FILE: &str = "memory.memsw.limit_in_bytes";

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
        let Value::MemoryLimit(limit) = new else {
            return Together(None);
        };
        // What both may have is never below it: nothing is in the way, and nothing was the same.
        if *old == Value::MemoryLimit(MemoryLimit::Unlimited) {
            return Together(None);
        }
        if self.generation(Setting::MemoryLimit) != Some(Generation::V1) {
            return Together(None);
        }
        let text = self.tree.read(Controller::Memory, at, FILE).ok();
        let held = text.and_then(|text| {
            table::parse(Setting::MemoryLimit, Generation::V1, &text, self.terms())
        });
        let Some(Value::MemoryLimit(held)) = held else {
            return Together(None);
        };
        if held < *limit {
            self.put_with_swap(at, new);
        }
        Together(Some(held))
    }

    /// A limit was lowered: where memory and swap together were no more than the old one, they are no
    /// more than the new. Where there was none somebody has left them open, and so they stay.
    pub(super) fn keep_from_swap(
        &self,
        at: &CgroupPath,
        Together(together): Together,
        (old, new): (&Value, &Value),
    ) {
        if let (Some(held), Value::MemoryLimit(old), Value::MemoryLimit(limit)) =
            (together, old, new)
            && held == *old
            && held != MemoryLimit::Unlimited
            && limit < old
        {
            self.put_with_swap(at, new);
        }
    }

    fn put_with_swap(&self, at: &CgroupPath, new: &Value) {
        let text = table::render(new, Generation::V1, self.terms());
        // Refused or not, what the limit itself comes to is told.
        let result = self.tree.write(Controller::Memory, at, FILE, &text);
        debug!(cgroup = %at, file = FILE, %new, ?result, "memory and swap together");
    }
}
