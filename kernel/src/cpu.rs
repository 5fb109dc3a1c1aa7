//! The CPUs of the node.

use koord_model::{CpuSet, CpuSetError};
use std::{
    io,
    path::{Path, PathBuf},
};
use thiserror::Error;

/// Why the CPUs that are online are unknown.
#[derive(Debug, Error)]
pub enum OnlineError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds no list of CPUs", path.display())]
    Malformed { path: PathBuf, source: CpuSetError },
}

/// The CPUs that run tasks now, from the tree of devices at `sys`, which is `/sys` on a node.
///
/// # Errors
///
/// When the file cannot be read ([`OnlineError::Read`]), or is no list of numbers from 0 to 8,191
/// ([`OnlineError::Malformed`]).
pub fn online(sys: &Path) -> Result<CpuSet, OnlineError> {
    let path = sys.join("devices/system/cpu/online");
    match std::fs::read_to_string(&path) {
        Ok(list) => list
            .parse()
            .map_err(|source| OnlineError::Malformed { path, source }),
        Err(source) => Err(OnlineError::Read { path, source }),
    }
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
        assert!(matches!(error, OnlineError::Read { .. }));
        let told = "cannot read /proc/devices/system/cpu/online";
        assert_eq!(error.to_string(), told);
    }
}
