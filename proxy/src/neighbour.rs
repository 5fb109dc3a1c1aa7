//! Upstream's koordlet beside us: which hooks are its part, and rest here.
//!
//! A runtime does not tell a plugin who the others are, and what koordlet leaves in files outlives
//! it. So it is looked for among the processes of this machine, and its own command line says which
//! hooks it runs: the flag is the one that we have, with the same names and defaults.
//!
//! Whoever may run a process may call it so. One is believed that is root's, where a pod's author
//! cannot put it: outside of all pods, or in a pod of the namespace that is the operator's. From
//! within a control group namespace of our own that cannot be seen, and a person has to say who it is.
//!
//! Looking at all processes takes milliseconds, so a thread beside the data path does it. A look that
//! failed, or does not end, says nothing: neither that koordlet is there nor that it is gone. Nobody
//! else is asked for a command line, because the author of a pod could have the answer never come.
//!
//! What is written beside koordlet is written over what it has written. So a start says and writes
//! nothing before the first look, which does not wait for the runtime unless somebody is in a pod: whose
//! pods there are its first list says. A first look that says nothing holds a start for two seconds.

use crate::{
    config::{BesideKoordlet, Config},
    hub::Hub,
    ledger::Ledger,
    worker::Worker,
};
use koord_hooks::{Chain, FeatureGates, FlagFault, Maturity};
use koord_kernel::neighbour::of_root;
use koord_model::CgroupPath;
use std::{
    collections::BTreeSet,
    error::Error,
    mem,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// How long between two looks.
const PERIOD: Duration = Duration::from_secs(60);
/// How long a look may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The same of the first, for which all that we would say and write waits.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
/// So many looks in which it is not seen make it gone: one that is replaced or restarts comes back
/// sooner.
const GONE_AFTER: u32 = 10;

/// How many gates that cannot be read are named, and in how many characters each.
const FAULTS: usize = 5;
const FAULT_LENGTH: usize = 80;

/// The stack of the thread that looks, in bytes.
const STACK: usize = 256 << 10;

const NAME: &str = "koordlet";

/// What a person has to know where one of root's could be koordlet, and could be a pod's.
const UNPLACED: &str =
    "a process called koordlet runs that cannot be placed: say --beside-koordlet=yes or no";
/// The same where it may be a pod's, and after a minute nobody has told whose pods there are.
const UNLISTED: &str = "a process called koordlet runs in a pod, and the runtime does not say whose \
                        that is: say --beside-koordlet=yes or no";

/// The hooks that rest because koordlet does their part.
pub type Resting = BTreeSet<&'static str>;

/// What is known of koordlet on this node.
#[derive(Debug)]
pub struct Neighbour {
    beside: BesideKoordlet,
    proc_root: PathBuf,
    /// Whose pods may be koordlet.
    namespace: String,
    resting: Resting,
    unseen: u32,
    /// How long the next look may take.
    patience: Duration,
    /// That the last look did not end was told.
    hangs: bool,
    /// Why it is unknown who one is, as it was told last.
    told: Option<&'static str>,
    /// Which gates cannot be read, as it was told last.
    told_unread: Option<String>,
}

/// What a look at all processes found.
#[derive(Debug, Default)]
struct Found {
    /// The hooks that those cover who are believed; `None` if nobody is.
    covers: Option<Resting>,
    /// Somebody is not believed, which who knows more pods of the operator's might.
    in_doubt: bool,
    /// Somebody is not believed because it cannot be known where it is.
    unplaced: bool,
    /// What of the gates of those that are believed cannot be read, in short.
    unread: Option<String>,
}

/// A look, given the control groups of the operator's pods. Its answer is `None` if it cannot be known
/// now who is there.
type Look<F = Found> = (Vec<CgroupPath>, oneshot::Sender<Option<F>>);

// === impl Neighbour ===

impl Neighbour {
    pub fn new(config: &Config) -> Self {
        let hooks = &config.hooks;
        Self {
            resting: match hooks.beside_koordlet {
                BesideKoordlet::Auto | BesideKoordlet::No => Resting::new(),
                BesideKoordlet::Yes => covered(&FeatureGates::default()),
            },
            beside: hooks.beside_koordlet,
            proc_root: config.roots.proc.clone(),
            namespace: hooks.koordlet_namespace.clone(),
            unseen: 0,
            patience: FIRST_PATIENCE,
            hangs: false,
            told: None,
            told_unread: None,
        }
    }

    /// Before anything is decided: has hooks rest of which that is said and, where it is to be found
    /// out, nothing be said or written before.
    pub fn begin(&self, hub: &Hub) {
        hub.set_resting(self.resting.clone());
        if self.beside == BesideKoordlet::Auto {
            hub.await_koordlet(FIRST_PATIENCE);
        }
    }

    /// Keeps looking, and has the hub's hooks rest or work. Never ends.
    pub async fn watch(self, hub: Rc<Hub>) {
        if self.beside != BesideKoordlet::Auto {
            std::future::pending::<()>().await;
        }
        let looker = self.looker();
        looker.start();
        self.keep_looking(&looker, &hub).await;
    }

    /// The same by a thread that looks.
    async fn keep_looking(mut self, looker: &Worker<Look>, hub: &Hub) {
        loop {
            // Before that nobody knows whose a pod is.
            let is_whole = hub.is_whole();
            let operators = self.operators(&hub.ledger().borrow());
            let found = self.ask(looker, operators).await;
            let in_doubt = !is_whole && found.as_ref().is_some_and(|found| found.in_doubt);
            match found {
                // Who is believed needs no list. The others may be more of it.
                Some(found) if in_doubt => {
                    self.tell_unread(found.unread);
                    self.rest_for(found.covers, hub);
                }
                found => self.hear(found, hub),
            }
            if is_whole {
                sleep(PERIOD).await;
            } else if timeout(PERIOD, hub.whole()).await.is_err() && in_doubt {
                self.tell(Some(UNLISTED), hub);
                // As where one cannot be placed.
                self.hear(None, hub);
            }
        }
    }

    /// Has hooks rest for those that are believed, if anybody is.
    fn rest_for(&mut self, covers: Option<Resting>, hub: &Hub) {
        if covers.is_some() && self.take(covers) {
            hub.set_resting(self.resting.clone());
        }
    }

    /// Takes in what a look has found; `None` if it cannot be known now who is there.
    fn hear(&mut self, found: Option<Found>, hub: &Hub) {
        if let Some(found) = found {
            self.tell(found.unplaced.then_some(UNPLACED), hub);
            self.tell_unread(found.unread);
            if self.take(found.covers) {
                hub.set_resting(self.resting.clone());
            }
        }
        self.patience = PATIENCE;
        hub.tell_koordlet_known();
    }

    /// Tells a person why it is unknown who somebody is, if it is; in the log once in a row.
    fn tell(&mut self, reason: Option<&'static str>, hub: &Hub) {
        if let Some(reason) = reason
            && self.told.replace(reason) != Some(reason)
        {
            warn!(reason, "whether koordlet runs here is unknown");
        }
        hub.set_koordlet_remark(reason);
    }

    /// Says which gates cannot be read, if there are some that nobody was told of last. While nobody is seen
    /// that says nothing of them: one that restarts is told of once.
    fn tell_unread(&mut self, unread: Option<String>) {
        let Some(reason) = unread else {
            return;
        };
        if self.told_unread.as_ref() != Some(&reason) {
            info!(
                reason,
                "koordlet has gates that cannot be read here: they count as having their defaults"
            );
            self.told_unread = Some(reason);
        }
    }

    /// The hooks whose part koordlet does now, for who looks once and knows the pods that there are, or all
    /// but some; `None` if that cannot be known. Who has not [begun](Self::begin) has nothing wait for it.
    pub(crate) async fn once(self, hub: &Hub, knows_all: bool) -> Option<Resting> {
        if self.beside != BesideKoordlet::Auto {
            return Some(self.resting);
        }
        let looker = self.looker();
        self.look_once(&looker, (hub, knows_all)).await
    }

    /// The same by a thread that looks.
    async fn look_once(
        mut self,
        looker: &Worker<Look>,
        (hub, knows_all): (&Hub, bool),
    ) -> Option<Resting> {
        // No pod waits for it.
        self.patience = PATIENCE;
        let operators = self.operators(&hub.ledger().borrow());
        let found = self.ask(looker, operators).await?;
        // Who is in doubt may be in a pod that is not known.
        let is_nobody = !found.unplaced && (knows_all || !found.in_doubt);
        let is_absent = || is_nobody && !self.has_pod(&hub.ledger().borrow());
        let is_known = found.covers.is_some() || is_absent();
        is_known.then(|| found.covers.unwrap_or_default())
    }

    /// Whether it has a pod here, or may have: before its container's life, as while the image is pulled,
    /// and between two there is no process.
    fn has_pod(&self, ledger: &Ledger) -> bool {
        let mut pods = ledger.pods();
        pods.any(|pod| {
            let mut containers = pod.containers.iter();
            let is_operators = pod.ready && pod.view.namespace == self.namespace;
            is_operators && (pod.containers.is_empty() || containers.any(|it| it.view.name == NAME))
        })
    }

    /// Where the pods are in which koordlet may be.
    pub(crate) fn operators(&self, ledger: &Ledger) -> Vec<CgroupPath> {
        let pods = ledger.pods();
        pods.filter(|pod| pod.view.namespace == self.namespace)
            .filter_map(|pod| pod.own.at.clone())
            .collect()
    }

    /// Has a look taken; `None` if it cannot be known now who is there.
    async fn ask(&mut self, looker: &Worker<Look>, operators: Vec<CgroupPath>) -> Option<Found> {
        let looked = timeout(self.patience, looker.ask(|done| (operators, done))).await;
        let hung = mem::replace(&mut self.hangs, looked.is_err());
        if self.hangs && !hung {
            let reason = "a look at the processes does not end";
            warn!(reason, "whether koordlet runs here is unknown");
        }
        looked.ok().flatten().flatten()
    }

    /// A thread that looks for koordlet.
    fn looker(&self) -> Worker<Look> {
        let root = self.proc_root.clone();
        looker("neighbour", move |operators| look(&root, operators))
    }

    /// Takes in what was seen. Whether another set of hooks rests now.
    fn take(&mut self, seen: Option<Resting>) -> bool {
        let resting = match seen {
            Some(covered) => {
                self.unseen = 0;
                covered
            }
            None => {
                self.unseen = self.unseen.saturating_add(1);
                if self.unseen < GONE_AFTER {
                    return false;
                }
                Resting::new()
            }
        };
        if resting == self.resting {
            return false;
        }
        let names: Vec<&str> = resting.iter().copied().collect();
        let hooks = names.join(",");
        if hooks.is_empty() {
            info!("koordlet does the part of no hook any more: all work");
        } else {
            warn!(
                hooks,
                "koordlet runs on this node and does the part of hooks: they rest"
            );
        }
        self.resting = resting;
        true
    }
}

/// A thread that looks at processes.
pub(crate) fn looker<F: Send + 'static>(
    name: &'static str,
    look: impl Fn(&[CgroupPath]) -> Option<F> + Send + 'static,
) -> Worker<Look<F>> {
    Worker::new(name, STACK, move |(operators, done): Look<F>| {
        // Who asked while another look hung has gone.
        if !done.is_closed() {
            done.send(look(&operators)).ok();
        }
    })
}

