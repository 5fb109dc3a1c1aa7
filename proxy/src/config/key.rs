//! The table of configuration keys.
//!
//! One row is a flag, a key of the configuration file, a line of `--help` and a default at once,
//! so that none of them can say something else than the others. Every value is text here: what it
//! means, and whether it is good, is found out after flags and file were put together, so that one
//! run reports every bad one.

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use std::{collections::BTreeMap, fmt, path::PathBuf};

/// One key: `--name` as a flag, `name:` in the configuration file.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    pub name: &'static str,
    /// What stands for the value in `--help`.
    pub value: &'static str,
    pub default: &'static str,
    pub help: &'static str,
    pub repeat: Repeat,
}

/// What a flag given twice means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The last one counts.
    Replaces,
    /// Its value is a comma list, which grows.
    Extends,
}

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag,
    File(PathBuf),
    Environment(&'static str),
}

/// A value as it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub text: String,
    pub origin: Origin,
}

/// The values of one source, by the name of their key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawConfig(pub(super) BTreeMap<&'static str, Given>);

macro_rules! keys {
    ($($constant:ident $name:literal <$value:literal> = $default:literal $($repeat:ident)?: $help:literal;)+) => {
        $(pub(super) const $constant: &Key = &Key {
            name: $name,
            value: $value,
            default: $default,
            help: $help,
            repeat: keys!(@repeat $($repeat)?),
        };)+
        /// Every key, in the order of `--help`.
        pub const KEYS: &[&Key] = &[$($constant),+];
    };
    (@repeat) => { Repeat::Replaces };
    (@repeat extends) => { Repeat::Extends };
}

