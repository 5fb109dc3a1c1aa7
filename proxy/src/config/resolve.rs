//! From what was said to what it means.

use super::{
    BesideKoordlet, Config, ConfigError, Exclusions, FROM_RUNTIME, Front, Hooks, Issue, Kubelet,
    LOG_FILTER_VARIABLE, Launch, Limits, Log, LogFormat, MAX_FILE, Mode, Nri, Pods, Problem, Roots,
    Surroundings, file,
    key::{self, Given, Key, Origin, RawConfig},
    value::{self, ValueError},
};
use crate::{front::nri::Identity, regular_file};
use koord_hooks::{FailPolicies, FeatureGates, FlagError};
use std::{io, path::Path, time::Duration};

/// Takes values out of what was said, one by one, and keeps what was wrong.
pub(super) struct Resolver {
    raw: RawConfig,
    issues: Vec<Issue>,
}

/// Where one of the sockets is, and what was said of it.
struct Socket<'a> {
    key: &'static Key,
    path: &'a Path,
    said: Option<Given>,
}

// === impl Resolver ===

impl Resolver {
    pub(super) fn new(flags: RawConfig, file: Option<&Path>, surroundings: &Surroundings) -> Self {
        let mut issues = Vec::new();
        let mut environment = RawConfig::default();
        // An empty variable is how manifests say nothing.
        let filter = surroundings.log_filter.as_ref();
        if let Some(filter) = filter.filter(|filter| !filter.is_empty()) {
            let origin = Origin::Environment(LOG_FILTER_VARIABLE);
            environment.insert(key::LOG_FILTER, filter.clone(), origin);
        }
        let (mut launched, mut last) = (RawConfig::default(), RawConfig::default());
        if let Some(Launch { name, index, text }) = &surroundings.launch {
            environment = environment.or(file::read(text, FROM_RUNTIME.as_ref(), &mut issues));
            let origin = || Origin::Environment("NRI_PLUGIN_SOCKET");
            launched.insert(key::FRONT, "nri".to_owned(), origin());
            launched.insert(key::NRI_NAME, name.clone(), origin());
            launched.insert(key::NRI_INDEX, index.clone(), origin());
            // Those of the table may be a service's, which serves the other front of this node.
            let admin = format!("/run/{index}-{name}/admin.sock");
            last.insert(key::ADMIN_ENDPOINT, admin, origin());
            last.insert(key::STATE_DIR, format!("/var/lib/{index}-{name}"), origin());
        }
        let file = file.map(|path| read_file(path, &mut issues));
        let said = launched.or(flags).or(environment);
        Self {
            raw: said.or(file.unwrap_or_default()).or(last),
            issues,
        }
    }

