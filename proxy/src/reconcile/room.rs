//! Whether a pod's own directory has as much as its containers are to have.

use super::{Part, is_held};
use crate::{hub::Hub, ledger::Entry};
use koord_model::{CgroupPath, SandboxId, Value};

/// Whether a pod's own directory may have less than a container that is made now takes, by what was decided of it
/// and was not held against it yet: on cgroup v1 the kernel refuses a container more quota than its pod has, and
/// anywhere what makes it could be killed for want of memory. The directory may also come to have less while
/// something that was decided before is being written. It costs a read or two on the data path.
pub(crate) fn lacks_room(hub: &Hub, sandbox: &SandboxId) -> bool {
    let ledger = hub.ledger().borrow();
    let pod = ledger.pod(sandbox).filter(|pod| pod.ready);
    pod.is_some_and(|pod| {
        let mut entries = pod.own.entries().iter();
        let is_new = |entry: &Entry| is_held(entry) && Part::New.has(entry);
        let at = pod.own.at.as_ref();
        at.is_some_and(|at| entries.any(|it| is_new(it) && has_less(hub, at, &it.desired)))
    })
}

/// Whether a directory has less of what bounds those below it; also where what it will have cannot be told.
fn has_less(hub: &Hub, at: &CgroupPath, wanted: &Value) -> bool {
    let writer = hub.writer();
    let held = || match writer.standing() {
        Some(_) => None,
        None => writer.held(at, wanted.setting()),
    };
    match wanted {
        Value::CpuQuota(wanted) => match held() {
            Some(Value::CpuQuota(held)) => held < *wanted,
            _ => true,
        },
        Value::MemoryLimit(wanted) => match held() {
            Some(Value::MemoryLimit(held)) => held < *wanted,
            _ => true,
        },
        Value::CpusetCpus(_) => true,
        _ => false,
    }
}
