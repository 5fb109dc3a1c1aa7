//! The demo: a pod of each class, and what the kernel holds for it.

use crate::{
    Front, Node, ProxyOptions,
    classes::{self, Expected, PodSpecOf, Scope},
};
use anyhow::{Result, ensure};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use koord_testkit::{cri::CriClient, poll::comes_true};
use serde_json::Value;
use std::io::{self, Write};

/// How the proxy is started.
pub fn options(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        front,
        ..ProxyOptions::default()
    })
}

/// Runs the demo's pods and prints the table; an error if one value is not what it should be.
pub async fn run(node: &Node) -> Result<()> {
    show(node, &classes::all(&classes::share_pool()?)).await
}

/// The same of these pods.
pub async fn show(node: &Node, pods: &[PodSpecOf]) -> Result<()> {
    let client = node.client().await?;
    let version = client.version().await?;
    let place = match node.proxy.front() {
        Front::Cri => format!(
            "behind koord-runtime-proxy at {}",
            node.proxy.socket().display()
        ),
        Front::Nri => "with koord-runtime-proxy as its plugin".to_owned(),
        Front::Watch => "watched by koord-runtime-proxy".to_owned(),
    };
    // Whoever reads may stop, which is no reason to panic.
    let mut out = io::stdout();
    let (name, number) = (version.runtime_name, version.runtime_version);
    writeln!(out, "{name} {number} {place}")?;
    let mut rows = Rows::new();
    for pod in pods {
        rows.run(node, &client, pod).await?;
    }
    writeln!(out, "{}", rows.table)?;
    ensure!(
        rows.wrong == 0,
        "{} of {} values are not what they should be",
        rows.wrong,
        rows.count
    );
    writeln!(out, "all {} values are what they should be", rows.count)?;
    Ok(())
}

struct Rows {
    table: Table,
    count: usize,
    wrong: usize,
}

// === impl Rows ===

impl Rows {
    fn new() -> Self {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "pod",
            "class",
            "group",
            "setting",
            "asked",
            "decided by",
            "kernel now",
            "",
        ]);
        Self {
            table,
            count: 0,
            wrong: 0,
        }
    }

    async fn run(&mut self, node: &Node, client: &CriClient, pod: &PodSpecOf) -> Result<()> {
        let running = node.run(client, pod).await?;
        // Who only watches comes after the start, and on a slow machine so do the others: they hold a
        // start up for so long and no longer.
        let came = comes_true(|| {
            let is_known = |expected| {
                let ledger = node.proxy.ledger().ok();
                let decision = ledger.and_then(|it| decision(&it, &running.container, expected));
                is_decided(expected, decision.as_ref())
            };
            pod.wrong(&running).is_empty() && pod.expected.iter().all(is_known)
        });
        if !came {
            writeln!(io::stdout(), "{}: not all values came, see below", pod.name)?;
        }
        for (index, expected) in pod.expected.iter().enumerate() {
            let held = expected.held(&running.cgroup, &running.container)?;
            let decision = decision(&node.proxy.ledger()?, &running.container, expected);
            let right = expected.is_met_by(&held) && is_decided(expected, decision.as_ref());
            self.count += 1;
            self.wrong += usize::from(!right);
            let (name, class) = match index {
                0 => (pod.name.as_str(), pod.class),
                _ => ("", ""),
            };
            self.table.add_row([
                name,
                class,
                match expected.scope {
                    Scope::Pod => "pod",
                    Scope::Container => "container",
                },
                expected.setting,
                decision.as_ref().map_or(&expected.asked, |it| &it.asked),
                decision.as_ref().map_or("(as asked)", |it| &it.owner),
                &held.text,
                &if right {
                    "ok".to_owned()
                } else {
                    let Expected {
                        v1, hook, asked, ..
                    } = expected;
                    format!("should be {v1} by {hook}, asked {asked}")
                },
            ]);
        }
        Ok(())
    }
}

/// What the ledger says of a value.
struct Decision {
    asked: String,
    owner: String,
}

/// Whether the hook decides that should, over what was asked for. The ledger knows nothing of a value that
/// no hook decides.
fn is_decided(expected: &Expected, decision: Option<&Decision>) -> bool {
    match decision {
        Some(it) => it.owner == expected.hook && it.asked == expected.asked,
        None => expected.hook == "-",
    }
}

fn decision(ledger: &Value, container: &str, expected: &Expected) -> Option<Decision> {
    let pods = ledger["pods"].as_array()?;
    let of_pod = |pod: &&Value| {
        pod["containers"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["id"] == container))
    };
    let pod = pods.iter().find(of_pod)?;
    let settings = match expected.scope {
        Scope::Pod => &pod["settings"],
        Scope::Container => {
            let all = pod["containers"].as_array()?;
            &all.iter().find(|c| c["id"] == container)?["settings"]
        }
    };
    let entry = settings
        .as_array()?
        .iter()
        .find(|entry| entry["setting"] == expected.setting)?;
    Some(Decision {
        // As `ledger` prints it: where nobody knows it there is none.
        asked: entry["asked"].as_str().unwrap_or("-").to_owned(),
        owner: entry["owner"].as_str()?.to_owned(),
    })
}