keys! {
    ENDPOINT "koord-runtimeproxy-endpoint" <"SOCKET"> = "/var/run/koord-runtimeproxy/runtimeproxy.sock":
        "Unix socket that the kubelet connects to";
    RUNTIME_ENDPOINT "remote-runtime-service-endpoint" <"SOCKET"> = "/var/run/containerd/containerd.sock":
        "Unix socket of the container runtime";
    BACKEND_MODE "backend-runtime-mode" <"MODE"> = "Containerd":
        "Kind of runtime behind the proxy; Containerd means every CRI runtime, CRI-O too";
    SKIP_KEY "runtime-hook-server-key" <"LABEL"> = "runtimeproxy.koordinator.sh/skip-hookserver":
        "Label that exempts a pod from hooks";
    SKIP_VALUE "runtime-hook-server-val" <"VALUE"> = "true":
        "Value of that label";
    NODE_POLICY "node-policy" <"FILE"> = "":
        "YAML stream of NodeSLO, NodeResourceTopology and Node; read again when it changes [default: none]";
    PODS "pods" <"SOURCE"> = "none":
        "Source of what changes in a pod after its creation: none, kubelet, or the path of a file as kubectl get pods -o yaml prints it, read again when it changes";
    KUBELET_URL "kubelet-url" <"URL"> = "https://127.0.0.1:10250/pods":
        "URL of the kubelet's pods, by https or, on its read-only port, by http";
    KUBELET_INTERVAL "kubelet-sync-interval" <"DURATION"> = "10s":
        "How often the kubelet is asked for its pods, 1s to 10m";
    KUBELET_TIMEOUT "kubelet-sync-timeout" <"DURATION"> = "3s":
        "How long the kubelet's answer may take, 100ms to 1m";
    KUBELET_TOKEN "kubelet-token-file" <"FILE"> = "":
        "File with the token for the kubelet; read for each request [default: none]";
    KUBELET_CERTIFICATE "kubelet-client-certificate" <"FILE"> = "":
        "File with the client certificate for the kubelet, PEM; read for each request [default: none]";
    KUBELET_KEY "kubelet-client-key" <"FILE"> = "":
        "File with the key of that certificate, PEM; read for each request [default: in the file of the certificate]";
    KUBELET_CA "kubelet-ca-file" <"FILE"> = "/var/lib/kubelet/pki/kubelet.crt":
        "File with the certificates that the kubelet's is verified with, PEM; read for each request";
    KUBELET_SERVER_NAME "kubelet-server-name" <"NAME"> = "":
        "Name that the kubelet's certificate must have [default: the node's if the URL is of this machine, else the URL's host]";
    NODE_NAME "node-name" <"NAME"> = "":
        "Name of this node in the policy [default: the host name]";
    FEATURE_GATES "feature-gates" <"NAME=BOOL,..."> = "" extends:
        "Feature gates, by Koordinator's names";
    FAIL_POLICY "hook-fail-policy" <"HOOK=POLICY,..."> = "" extends:
        "Open or Closed for each hook: whether the call passes or is refused when the hook fails";
    DISABLE_UNSET_QUOTA "disable-unset-cpu-quota" <"BOOL"> = "false":
        "Keep the CFS quota of pods that have CPUs of their own";
    HAMI_LIBRARY "hami-core-library-directory-path" <"FILE"> = "/usr/local/vgpu/libvgpu.so":
        "Library of HAMi-core, which limits a container to its part of a GPU";
    LEAVE_SETTINGS "leave-settings" <"SETTING,..."> = "" extends:
        "Settings that hooks must not decide, such as cpuset.cpus";
    BESIDE_KOORDLET "beside-koordlet" <"WHEN"> = "auto":
        "Whether hooks that upstream's koordlet runs on this node are suspended: auto (while its process is there), yes or no";
    KOORDLET_NAMESPACE "koordlet-namespace" <"NAME"> = "koordinator-system":
        "Namespace in whose pods koordlet may run; a process of that name in any other pod is ignored";
    MODE "mode" <"MODE"> = "enforce":
        "enforce, observe (decide and explain, change nothing) or pass-through (no hooks)";
    FRONT "front" <"FRONT"> = "cri":
        "Where events come from: cri (the kubelet connects to the proxy), nri (the runtime calls it as its plugin) or watch (it follows the runtime and writes only the kernel)";
    NRI_SOCKET "nri-socket-path" <"SOCKET"> = "/var/run/nri/nri.sock":
        "Unix socket where the runtime accepts plugins";
    NRI_NAME "nri-plugin-name" <"NAME"> = "koord-runtime-proxy":
        "Name of the plugin";
    NRI_INDEX "nri-plugin-index" <"NN"> = "10":
        "Two digits; the runtime calls plugins in their order";
    CGROUP_ROOT "cgroup-root" <"CGROUP"> = "":
        "The kubelet's cgroupRoot: the control group above kubepods [default: the root]";
    CGROUP_MOUNT "cgroup-mount" <"DIR"> = "/sys/fs/cgroup":
        "Where the cgroup file systems are mounted";
    SYS_ROOT "sys-root" <"DIR"> = "/sys":
        "Where sysfs is mounted";
    PROC_ROOT "proc-root" <"DIR"> = "/proc":
        "Procfs in which koordlet's process is looked for; threads are always found in the proxy's own /proc";
    KUBELET_DIR "var-lib-kubelet-dir" <"DIR"> = "/var/lib/kubelet":
        "The kubelet's own directory, in which volumes of pods are found";
    TERWAY_DIR "terway-qos-dir" <"DIR"> = "/var/lib/terway/qos":
        "Directory in which the network plugin Terway finds the network settings of classes and pods";
    STATE_DIR "state-dir" <"DIR"> = "/var/lib/koord-runtime-proxy":
        "Directory of what has to outlive a restart";
    ADMIN_ENDPOINT "admin-endpoint" <"SOCKET"> = "/run/koord-runtime-proxy/admin.sock":
        "Unix socket for metrics, health, log level and ledger";
    GRACE_PERIOD "grace-period" <"DURATION|auto"> = "auto":
        "How long calls in flight may take to finish at a stop, 0s to 10m; auto: 60s if systemd keeps the socket, otherwise 25s, since clients cannot connect meanwhile; TimeoutStopSec= of the unit (75s) has to be longer";
    MAX_CONNECTIONS "max-connections" <"COUNT"> = "512":
        "Client connections at most, 1 to 65536; from seven eighths of them on, the one that was longest without a call is asked to go; each has an equal part of 64 MiB for held messages to itself";
    MAX_MESSAGE "max-message-bytes" <"SIZE"> = "16MiB":
        "Largest request that is opened, 64KiB to 16MiB; a larger one passes unopened";
    LARGE_SLOTS "large-message-slots" <"COUNT"> = "4":
        "Large requests held in memory at the same time, 1 to 64";
    HOLD_TIMEOUT "hold-timeout" <"DURATION"> = "500ms":
        "How long a request may wait for a decision before it passes as it came, 10ms to 30s";
    EXCLUDED_NAMESPACES "excluded-namespaces" <"NAME,..."> = "" extends:
        "Namespaces whose pods hooks leave alone";
    EXCLUDED_HANDLERS "excluded-runtime-handlers" <"NAME,..."> = "kata,kata-qemu,kata-clh,kata-fc,runsc,gvisor" extends:
        "Runtime handlers whose containers hooks leave alone; a value replaces the default";
    HOOK_SERVER_DIR "hook-server-dir" <"DIR"> = "/etc/runtime/hookserver.d":
        "Directory in which hook servers register; they are named in the log and not served yet";
    LOG_FILTER "log-filter" <"FILTER"> = "info":
        "What is logged, such as info,koord_runtime_proxy::hub=debug; KOORD_LOG sets it too";
    LOG_FORMAT "log-format" <"FORMAT"> = "text":
        "text or json, on standard error";
    LOG_TIME "log-time" <"BOOL"> = "true":
        "Whether log lines begin with the time; the journal adds its own";
}

