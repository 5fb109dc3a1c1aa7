//! Which writes the kernel answers only after it has reclaimed memory.

use super::{Cgroups, Change, Controller, Generation};
use koord_model::{CgroupPath, MemoryLimit, Setting, Value};

// === impl Cgroups ===

impl Cgroups {
    /// Whether writing a change may take as long as reclaiming memory does, which may be many seconds:
    /// a limit that is below what the group uses now. Reads a file at most.
    pub fn reclaims(&self, change: &Change) -> bool {
        match &change.value {
            Value::MemoryHigh(MemoryLimit::Bytes(limit))
            | Value::MemoryLimit(MemoryLimit::Bytes(limit)) => {
                self.used(&change.at).is_some_and(|used| used > *limit)
            }
            _ => false,
        }
    }

    /// The memory that a group uses, in bytes; `None` if that is not to be seen.
    fn used(&self, at: &CgroupPath) -> Option<u64> {
        let file = match self.generation(Setting::MemoryLimit)? {
            Generation::V1 => "memory.usage_in_bytes",
            Generation::V2 => "memory.current",
        };
        self.bytes(at, file)
    }

    /// The number in a file of a group's memory; `None` if that is not to be seen.
    pub(super) fn bytes(&self, at: &CgroupPath, file: &str) -> Option<u64> {
        let text = self.tree.read(Controller::Memory, at, file).ok()?;
        text.trim_end().parse().ok()
    }
}