/// Whether one in these control groups is believed to be who it says it is.
pub(crate) fn is_believed(cgroups: &[String], operators: &[CgroupPath]) -> bool {
    let is_operators = |at: &String| {
        let at = CgroupPath::parse(at);
        at.is_ok_and(|at| operators.iter().any(|pod| at.is_under(pod)))
    };
    let nowhere = cgroups.is_empty();
    cgroups.iter().any(is_operators) || !(nowhere || cgroups.iter().any(|at| may_be_pods(at)))
}

/// Whether these control groups do not say where one is, or only from where we are ourselves.
pub(crate) fn is_unplaced(cgroups: &[String]) -> bool {
    let is_beside_us = |at: &String| at.split('/').any(|name| name == "..");
    cgroups.is_empty() || cgroups.iter().any(is_beside_us)
}

/// Whether this may be the control group of a pod: all are below one of that name, or where the kubelet
/// makes none for pods (`cgroupsPerQOS: false`) in one that a runtime names, and what lies beside our
/// own cgroup namespace could be.
fn may_be_pods(cgroup: &str) -> bool {
    let mut components = cgroup.split('/');
    components.any(|name| {
        let starts = ["cri-containerd-", "crio-"]
            .iter()
            .any(|it| name.starts_with(it));
        starts || ["..", "k8s.io"].contains(&name) || name.contains("kubepods")
    })
}

