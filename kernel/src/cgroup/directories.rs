//! Telling a group from an earlier one of the same name.

use super::{Cgroups, Controller};
use koord_model::CgroupPath;

/// The directories of a group as they were last seen: the inode in each hierarchy, in the order of
/// [`Controller::ALL`].
#[derive(Clone, Debug, Default)]
pub struct Directories([Option<u64>; Controller::ALL.len()]);

impl Directories {
    /// Looks at those that are there. Whether one of them has taken the place of another since it was last
    /// seen: then nothing is there of what was written before. What is not there now, or cannot be looked at,
    /// stays as it was last seen.
    pub fn are_others(&mut self, cgroups: &Cgroups, at: &CgroupPath) -> bool {
        let mut is_another = false;
        for (seen, controller) in self.0.iter_mut().zip(Controller::ALL) {
            if let Ok(Some(inode)) = cgroups.tree.inode(*controller, at) {
                is_another |= seen.replace(inode).is_some_and(|before| before != inode);
            }
        }
        is_another
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::Generation,
        fake::{Errno, FakeTree},
    };

    #[test]
    fn what_cannot_be_looked_at_stays_as_it_was_seen() {
        let at = CgroupPath::parse("host/nginx").unwrap();
        let tree = FakeTree::new(Generation::V2, 2);
        let cgroups = Cgroups::over(tree.clone());
        tree.make(&at);
        let mut seen = Directories::default();
        assert!(!seen.are_others(&cgroups, &at));
        tree.remove(&at);
        tree.make(&at);
        tree.fail_looks(Some(Errno::MFILE));
        assert!(!seen.are_others(&cgroups, &at));
        tree.fail_looks(None);
        assert!(seen.are_others(&cgroups, &at));
    }
}
