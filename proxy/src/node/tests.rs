use super::*;
use crate::{
    config::{Log, LogFormat},
    hub::testing::Bench,
    log,
};
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use tempfile::NamedTempFile;

#[tokio::test]
async fn a_tree_without_the_cpus_is_told_once_and_with_its_path() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let probe = Probe {
        sys_root: "/no-such-root".into(),
        ..bench.hub.probe().clone()
    };
    let cgroups = bench.hub.writer().cgroups();
    let told = NamedTempFile::new().unwrap();
    let writer = told.reopen().unwrap();
    let log = Log {
        filter: "warn".to_owned(),
        format: LogFormat::Text,
        time: false,
    };
    let (dispatch, _control) = log::dispatch(&log, move || writer.try_clone().unwrap()).unwrap();
    tracing::dispatcher::with_default(&dispatch, || {
        probe.first_look(cgroups, Arc::default(), &mut Vec::new());
        probe.look(cgroups, Arc::default()).unwrap();
    });
    assert_eq!(
        std::fs::read_to_string(told.path()).unwrap(),
        " WARN koord_runtime_proxy::node: the online CPUs are unknown: none is taken to be offline \
         error=cannot read /no-such-root/devices/system/cpu/online \
         error.sources=[No such file or directory (os error 2)]\n"
    );
}
