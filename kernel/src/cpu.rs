//! The CPUs of the node.

use koord_model::{CpuSet, CpuSetError};
use std::{io, path::Path};
use thiserror::Error;

/// Why the CPUs that are online are unknown.
#[derive(Debug, Error)]
pub enum OnlineError {
    #[error("cannot read devices/system/cpu/online")]
    Read(#[source] io::Error),
    #[error("devices/system/cpu/online holds no list of CPUs")]
    Malformed(#[source] CpuSetError),
}

/// The CPUs that run tasks now, from the tree of devices at `sys`, which is `/sys` on a node.
pub fn online(sys: &Path) -> Result<CpuSet, OnlineError> {
    let list = std::fs::read_to_string(sys.join("devices/system/cpu/online"))
        .map_err(OnlineError::Read)?;
    list.parse().map_err(OnlineError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_that_runs_this_has_a_cpu_online() {
        let online = online(Path::new("/sys")).unwrap();
        let counted = std::thread::available_parallelism().unwrap().get();
        assert!(online.len() >= counted, "{online}");
    }

    #[test]
    fn a_tree_without_the_file_is_an_error() {
        let error = online(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, OnlineError::Read(_)));
    }
}
