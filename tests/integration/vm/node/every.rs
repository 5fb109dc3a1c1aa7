//! Every hook at once that this kernel gives something to do, by each of the fronts that are asked.

mod expected;

use crate::{check, node};
use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front,
    fronts::{HamiLock, Machine, Seen},
    rdma::RdmaMachine,
};
use std::{cell::OnceCell, path::Path};

/// All that there are.
const HOOKS: [&str; 16] = [
    "BatchResource",
    "MidResource",
    "CPUNormalization",
    "CPUSetAllocator",
    "CPUBurst",
    "MemoryQOS",
    "GroupIdentity",
    "CoreSched",
    "RdtResctrl",
    "Resctrl",
    "OOMScoreAdj",
    "BlkIOReconcile",
    "GPUEnvInject",
    "HamiCoreVGPUMonitor",
    "RDMADeviceInject",
    "TerwayQoS",
];

pub(super) fn check_all() {
    let _lock = HamiLock::make().expect("a directory can be made");
    let rdma = RdmaMachine::make().expect("this kernel has loop devices");
    let machine = Machine {
        kernel: "cgroup v2",
        hooks: &HOOKS,
        share_pool: "1",
        scores: ["-500", "700"],
        expected: expected::EXPECTED,
        otherwise: expected::OTHERWISE,
        rests_by: Front::Nri,
        meddled: expected::MEDDLED,
        directory: Path::new("/tmp/every"),
        rdma: &rdma,
    };
    let (by_cri, by_nri) = (OnceCell::new(), OnceCell::new());
    check("every_hook_is_in_force_by_cri", || {
        see(machine, Front::Cri, &by_cri)
    });
    check("every_hook_is_in_force_by_nri", || {
        see(machine, Front::Nri, &by_nri)
    });
    check("every_hook_decides_alike_by_both", || async {
        let missing = "one of the two has failed";
        let by_cri = by_cri.get().context(missing)?;
        machine.compare(by_cri, by_nri.get().context(missing)?)
    });
}

async fn see(machine: Machine<'_>, front: Front, seen: &OnceCell<Seen>) -> Result<()> {
    let mut node = node(machine.options(front)?);
    let is_new = seen.set(machine.see(&mut node).await?).is_ok();
    ensure!(is_new, "it was seen before");
    Ok(())
}
