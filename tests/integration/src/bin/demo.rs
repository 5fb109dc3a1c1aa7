//! The demo: four pods through the proxy, and what the kernel holds for each. With `nri` as its
//! argument they go straight to the runtime, which asks the proxy as its plugin, with `watch` straight to
//! one that nobody tells of the proxy.
//!
//! Everything runs in a testbed of its own and disappears with it, also when this program is
//! interrupted or killed. The exit status is non-zero if one value is not what it should be.
#![forbid(unsafe_code)]

use anyhow::{Result, bail, ensure};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use koord_integration::{
    Front, Node, ProxyOptions,
    classes::{self, Expected, PodSpecOf, Scope},
};
use koord_testkit::{ContainerdVersion, cri::CriClient, poll::wait_until};
use serde_json::Value;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let interrupted = async {
        let (mut int, mut term) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
        Ok::<_, std::io::Error>(())
    };
    tokio::select! {
        biased;
        _ = interrupted => {
            eprintln!("interrupted; cleaning up");
            ExitCode::from(130)
        }
        result = demo() => match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("demo failed: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

async fn demo() -> Result<()> {
    let front = match std::env::args().nth(1).as_deref() {
        None | Some("cri") => Front::Cri,
        Some("nri") => Front::Nri,
        Some("watch") => Front::Watch,
        Some(other) => bail!("no front {other}; cri, nri or watch"),
    };
    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let client = node.client().await?;
    let version = client.version().await?;
    let place = match front {
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
    for pod in classes::all(&share_pool) {
        rows.run(&node, &client, &pod).await?;
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
        if node.proxy.front() == Front::Watch {
            // Here alone the values come after the start.
            wait_until("the values", || pod.wrong(&running).is_empty());
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
