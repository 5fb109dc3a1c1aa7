//! Updates of a container that are about one field.

use koord_testkit::cri::message::LinuxContainerResources;

pub fn shares(cpu_shares: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    }
}

pub fn quota(cpu_quota: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_quota,
        ..Default::default()
    }
}

pub fn period(cpu_period: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period,
        ..Default::default()
    }
}

pub fn memory_limit(memory_limit_in_bytes: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        memory_limit_in_bytes,
        ..Default::default()
    }
}

pub fn swap_limit(memory_swap_limit_in_bytes: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        memory_swap_limit_in_bytes,
        ..Default::default()
    }
}

pub fn cpus(cpuset_cpus: &str) -> LinuxContainerResources {
    LinuxContainerResources {
        cpuset_cpus: cpuset_cpus.to_owned(),
        ..Default::default()
    }
}

pub fn mems(cpuset_mems: &str) -> LinuxContainerResources {
    LinuxContainerResources {
        cpuset_mems: cpuset_mems.to_owned(),
        ..Default::default()
    }
}

pub fn oom_score(oom_score_adj: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        oom_score_adj,
        ..Default::default()
    }
}
