//! A plugin beside ours that answers at once and with nothing: what a question takes that nobody thinks
//! about.

use anyhow::{Context, Result};
use koord_integration::binary;
use koord_testkit::{
    Testbed,
    nri::{Generation, NriRuntime, Plugin},
};
use std::process::Child;

/// The process, and what a runtime has of it.
pub(crate) struct Echo {
    pub(crate) plugin: Plugin,
    process: Child,
}

// === impl Echo ===

impl Echo {
    pub(crate) fn start(testbed: &Testbed) -> Result<Self> {
        let socket = testbed.directory().join("echo.sock");
        let runtime = NriRuntime::listen(&socket, Generation::V0_12)?;
        let mut command = testbed.command(binary("koord-nri-echo")?);
        let process = command.arg("--socket").arg(&socket).spawn();
        Ok(Self {
            process: process.context("start the echo")?,
            plugin: runtime.take_plugin()?,
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.process.kill().and_then(|()| self.process.wait()));
    }
}
