//! The demo: a pod of each class, and what the kernel holds for it.

use crate::{
    Front, Node, ProxyOptions,
    classes::{self, Expected, PodSpecOf, Scope},
};
use anyhow::{Result, ensure};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use koord_testkit::{cri::CriClient, poll::comes_true};
use serde_json::Value;

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
    println!(
        "{} {} {place}",
        version.runtime_name, version.runtime_version
    );
    let mut rows = Rows::new();
    for pod in pods {
        rows.run(node, &client, pod).await?;
    }
    println!("{}", rows.table);
    ensure!(
        rows.wrong == 0,
        "{} of {} values are not what they should be",
        rows.wrong,
        rows.count
    );
    println!("all {} values are what they should be", rows.count);
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
        if !comes_true(|| pod.wrong(&running).is_empty()) {
            println!("{}: not all values came, see below", pod.name);
        }
        for (index, expected) in pod.expected.iter().enumerate() {
            let held = expected.held(&running.cgroup, &running.container)?;
            let decided = owner(&node.proxy.ledger()?, &running.container, expected);
            let right = expected.is_met_by(&held) && decided.as_deref() == hook(expected);
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
                &expected.asked,
                decided.as_deref().unwrap_or("(as asked)"),
                &held.text,
                &if right {
                    "ok".to_owned()
                } else {
                    format!("should be {} by {}", expected.v1, expected.hook)
                },
            ]);
        }
        Ok(())
    }
}

fn hook(expected: &Expected) -> Option<&str> {
    Some(expected.hook).filter(|hook| *hook != "-")
}

/// The hook that the ledger names for this value.
fn owner(ledger: &Value, container: &str, expected: &Expected) -> Option<String> {
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
    entry["owner"].as_str().map(str::to_owned)
}