/// Looks at all who say that they are koordlet; `None` if that cannot be done now.
fn look(proc_root: &Path, operators: &[CgroupPath]) -> Option<Found> {
    let mut found = Found::default();
    let trusted = |cgroups: &[String]| is_believed(cgroups, operators);
    let looked = of_root(proc_root, NAME, trusted, |process| {
        if let Some(words) = process.words {
            let (gates, faults) = gates(&words);
            let covers = found.covers.get_or_insert_default();
            covers.extend(covered(&gates));
            found.unread = found.unread.take().or_else(|| in_short(&faults));
        } else {
            found.in_doubt = true;
            found.unplaced |= is_unplaced(&process.cgroups);
        }
    });
    if let Err(error) = looked {
        warn!(
            error = &error as &dyn Error,
            "whether koordlet runs here is unknown"
        );
        return None;
    }
    Some(found)
}

/// The gates that a command line sets, and what of them cannot be read: those count as not said.
fn gates(line: &[String]) -> (FeatureGates, Vec<FlagFault>) {
    let mut values = Vec::new();
    let mut words = line.iter();
    while let Some(word) = words.next() {
        // Go takes one dash as well as two.
        match word.trim_start_matches('-').split_once('=') {
            Some(("feature-gates", value)) => values.push(value),
            None if word.trim_start_matches('-') == "feature-gates" => {
                values.extend(words.next().map(String::as_str));
            }
            _ => {}
        }
    }
    FeatureGates::of_another(&values.join(","))
}

