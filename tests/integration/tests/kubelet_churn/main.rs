//! A real kubelet whose pods come and go while proxy, runtime and kubelet are killed or restarted in turn:
//! what runs stays as it is, what is wanted gets there, and no pod fails for a reason of ours. What fails
//! at all is held against the same churn without us.
//!
//! A call that was cut off is taken for the doing of what was ended between the first end and some seconds
//! after the last, and for ours at any other time. Which time that is, the place of its line in the
//! kubelet's log says: the times there have neither year nor zone. Where nothing but the proxy is
//! restarted, and not killed, no call at all may be cut off or find nobody, however long another one takes.

mod failure;
mod stage;

use crate::{
    failure::{OURS, cut_off, failures, failures_of_others, kinds, unreached},
    stage::{End, Part, Script, Stage},
};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{Front, static_pod::settled};
use koord_testkit::ContainerdVersion;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env,
    sync::{LazyLock, Mutex},
};

/// Churns with us at most. Which calls are under way at an end is chance, so a kind of failure that was met
/// once is looked for in more of them: what shows in half of all churns hides from six more once in 64
/// times.
const RUNS: usize = 7;

/// Churns without us that tell at once of what is no fault of ours and not rare, so that it is not looked
/// for.
const FEW: usize = 3;

/// Churns without us, those few among them, before what was met twice with us is ours. What shows as often
/// without us as with us is taken for ours once in 50 times at most (where one churn in fifteen has it).
const MANY: usize = 20;

/// Says how many churns with us there are at first, though nothing was met: one if it is not set.
const AT_FIRST: &str = "KOORD_CHURN_RUNS";

/// The proxy no more than twice: of three crashes within a minute it would think the worse of itself.
const ALL_THREE: [Part; 6] = [
    Part::Proxy,
    Part::Runtime,
    Part::Kubelet,
    Part::Runtime,
    Part::Kubelet,
    Part::Proxy,
];

const KILLS: Script = Script {
    runtime: ContainerdVersion::V2,
    end: End::Kill,
    parts: ALL_THREE,
};

const RESTARTS: Script = Script {
    end: End::Stop,
    ..KILLS
};

const RESTARTS_OF_US: Script = Script {
    parts: [Part::Proxy; 6],
    ..RESTARTS
};

const KILLS_1_7: Script = Script {
    runtime: ContainerdVersion::V1_7,
    ..KILLS
};

const RESTARTS_1_7: Script = Script {
    end: End::Stop,
    ..KILLS_1_7
};

/// What has failed in churns without us.
#[derive(Default)]
struct Without {
    runs: usize,
    kinds: BTreeSet<String>,
}

/// Set to have the churn without us run where no failure asks for it, too.
const ALWAYS: &str = "KOORD_CHURN_WITHOUT";

/// Kinds of failure with us: how many churns had each, and a line of it.
type Met = BTreeMap<String, (usize, String)>;

/// Leaves what this many of the same churns without us have none of. One is run when there is a kind to be
/// held against it, and the next for what none has shown yet; all tests of one script share them.
fn without_precedent(script: Script, met: &mut Met, runs: usize) -> Result<()> {
    static WITHOUT: LazyLock<Mutex<HashMap<(ContainerdVersion, End), Without>>> =
        LazyLock::new(Mutex::default);
    let mut without = WITHOUT
        .lock()
        .map_err(|_| anyhow!("a run without us failed"))?;
    let without = without.entry((script.runtime, script.end)).or_default();
    loop {
        met.retain(|kind, _| !without.kinds.contains(kind));
        let enough = without.runs > 0 || env::var_os(ALWAYS).is_none();
        if met.is_empty() && enough || without.runs >= runs {
            return Ok(());
        }
        let mut stage = Stage::start(None, script)?;
        stage.settle();
        stage.stir()?;
        stage.settle();
        let log = stage.kubelet.log();
        let failures = self::failures(&log);
        println!("{} syncs failed without us: {failures:#?}", failures.len());
        without
            .kinds
            .extend(kinds(script.end, &failures).into_keys());
        without.runs += 1;
    }
}

/// What fails because of us: what two churns with us have met and none of many without us, for what fails
/// with us alone may be rare and no more. A kind that a few without us had is dropped after each churn that
/// meets it anew, so it never counts to two.
fn ours(
    at_first: usize,
    mut churn: impl FnMut() -> Result<BTreeMap<String, String>>,
    mut without_precedent: impl FnMut(&mut Met, usize) -> Result<()>,
) -> Result<Met> {
    let mut met = Met::new();
    for run in 1..=RUNS.max(at_first) {
        for (kind, line) in churn()? {
            met.entry(kind).or_insert((0, line)).0 += 1;
        }
        without_precedent(&mut met, FEW)?;
        let is_looked_for = met.values().any(|(times, _)| *times == 1);
        if run >= at_first && !is_looked_for {
            break;
        }
        if !met.is_empty() {
            println!("with us alone, for now: {met:#?}");
        }
    }
    met.retain(|_, (times, _)| *times > 1);
    without_precedent(&mut met, MANY)?;
    Ok(met)
}

fn outlives(script: Script, front: Front) -> Result<()> {
    let at_first = match env::var(AT_FIRST) {
        Ok(runs) => runs
            .parse::<usize>()
            .with_context(|| format!("{AT_FIRST}={runs}"))?,
        Err(_) => 1,
    };
    let ours = ours(
        at_first,
        || Ok(kinds(script.end, &failures(&churn(script, front)?))),
        |met, runs| without_precedent(script, met, runs),
    )?;
    ensure!(ours.is_empty(), "these fail with us alone: {ours:#?}");
    Ok(())
}

