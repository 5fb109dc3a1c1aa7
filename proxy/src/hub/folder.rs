//! Folders of the node that containers are made with: they are there before the runtime is asked.

use super::{Hub, NewContainer};
use crate::{
    hami_core::{FolderError, folder_of},
    ledger::{Applied, Route},
    status::{Status, chain_of},
};
use koord_hooks::FailPolicy;
use koord_model::Setting;
use koord_proto::keys::label;
use std::path::{Path, PathBuf};
use tokio::time::{Instant, timeout_at};

// === impl Hub ===

impl Hub {
    /// The folder that a container which is about to be made is to find, if the runtime is told of one.
    pub(super) fn folder_for(&self, new: &NewContainer) -> Option<PathBuf> {
        let (entry, path) = folder_of(&new.target)?;
        let is_told = entry.route == Route::Request && self.hands_off(new.exemption).is_none();
        is_told.then(|| path.to_owned())
    }

    /// Makes it. A container for which it cannot be made goes without what it is for; an error if the hook
    /// insists on that.
    pub(super) async fn make_folder(
        &self,
        path: &Path,
        new: &mut NewContainer,
        until: Instant,
    ) -> Result<(), Status> {
        let made = timeout_at(until, self.folders.make(path)).await;
        let late = |_| {
            Err(FolderError::Late {
                path: path.to_owned(),
            })
        };
        match made.unwrap_or_else(late) {
            Ok(()) => Ok(()),
            Err(error) => self.does_without(new, &error),
        }
    }

    fn does_without(&self, new: &mut NewContainer, error: &FolderError) -> Result<(), Status> {
        let NewContainer { target, pod, .. } = new;
        let Some(entry) = target.entry_mut(Setting::GpuMonitor) else {
            return Ok(());
        };
        // It is not said, and cannot be given later.
        entry.route = Route::Kernel;
        entry.applied = Applied::Lacking(chain_of(error).into());
        let hook = entry.owner;
        self.complain(pod, hook, label::GPU_ISOLATION_PROVIDER, error);
        match self.policy().chain().fail_policy(hook) {
            Some(FailPolicy::Closed) => Err(Status::without_folder(hook, pod, error)),
            _ => Ok(()),
        }
    }
}
