//! Whether a pod's own directory has as much as its containers are to have.

use super::{Part, is_held};
use crate::{hub::Hub, ledger::Entry};
use koord_kernel::cgroup::Generation;
use koord_model::{CgroupPath, CpuQuota, SandboxId, Setting, Value};

/// Whether a pod's own directory may have less than a container takes that is made now with this quota, if with
/// any, by what was decided of it and was not held against it yet: on cgroup v1 the kernel refuses a container
/// more quota than its pod has, but takes one without any, and anywhere what makes it could be killed for want
/// of memory. The directory may also come to have less while something that was decided before is being written.
/// It costs a read or two on the data path.
pub(crate) fn lacks_room(hub: &Hub, sandbox: &SandboxId, quota: Option<CpuQuota>) -> bool {
    let by_quota = hub.writer().cgroups().generation(Setting::CpuQuota) == Some(Generation::V1);
    let quota = quota.filter(|_| by_quota);
    let ledger = hub.ledger().borrow();
    let pod = ledger.pod(sandbox).filter(|pod| pod.ready);
    pod.is_some_and(|pod| {
        let mut entries = pod.own.entries().iter();
        let is_new = |entry: &Entry| is_held(entry) && Part::New.has(entry);
        let at = pod.own.at.as_ref();
        at.is_some_and(|at| entries.any(|it| is_new(it) && has_less(hub, at, (&it.desired, quota))))
    })
}

/// Whether a directory has less than is decided of it of memory, or less quota than a container's; also where
/// what it will have cannot be told.
fn has_less(hub: &Hub, at: &CgroupPath, (wanted, quota): (&Value, Option<CpuQuota>)) -> bool {
    let writer = hub.writer();
    let held = || match writer.is_writing() {
        true => None,
        false => writer.held(at, wanted.setting()),
    };
    match (wanted, quota) {
        (Value::CpuQuota(_), Some(quota)) => match held() {
            Some(Value::CpuQuota(held)) => held < quota,
            _ => true,
        },
        (Value::MemoryLimit(wanted), _) => match held() {
            Some(Value::MemoryLimit(held)) => held < *wanted,
            _ => true,
        },
        _ => false,
    }
}
