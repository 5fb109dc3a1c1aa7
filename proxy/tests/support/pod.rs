//! Pods as a kubelet describes them in RunPodSandbox and CreateContainer.

use super::wire::Tree;

pub const QOS_CLASS: &str = "koordinator.sh/qosClass";
pub const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
pub const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
pub const CPU_QOS: &str = "koordinator.sh/cpuQOS";
pub const CPU_BURST: &str = "koordinator.sh/cpuBurst";
pub const BLKIO_QOS: &str = "koordinator.sh/blkioQOS";
pub const RESCTRL: &str = "node.koordinator.sh/resctrl";

/// What the batch resources of [`Pod::best_effort`] make of its container: shares, quota in
/// microseconds, memory in bytes.
pub const BATCH_SHARES: i64 = 512;
pub const BATCH_QUOTA: i64 = 100_000;
pub const BATCH_MEMORY: i64 = 1_073_741_824;
/// What the container asks for by itself.
pub const ASKED_SHARES: i64 = 2;

const BATCH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"1Gi"},
    "limits":{"kubernetes.io/batch-cpu":"1000","kubernetes.io/batch-memory":"1Gi"}}}}"#;

/// The id that the scripted runtime gives a sandbox, and with which its container is created.
pub const SANDBOX: &str = "sandbox-1";

/// A pod with one container, `main`.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    handler: String,
    tier: &'static str,
    cpus: String,
    labels: Vec<(String, String)>,
    annotations: Vec<(String, String)>,
    envs: Vec<(Vec<u8>, Vec<u8>)>,
}

// === impl Pod ===

impl Pod {
    /// A pod that no hook wants anything of.
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            handler: String::new(),
            tier: "besteffort",
            cpus: String::new(),
            labels: Vec::new(),
            annotations: Vec::new(),
            envs: Vec::new(),
        }
    }

    /// A pod of class `BE` with batch resources.
    pub fn best_effort(name: &str) -> Self {
        Self::plain(name)
            .label(QOS_CLASS, "BE")
            .annotation(EXTENDED_RESOURCE_SPEC, BATCH)
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        set(&mut self.labels, key, value);
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        set(&mut self.annotations, key, value);
        self
    }

    /// Names the runtime handler.
    #[must_use]
    pub fn handler(mut self, handler: &str) -> Self {
        handler.clone_into(&mut self.handler);
        self
    }

    /// Puts it below the burstable tier.
    #[must_use]
    pub fn burstable(mut self) -> Self {
        self.tier = "burstable";
        self
    }

    /// Has its container ask for these CPUs.
    #[must_use]
    pub fn on_cpus(mut self, cpus: &str) -> Self {
        cpus.clone_into(&mut self.cpus);
        self
    }

    /// Adds an environment variable, whatever its name.
    #[must_use]
    pub fn env(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.envs.push((key.into(), value.into()));
        self
    }

    /// RunPodSandbox.
    pub fn run(&self) -> Tree {
        Tree::new()
            .message(1, self.sandbox_config())
            .bytes(2, self.handler.as_str())
    }

    /// CreateContainer.
    pub fn create(&self) -> Tree {
        Tree::new()
            .bytes(1, SANDBOX)
            .message(2, self.container_config())
            .message(3, self.sandbox_config())
    }

    fn sandbox_config(&self) -> Tree {
        let metadata = Tree::new()
            .bytes(1, self.name.as_str())
            .bytes(2, self.uid())
            .bytes(3, "default")
            .number(4, 1);
        let config = Tree::new()
            .message(1, metadata)
            .bytes(2, "host")
            .bytes(3, "/var/log/pods/x")
            .message(4, Tree::new().bytes(1, "10.0.0.10").bytes(2, "svc.local"))
            .message(5, Tree::new().number(2, 8080).number(3, 80));
        let config = entries(config, 6, &self.labels);
        entries(config, 7, &self.annotations).message(8, self.sandbox_linux())
    }

    fn sandbox_linux(&self) -> Tree {
        let resources = Tree::new().number(1, 100_000).number(3, 2);
        let security = Tree::new()
            .message(1, Tree::new().number(1, 0).number(2, 1))
            .message(2, Tree::new().bytes(1, "user").bytes(2, "role"))
            .message(3, Tree::new().number(1, 1_000));
        Tree::new()
            .bytes(1, self.cgroup_parent())
            .message(2, security)
            .entry(3, "net.ipv4.ip_unprivileged_port_start", "0")
            .message(4, resources.clone())
            .message(5, resources)
    }

    fn container_config(&self) -> Tree {
        let image = Tree::new().bytes(1, "busybox").entry(2, "a", "b");
        let config = Tree::new()
            .message(1, Tree::new().bytes(1, "main").number(2, 1))
            .message(2, image)
            .bytes(3, "sleep")
            .bytes(4, "inf")
            .bytes(5, "/");
        let config = self.envs.iter().fold(config, |config, (key, value)| {
            let env = Tree::new().bytes(1, key.as_slice());
            config.message(6, env.bytes(2, value.as_slice()))
        });
        let mount = Tree::new().bytes(1, "/data").bytes(2, "/srv").number(3, 1);
        let device = Tree::new().bytes(1, "/dev/fuse").bytes(2, "/dev/fuse");
        config
            .message(7, mount)
            .message(8, device)
            .entry(9, "app", "web")
            .entry(10, "io.kubernetes.container.restartCount", "1")
            .bytes(11, "main/1.log")
            .message(15, self.container_linux())
    }

    fn uid(&self) -> String {
        format!("uid-{}", self.name)
    }

    /// A directory that is not there: what is decided about it is seen and not written.
    fn cgroup_parent(&self) -> String {
        format!("/no-such-root/kubepods/{}/pod{}", self.tier, self.uid())
    }

    fn container_linux(&self) -> Tree {
        let resources = Tree::new().number(1, 100_000).number(3, 2).number(5, 1_000);
        let resources = match &*self.cpus {
            "" => resources,
            cpus => resources.bytes(6, cpus),
        };
        let resources = resources
            .message(8, Tree::new().bytes(1, "2Mi").number(2, 0))
            .entry(9, "memory.oom.group", "1");
        let security = Tree::new()
            .message(1, Tree::new().bytes(1, "NET_ADMIN").bytes(2, "MKNOD"))
            .message(3, Tree::new().number(2, 1))
            .message(5, Tree::new().number(1, 1_000));
        Tree::new().message(1, resources).message(2, security)
    }
}

fn set(map: &mut Vec<(String, String)>, key: &str, value: &str) {
    map.retain(|(known, _)| known != key);
    map.push((key.to_owned(), value.to_owned()));
}

fn entries(tree: Tree, field: u32, map: &[(String, String)]) -> Tree {
    map.iter()
        .fold(tree, |tree, (key, value)| tree.entry(field, key, value))
}
