//! What is given back of containers whose groups systemd makes, told to their runtime.
//!
//! systemd writes what it knows of a group to the kernel again whenever it loads its units anew, for as
//! long as the container runs. What it knows of a container it has from the runtime, and the runtime from
//! whoever created it or resized it: our values with the rest. So the runtime is told what was asked for, as
//! by a resize; it tells systemd.

use super::{PATIENCE, named};
use crate::{
    apply::cri as patch,
    dial::connect,
    hub::Hub,
    ledger::{Applied, Container, GIVEN_BACK, Life, Route},
    log::Name,
    runtime::{Runtime, RuntimeError},
    status::chain_of,
};
use koord_hooks::Requested;
use koord_kernel::cgroup::RuntimeName;
use koord_model::{CgroupPath, CpuSet, CpusetCpus, Setting, Value};
use koord_proto::cri;
use std::{path::Path, sync::Arc};
use tokio::time::{Instant, timeout_at};

/// What systemd has of a group by the runtime's word.
const OF_SYSTEMD: [Setting; 4] = [
    Setting::CpuShares,
    Setting::CpuQuota,
    Setting::CpusetCpus,
    Setting::MemoryLimit,
];

/// What a runtime is to be told of a container.
#[derive(Debug)]
struct Asked {
    /// Whose it is, for people.
    of: String,
    /// Nothing if there is nothing that it can be told.
    request: Option<cri::UpdateContainerResourcesRequest>,
    /// What no request can say.
    unsaid: Vec<Setting>,
}

/// Tells the runtime what is given back, where systemd makes the groups. A line for each container of which
/// systemd has something of ours still.
pub(super) async fn give_back(hub: &Hub, endpoint: &Arc<Path>) -> Vec<String> {
    let all = all(hub);
    if all.is_empty() {
        return Vec::new();
    }
    let mut runtime = match connected(endpoint).await {
        Ok(runtime) => runtime,
        Err(error) => {
            let reason = chain_of(&error);
            return all.iter().map(|asked| asked.stays(&reason)).collect();
        }
    };
    let until = Instant::now() + PATIENCE;
    let mut lines = Vec::new();
    for asked in all {
        let told = match asked.request.clone() {
            Some(request) => timeout_at(until, runtime.update(request)).await,
            None => Ok(Ok(())),
        };
        if let Ok(Err(error)) = told {
            lines.push(asked.stays(&chain_of(&error)));
        } else if told.is_err() {
            let seconds = PATIENCE.as_secs();
            lines.push(asked.stays(&format!("the runtime was not told all in {seconds} s")));
        } else if !asked.unsaid.is_empty() {
            lines.push(asked.stays("this runtime cannot be told"));
        }
    }
    lines
}

async fn connected(endpoint: &Arc<Path>) -> Result<Runtime, RuntimeError> {
    let stream = connect(endpoint.clone()).await;
    Runtime::over(stream.map_err(RuntimeError::connect(endpoint))?).await
}

/// All containers of which systemd may have something of ours.
fn all(hub: &Hub) -> Vec<Asked> {
    let ledger = hub.ledger().borrow();
    let policy = hub.policy();
    let usable = &policy.node().kernel.usable_cpus;
    let mut all = Vec::new();
    for (name, pod) in named(&ledger) {
        let containers = pod.containers.iter();
        let in_scopes = containers.filter(|it| {
            it.life == Life::Running && it.target.at.as_ref().is_some_and(CgroupPath::is_scope)
        });
        for container in in_scopes {
            let of = format!("{name} {}", Name(&container.view.name));
            all.extend(Asked::again(of, container, hub.runtime_name(), usable));
        }
    }
    all
}

/// Whether systemd may write a value of this again that the kernel has no more.
pub(super) fn may_return(at: &CgroupPath, setting: Setting) -> bool {
    at.is_scope() && OF_SYSTEMD.contains(&setting)
}

// === impl Asked ===

impl Asked {
    /// What a container asked for, as far as something else was said of it.
    fn again(
        of: String,
        container: &Container,
        runtime: RuntimeName,
        usable: &CpuSet,
    ) -> Option<Self> {
        let mut target = container.target.clone();
        target.retain(|entry| {
            let setting = entry.desired.setting();
            entry.owner == GIVEN_BACK
                && entry.route == Route::Request
                && OF_SYSTEMD.contains(&setting)
                // What the kernel does not have yet would have it reclaim memory within the call.
                && matches!(entry.applied, Applied::Equal | Applied::Written)
        });
        for entry in target.entries_mut() {
            // No request says "all".
            if entry.desired == Value::CpusetCpus(CpusetCpus::All) {
                entry.desired = CpusetCpus::Only(usable.clone()).into();
            }
        }
        let Requested {
            cpu_period,
            memory_limit,
            ..
        } = container.view.requested;
        let limits = patch::Limits {
            message: &[],
            max_message_bytes: usize::MAX,
            runtime: Some(runtime),
            cpus: None,
        };
        let nothing = patch::Asked {
            linux: &cri::LinuxContainerResources::default(),
            period: cpu_period,
            memory: memory_limit,
            swap: container.swap,
        };
        let bytes = patch::update(&nothing, &mut target, limits);
        let bytes = bytes.expect("a request of a few numbers is below any limit");
        let request = bytes.map(|bytes| cri::UpdateContainerResourcesRequest {
            container_id: container.id.to_string(),
            ..decoded(&bytes)
        });
        let unsaid = target.entries().iter();
        let unsaid = unsaid.filter(|entry| entry.route == Route::Kernel);
        let unsaid: Vec<_> = unsaid.map(|entry| entry.desired.setting()).collect();
        (request.is_some() || !unsaid.is_empty()).then_some(Self {
            of,
            request,
            unsaid,
        })
    }

    fn stays(&self, reason: &str) -> String {
        let of = &self.of;
        format!("{of}: systemd may write our values again when it loads its units anew: {reason}")
    }
}

fn decoded(bytes: &[u8]) -> cri::UpdateContainerResourcesRequest {
    let request = cri::UpdateContainerResourcesRequest::read(bytes);
    request.expect("what we have encoded can be decoded")
}
