//! Nothing is written where nothing is left to do.

use crate::{Proxy, witness::Witness};
use anyhow::{Result, ensure};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Longer than a minute, after which the proxy has looked at everything again.
const REST: Duration = Duration::from_secs(65);

/// Fails if anybody writes to one of these files, or to a file of these groups or of groups below them, or
/// makes or removes one, for longer than anything that is done now and then takes to come round. And if the
/// proxy counts anything as written meanwhile, which may be what no notification tells of: a score, a cookie.
pub(super) fn nothing_is_written(proxy: &Proxy, places: &[PathBuf], own: &Path) -> Result<()> {
    let counted = || {
        let metric = "koord_runtime_proxy_kernel_settings_total";
        proxy.metric(metric, &["result=\"written\""])
    };
    let before = counted()?;
    ensure!(before > 0.5, "nothing was ever written");
    let witness = Witness::of(places)?;
    thread::sleep(REST);
    let written = witness.written()?;
    ensure!(written.is_empty(), "written at rest: {written:#?}");
    let more = counted()? - before;
    ensure!(more < 0.5, "{more} settings are counted as written at rest");
    witness.sees(own)
}
