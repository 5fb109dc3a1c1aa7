//! A node in a virtual machine, on a kernel with core scheduling and cache allocation: what the proxy
//! does there with a real containerd.
//!
//! The guest (`vm/node/`) makes the checks; each has to be named on its console as
//! passed.
#![forbid(unsafe_code)]

use anyhow::{Result, anyhow};
use koord_integration::vm::{Console, NodeMachine, ONE_CORE, TWO_CORES, TWO_NODES};
use koord_testkit::{ContainerdVersion, RuntimeKind};
use std::sync::OnceLock;

#[test]
fn a_machine_of_one_socket_has_two_cores_of_two_threads() -> Result<()> {
    passed("the_machine_has_two_cores")
}

#[test]
fn this_kernel_makes_passes_on_and_takes_cookies() -> Result<()> {
    passed("cookies_are_made_inherited_passed_on_and_taken")
}

#[test]
fn a_container_of_containerd_has_the_cookie_of_its_shim() -> Result<()> {
    passed("a_container_has_the_cookie_of_its_shim")
}

#[test]
fn groups_of_pods_have_cookies_from_the_first_instruction_by_cri() -> Result<()> {
    passed("groups_have_cookies_by_cri")
}

#[test]
fn groups_of_pods_have_cookies_from_the_first_instruction_by_nri() -> Result<()> {
    passed("groups_have_cookies_by_nri")
}

#[test]
fn pods_that_were_there_before_are_adopted_with_their_cookies() -> Result<()> {
    passed("groups_keep_their_cookies_over_a_restart_by_cri")
}

#[test]
fn pods_that_were_there_before_a_plugin_are_adopted_with_their_cookies() -> Result<()> {
    passed("groups_keep_their_cookies_over_a_restart_by_nri")
}

