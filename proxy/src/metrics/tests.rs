use super::*;
use crate::{front::cri::Method, hub::Answer, ledger::Applied};
use koord_model::Setting;
use koord_relay::{Counters, Side, Unopened};
use std::time::{Duration, UNIX_EPOCH};

/// Everything that can be counted, counted once.
fn exercised() -> String {
    let metrics = Metrics::new();
    metrics.started("enforce", "nri", UNIX_EPOCH + Duration::from_secs(5));
    metrics.connection_opened();
    metrics.connection_refused(Refused::TooMany);
    metrics.connection_asked_to_go();
    metrics.violation(Side::Client);
    metrics.messages_held(9);
    metrics.relayed(&Counters {
        frames: 7,
        swallowed_bytes: 3,
        reencoded: 1,
    });
    metrics.call_answered(Method::CreateContainer, &Answer::Patched(Vec::new()));
    metrics.call_unopened(Method::RunPodSandbox, Unopened::Compressed);
    metrics.hook_ran(
        "GroupIdentity",
        Some(HookFailure::Panic),
        Duration::from_micros(3),
    );
    metrics.hook_ran("GroupIdentity", None, Duration::from_micros(3));
    metrics.hook_notice();
    metrics.kernel_setting(Setting::CpuShares, &Applied::Written);
    metrics.setting_contested(Setting::CpuShares, None);
    metrics.memory_reclaims(4, 2);
    metrics.gpu_monitor_folders_left(6);
    metrics.ledger_size(2, 3);
    metrics.relisted(true, Duration::from_millis(30));
    metrics.sandboxes_missing(1);
    metrics.policy_loaded(true, 1);
    metrics.pods_answered(true, 1);
    metrics.runtime_up(true);
    metrics.runtime("containerd", "1.6.20");
    metrics.runtime("containerd", "v2.3.1");
    metrics.plugin_registered(true);
    metrics.plugin_up(true);
    metrics.plugin_late_answers(1);
    metrics.another_acts(true);
    metrics.writer_hangs(true);
    metrics.device_writer_hangs(true);
    metrics.thread_groups_hang(true);
    metrics.encode().unwrap()
}

#[test]
fn what_is_counted_is_told_under_its_name() {
    let text = exercised();
    for line in [
        "koord_runtime_proxy_connections_total 1",
        "koord_runtime_proxy_connections_refused_total{reason=\"too_many\"} 1",
        "koord_runtime_proxy_frames_total 7",
        "koord_runtime_proxy_held_bytes 9",
        "koord_runtime_proxy_swallowed_bytes_total 3",
        "koord_runtime_proxy_calls_total{method=\"CreateContainer\",result=\"patched\"} 1",
        "koord_runtime_proxy_hook_runs_total{hook=\"GroupIdentity\",result=\"panic\"} 1",
        "koord_runtime_proxy_hook_seconds_count{hook=\"GroupIdentity\"} 2",
        "koord_runtime_proxy_hook_seconds_bucket{le=\"0.000001\",hook=\"GroupIdentity\"} 0",
        "koord_runtime_proxy_kernel_settings_total{setting=\"cpu.shares\",result=\"written\"} 1",
        "koord_runtime_proxy_contested_settings_total{setting=\"cpu.shares\",writer=\"unknown\"} 1",
        "koord_runtime_proxy_memory_reclaims 4",
        "koord_runtime_proxy_memory_reclaims_waiting 2",
        "koord_runtime_proxy_gpu_monitor_folders_left 6",
        "koord_runtime_proxy_ledger_containers 3",
        "koord_runtime_proxy_mode{mode=\"enforce\"} 1",
        "koord_runtime_proxy_front{front=\"nri\"} 1",
        "koord_runtime_proxy_plugin_sessions_total{result=\"ok\"} 1",
        "koord_runtime_proxy_plugin_late_answers_total 1",
        "koord_runtime_proxy_plugin_up 1",
        "koord_runtime_proxy_writer_hangs 1",
        "koord_runtime_proxy_device_writer_hangs 1",
        "koord_runtime_proxy_thread_groups_hang 1",
        "koord_runtime_proxy_runtime_up 1",
        "koord_runtime_proxy_runtime{name=\"containerd\",version=\"v2.3.1\"} 1",
        "koord_runtime_proxy_start_time_seconds 5.0",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
}

#[test]
fn of_runtimes_only_the_one_that_is_there_is_told() {
    assert!(!exercised().contains("1.6.20"));
}

#[test]
fn every_metric_has_a_method_that_moves_it() {
    let text = exercised();
    let is_of = |line: &str, name| {
        let rest = line.strip_prefix(name).unwrap_or("_of_another");
        let kinds = ["_total", "_count", "_bucket", "_sum"];
        rest.starts_with(['{', ' ']) || kinds.iter().any(|kind| rest.starts_with(kind))
    };
    for name in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let name = name.split(' ').next().unwrap();
        let moved = text
            .lines()
            .any(|line| is_of(line, name) && !line.ends_with(" 0") && !line.ends_with(" 0.0"));
        assert!(moved, "nothing moves {name}");
    }
}
