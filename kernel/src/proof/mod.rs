//! What every kernel must do, the fake one included: checks that run on whatever control groups
//! they are given.
//!
//! The fake tree is only worth something if it answers as kernels do, and the rules that
//! [`Cgroups`] is built on have to hold on real ones. So each check runs on the fake tree of both
//! versions, on the machine's own kernel and on a stock kernel with cgroup v2 in a virtual machine.

mod apply;
mod mapper;
mod real;
mod script;
mod script_io;
mod script_v1;
mod script_v2;
mod settings;

#[cfg(test)]
mod tests;

pub use self::{
    mapper::map_linear,
    real::{Hierarchies, RealGround},
    script::raw_writes_about_a_device_are_answered_as_the_script_says,
};

use crate::cgroup::{Cgroups, Controller, Generation};
use koord_model::{CgroupPath, CpuSet, CpusetCpus};

/// A place for one check: control groups of its own, on a machine with CPUs 0 and 1.
pub trait Ground {
    fn cgroups(&self) -> &Cgroups;

    /// The group that all others of the check are in. It may use CPUs 0 and 1.
    fn base(&self) -> &CgroupPath;

    /// Makes a group below the base, whose parent is there, with all that a process needs in it
    /// but CPUs.
    fn make(&mut self, at: &CgroupPath);

    /// Puts a process of its own into a group.
    fn enter(&mut self, at: &CgroupPath);

    /// Ends all processes that were put somewhere.
    fn leave(&mut self);

    /// Removes a group that nothing is in.
    fn remove(&mut self, at: &CgroupPath);
}

/// Something that must hold. Panics where it does not.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub name: &'static str,
    pub run: fn(&mut dyn Ground),
}

macro_rules! checks {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// All checks; each needs a ground of its own.
        pub const CHECKS: &[Check] = &[
            $(Check { name: stringify!($name), run: $module::$name }),+
        ];
    };
}

checks! {
    script::raw_writes_are_answered_as_the_script_says,
    apply::quotas_of_parent_and_child_move_between_any_two_states,
    apply::cpusets_of_parent_and_child_move_between_any_two_states,
    apply::the_naive_order_is_what_cgroup_v1_refuses,
    apply::several_settings_of_several_groups_change_at_once,
    apply::a_quota_and_its_burst_move_between_any_two_states,
    apply::idle_is_cleared_before_shares_and_set_after,
    apply::the_shares_of_an_idle_group_can_be_given_back,
    apply::a_change_that_fails_stops_no_other,
    settings::shares_are_equal_when_their_weights_are,
    settings::memory_is_counted_in_pages,
    settings::a_quota_leaves_the_period_alone,
    settings::a_period_leaves_the_quota_alone_where_the_kernel_takes_it,
    settings::all_cpus_are_the_parents,
    settings::what_a_group_below_may_be_given_is_known_before_it_is_there,
    settings::a_value_out_of_range_is_not_written,
    settings::a_group_that_is_gone_is_told_from_a_setting_that_is_not_there,
    settings::a_group_that_is_made_anew_is_another,
    settings::groups_are_listed_by_name,
    settings::who_watches_a_setting_is_told_of_writes_to_it,
    settings::a_note_that_is_taken_can_be_read_again,
}

/// Makes the groups below the base that `names` says.
fn make(ground: &mut dyn Ground, names: &[&str]) -> Vec<CgroupPath> {
    let path = |name: &&str| ground.base().join(name).expect("a name of a check");
    let paths: Vec<CgroupPath> = names.iter().map(path).collect();
    for path in &paths {
        ground.make(path);
    }
    paths
}

fn generation(ground: &dyn Ground) -> Generation {
    let tree = &ground.cgroups().tree;
    let generation = tree.generation(Controller::Cpu);
    generation.expect("a ground has the CPU controller")
}

/// The text of `v1` or `v2`, whichever it is.
fn either(ground: &dyn Ground, v1: &'static str, v2: &'static str) -> &'static str {
    match generation(ground) {
        Generation::V1 => v1,
        Generation::V2 => v2,
    }
}

fn cpus(list: &str) -> CpusetCpus {
    let set: CpuSet = list.parse().expect("a list of a check");
    CpusetCpus::Only(set)
}
