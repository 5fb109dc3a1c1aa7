//! Others that write where hooks do, while the proxy runs: nothing that they have written stays.

use super::{
    Machine,
    found::{CACHES, FILES, different, text},
};
use crate::{Node, RunningPod};
use anyhow::{Context, Result, ensure};
use koord_kernel::core_sched::{CoreSched as _, Kernel};
use koord_testkit::poll::comes_true;
use std::{
    fs,
    path::{Path, PathBuf},
};

impl Machine<'_> {
    /// Writes other values, has a process leave its group of caches and its core, and fails unless all is as it
    /// was after the next look at everything, which is within a minute.
    pub(super) fn meddle(&self, node: &Node, pods: &[RunningPod]) -> Result<()> {
        if self.meddled.is_empty() {
            return Ok(());
        }
        let before = self.held(node, pods)?;
        for (what, value) in self.meddled {
            let file = self.file(node, pods, what)?;
            let was = text(&file)?;
            // Of what has no end resctrl takes nothing.
            fs::write(&file, format!("{value}\n")).with_context(|| format!("{what}: {value:?}"))?;
            ensure!(text(&file)? != was, "{what} was {value:?} before");
        }
        let process = process(&pods[1])?;
        let tasks = Path::new(CACHES).join("tasks");
        if tasks.exists() {
            let groups = Path::new("/proc").join(&process).join("cpu_resctrl_groups");
            let was = text(&groups)?;
            fs::write(tasks, &process)?;
            ensure!(text(&groups)? != was, "it was in no group: {was:?}");
        }
        if let Ok(kernel) = Kernel::open(false) {
            let process = process.parse()?;
            kernel.clear(process)?;
            ensure!(kernel.cookie(process)?.is_none(), "it has its cookie still");
        }
        let mut after = before.clone();
        let is_as_before = comes_true(|| {
            after = self.held(node, pods).unwrap_or_default();
            after == before
        });
        let left = different(&before, &after);
        ensure!(is_as_before, "what others have written stays: {left:#?}");
        Ok(())
    }

    /// The file of a value, by what that is called.
    fn file(&self, node: &Node, pods: &[RunningPod], what: &str) -> Result<PathBuf> {
        if let Some(group) = what.strip_prefix("cache group ") {
            return Ok(Path::new(CACHES).join(group).join("schemata"));
        }
        let Some((whose, file)) = what.rsplit_once(' ') else {
            let hierarchies = node.testbed().hierarchies().iter();
            let roots = hierarchies.map(|it| it.mount_point().to_owned());
            let mut files = roots.chain([self.network()]).map(|it| it.join(what));
            return files.find(|it| it.exists()).context(what.to_owned());
        };
        let pod = |number: &str| Ok::<_, anyhow::Error>(&pods[number.parse::<usize>()?]);
        if let Some(number) = whose.strip_prefix("process of ") {
            let process = process(pod(number)?)?;
            return Ok(Path::new("/proc").join(process).join(file));
        }
        let controller = FILES.iter().find(|(_, it)| *it == file);
        let (controller, _) = controller.with_context(|| what.to_owned())?;
        let group = match whose {
            "best-effort pods" => pods[2].cgroup.directory(controller).join(".."),
            whose => match whose.strip_prefix("container of ") {
                Some(number) => {
                    let pod = pod(number)?;
                    pod.cgroup.directory(controller).join(&pod.container)
                }
                None => pod(whose)?.cgroup.directory(controller),
            },
        };
        Ok(group.join(file))
    }
}

/// The first of a pod's container.
fn process(pod: &RunningPod) -> Result<String> {
    let group = pod.cgroup.directory("cpu").join(&pod.container);
    let processes = fs::read_to_string(group.join("cgroup.procs"))?;
    let first = processes.lines().next().context("the container runs")?;
    Ok(first.to_owned())
}