// === impl Key ===

impl Key {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.name)
            .long(self.name)
            .value_name(self.value)
            .help(self.help);
        let arg = match self.repeat {
            Repeat::Replaces => arg.action(ArgAction::Set).overrides_with(self.name),
            Repeat::Extends => arg.action(ArgAction::Append),
        };
        let arg = match self.alias() {
            Some(alias) => arg.alias(alias),
            None => arg,
        };
        let arg = match self.value {
            // As other programs take a switch: its name alone says yes.
            "BOOL" => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            _ => arg,
        };
        match self.default {
            "" => arg,
            default => arg.default_value(default),
        }
    }

    /// What upstream's koordlet calls it, where that is another name.
    fn alias(&self) -> Option<&'static str> {
        let aliases = [
            (NRI_SOCKET, "runtime-hooks-nri-socket-path"),
            (NRI_NAME, "runtime-hooks-nri-plugin-name"),
            (NRI_INDEX, "runtime-hooks-nri-plugin-index"),
        ];
        let mut aliases = aliases.into_iter();
        aliases.find_map(|(key, alias)| (self == key).then_some(alias))
    }

    /// The key of that name, or that upstream's koordlet calls so.
    pub fn named(name: &str) -> Option<&'static Self> {
        let is_it = |key: &&Self| key.name == name || key.alias() == Some(name);
        KEYS.iter().copied().find(is_it)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::File(path) => path.display().fmt(f),
            Self::Environment(name) => write!(f, "environment {name}"),
        }
    }
}

// === impl RawConfig ===

impl RawConfig {
    /// These values, and where they say nothing those of `other`.
    pub fn or(mut self, other: Self) -> Self {
        for (name, given) in other.0 {
            self.0.entry(name).or_insert(given);
        }
        self
    }

    pub(super) fn insert(&mut self, key: &'static Key, text: String, origin: Origin) {
        self.0.insert(key.name, Given { text, origin });
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Given> {
        self.0.get(key.name)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Given> {
        self.0.remove(key.name)
    }
}

impl clap::FromArgMatches for RawConfig {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut raw = Self::default();
        raw.update_from_arg_matches(matches)?;
        Ok(raw)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for key in KEYS {
            if matches.value_source(key.name) != Some(ValueSource::CommandLine) {
                continue;
            }
            let values = matches.get_many::<String>(key.name).into_iter().flatten();
            let text = values.map(String::as_str).collect::<Vec<_>>().join(",");
            self.insert(key, text, Origin::Flag);
        }
        Ok(())
    }
}

impl clap::Args for RawConfig {
    fn augment_args(command: Command) -> Command {
        command.args(KEYS.iter().map(|key| key.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
