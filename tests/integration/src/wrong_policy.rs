//! A node policy in which every strategy says something, and a wrong value of each of its fields: it is
//! told with its key and with what the field may be, and costs that field alone. All else that the policy
//! says stays in force, which is seen in what the kernel and the network plugin have.

mod table;

pub use self::table::{FIELDS, FIELDS_OF_V2, POLICY, V1, V2};

use crate::{
    Node, ProxyOptions, RunningPod,
    classes::{self, NO_POLICY, PodSpecOf},
};
use anyhow::{Context, Result, ensure};
use koord_testkit::{
    cri::message::LinuxContainerResources,
    poll::{bound, comes_true},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
};

/// A field, and what a wrong value of it costs.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Below `spec`.
    pub path: &'static str,
    /// As [`POLICY`] says it, and nowhere else.
    pub right: &'static str,
    pub wrong: &'static str,
    /// What is said of it.
    pub problem: &'static str,
    /// What is otherwise, of that which a kernel has.
    pub costs: &'static [(&'static str, &'static str)],
}

/// A value under [`POLICY`]: what it is called, where it is, its file, and what is there.
pub type Value = (&'static str, Place, &'static str, &'static str);

/// Where a file is.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In the directory of the first, second or third pod, with the controller.
    Pod(usize, &'static str),
    /// In that of its container.
    Container(usize, &'static str),
    BestEffortPods(&'static str),
    AllPods(&'static str),
    HostApplication(&'static str),
    /// In the root of control groups.
    Root,
    /// In that of the groups of caches.
    Caches,
    /// A line of what the network plugin is told of classes.
    Network,
}

/// What there is where there is no such file or line.
pub const GONE: &str = "not there";

/// A node with pods under such a policy.
pub struct Checked<'a> {
    node: &'a Node,
    pods: [RunningPod; 3],
    values: &'a [Value],
    directory: &'a Path,
}

/// With these the node is to be started.
pub fn options(directory: &Path) -> ProxyOptions {
    ProxyOptions {
        policy: Some(NO_POLICY.to_owned()),
        args: vec![
            "--feature-gates=AllAlpha=true,BECPUIdle=true,TCNetworkQoS=false".to_owned(),
            format!("--terway-qos-dir={}", directory.join("qos").display()),
        ],
        ..ProxyOptions::default()
    }
}

// === impl Checked ===

impl<'a> Checked<'a> {
    /// Puts [`POLICY`] in force, and runs a pod each of LSR, LS and BE, which have what it says.
    pub async fn start(node: &'a Node, values: &'a [Value], directory: &'a Path) -> Result<Self> {
        // Under a policy that knows of it, the proxy's first write would race with its maker's.
        node.cgroups.beside_pods("nginx")?;
        node.proxy.put_in_force(POLICY)?;
        let client = node.client().await?;
        let mut web = classes::ls("web", "1");
        web.container = web.container.resources(LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 256,
            ..Default::default()
        });
        let run = async |pod: &PodSpecOf| node.run(&client, pod).await;
        let pods = [
            run(&classes::lsr("pinned")).await?,
            run(&web).await?,
            run(&classes::be("batch")).await?,
        ];
        let checked = Self {
            node,
            pods,
            values,
            directory,
        };
        checked.comes_to("under the policy", &[], &[])?;
        Ok(checked)
    }

    /// Fails unless a wrong value of each of these costs that field alone, and nothing once it is right
    /// again.
    pub fn each_costs_itself(&self, fields: &[Field]) -> Result<()> {
        for field in fields {
            let Field { path, right, .. } = field;
            let policy = POLICY.replacen(right, field.wrong, 1);
            ensure!(policy.contains(field.wrong), "{path} is said otherwise");
            self.node.proxy.write_policy(&policy)?;
            let told = format!(
                "NodeSLO \"node-1\" is wrong at \"spec.{path}\": value {}",
                field.problem
            );
            self.comes_to(path, &[&told], field.costs)?;
        }
        self.node.proxy.write_policy(POLICY)?;
        self.comes_to("once all is right again", &[], &[])
    }

    /// Waits until this is told, and everything is as under [`POLICY`] but for this.
    fn comes_to(&self, when: &str, told: &[&str], costs: &[(&str, &str)]) -> Result<()> {
        let said = comes_true(|| self.told().is_ok_and(|it| it == told));
        ensure!(said, "{when}: {:#?}, not {told:#?}", self.told()?);
        let came = comes_true(|| self.wrong(costs).is_ok_and(|it| it.is_empty()));
        ensure!(came, "{when}: {:#?}", self.wrong(costs)?);
        // What is taken away wrongly may go a little later.
        thread::sleep(bound() / 300);
        let wrong = self.wrong(costs)?;
        ensure!(wrong.is_empty(), "a little after {when}: {wrong:#?}");
        Ok(())
    }

    /// What the proxy says of the policy.
    fn told(&self) -> Result<Vec<String>> {
        let status = self.node.proxy.status()?;
        let issues = status["policy"]["issues"].as_array().context("issues")?;
        let issues = issues.iter().map(|it| Some(it.as_str()?.to_owned()));
        issues.collect::<Option<_>>().context("texts")
    }

    /// What is not as it should be.
    fn wrong(&self, costs: &[(&str, &str)]) -> Result<Vec<String>> {
        let costs: BTreeMap<&str, &str> = costs.iter().copied().collect();
        let mut wrong = Vec::new();
        for (what, place, file, value) in self.values {
            let expected = costs.get(what).unwrap_or(value);
            let held = self.held(*place, file)?;
            if held != *expected {
                wrong.push(format!("{what}: {held:?}, not {expected:?}"));
            }
        }
        let settings = self.node.settings()?;
        let pending = settings.iter().filter(|(_, it)| it["applied"] == "pending");
        wrong.extend(pending.map(|(what, _)| format!("{what} is pending")));
        Ok(wrong)
    }

    fn held(&self, place: Place, file: &str) -> Result<String> {
        let batch = |controller: &str| self.pods[2].cgroup.directory(controller);
        let directory = match place {
            Place::Pod(at, controller) => self.pods[at].cgroup.directory(controller),
            Place::Container(at, controller) => {
                let pod = &self.pods[at];
                pod.cgroup.directory(controller).join(&pod.container)
            }
            Place::BestEffortPods(controller) => batch(controller).join(".."),
            Place::AllPods(controller) => batch(controller).join("../.."),
            Place::HostApplication(controller) => batch(controller).join("../../nginx"),
            Place::Root => PathBuf::from("/sys/fs/cgroup"),
            Place::Caches => PathBuf::from("/sys/fs/resctrl"),
            Place::Network => {
                let told = lines(&self.directory.join("qos/global_bps_config"))?;
                let begin = format!("{file} ");
                let line = told.iter().find_map(|it| it.strip_prefix(&begin));
                return Ok(line.unwrap_or(GONE).to_owned());
            }
        };
        let path = directory.join(file);
        if !path.exists() {
            return Ok(GONE.to_owned());
        }
        Ok(lines(&path)?.join(", "))
    }
}

/// Those of a file, without what is around them; none where it is not there.
fn lines(file: &Path) -> Result<Vec<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => {
            let read = read.with_context(|| file.display().to_string())?;
            Ok(read.lines().map(|line| line.trim().to_owned()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every field of a NodeSLO that is looked at, by the page that is printed from what reads it.
    const PAGE: &str = include_str!("../../../docs/node-policy.md");

    #[test]
    fn each_field_is_said_once_and_costs_what_some_kernel_has() {
        let known: BTreeSet<&str> = V1.iter().chain(V2).map(|value| value.0).collect();
        for field in FIELDS.iter().chain(FIELDS_OF_V2) {
            let Field { path, right, .. } = field;
            assert_eq!(POLICY.matches(right).count(), 1, "{path}: {right}");
            for (what, _) in field.costs {
                assert!(known.contains(what), "{path}: {what}");
            }
        }
    }

    #[test]
    fn each_field_of_a_policy_that_is_looked_at_is_tried() {
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
        let looked_at: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert!(looked_at.len() > 50, "{looked_at:?}");
        let tried = FIELDS.iter().chain(FIELDS_OF_V2).map(|field| {
            let steps = field.path.split('.').map(|step| {
                let is_class = step.ends_with("Class");
                if is_class { "CLASS" } else { step }
            });
            let path: Vec<&str> = steps.collect();
            path.join(".").replace("[0]", "[]")
        });
        let tried: BTreeSet<String> = tried.collect();
        let untried: Vec<_> = looked_at
            .iter()
            .filter(|it| !tried.contains(**it))
            .collect();
        assert!(untried.is_empty(), "{untried:#?}");
        let unknown: Vec<_> = tried
            .iter()
            .filter(|it| !looked_at.contains(&***it))
            .collect();
        assert!(unknown.is_empty(), "{unknown:#?}");
    }
}