#[test]
fn this_kernel_shares_a_cache_out_by_classes() -> Result<()> {
    shared("classes_are_made_filled_and_run_out")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_by_cri() -> Result<()> {
    shared("pods_share_by_class_and_by_pod_by_cri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_by_nri() -> Result<()> {
    shared("pods_share_by_class_and_by_pod_by_nri")
}

#[test]
fn groups_of_caches_are_found_again_and_shared_where_none_is_left_by_cri() -> Result<()> {
    shared("groups_are_found_again_and_run_out_by_cri")
}

#[test]
fn groups_of_caches_are_found_again_and_shared_where_none_is_left_by_nri() -> Result<()> {
    shared("groups_are_found_again_and_run_out_by_nri")
}

#[test]
fn this_kernel_monitors_within_a_class_and_leaves_ids_to_the_others() -> Result<()> {
    shared("monitoring_groups_are_made_filled_and_run_out")
}

#[test]
fn pods_of_a_class_are_monitored_apart_by_cri() -> Result<()> {
    shared("pods_of_a_class_are_monitored_by_cri")
}

#[test]
fn pods_of_a_class_are_monitored_apart_by_nri() -> Result<()> {
    shared("pods_of_a_class_are_monitored_by_nri")
}

#[test]
fn each_class_has_its_values_on_cgroup_v2_by_cri() -> Result<()> {
    of_classes("classes_have_their_values_by_cri")
}

#[test]
fn each_class_has_its_values_on_cgroup_v2_by_nri() -> Result<()> {
    of_classes("classes_have_their_values_by_nri")
}

#[test]
fn each_class_has_its_values_on_cgroup_v2_by_watch() -> Result<()> {
    of_classes("classes_have_their_values_by_watch")
}

#[test]
fn an_update_changes_only_what_it_names_on_cgroup_v2() -> Result<()> {
    of_classes("an_update_changes_only_what_it_names")
}

#[test]
fn quota_and_burst_follow_the_node_on_cgroup_v2_by_cri() -> Result<()> {
    of_classes("quota_and_burst_follow_the_node_by_cri")
}

#[test]
fn quota_and_burst_follow_the_node_on_cgroup_v2_by_nri() -> Result<()> {
    of_classes("quota_and_burst_follow_the_node_by_nri")
}

#[test]
fn an_idle_pod_is_woken_for_a_resize_on_cgroup_v2_by_cri() -> Result<()> {
    of_classes("an_idle_pod_is_woken_for_a_resize_by_cri")
}

#[test]
fn groups_have_cookies_from_the_first_instruction_on_containerd_1_6() -> Result<()> {
    on_containerd_1_6("groups_have_cookies_by_cri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_on_containerd_1_6() -> Result<()> {
    on_containerd_1_6("pods_share_by_class_and_by_pod_by_cri")
}

#[test]
fn a_second_shim_of_a_pod_comes_into_its_group_on_containerd_1_6() -> Result<()> {
    on_containerd_1_6("a_second_shim_comes_into_the_group_of_its_pod")
}

/// One of the checks of how this runtime starts containers, which go in one boot.
fn on_containerd_1_6(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    first(&CONSOLE, ContainerdVersion::V1_6, check)
}

#[test]
fn groups_have_cookies_from_the_first_instruction_on_containerd_1_7_by_cri() -> Result<()> {
    on_containerd_1_7("groups_have_cookies_by_cri")
}

#[test]
fn groups_have_cookies_from_the_first_instruction_on_containerd_1_7_by_nri() -> Result<()> {
    on_containerd_1_7("groups_have_cookies_by_nri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_on_containerd_1_7_by_cri()
-> Result<()> {
    on_containerd_1_7("pods_share_by_class_and_by_pod_by_cri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_on_containerd_1_7_by_nri()
-> Result<()> {
    on_containerd_1_7("pods_share_by_class_and_by_pod_by_nri")
}

#[test]
fn a_second_shim_of_a_pod_comes_into_its_group_on_containerd_1_7() -> Result<()> {
    on_containerd_1_7("a_second_shim_comes_into_the_group_of_its_pod")
}

/// The same of this one.
fn on_containerd_1_7(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    first(&CONSOLE, ContainerdVersion::V1_7, check)
}

#[test]
fn groups_have_cookies_from_the_first_instruction_on_cri_o_by_cri() -> Result<()> {
    on_cri_o("groups_have_cookies_by_cri")
}

#[test]
fn groups_have_cookies_from_the_first_instruction_on_cri_o_by_nri() -> Result<()> {
    on_cri_o("groups_have_cookies_by_nri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_on_cri_o_by_cri() -> Result<()> {
    on_cri_o("pods_share_by_class_and_by_pod_by_cri")
}

#[test]
fn pods_have_their_part_of_the_cache_from_the_first_instruction_on_cri_o_by_nri() -> Result<()> {
    on_cri_o("pods_share_by_class_and_by_pod_by_nri")
}

/// The same of the one that has no shims.
fn on_cri_o(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    first(&CONSOLE, RuntimeKind::Crio, check)
}

fn first(
    console: &OnceLock<Result<Console>>,
    runtime: impl Into<RuntimeKind>,
    check: &str,
) -> Result<()> {
    let boot = || NodeMachine::with(ONE_CORE, runtime)?.check("first");
    passed_in(console.get_or_init(boot), check)
}

/// One of the checks of classes and of CPU time, which go in one boot.
fn of_classes(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "classes", check)
}

#[test]
fn memory_is_kept_by_the_policy_and_given_back_by_cri() -> Result<()> {
    of_memory("memory_follows_the_policy_by_cri")
}

#[test]
fn memory_is_kept_by_the_policy_and_given_back_by_nri() -> Result<()> {
    of_memory("memory_follows_the_policy_by_nri")
}

#[test]
fn what_a_burstable_pod_says_for_itself_is_in_force_on_cgroup_v2_by_cri() -> Result<()> {
    of_memory("pods_say_for_themselves_by_cri")
}

#[test]
fn what_a_burstable_pod_says_for_itself_is_in_force_on_cgroup_v2_by_nri() -> Result<()> {
    of_memory("pods_say_for_themselves_by_nri")
}

#[test]
fn a_wrong_field_of_a_policy_costs_itself_alone_on_cgroup_v2() -> Result<()> {
    of_memory("a_wrong_field_of_a_policy_costs_itself")
}

/// One of the checks of memory, which go in one boot.
fn of_memory(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "memory", check)
}

#[test]
fn this_kernel_answers_about_block_devices_as_the_fake_tree_does() -> Result<()> {
    of_io("this_kernel_answers_as_the_fake_tree")
}

#[test]
fn block_devices_are_limited_and_shared_out_on_cgroup_v2_by_cri() -> Result<()> {
    of_io("devices_are_limited_and_shared_out_by_cri")
}

#[test]
fn block_devices_are_limited_and_shared_out_on_cgroup_v2_by_nri() -> Result<()> {
    of_io("devices_are_limited_and_shared_out_by_nri")
}

#[test]
fn a_volume_group_and_a_pods_claim_are_limited_on_cgroup_v2_by_cri() -> Result<()> {
    of_io("a_volume_group_and_a_claim_are_limited_by_cri")
}

#[test]
fn a_volume_group_and_a_pods_claim_are_limited_on_cgroup_v2_by_nri() -> Result<()> {
    of_io("a_volume_group_and_a_claim_are_limited_by_nri")
}

#[test]
fn a_pod_that_reads_keeps_its_limit_and_another_beside_it_its_rate_by_cri() -> Result<()> {
    of_io("a_limit_is_kept_and_others_keep_their_rate_by_cri")
}

#[test]
fn a_pod_that_writes_keeps_its_limit_and_another_beside_it_its_rate_by_nri() -> Result<()> {
    of_io("a_limit_is_kept_and_others_keep_their_rate_by_nri")
}

/// One of the checks of block devices, which all go in one boot.
fn of_io(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "io", check)
}

#[test]
fn pods_send_by_the_queues_of_the_policy_on_cgroup_v2_by_cri() -> Result<()> {
    of_traffic("pods_send_by_their_queues_by_cri")
}

#[test]
fn pods_send_by_the_queues_of_the_policy_on_cgroup_v2_by_nri() -> Result<()> {
    of_traffic("pods_send_by_their_queues_by_nri")
}

#[test]
fn queues_of_the_network_are_alike_on_cgroup_v2_by_cri_and_by_nri() -> Result<()> {
    of_traffic("queues_are_alike_by_both")
}

#[test]
fn packets_of_groups_with_a_class_id_of_cgroup_v1_are_sent_to_that_class() -> Result<()> {
    of_traffic("packets_of_groups_are_sent_to_the_class_of_their_id")
}

/// One of the checks of the network's queues, which all go in one boot.
fn of_traffic(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "traffic", check)
}

#[test]
fn every_hook_is_in_force_and_given_back_on_cgroup_v2_by_cri() -> Result<()> {
    of_every_hook("every_hook_is_in_force_by_cri")
}

#[test]
fn every_hook_is_in_force_and_given_back_on_cgroup_v2_by_nri() -> Result<()> {
    of_every_hook("every_hook_is_in_force_by_nri")
}

#[test]
fn every_hook_decides_alike_on_cgroup_v2_by_cri_and_by_nri() -> Result<()> {
    of_every_hook("every_hook_decides_alike_by_both")
}

/// One of the checks of all hooks at once, which go in one boot.
fn of_every_hook(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "every", check)
}

#[test]
fn a_machine_of_two_sockets_has_two_numa_nodes() -> Result<()> {
    of_nodes("the_machine_has_two_nodes")
}

#[test]
fn pods_of_two_numa_nodes_have_their_cpus_memory_caches_and_cores_by_cri() -> Result<()> {
    of_nodes("pods_are_placed_on_nodes_by_cri")
}

#[test]
fn pods_of_two_numa_nodes_have_their_cpus_memory_caches_and_cores_by_nri() -> Result<()> {
    of_nodes("pods_are_placed_on_nodes_by_nri")
}

/// One of the checks on two NUMA nodes, which go in one boot.
fn of_nodes(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "nodes", check)
}

/// One of the checks of core scheduling, which all go in one boot.
fn passed(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "cores", check)
}

/// One of the checks of cache allocation, which all go in another.
fn shared(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, "caches", check)
}

fn of_boot(console: &OnceLock<Result<Console>>, checks: &str, check: &str) -> Result<()> {
    passed_in(console.get_or_init(|| boot(checks)), check)
}

fn passed_in(console: &Result<Console>, check: &str) -> Result<()> {
    let console = console.as_ref().map_err(|error| anyhow!("{error:?}"))?;
    console.passed(&[check])
}

fn boot(checks: &str) -> Result<Console> {
    let hardware = match checks {
        "cores" => TWO_CORES,
        "nodes" => TWO_NODES,
        _ => ONE_CORE,
    };
    NodeMachine::with(hardware, ContainerdVersion::V2)?.check(checks)
}
