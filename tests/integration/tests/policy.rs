//! A node policy of which one field is wrong, on a real containerd and this machine's kernel.

use anyhow::{Result, ensure};
use koord_integration::{
    Node,
    wrong_policy::{Checked, FIELDS, FIELDS_OF_V2, V1, options},
};
use koord_testkit::ContainerdVersion;
use std::fs;

#[tokio::test]
async fn a_wrong_field_is_told_and_costs_itself_alone_on_containerd_2() -> Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    ensure!(online == "0-1\n", "this takes a machine with two CPUs");
    let directory = tempfile::tempdir()?;
    let node = Node::start(ContainerdVersion::V2, options(directory.path()))?;
    let checked = Checked::start(&node, V1, directory.path()).await?;
    checked.each_costs_itself(FIELDS)?;
    checked.each_costs_itself(FIELDS_OF_V2)
}
