#![expect(clippy::disallowed_methods, reason = "test input")]

use super::*;
use clap::{Args, Command, FromArgMatches};

fn flags(args: &[&str]) -> RawConfig {
    let command = RawConfig::augment_args(Command::new("test").no_binary_name(true));
    RawConfig::from_arg_matches(&command.try_get_matches_from(args).unwrap()).unwrap()
}

fn surroundings() -> Surroundings {
    Surroundings {
        host_name: "Worker-1\n".to_owned(),
        log_filter: None,
        launch: None,
    }
}

fn resolve(args: &[&str]) -> Result<Config, ConfigError> {
    Config::resolve(flags(args), None, &surroundings())
}

/// What is said about `args` and the configuration file `yaml`.
fn complaints(args: &[&str], yaml: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, yaml).unwrap();
    let error = Config::resolve(flags(args), Some(&path), &surroundings()).unwrap_err();
    let shown = error.to_string();
    shown
        .lines()
        .map(|line| line.replace(path.to_str().unwrap(), "FILE"))
        .collect()
}

fn from_file(args: &[&str], yaml: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, yaml).unwrap();
    Config::resolve(flags(args), Some(&path), &surroundings()).unwrap()
}

#[test]
fn defaults_are_upstreams_where_upstream_has_the_flag() {
    let config = resolve(&[]).unwrap();
    assert_eq!(
        config.endpoint,
        Path::new("/var/run/koord-runtimeproxy/runtimeproxy.sock")
    );
    assert_eq!(
        config.runtime_endpoint,
        Path::new("/var/run/containerd/containerd.sock")
    );
    assert_eq!(
        config.exclusions.skip_label,
        (
            "runtimeproxy.koordinator.sh/skip-hookserver".to_owned(),
            "true".to_owned()
        )
    );
}

#[test]
fn defaults_of_our_own_keys_are_as_documented() {
    let config = resolve(&[]).unwrap();
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.node_name, "worker-1");
    assert_eq!(config.node_policy, None);
    assert!(config.cgroup_root.is_root());
    assert_eq!(config.roots.cgroup, Path::new("/sys/fs/cgroup"));
    assert_eq!(config.limits.max_connections, 512);
    assert_eq!(config.limits.max_message_bytes, 16_777_216);
    assert_eq!(config.limits.large_message_slots, 4);
    assert_eq!(config.limits.hold_timeout, Duration::from_millis(500));
    assert_eq!(config.limits.grace_period, None);
    assert!(!config.hooks.disable_unset_cpu_quota);
    let library = "/usr/local/vgpu/libvgpu.so";
    assert_eq!(config.hooks.hami_core_library, library);
    assert!(config.hooks.left.is_empty());
    assert_eq!(config.hooks.beside_koordlet, BesideKoordlet::Auto);
    assert_eq!(config.hooks.koordlet_namespace, "koordinator-system");
    assert_eq!(config.roots.proc, Path::new("/proc"));
    assert_eq!(config.roots.kubelet, Path::new("/var/lib/kubelet"));
    assert_eq!(config.roots.terway, Path::new("/var/lib/terway/qos"));
    assert!(config.hooks.gates.enabled("GroupIdentity"));
    assert!(config.exclusions.namespaces.is_empty());
    let handlers = [
        "gvisor",
        "kata",
        "kata-clh",
        "kata-fc",
        "kata-qemu",
        "runsc",
    ];
    assert!(config.exclusions.runtime_handlers.iter().eq(handlers));
    assert_eq!(config.log.filter, "info");
    assert_eq!(config.log.format, LogFormat::Text);
    assert!(config.log.time);
}

#[test]
fn the_table_of_keys_has_no_name_twice() {
    let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len());
}

#[test]
fn every_key_can_be_given_in_the_file() {
    let yaml: String = KEYS
        .iter()
        .map(|key| format!("{}: {:?}\n", key.name, key.default))
        .collect();
    assert_eq!(from_file(&[], &yaml), resolve(&[]).unwrap());
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let yaml = "mode: observe\nlog-filter: debug\nmax-connections: 7\n";
    let config = from_file(&["--mode=pass-through"], yaml);
    assert_eq!(config.mode, Mode::PassThrough);
    assert_eq!(config.limits.max_connections, 7);
    assert_eq!(config.log.filter, "debug");

    let surroundings = Surroundings {
        log_filter: Some("trace".to_owned()),
        ..surroundings()
    };
    let config = Config::resolve(flags(&[]), None, &surroundings).unwrap();
    assert_eq!(config.log.filter, "trace");
    let config = Config::resolve(flags(&["--log-filter=warn"]), None, &surroundings).unwrap();
    assert_eq!(config.log.filter, "warn");
}