fn goes_unnoticed(front: Front) -> Result<()> {
    has_noticed_nothing(&churn(RESTARTS_OF_US, front)?)
}

/// Fails with what the kubelet that logged this has noticed of restarts.
fn has_noticed_nothing(log: &str) -> Result<()> {
    let noticed = [failures_of_others(log), cut_off(log), unreached(log)].concat();
    ensure!(noticed.is_empty(), "it noticed a restart: {noticed:#?}");
    Ok(())
}

/// What a kubelet logged in a churn, at which nothing was lost for good.
fn churn(script: Script, front: Front) -> Result<String> {
    let mut stage = Stage::start(Some(front), script)?;
    let staying = |stage: &Stage| settled(&stage.node.cgroups, &stage.kubelet, &stage.staying);
    let before = staying(&stage);
    let ends = stage.stir()?;
    assert_eq!(
        staying(&stage),
        before,
        "what ran from the beginning runs on"
    );
    stage.settle();
    stage.stay_calm(&ends)?;
    let kubelet = &stage.kubelet;
    let talking = format!("default/{}-node/main", stage.staying[0].name);
    let logs = kubelet.ask("GET", &format!("/containerLogs/{talking}?tailLines=1"))?;
    ensure!(logs.contains("alive"), "its log says {logs:?}");
    let said = kubelet.ask("POST", &format!("/run/{talking}?cmd=echo%20hello"))?;
    ensure!(said.contains("hello"), "a command says {said:?}");

    let log = kubelet.log();
    let failures = failures(&log);
    println!("{} syncs failed: {failures:#?}", failures.len());
    let is_ours = |line: &&&str| OURS.iter().any(|it| line.contains(it));
    let ours: Vec<_> = failures.iter().filter(is_ours).collect();
    ensure!(ours.is_empty(), "pods failed because of us: {ours:#?}");
    Ok(log)
}

#[test]
fn a_kubelets_churn_outlives_kills_of_all_three() -> Result<()> {
    outlives(KILLS, Front::Cri)
}

#[test]
fn a_kubelets_churn_outlives_kills_of_all_three_by_nri() -> Result<()> {
    outlives(KILLS, Front::Nri)
}

#[test]
fn a_kubelets_churn_outlives_kills_of_all_three_by_nri_on_containerd_1_7() -> Result<()> {
    outlives(KILLS_1_7, Front::Nri)
}

#[test]
fn a_kubelets_churn_outlives_restarts_of_all_three() -> Result<()> {
    outlives(RESTARTS, Front::Cri)
}

#[test]
fn a_kubelets_churn_outlives_restarts_of_all_three_by_nri() -> Result<()> {
    outlives(RESTARTS, Front::Nri)
}

#[test]
fn a_kubelets_churn_outlives_restarts_of_all_three_by_nri_on_containerd_1_7() -> Result<()> {
    outlives(RESTARTS_1_7, Front::Nri)
}

#[test]
fn a_kubelet_notices_no_restart_of_the_proxy() -> Result<()> {
    goes_unnoticed(Front::Cri)
}

#[test]
fn a_kubelet_notices_no_restart_of_the_proxy_by_nri() -> Result<()> {
    goes_unnoticed(Front::Nri)
}

#[test]
fn a_kubelet_notices_no_restart_while_a_container_takes_long_to_stop() -> Result<()> {
    let mut stage = Stage::start(Some(Front::Cri), RESTARTS_OF_US)?;
    stage.restart_amid_a_stop()?;
    stage.settle();
    has_noticed_nothing(&stage.kubelet.log())
}

/// The kinds that are ours, and after how many churns that is known, where churn by churn `with_us` says
/// the one kind that is met, or that none is; without us the churn of that number is the first to meet any.
fn judged(at_first: usize, with_us: &str, without_us: Option<usize>) -> Result<(String, usize)> {
    let mut churns = 0;
    let ours = ours(
        at_first,
        || {
            let kind = with_us.chars().nth(churns).filter(|it| *it != '-');
            churns += 1;
            let met = kind.map(|it| (it.to_string(), "a line".to_owned()));
            Ok(met.into_iter().collect())
        },
        |met, runs| {
            if without_us.is_some_and(|first| first <= runs) {
                met.clear();
            }
            Ok(())
        },
    )?;
    Ok((ours.into_keys().collect(), churns))
}

#[test]
fn what_two_churns_with_us_meet_and_none_of_many_without_us_is_ours() -> Result<()> {
    for (at_first, with_us, without_us, ours, churns) in [
        (1, "a-a", None, "a", 3),
        (1, "a", None, "", 7),
        (1, "a-----a", None, "a", 7),
        (1, "ab-b-a", None, "ab", 6),
        // Twenty without us are asked, and no more.
        (1, "aa", Some(12), "", 2),
        (1, "aa", Some(21), "a", 2),
        // What a few tell of is not looked for, nor counted when it is met again.
        (1, "aaa", Some(3), "", 1),
        (4, "aaaa", Some(3), "", 4),
        // What is not met at first is not looked for.
        (1, "-aa", None, "", 1),
        (4, "-aa", None, "a", 4),
        (4, "---a", None, "", 7),
    ] {
        let expected = (ours.to_owned(), churns);
        assert_eq!(
            judged(at_first, with_us, without_us)?,
            expected,
            "{with_us}"
        );
    }
    Ok(())
}
