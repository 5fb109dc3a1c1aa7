//! Latency-sensitive pods weigh as much as two CPUs.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{Stage, View},
};
use koord_model::{MilliCpu, QosClass, Setting};
use koord_proto::keys::label;

pub(super) const META: HookMeta = HookMeta {
    name: "HeavyLs",
    gate: "HeavyLs",
    default_on: false,
    maturity: Maturity::Own,
    options: &[],
    stages: &[Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "gives LS pods the weight of two CPUs",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[],
    },
    settings: &[Setting::CpuShares],
};

pub(super) struct HeavyLs;

impl Hook for HeavyLs {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if view.qos() != Some(QosClass::Ls) {
            return Ok(Adjustment::default());
        }
        Ok(Adjustment {
            cpu_shares: Some(MilliCpu(2_000).shares()),
            ..Adjustment::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{decide_pod, node, pod, shown};

    #[test]
    fn ls_pods_and_no_others_weigh_two_cpus() {
        let decided = |class| shown(&decide_pod(&HeavyLs, &pod(class, &[]), &node()).unwrap());
        assert_eq!(decided("LS"), "cpu.shares=2048");
        assert_eq!(decided("BE"), "");
    }
}