#[test]
fn a_log_filter_that_would_silence_everything_is_reported_with_what_else_is_wrong() {
    let expected = "is no level (off, error, warn, info, debug, trace or 0 to 5), no crate or \
                    module of ours (such as koord_runtime_proxy::hub) and no TARGET=LEVEL";
    assert_eq!(
        complaints(&["--front=kubelet"], "log-filter: \"///\"\n"),
        [
            "--front cannot be \"kubelet\": expected cri, nri or watch".to_owned(),
            format!("FILE: log-filter cannot be \"///\": not a log filter: \"///\" {expected}"),
        ]
    );
    assert_eq!(
        complaints(&["--log-filter=inof"], ""),
        [format!(
            "--log-filter cannot be \"inof\": not a log filter: \"inof\" {expected}"
        )]
    );
    assert_eq!(
        complaints(&["--log-filter="], ""),
        [
            "--log-filter cannot be \"\": not a log filter: it is empty, and a level or \
             TARGET=LEVEL is expected"
        ]
    );
}

#[test]
fn an_empty_variable_says_nothing_of_the_log_filter() {
    let surroundings = Surroundings {
        log_filter: Some(String::new()),
        ..surroundings()
    };
    let config = Config::resolve(flags(&[]), None, &surroundings).unwrap();
    assert_eq!(config.log.filter, "info");
}

#[test]
fn the_file_takes_numbers_booleans_lists_and_nothing() {
    let config = from_file(
        &[],
        "disable-unset-cpu-quota: true\nexcluded-namespaces: [kube-system, monitoring]\n\
         excluded-runtime-handlers:\nlarge-message-slots: 2\nfeature-gates: [GroupIdentity=false]\n",
    );
    assert!(config.hooks.disable_unset_cpu_quota);
    let namespaces = ["kube-system", "monitoring"];
    assert!(config.exclusions.namespaces.iter().eq(namespaces));
    assert!(config.exclusions.runtime_handlers.is_empty());
    assert_eq!(config.limits.large_message_slots, 2);
    assert!(!config.hooks.gates.enabled("GroupIdentity"));
}

#[test]
fn the_file_takes_what_a_flag_takes() {
    let config = from_file(
        &[],
        "beside-koordlet: no\nfront: nri\nnri-plugin-index: 05\nruntime-hook-server-val: yes\n",
    );
    assert_eq!(config.hooks.beside_koordlet, BesideKoordlet::No);
    assert_eq!(config.nri.identity.index(), "05");
    assert_eq!(config.exclusions.skip_label.1, "yes");
    assert_eq!(
        complaints(&[], "max-connections: 1.5\nhold-timeout: fast\n").len(),
        2
    );
}

#[test]
fn an_empty_file_says_nothing() {
    assert_eq!(from_file(&[], "# nothing\n"), resolve(&[]).unwrap());
    assert_eq!(from_file(&[], ""), resolve(&[]).unwrap());
}

#[test]
fn endpoints_are_paths_with_or_without_a_scheme() {
    let config = resolve(&[
        "--koord-runtimeproxy-endpoint=unix:///run/a.sock",
        "--remote-runtime-service-endpoint",
        "/run/b.sock",
    ])
    .unwrap();
    assert_eq!(config.endpoint, Path::new("/run/a.sock"));
    assert_eq!(config.runtime_endpoint, Path::new("/run/b.sock"));
    for bad in ["tcp://127.0.0.1:80", "run/a.sock", "unix://a.sock", ""] {
        let error = resolve(&["--remote-runtime-service-endpoint", bad]).unwrap_err();
        assert_eq!(error.issues.len(), 1, "{bad}");
    }
    let longest = format!("/{}", "a".repeat(106));
    assert!(resolve(&["--admin-endpoint", &longest]).is_ok());
    assert!(resolve(&["--admin-endpoint", &format!("{longest}a")]).is_err());
}

