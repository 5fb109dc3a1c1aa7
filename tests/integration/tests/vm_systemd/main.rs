//! A node as its administrator knows it: Debian's systemd is the first program, containerd and a kubelet
//! are services with the systemd cgroup driver on cgroup v2, and what the README has its readers type is
//! typed, word for word.
//!
//! The guest (`vm/systemd/`) types and makes the checks, one after the other; each has to be named on its
//! console as passed.
#![forbid(unsafe_code)]

use anyhow::{Result, anyhow};
use koord_integration::vm::{Console, ONE_CORE_WITH_PODS, SystemMachine, TWO_CPUS};
use std::sync::OnceLock;

#[test]
fn systemd_is_the_first_program_and_runs_containerd_and_kubelet() -> Result<()> {
    on_a_node("systemd_is_the_first_program")
}

#[test]
fn a_kubelets_pods_are_in_slices_and_scopes() -> Result<()> {
    on_a_node("pods_are_in_slices_and_scopes")
}

#[test]
fn the_readmes_steps_start_a_service_that_observes() -> Result<()> {
    on_a_node("the_service_starts_and_observes")
}

#[test]
fn the_hardening_of_the_unit_is_in_force() -> Result<()> {
    on_a_node("the_service_is_hardened")
}

#[test]
fn the_kubelet_goes_through_the_proxy_and_its_pods_keep_their_values() -> Result<()> {
    on_a_node("the_kubelet_goes_through_the_proxy")
}

#[test]
fn each_class_has_its_values_in_slices_and_scopes() -> Result<()> {
    on_a_node("values_come_into_force")
}

#[test]
fn values_are_back_once_systemd_has_loaded_its_units_anew() -> Result<()> {
    on_a_node("values_are_back_after_a_daemon_reload")
}

#[test]
fn values_and_pods_outlive_a_restart_and_a_kill_of_the_service() -> Result<()> {
    on_a_node("values_outlive_a_restart_and_a_kill")
}

#[test]
fn three_kills_of_the_service_within_a_minute_lead_to_pass_through() -> Result<()> {
    on_a_node("three_kills_lead_to_pass_through")
}

#[test]
fn the_readmes_way_back_leaves_nothing() -> Result<()> {
    on_a_node("the_node_is_as_before")
}

/// One of the checks of the README's steps, which go in one boot.
fn on_a_node(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, TWO_CPUS, "on-a-node", check)
}

#[test]
fn a_service_that_registers_as_a_plugin_observes() -> Result<()> {
    as_a_plugin("a_plugin_registers_and_observes")
}

#[test]
fn each_class_has_its_values_by_a_plugin_that_registers() -> Result<()> {
    as_a_plugin("a_plugin_has_values_come_into_force")
}

#[test]
fn nothing_is_left_of_a_plugin_that_registered() -> Result<()> {
    as_a_plugin("a_plugin_that_registers_is_gone")
}

#[test]
fn a_plugin_that_the_runtime_launches_observes() -> Result<()> {
    as_a_plugin("a_launched_plugin_observes")
}

#[test]
fn each_class_has_its_values_by_a_plugin_that_the_runtime_launches() -> Result<()> {
    as_a_plugin("a_launched_plugin_has_values_come_into_force")
}

#[test]
fn nothing_is_left_of_a_plugin_that_the_runtime_launched() -> Result<()> {
    as_a_plugin("a_launched_plugin_is_gone")
}

/// One of the checks of the README's ways to be a plugin, which go in one boot.
fn as_a_plugin(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, TWO_CPUS, "plugin", check)
}

#[test]
fn groups_of_pods_have_cookies_by_a_service_with_the_drop_in_for_them() -> Result<()> {
    with_drop_ins("cores_are_shared_by_groups_with_the_drop_in")
}

#[test]
fn a_service_without_that_drop_in_says_what_is_missing() -> Result<()> {
    with_drop_ins("without_the_drop_in_it_is_told_what_is_missing")
}

#[test]
fn a_service_with_the_drop_in_for_it_asks_the_kubelet() -> Result<()> {
    with_drop_ins("the_kubelet_is_asked_with_the_drop_in")
}

#[test]
fn a_service_with_that_drop_in_reaches_no_other_address() -> Result<()> {
    with_drop_ins("no_other_address_can_be_reached")
}

/// One of the checks of drop-ins, which go in one boot.
fn with_drop_ins(check: &str) -> Result<()> {
    static CONSOLE: OnceLock<Result<Console>> = OnceLock::new();
    of_boot(&CONSOLE, ONE_CORE_WITH_PODS, "drop-ins", check)
}

#[test]
fn the_demo_shows_that_all_is_right_on_debians_own_control_groups() -> Result<()> {
    let machine = SystemMachine::with(TWO_CPUS)?.with_demo()?;
    machine
        .check("demo")?
        .passed(&["the_demo_shows_that_all_is_right"])
}

fn of_boot(
    console: &OnceLock<Result<Console>>,
    hardware: &'static [&'static str],
    checks: &str,
    check: &str,
) -> Result<()> {
    let boot = || SystemMachine::with(hardware)?.check(checks);
    let console = console.get_or_init(boot).as_ref();
    console
        .map_err(|error| anyhow!("{error:?}"))?
        .passed(&[check])
}
