//! A node policy of which one field is wrong, on cgroup v2: of memory, of caches and of the time of devices.

use crate::{check, node};
use anyhow::Result;
use koord_integration::wrong_policy::{Checked, FIELDS_OF_V2, V2, options};
use std::{fs, path::Path};

pub(super) fn check_all() {
    check("a_wrong_field_of_a_policy_costs_itself", costs_itself);
}

async fn costs_itself() -> Result<()> {
    let directory = Path::new("/tmp/wrong");
    fs::create_dir(directory)?;
    let node = node(options(directory));
    let checked = Checked::start(&node, V2, directory).await?;
    checked.each_costs_itself(FIELDS_OF_V2)
}