#[test]
fn a_proxy_that_would_serve_itself_is_refused() {
    let ours = "/var/run/koord-runtimeproxy/runtimeproxy.sock";
    assert_eq!(
        complaints(
            &[&format!("--remote-runtime-service-endpoint=unix://{ours}")],
            ""
        ),
        [format!(
            "--remote-runtime-service-endpoint cannot be \"unix://{ours}\": this is our own socket, \
             and we would serve ourselves"
        )]
    );
    let alias = "--remote-runtime-service-endpoint=/run/koord-runtimeproxy/runtimeproxy.sock";
    assert_eq!(complaints(&[alias], "").len(), 1);
    let runtime = "/var/run/containerd/containerd.sock";
    assert_eq!(
        complaints(&[], &format!("koord-runtimeproxy-endpoint: {runtime}\n")),
        [format!(
            "FILE: koord-runtimeproxy-endpoint cannot be \"{runtime}\": \
             --remote-runtime-service-endpoint is at the same path, and each needs a socket of its \
             own"
        )]
    );
}

#[test]
fn it_is_known_whether_what_is_wrong_leaves_sockets_in_doubt() {
    let spares = |args: &[&str]| resolve(args).unwrap_err().spares_sockets();
    assert!(spares(&["--feature-gates=CoreShed=true", "--mode=both"]));
    for args in [
        &["--remote-runtime-service-endpoint=relative"][..],
        &["--remote-runtime-service-endpoint=/var/run/koord-runtimeproxy/runtimeproxy.sock"],
        &["--admin-endpoint=/var/run/containerd/containerd.sock"],
        &["--admin-endpoint=/var/run/nri/nri.sock"],
        &["--backend-runtime-mode=Docker"],
    ] {
        assert!(!spares(args), "{args:?}");
    }
}

#[test]
fn two_sockets_at_one_path_are_refused_with_what_else_is_wrong() {
    let own = "and each needs a socket of its own";
    assert_eq!(
        complaints(
            &[
                "--koord-runtimeproxy-endpoint=/run/a.sock",
                "--admin-endpoint=unix:///var/run/a.sock",
                "--grace-period=25",
            ],
            ""
        ),
        [
            "--grace-period cannot be \"25\": expected auto, or a duration in ms, s, m or h from 0s \
             to 10m"
                .to_owned(),
            format!(
                "--admin-endpoint cannot be \"unix:///var/run/a.sock\": \
                 --koord-runtimeproxy-endpoint is at the same path, {own}"
            ),
        ]
    );
    // At the place where the other one is by default.
    let admin = "/run/koord-runtime-proxy/admin.sock";
    assert_eq!(
        complaints(&[&format!("--koord-runtimeproxy-endpoint={admin}")], ""),
        [format!(
            "--koord-runtimeproxy-endpoint cannot be \"{admin}\": --admin-endpoint is at the same \
             path, {own}"
        )]
    );
    // Where the runtime listens, for clients and for plugins.
    for (socket, whose) in [
        (
            "/run/containerd/containerd.sock",
            "remote-runtime-service-endpoint",
        ),
        ("/run/nri/nri.sock", "nri-socket-path"),
    ] {
        assert_eq!(
            complaints(&[], &format!("admin-endpoint: {socket}\n")),
            [format!(
                "FILE: admin-endpoint cannot be \"{socket}\": --{whose} is at the same path, {own}"
            )]
        );
    }
}

#[test]
fn a_socket_that_was_refused_is_not_compared_by_its_default() {
    assert_eq!(
        complaints(
            &[
                "--admin-endpoint=a.sock",
                "--koord-runtimeproxy-endpoint=/run/koord-runtime-proxy/admin.sock",
            ],
            ""
        ),
        [
            "--admin-endpoint cannot be \"a.sock\": expected an absolute path of a unix socket, with \
             or without unix:// before it"
        ]
    );
}

#[test]
fn a_path_of_a_file_is_absolute() {
    for flag in ["node-policy", "kubelet-client-key", "kubelet-ca-file"] {
        assert_eq!(
            complaints(&[&format!("--{flag}=a.yaml")], ""),
            [format!(
                "--{flag} cannot be \"a.yaml\": expected an absolute path of a file"
            )]
        );
    }
    let config = resolve(&["--node-policy=/a.yaml"]).unwrap();
    assert_eq!(config.node_policy.as_deref(), Some(Path::new("/a.yaml")));
    assert_eq!(resolve(&["--node-policy="]).unwrap().node_policy, None);
}