/// What cannot be read, for people: what another's command line says has no bound of its own.
fn in_short(faults: &[FlagFault]) -> Option<String> {
    let told = faults.iter().take(FAULTS).map(|fault| {
        // It quotes what is wrong, escaped.
        let text = fault.to_string();
        text.chars().take(FAULT_LENGTH).collect::<String>()
    });
    let told = told.collect::<Vec<_>>().join("; ");
    match faults.len() {
        0 => None,
        1..=FAULTS => Some(told),
        all => Some(format!("{told}; and {} more", all - FAULTS)),
    }
}

/// The built-in hooks that upstream has too, and that these gates have on there.
fn covered(gates: &FeatureGates) -> Resting {
    Chain::builtin_table()
        .filter(|meta| meta.maturity != Maturity::Own)
        .filter(|meta| gates.enabled(meta.gate))
        .map(|meta| meta.name)
        .collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test's own files")]

    use super::*;
    use crate::{
        front::cri::Method,
        hub::{
            Answer, Opening, Untouched,
            testing::{Bench, sandbox},
        },
        ledger::Life,
        reconcile,
    };
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use koord_proto::cri;
    use prost::Message;
    use std::{fs, sync::mpsc};
    use tempfile::TempDir;
    use tokio::time::{self, Instant};

    const HOST: &str = "0::/system.slice/koordlet.service";
    /// Of the pod of the bench, whose namespace is `default`.
    const IN_POD: &str = "0::/kubepods/besteffort/poduid-1/c";

    fn neighbour(namespace: &str) -> Neighbour {
        Neighbour {
            beside: BesideKoordlet::Auto,
            proc_root: PathBuf::new(),
            namespace: namespace.to_owned(),
            resting: Resting::new(),
            unseen: 0,
            patience: PATIENCE,
            hangs: false,
            told: None,
            told_unread: None,
        }
    }

    /// What rests beside a process in `cgroup`, where a pod of namespace `default` is in
    /// `kubepods/besteffort/poduid-1`.
    fn beside(line: &str, cgroup: &str, namespace: &str) -> Option<Resting> {
        found(line, cgroup, namespace).covers
    }

    /// What is found where there is such a process.
    fn found(line: &str, cgroup: &str, namespace: &str) -> Found {
        let root = running(line, cgroup);
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let operators = neighbour(namespace).operators(&bench.hub.ledger().borrow());
        look(root.path(), &operators).unwrap()
    }

    /// A `/proc` with such a process.
    fn running(line: &str, cgroup: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("7");
        fs::create_dir(&process).unwrap();
        fs::write(process.join("comm"), "koordlet\n").unwrap();
        fs::write(process.join("cmdline"), line.replace(' ', "\0")).unwrap();
        fs::write(process.join("cgroup"), cgroup).unwrap();
        let status = "Uid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t9\n";
        fs::write(process.join("status"), status).unwrap();
        let stat = "7 (koordlet) S 1 7 7 0 -1 4194560 100 0 0 0 250 75";
        fs::write(process.join("stat"), stat).unwrap();
        root
    }

    /// The shares of the container of the bench once its pod was held against the kernel: 1,024 or, by
    /// a hook that koordlet has too, 512.
    async fn held(bench: &Bench) -> String {
        reconcile::pod(&bench.hub, &sandbox()).await;
        bench.shown("cpu.shares")
    }

    /// Returns once this is so.
    async fn until(mut holds: impl FnMut() -> bool) {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn only_what_no_pods_author_can_place_is_believed() {
        for (cgroup, namespace, believed) in [
            (HOST, "koordinator-system", true),
            ("0::/", "koordinator-system", true),
            (
                "0::/kubepods/besteffort/poduid-1/c",
                "koordinator-system",
                false,
            ),
            ("0::/kubepods/besteffort/poduid-1/c", "default", true),
            (
                "5:cpu:/kubepods/besteffort/poduid-1/c\n0::/",
                "default",
                true,
            ),
            (
                "5:cpu:/kubepods/besteffort/poduid-2/c\n0::/",
                "default",
                false,
            ),
            // Its own control groups have the names that it gives them.
            (
                "0::/kubepods/poduid-2/kubepods/besteffort/poduid-1",
                "default",
                false,
            ),
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod3.slice",
                "default",
                false,
            ),
            ("0::/../container", "default", false),
            ("0::/k8s.io/c", "default", false),
            ("0::/system.slice/cri-containerd-c.scope", "default", false),
            ("0::/system.slice/crio-c.scope", "default", false),
            ("", "default", false),
        ] {
            let resting = beside("/koordlet", cgroup, namespace);
            assert_eq!(resting.is_some(), believed, "{cgroup} {namespace}");
        }
    }

    #[test]
    fn one_that_cannot_be_placed_is_told_from_one_that_is_a_pods() {
        for (cgroup, unplaced) in [
            (HOST, false),
            ("0::/kubepods/besteffort/poduid-2/c", false),
            ("0::/k8s.io/c", false),
            // From within a control group namespace, whoever's it is.
            ("0::/../../system.slice/koordlet.service", true),
            ("0::/../../kubepods-burstable-pod3.slice/c", true),
            (
                "5:cpu:/kubepods/besteffort/poduid-2/c\n0::/../container",
                true,
            ),
            ("", true),
            // The operator's, as one of the hierarchies says.
            (
                "5:cpu:/kubepods/besteffort/poduid-1/c\n0::/../container",
                false,
            ),
        ] {
            let found = found("/koordlet", cgroup, "default");
            assert_eq!(found.unplaced, unplaced, "{cgroup}");
        }
    }

    #[test]
    fn hooks_rest_that_koordlets_own_command_line_has_on() {
        let all = &[
            "BatchResource",
            "CPUBurst",
            "CPUSetAllocator",
            "GroupIdentity",
            "RdtResctrl",
        ][..];
        for (line, resting) in [
            ("/koordlet", all),
            (
                "/koordlet --feature-gates=AllAlpha=true,CPUBurst=false -v=4",
                &[
                    "BatchResource",
                    "BlkIOReconcile",
                    "CPUNormalization",
                    "CPUSetAllocator",
                    "CoreSched",
                    "GPUEnvInject",
                    "GroupIdentity",
                    "HamiCoreVGPUMonitor",
                    "MemoryQOS",
                    "OOMScoreAdj",
                    "RDMADeviceInject",
                    "RdtResctrl",
                    "Resctrl",
                    "TCNetworkQoS",
                    "TerwayQoS",
                ],
            ),
            (
                "/koordlet --feature-gates=GroupIdentity=false,BatchResource=false",
                &["CPUBurst", "CPUSetAllocator", "RdtResctrl"],
            ),
            ("/koordlet -feature-gates AllBeta=false", &[]),
            (
                "/koordlet --feature-gates=AllBeta=false --feature-gates GroupIdentity=true",
                &["GroupIdentity"],
            ),
            // What upstream may have one day, and what is none: the rest says what it says.
            (
                "/koordlet --feature-gates=Unheard=true,AllBeta=perhaps,GroupIdentity=false,CPUBurst",
                &["BatchResource", "CPUBurst", "CPUSetAllocator", "RdtResctrl"],
            ),
            (
                "/koordlet --feature-gates=AllBeta=false,CoreSched=true,Unheard=false",
                &["CoreSched"],
            ),
        ] {
            let rests = beside(line, HOST, "").unwrap();
            assert!(rests.iter().eq(resting), "{line}: {rests:?}");
        }
    }

    #[test]
    fn gates_that_cannot_be_read_are_told_in_short() {
        let unread = |line: &str| found(line, HOST, "").unread;
        assert_eq!(unread("/koordlet --feature-gates=CPUBurst=false"), None);
        assert_eq!(
            unread("/koordlet --feature-gates=Un\u{1b}heard=1,CPUBurst=false").as_deref(),
            Some(r#""Un\u{1b}heard" is not known"#)
        );
        let many = format!(
            "/koordlet --feature-gates={}",
            format!("{}=1,", "a".repeat(200)).repeat(9)
        );
        let one = format!("\"{}", "a".repeat(79));
        assert_eq!(
            unread(&many).unwrap(),
            format!("{one}; {one}; {one}; {one}; {one}; and 4 more")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_given_up_after_ten_seconds_and_says_nothing() {
        let (hang, hangs) = mpsc::channel();
        let looker = Worker::new("hangs", STACK, move |(_, done): Look| {
            hangs.recv().ok();
            done.send(Some(Found::default())).ok();
        });
        let mut neighbour = neighbour("");
        let begun = Instant::now();
        let asked = timeout(PATIENCE * 6, neighbour.ask(&looker, Vec::new()));
        assert!(asked.await.expect("it is waited for").is_none());
        assert_eq!(begun.elapsed().as_secs(), 10);
        assert!(neighbour.hangs);
        // It goes on.
        time::resume();
        hang.send(()).unwrap();
        hang.send(()).unwrap();
        assert!(neighbour.ask(&looker, Vec::new()).await.is_some());
        assert!(!neighbour.hangs);
    }

    #[tokio::test(start_paused = true)]
    async fn who_looks_but_once_gives_a_look_that_hangs_up_after_ten_seconds() {
        let (_never, hangs) = mpsc::channel::<()>();
        let looker = Worker::new("hangs", STACK, move |(_, done): Look| {
            hangs.recv().ok();
            done.send(Some(Found::default())).ok();
        });
        let neighbour = Neighbour {
            patience: FIRST_PATIENCE,
            ..neighbour("")
        };
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let begun = Instant::now();
        let looked = timeout(
            PATIENCE * 6,
            neighbour.look_once(&looker, (&bench.hub, true)),
        );
        assert_eq!(looked.await.expect("it is given up"), None);
        assert_eq!(begun.elapsed().as_secs(), 10);
    }

    #[tokio::test]
    async fn who_looks_but_once_does_not_take_a_koordlet_that_restarts_for_none() {
        let looked = async |namespace: &str, container: Option<&str>, ready: bool| {
            let looker = Worker::new("idle", STACK, |(_, done): Look| {
                done.send(Some(Found::default())).ok();
            });
            let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
            {
                let mut ledger = bench.hub.ledger().borrow_mut();
                let pod = ledger.pod_mut(&sandbox()).unwrap();
                pod.ready = ready;
                pod.containers.truncate(container.iter().len());
                for (listed, name) in pod.containers.iter_mut().zip(container) {
                    listed.view.name = name.to_owned();
                    listed.life = Life::Exited;
                }
            }
            let neighbour = neighbour(namespace);
            neighbour.look_once(&looker, (&bench.hub, true)).await
        };
        assert_eq!(looked("default", Some("koordlet"), true).await, None);
        // Its image may be on its way.
        assert_eq!(looked("default", None, true).await, None);
        let nobody = Some(Resting::new());
        assert_eq!(looked("other", Some("koordlet"), true).await, nobody);
        assert_eq!(looked("other", None, true).await, nobody);
        assert_eq!(looked("default", Some("main"), true).await, nobody);
        assert_eq!(looked("default", Some("koordlet"), false).await, nobody);
    }

    #[tokio::test]
    async fn who_looks_but_once_takes_nobody_for_a_stranger_while_pods_are_not_known() {
        for (in_doubt, knows_all, is_known) in [
            (true, true, true),
            (true, false, false),
            (false, false, true),
        ] {
            let looker = Worker::new("doubts", STACK, move |(_, done): Look| {
                let found = Found {
                    in_doubt,
                    ..Found::default()
                };
                done.send(Some(found)).ok();
            });
            let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
            let looked = neighbour("other").look_once(&looker, (&bench.hub, knows_all));
            let nobody = is_known.then(Resting::new);
            assert_eq!(looked.await, nobody, "{in_doubt} {knows_all}");
        }
    }

    #[tokio::test]
    async fn nothing_is_written_at_a_start_before_koordlet_was_looked_for() {
        for (cgroup, namespace, shares) in [
            (HOST, "koordinator-system", "1024"),
            (IN_POD, "default", "1024"),
            // A pod's pretence.
            (IN_POD, "koordinator-system", "512"),
        ] {
            let root = running("/koordlet", cgroup);
            let neighbour = Neighbour {
                proc_root: root.path().to_owned(),
                ..neighbour(namespace)
            };
            let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
            neighbour.begin(&bench.hub);
            assert_eq!(held(&bench).await, "1024");
            let looked = async {
                bench.hub.list_taken();
                until(|| bench.hub.knows_of_koordlet()).await;
                assert_eq!(held(&bench).await, shares, "{cgroup} {namespace}");
            };
            tokio::select! {
                () = neighbour.watch(bench.hub.clone()) => unreachable!("it never ends"),
                looked = timeout(Duration::from_secs(30), looked) => {
                    looked.expect("it is looked for");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_look_that_hangs_holds_a_start_for_two_seconds_and_a_call_for_its_own_time() {
        let (_never, hangs) = mpsc::channel::<()>();
        let looker = Worker::new("hangs", STACK, move |(_, done): Look| {
            hangs.recv().ok();
            done.send(None).ok();
        });
        let neighbour = Neighbour {
            patience: FIRST_PATIENCE,
            ..neighbour("")
        };
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        neighbour.begin(&bench.hub);
        let begun = Instant::now();
        let update = cri::UpdateContainerResourcesRequest {
            container_id: "container-1".to_owned(),
            linux: Some(cri::LinuxContainerResources::default()),
        };
        let started = async {
            let (method, message) = (Method::UpdateContainerResources, update.encode_to_vec());
            let Opening::Later(decision) = bench.hub.open(method, &message, None) else {
                panic!("it does not wait");
            };
            let answer = decision.await.answer;
            assert!(matches!(answer, Answer::AsIs(Untouched::UnknownKoordlet)));
            assert_eq!(begun.elapsed().as_millis() / 10, 50);
            assert_eq!(held(&bench).await, "1024");
            until(|| bench.hub.knows_of_koordlet()).await;
            assert_eq!(begun.elapsed().as_secs(), 2);
            assert_eq!(held(&bench).await, "512");
        };
        tokio::select! {
            () = neighbour.keep_looking(&looker, &bench.hub) => unreachable!("it never ends"),
            () = started => {}
        }
    }

    /// One to whom somebody could be koordlet until a pod of the operator's is known, and is then. It
    /// tells each look.
    fn doubting() -> (Worker<Look>, mpsc::Receiver<()>) {
        let (looks, looked) = mpsc::channel();
        let looker = Worker::new("doubts", STACK, move |(operators, done): Look| {
            let in_doubt = operators.is_empty();
            let all = || covered(&FeatureGates::default());
            let found = Found {
                covers: (!in_doubt).then(all),
                in_doubt,
                ..Found::default()
            };
            done.send(Some(found)).ok();
            looks.send(()).ok();
        });
        (looker, looked)
    }

    #[tokio::test]
    async fn while_only_a_list_can_tell_whose_pod_it_is_a_start_waits_for_that() {
        let (looker, looked) = doubting();
        let neighbour = neighbour("default");
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let hub = bench.hub.clone();
        neighbour.begin(&hub);
        let listed = async {
            until(|| looked.try_recv().is_ok()).await;
            // What was found is heard by then.
            sleep(Duration::from_millis(1)).await;
            let bench = bench.knowing_pod();
            assert!(!hub.knows_of_koordlet());
            assert_eq!(held(&bench).await, "1024");
            hub.list_taken();
            until(|| hub.knows_of_koordlet()).await;
            assert_eq!(held(&bench).await, "1024");
            assert!(hub.policy().chain().resting().contains("BatchResource"));
        };
        tokio::select! {
            () = neighbour.keep_looking(&looker, &hub) => unreachable!("it never ends"),
            listed = timeout(Duration::from_secs(30), listed) => {
                listed.expect("it is looked for");
            }
        }
    }

    #[tokio::test]
    async fn where_no_list_tells_it_for_a_minute_hooks_work_and_a_person_is_told() {
        let (looker, looked) = doubting();
        let neighbour = neighbour("default");
        let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
        neighbour.begin(&hub);
        let given_up = async {
            until(|| looked.try_recv().is_ok()).await;
            // What was found is heard by then.
            sleep(Duration::from_millis(1)).await;
            time::pause();
            sleep(Duration::from_secs(30)).await;
            assert_eq!((hub.enforces(), hub.koordlet_remark()), (false, None));
            sleep(Duration::from_secs(31)).await;
            let told = Some(
                "a process called koordlet runs in a pod, and the runtime does not say whose that \
                 is: say --beside-koordlet=yes or no",
            );
            assert_eq!((hub.enforces(), hub.koordlet_remark()), (true, told));
        };
        tokio::select! {
            () = neighbour.keep_looking(&looker, &hub) => unreachable!("it never ends"),
            () = given_up => {}
        }
    }

    #[tokio::test]
    async fn who_is_believed_counts_though_others_are_in_doubt() {
        let (looks, looked) = mpsc::channel();
        let looker = Worker::new("doubts", STACK, move |(_, done): Look| {
            let found = Found {
                covers: Some(covered(&FeatureGates::default())),
                in_doubt: true,
                ..Found::default()
            };
            done.send(Some(found)).ok();
            looks.send(()).ok();
        });
        let neighbour = neighbour("default");
        let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
        neighbour.begin(&hub);
        let given_up = async {
            until(|| looked.try_recv().is_ok()).await;
            until(|| hub.policy().chain().resting().contains("BatchResource")).await;
            assert!(!hub.enforces());
            time::pause();
            sleep(Duration::from_secs(61)).await;
            assert!(hub.enforces());
            assert!(hub.policy().chain().resting().contains("BatchResource"));
        };
        tokio::select! {
            () = neighbour.keep_looking(&looker, &hub) => unreachable!("it never ends"),
            given_up = timeout(Duration::from_secs(90), given_up) => {
                given_up.expect("somebody is believed");
            }
        }
    }

    #[test]
    fn one_that_restarts_is_not_gone_and_one_that_is_gone_for_long_is() {
        let mut neighbour = neighbour("");
        let all = covered(&FeatureGates::default());
        assert!(neighbour.take(Some(all.clone())));
        for _ in 0..9 {
            assert!(!neighbour.take(None));
        }
        assert_eq!(neighbour.resting, all);
        assert!(!neighbour.take(Some(all.clone())));
        for _ in 0..9 {
            assert!(!neighbour.take(None));
        }
        assert!(neighbour.take(None));
        assert!(neighbour.resting.is_empty());
        assert!(neighbour.take(Some(all)));
    }
}