    pub(super) fn finish(mut self, host_name: &str) -> Result<Config, ConfigError> {
        let sockets = [
            key::RUNTIME_ENDPOINT,
            key::NRI_SOCKET,
            key::ENDPOINT,
            key::ADMIN_ENDPOINT,
        ];
        let said = sockets.map(|key| self.raw.get(key).cloned());
        let config = self.config(host_name);
        self.refuse_shared(said, &config);
        if self.issues.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError {
                issues: self.issues,
                rest: Box::new(config),
            })
        }
    }

    /// Refuses one path for two sockets of which one is ours: it would be told as another process's.
    fn refuse_shared(&mut self, said: [Option<Given>; 4], config: &Config) {
        let [runtime, plugins, clients, admin] = said;
        let runtime = Socket {
            key: key::RUNTIME_ENDPOINT,
            path: &config.runtime_endpoint,
            said: runtime,
        };
        let plugins = Socket {
            key: key::NRI_SOCKET,
            path: &config.nri.socket,
            said: plugins,
        };
        let clients = Socket {
            key: key::ENDPOINT,
            path: &config.endpoint,
            said: clients,
        };
        let admin = Socket {
            key: key::ADMIN_ENDPOINT,
            path: &config.admin_endpoint,
            said: admin,
        };
        let pairs = [
            (&runtime, &clients),
            (&admin, &clients),
            (&admin, &runtime),
            (&admin, &plugins),
            (&clients, &plugins),
        ];
        // Nobody knows where one is meant to be whose value was refused.
        let of_value = |it: &&Issue| matches!(it.problem, Problem::Value { .. });
        let refused = self.issues.iter().filter(of_value);
        let refused: Vec<String> = refused.map(|it| it.key.clone()).collect();
        let is_refused = |it: &Socket<'_>| refused.iter().any(|name| name == it.key.name);
        for (one, other) in pairs {
            if is_refused(one) || is_refused(other) || !same_place(one.path, other.path) {
                continue;
            }
            // Their defaults differ, so one of them was said.
            let (wrong, other) = match one.said {
                Some(_) => (one, other),
                None => (other, one),
            };
            if let Some(Given { text, origin }) = wrong.said.clone() {
                let is_loop = wrong.key == key::RUNTIME_ENDPOINT && other.key == key::ENDPOINT;
                let source = if is_loop {
                    ValueError::Unsupported("this is our own socket, and we would serve ourselves")
                } else {
                    ValueError::Shared(other.key.name)
                };
                self.refuse(wrong.key, text, origin, source);
            }
        }
    }

    fn hooks(&mut self) -> Hooks {
        Hooks {
            gates: self.take_flags(key::FEATURE_GATES, FeatureGates::parse),
            fail_policies: self.take_flags(key::FAIL_POLICY, FailPolicies::parse),
            disable_unset_cpu_quota: self.take(key::DISABLE_UNSET_QUOTA, value::boolean),
            hami_core_library: self.take(key::HAMI_LIBRARY, value::file),
            left: self.take(key::LEAVE_SETTINGS, value::settings),
            beside_koordlet: self.take(key::BESIDE_KOORDLET, beside_koordlet),
            koordlet_namespace: self.take(key::KOORDLET_NAMESPACE, namespace),
        }
    }

    fn config(&mut self, host_name: &str) -> Config {
        const MS: fn(u64) -> Duration = Duration::from_millis;
        const SECS: fn(u64) -> Duration = Duration::from_secs;
        // There is one kind: every runtime that speaks CRI.
        self.take(key::BACKEND_MODE, backend);
        let index = self.take(key::NRI_INDEX, plugin_index);
        let node_name = self.take(key::NODE_NAME, |text| node_name(text, host_name));
        Config {
            endpoint: self.take(key::ENDPOINT, value::socket),
            runtime_endpoint: self.take(key::RUNTIME_ENDPOINT, value::socket),
            front: self.take(key::FRONT, front),
            mode: self.take(key::MODE, mode),
            nri: Nri {
                socket: self.take(key::NRI_SOCKET, value::socket),
                identity: self.take(key::NRI_NAME, |name| plugin(name, &index)),
            },
            node_name: node_name.clone(),
            node_policy: self.take(key::NODE_POLICY, value::optional_file),
            pods: self.pods(&node_name),
            hooks: self.hooks(),
            exclusions: Exclusions {
                skip_label: (
                    self.take(key::SKIP_KEY, value::label_key),
                    self.take(key::SKIP_VALUE, value::label),
                ),
                namespaces: self.take(key::EXCLUDED_NAMESPACES, value::namespaces),
                runtime_handlers: self.take(key::EXCLUDED_HANDLERS, value::names),
            },
            limits: Limits {
                max_connections: self.take(key::MAX_CONNECTIONS, |t| value::count(t, 1..=65_536)),
                max_message_bytes: self
                    .take(key::MAX_MESSAGE, |t| value::bytes(t, 64 << 10..=16 << 20)),
                large_message_slots: self.take(key::LARGE_SLOTS, |t| value::count(t, 1..=64)),
                hold_timeout: self
                    .take(key::HOLD_TIMEOUT, |t| value::duration(t, MS(10)..=SECS(30))),
                grace_period: self.take(key::GRACE_PERIOD, value::grace_period),
            },
            roots: Roots {
                cgroup: self.take(key::CGROUP_MOUNT, value::directory),
                sys: self.take(key::SYS_ROOT, value::directory),
                proc: self.take(key::PROC_ROOT, value::directory),
                kubelet: self.take(key::KUBELET_DIR, value::directory),
                terway: self.take(key::TERWAY_DIR, value::directory),
            },
            cgroup_root: self.take(key::CGROUP_ROOT, value::cgroup),
            state_dir: self.take(key::STATE_DIR, value::directory),
            admin_endpoint: self.take(key::ADMIN_ENDPOINT, value::socket),
            hook_server_dir: self.take(key::HOOK_SERVER_DIR, value::directory),
            log: Log {
                filter: self.take(key::LOG_FILTER, value::log_filter),
                format: self.take(key::LOG_FORMAT, log_format),
                time: self.take(key::LOG_TIME, value::boolean),
            },
        }
    }

    /// What is said about the kubelet is looked at whether it is asked or not.
    fn pods(&mut self, node_name: &str) -> Pods {
        let kubelet = Kubelet::read(self, node_name);
        self.take(key::PODS, |text| pods(text, &kubelet))
    }

    /// Whether a key has a value by anybody's word, be it a bad one.
    pub(super) fn is_said(&self, key: &'static Key) -> bool {
        let given = self.raw.get(key);
        given.is_some_and(|given| !given.text.is_empty())
    }

    /// The value of a key. A bad one is kept as an issue, and its default stands in for it until
    /// the others were looked at too.
    pub(super) fn take<T>(
        &mut self,
        key: &'static Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> T {
        if let Some(Given { text, origin }) = self.raw.remove(key) {
            match parse(&text) {
                Ok(value) => return value,
                Err(source) => self.refuse(key, text, origin, source),
            }
        }
        parse(key.default).expect("the table's defaults are good, which a test proves")
    }

    /// The same for the flags of the hook room, which report several faults at once.
    fn take_flags<T: Default>(
        &mut self,
        key: &'static Key,
        parse: impl Fn(&str) -> Result<T, FlagError>,
    ) -> T {
        let Some(Given { text, origin }) = self.raw.remove(key) else {
            return T::default();
        };
        parse(&text).unwrap_or_else(|error| {
            for fault in error.faults {
                let source = ValueError::Hook(fault);
                self.refuse(key, text.clone(), origin.clone(), source);
            }
            T::default()
        })
    }

    fn refuse(&mut self, key: &'static Key, text: String, origin: Origin, source: ValueError) {
        self.issues.push(Issue {
            key: key.name.to_owned(),
            origin,
            problem: Problem::Value { text, source },
        });
    }
}

