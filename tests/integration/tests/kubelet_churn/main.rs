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
    failure::{OURS, cut_off, failures, kinds, unreached},
    stage::{End, Part, Script, Stage},
};
use anyhow::{Result, anyhow, ensure};
use koord_integration::{Front, static_pod::settled};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Mutex,
};

/// Runs without us in which a kind of failure may show. Which calls are under way at an end is chance.
const RUNS_WITHOUT: usize = 3;

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
    end: End::Kill,
    parts: ALL_THREE,
};

const RESTARTS: Script = Script {
    end: End::Stop,
    parts: ALL_THREE,
};

const RESTARTS_OF_US: Script = Script {
    end: End::Stop,
    parts: [Part::Proxy; 6],
};

/// What has failed in churns without us.
#[derive(Default)]
struct Without {
    runs: usize,
    kinds: BTreeSet<String>,
}

/// Set to have the churn without us run where no failure asks for it, too.
const ALWAYS: &str = "KOORD_CHURN_WITHOUT";

/// Failures of which the same churn without us has none of the kind. It is run when there is a kind to be
/// held against it, and again for what it has not shown yet; all tests of one script share its runs.
fn without_precedent(script: Script, failures: &[&str]) -> Result<BTreeMap<String, String>> {
    static WITHOUT: Mutex<BTreeMap<End, Without>> = Mutex::new(BTreeMap::new());
    let mut without = WITHOUT
        .lock()
        .map_err(|_| anyhow!("a run without us failed"))?;
    let without = without.entry(script.end).or_default();
    let mut unknown = kinds(failures);
    loop {
        unknown.retain(|kind, _| !without.kinds.contains(kind));
        let enough = without.runs > 0 || env::var_os(ALWAYS).is_none();
        if unknown.is_empty() && enough || without.runs == RUNS_WITHOUT {
            return Ok(unknown);
        }
        let mut stage = Stage::start(None, script)?;
        stage.settle();
        stage.stir()?;
        stage.settle();
        let log = stage.kubelet.log();
        let failures = self::failures(&log);
        println!("{} syncs failed without us: {failures:#?}", failures.len());
        without.kinds.extend(kinds(&failures).into_keys());
        without.runs += 1;
    }
}

/// What fails with us alone may be rare and no more: what we cause shows again.
fn outlives(script: Script, front: Front) -> Result<()> {
    let churn = || without_precedent(script, &failures(&churn(script, front)?));
    let mut with_us = churn()?;
    if !with_us.is_empty() {
        println!("with us alone, for now: {with_us:#?}");
        let again = churn()?;
        with_us.retain(|kind, _| again.contains_key(kind));
    }
    ensure!(with_us.is_empty(), "these fail with us alone: {with_us:#?}");
    Ok(())
}

fn goes_unnoticed(front: Front) -> Result<()> {
    has_noticed_nothing(&churn(RESTARTS_OF_US, front)?)
}

/// Fails with what the kubelet that logged this has noticed of restarts.
fn has_noticed_nothing(log: &str) -> Result<()> {
    let noticed = [failures(log), cut_off(log), unreached(log)].concat();
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
fn a_kubelets_churn_outlives_restarts_of_all_three() -> Result<()> {
    outlives(RESTARTS, Front::Cri)
}

#[test]
fn a_kubelets_churn_outlives_restarts_of_all_three_by_nri() -> Result<()> {
    outlives(RESTARTS, Front::Nri)
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