#[test]
fn a_token_is_not_said_by_http() {
    let token = "--kubelet-token-file=/token";
    assert!(resolve(&[token]).is_ok());
    assert_eq!(
        complaints(&[token, "--kubelet-url=http://127.0.0.1:10255"], ""),
        [
            "--kubelet-token-file cannot be \"/token\": a token is said by https alone, and \
             --kubelet-url is none"
        ]
    );
}

#[test]
fn a_key_is_one_of_a_certificate() {
    let (key, certificate) = (
        "--kubelet-client-key=/key.pem",
        "--kubelet-client-certificate",
    );
    assert_eq!(
        complaints(&[key], ""),
        [
            "--kubelet-client-key cannot be \"/key.pem\": it is the key of --kubelet-client-certificate, \
             and none is given"
        ]
    );
    assert!(resolve(&[key, &format!("{certificate}=/client.pem")]).is_ok());
    // That one was given is seen where it cannot be.
    assert_eq!(
        complaints(&[key, &format!("{certificate}=client.pem")], ""),
        [
            "--kubelet-client-certificate cannot be \"client.pem\": expected an absolute path of a file"
        ]
    );
}

#[test]
fn an_excluded_namespace_has_a_name_that_kubernetes_takes() {
    let longest = "a".repeat(63);
    let good = format!("--excluded-namespaces=kube-system, 0-9,{longest}");
    let config = resolve(&[&good]).unwrap();
    let expected = ["0-9", longest.as_str(), "kube-system"];
    assert!(config.exclusions.namespaces.iter().eq(expected));
    let longer = "a".repeat(64);
    for bad in [
        "Kube-System",
        "a.b",
        "-a",
        "a-",
        "*",
        "kube_system",
        &longer,
    ] {
        assert_eq!(
            complaints(
                &["--mode=on"],
                &format!("excluded-namespaces: [default, \"{bad}\"]\n")
            ),
            [
                "--mode cannot be \"on\": expected enforce, observe or pass-through".to_owned(),
                format!(
                    "FILE: excluded-namespaces cannot be \"default,{bad}\": expected namespaces with commas \
                     between them, each of at most 63 lower-case letters, digits and '-', which is not at \
                     either end"
                ),
            ]
        );
    }
    assert!(resolve(&["--koordlet-namespace=-a"]).is_err());
}

#[test]
fn every_bad_key_is_reported_in_one_run() {
    let said = complaints(
        &[
            "--backend-runtime-mode=Docker",
            "--front=kubelet",
            "--nri-plugin-index=7",
            "--nri-plugin-name=a/b",
            "--grace-period=25",
            "--feature-gates=GroupIdentity=maybe,NoSuchGate=true",
        ],
        "max-connections: 0\nno-such-key: 1\nmode: [enforce]\nhold-timeout: 1ms\n",
    );
    assert_eq!(
        said,
        [
            "FILE: mode takes one value, not a list",
            "FILE: no-such-key is not a known key",
            "--backend-runtime-mode cannot be \"Docker\": Docker mode is not supported: kubelets \
             since 1.24 cannot use it; put this proxy before cri-dockerd or containerd instead",
            "--nri-plugin-index cannot be \"7\": expected two digits",
            "--front cannot be \"kubelet\": expected cri, nri or watch",
            "--nri-plugin-name cannot be \"a/b\": expected letters, digits, '_', '.', '+' and '-'",
            "--feature-gates cannot be \"GroupIdentity=maybe,NoSuchGate=true\": \"maybe\" of \
             GroupIdentity is not true or false",
            "--feature-gates cannot be \"GroupIdentity=maybe,NoSuchGate=true\": \"NoSuchGate\" is \
             not known",
            "FILE: max-connections cannot be \"0\": expected a whole number from 1 to 65536",
            "FILE: hold-timeout cannot be \"1ms\": expected a duration in ms, s, m or h from 10ms \
             to 30s",
            "--grace-period cannot be \"25\": expected auto, or a duration in ms, s, m or h from 0s \
             to 10m",
        ]
    );
}

#[test]
fn nobody_has_to_ask_us() {
    let config = resolve(&["--front=watch"]).unwrap();
    assert_eq!(config.front, Front::Watch);
}