fn backend(text: &str) -> Result<(), ValueError> {
    match text {
        "Containerd" => Ok(()),
        "Docker" => Err(ValueError::Unsupported(
            "Docker mode is not supported: kubelets since 1.24 cannot use it; \
             put this proxy before cri-dockerd or containerd instead",
        )),
        _ => Err(ValueError::Expected(
            "Containerd, which stands for every CRI runtime",
        )),
    }
}

fn mode(text: &str) -> Result<Mode, ValueError> {
    match text {
        "enforce" => Ok(Mode::Enforce),
        "observe" => Ok(Mode::Observe),
        "pass-through" => Ok(Mode::PassThrough),
        _ => Err(ValueError::Expected("enforce, observe or pass-through")),
    }
}

fn pods(text: &str, kubelet: &Kubelet) -> Result<Pods, ValueError> {
    match text {
        "none" => Ok(Pods::None),
        "kubelet" => Ok(Pods::Kubelet(Box::new(kubelet.clone()))),
        path if path.starts_with('/') && !path.contains('\0') => Ok(Pods::File(path.into())),
        _ => Err(ValueError::Expected(
            "none, kubelet or the absolute path of a file",
        )),
    }
}

fn beside_koordlet(text: &str) -> Result<BesideKoordlet, ValueError> {
    match text {
        "auto" => Ok(BesideKoordlet::Auto),
        "yes" => Ok(BesideKoordlet::Yes),
        "no" => Ok(BesideKoordlet::No),
        _ => Err(ValueError::Expected("auto, yes or no")),
    }
}

/// Empty for none.
fn namespace(text: &str) -> Result<String, ValueError> {
    if text.is_empty() || value::is_namespace(text) {
        Ok(text.to_owned())
    } else {
        Err(ValueError::Expected(
            "at most 63 lower-case letters, digits and '-', which is not at either end",
        ))
    }
}

fn front(text: &str) -> Result<Front, ValueError> {
    match text {
        "cri" => Ok(Front::Cri),
        "nri" => Ok(Front::Nri),
        "watch" => Ok(Front::Watch),
        _ => Err(ValueError::Expected("cri, nri or watch")),
    }
}

/// Which index a plugin may have does not depend on its name.
fn plugin_index(text: &str) -> Result<String, ValueError> {
    match Identity::new("any", text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(ValueError::Expected("two digits")),
    }
}

fn plugin(name: &str, index: &str) -> Result<Identity, ValueError> {
    Identity::new(name, index)
        .map_err(|_| ValueError::Expected("letters, digits, '_', '.', '+' and '-'"))
}

fn log_format(text: &str) -> Result<LogFormat, ValueError> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(ValueError::Expected("text or json")),
    }
}

/// The name given, else the host's, as the kubelet makes a node name of it.
fn node_name(text: &str, host_name: &str) -> Result<String, ValueError> {
    let name = match text {
        "" => host_name.trim().to_lowercase(),
        name => name.to_owned(),
    };
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    // A host whose name no node can have is no reason not to start.
    if text.is_empty() || (name.len() <= 253 && name.chars().all(allowed)) {
        Ok(name)
    } else {
        Err(ValueError::Expected(
            "at most 253 lower-case letters, digits, '-' and '.'",
        ))
    }
}

/// Whether two paths are one to the eye; `/var/run` is `/run` on every machine of today.
fn same_place(one: &Path, other: &Path) -> bool {
    let below_run = |path: &Path| {
        path.strip_prefix("/var/run")
            .map(|rest| Path::new("/run").join(rest))
    };
    let [one, other] = [one, other].map(|path| below_run(path).unwrap_or(path.to_owned()));
    one == other
}

fn read_file(path: &Path, issues: &mut Vec<Issue>) -> RawConfig {
    let read = regular_file::read(path, MAX_FILE).and_then(|bytes| {
        let text = String::from_utf8(bytes);
        text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()).into())
    });
    let problem = match read {
        Ok(text) => return file::read(&text, path, issues),
        Err(source) => Problem::Unreadable(source),
    };
    issues.push(Issue {
        key: String::new(),
        origin: Origin::File(path.to_owned()),
        problem,
    });
    RawConfig::default()
}