#[test]
fn the_runtime_can_ask_us_as_its_plugin() {
    let config = resolve(&[]).unwrap();
    assert_eq!(config.front, Front::Cri);
    let flags = [
        "--front=nri",
        "--nri-socket-path=/run/n.sock",
        "--nri-plugin-index=07",
    ];
    let config = resolve(&flags).unwrap();
    assert_eq!(config.front, Front::Nri);
    assert_eq!(config.nri.socket, Path::new("/run/n.sock"));
    let identity = config.nri.identity;
    assert_eq!(
        (identity.name(), identity.index()),
        ("koord-runtime-proxy", "07")
    );
}

#[test]
fn what_koordlet_calls_its_plugin_by_names_ours() {
    let flags = [
        "--runtime-hooks-nri-socket-path=/run/u.sock",
        "--runtime-hooks-nri-plugin-name=koordlet_nri",
        "--runtime-hooks-nri-plugin-index=00",
    ];
    let Nri { socket, identity } = resolve(&flags).unwrap().nri;
    let said = (&*socket, identity.name(), identity.index());
    let expected = (Path::new("/run/u.sock"), "koordlet_nri", "00");
    assert_eq!(said, expected);
}

#[test]
fn a_file_that_cannot_be_used_is_one_issue() {
    let list = complaints(&[], "- a\n- b\n");
    assert_eq!(list.len(), 1);
    assert!(list[0].starts_with("FILE is no YAML mapping: "), "{list:?}");
    assert_eq!(
        complaints(&[], "mode: observe\nfront: cri\nmode: enforce\n"),
        ["FILE: mode is there again in line 3, and each key is expected once"]
    );
    assert_eq!(
        complaints(
            &[],
            "runtime-hooks-nri-plugin-index: 11\nnri-plugin-index: 12\n"
        ),
        [
            "FILE: runtime-hooks-nri-plugin-index means nri-plugin-index, which is there too, and each key \
             is expected once"
        ]
    );
    let missing = Path::new("/nonexistent/config.yaml");
    let error = Config::resolve(flags(&[]), Some(missing), &surroundings()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/config.yaml cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn a_value_of_the_wrong_kind_is_told_by_its_key_with_what_else_is_wrong() {
    assert_eq!(
        complaints(
            &[],
            "excluded-namespaces: [[a], b]\nfeature-gates: {A: true, B: [c, {d: e}]}\n\
             hook-fail-policy:\n- CPUBurst: Closed\n- BatchResource=Open\n\
             max-connections: 0\nmode: {a: b}\nno-such-key: {a: b}\n"
        ),
        [
            "FILE: excluded-namespaces takes text or a list of text, not a list within a list",
            "FILE: feature-gates takes text or a list of text, not a mapping",
            "FILE: hook-fail-policy takes text or a list of text, not a mapping",
            "FILE: mode takes one value, not a mapping",
            "FILE: no-such-key is not a known key",
            "FILE: max-connections cannot be \"0\": expected a whole number from 1 to 65536",
        ]
    );
}

#[test]
fn durations_and_sizes_need_their_units_and_stay_in_range() {
    let grace = |text: &str| {
        let config = resolve(&[&format!("--grace-period={text}")]);
        config.ok().and_then(|config| config.limits.grace_period)
    };
    assert_eq!(grace("500ms"), Some(Duration::from_millis(500)));
    assert_eq!(grace("0s"), Some(Duration::ZERO));
    assert_eq!(grace("2m"), Some(Duration::from_secs(120)));
    for bad in [
        "",
        "s",
        "1",
        "1.5s",
        "-1s",
        "11m",
        "1d",
        "99999999999999999999s",
    ] {
        assert_eq!(grace(bad), None, "{bad}");
        assert!(
            resolve(&[&format!("--grace-period={bad}")]).is_err(),
            "{bad}"
        );
    }
    let size = |text: &str| {
        let config = resolve(&["--max-message-bytes", text]);
        config.map(|config| config.limits.max_message_bytes).ok()
    };
    assert_eq!(size("65536"), Some(65_536));
    assert_eq!(size("4MiB"), Some(4_194_304));
    for bad in ["65535", "17MiB", "1GiB", "4MB", "18446744073709551615MiB"] {
        assert_eq!(size(bad), None, "{bad}");
    }
}

#[test]
fn a_switch_by_its_name_alone_says_yes() {
    let config = resolve(&["--disable-unset-cpu-quota"]).unwrap();
    assert!(config.hooks.disable_unset_cpu_quota);
    let config = resolve(&["--disable-unset-cpu-quota=false"]).unwrap();
    assert!(!config.hooks.disable_unset_cpu_quota);
}

#[test]
fn of_a_flag_given_twice_the_last_counts_unless_it_is_a_list() {
    let config = resolve(&["--mode=observe", "--mode=enforce"]).unwrap();
    assert_eq!(config.mode, Mode::Enforce);
    let config = resolve(&["--excluded-namespaces=a,b", "--excluded-namespaces=c"]).unwrap();
    assert!(config.exclusions.namespaces.iter().eq(["a", "b", "c"]));
}

#[test]
fn a_node_name_is_given_or_the_hosts_as_the_kubelet_writes_it() {
    assert_eq!(resolve(&[]).unwrap().node_name, "worker-1");
    let config = resolve(&["--node-name=edge-7.example"]).unwrap();
    assert_eq!(config.node_name, "edge-7.example");
    assert!(resolve(&["--node-name=Edge"]).is_err());
}

#[test]
fn settings_that_are_left_to_others_are_named_as_in_the_ledger() {
    let said = [
        "--leave-settings=cpuset.cpus,cpu.idle",
        "--leave-settings=cpu.shares",
    ];
    let left = resolve(&said).unwrap().hooks.left;
    let expected = [Setting::CpuShares, Setting::CpusetCpus, Setting::CpuIdle];
    assert!(left.iter().eq(&expected), "{left:?}");
    let error = resolve(&["--leave-settings=cpuset.cpu"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--leave-settings cannot be \"cpuset.cpu\": expected some of these with commas between them: \
         cpu.shares, cpu.cfs_quota_us, cpu.cfs_burst_us, cpuset.cpus, memory.limit_in_bytes, \
         memory.min, memory.low, memory.high, memory.wmark_ratio, memory.wmark_scale_factor, \
         memory.wmark_min_adj, memory.priority, memory.use_priority_oom, memory.oom.group, \
         memory.pagecache_limit.size, memory.pagecache_limit.sync, memory.pagecache_limit.enable, \
         cpu.bvt_warp_ns, cpu.idle, core_sched, resctrl, oom_score_adj, blkio.throttle.read_bps_device, \
         blkio.throttle.write_bps_device, blkio.throttle.read_iops_device, \
         blkio.throttle.write_iops_device, blkio.cost.weight, blkio.cost.qos, \
         blkio.cost.model, gpu.monitor, gpu, rdma, network, network.classes, network.queue, \
         network.queues, sched_switch"
    );
}

#[test]
fn a_plugin_that_the_runtime_launches_is_configured_by_it() {
    let launched = |text: &str| {
        let launch = Launch {
            name: "koord".to_owned(),
            index: "07".to_owned(),
            text: text.to_owned(),
        };
        let surroundings = Surroundings {
            launch: Some(launch),
            ..surroundings()
        };
        Config::resolve(flags(&[]), None, &surroundings)
    };
    let config = launched("mode: observe\nnri-plugin-index: \"10\"\n").unwrap();
    assert_eq!((config.front, config.mode), (Front::Nri, Mode::Observe));
    // Whatever else it says: the runtime asks by the name of the file that it launched.
    let identity = &config.nri.identity;
    assert_eq!((identity.name(), identity.index()), ("koord", "07"));
    // Its own places, beside those of a service of the same node, unless it says them.
    let places = |config: &Config| {
        let places = [&config.admin_endpoint, &config.state_dir];
        places.map(|path| path.to_str().unwrap().to_owned())
    };
    assert_eq!(
        places(&config),
        ["/run/07-koord/admin.sock", "/var/lib/07-koord"]
    );
    let said = launched("admin-endpoint: /run/a.sock\nstate-dir: /var/lib/a\n").unwrap();
    assert_eq!(places(&said), ["/run/a.sock", "/var/lib/a"]);

    let error = launched("mode: nonsense\nexcluded-namespaces: [a]\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the runtime's configuration: mode cannot be \"nonsense\": expected enforce, observe or \
         pass-through"
    );
    assert!(error.rest.exclusions.namespaces.contains("a"));
}
