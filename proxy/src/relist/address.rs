//! From where pods send: no call and no list tells, only the runtime, asked pod by pod.
//!
//! It is asked about pods for which it counts, once each: a sandbox keeps its addresses.

use super::Patience;
use crate::{
    hub::Hub,
    ledger::{Addresses, Pod},
    runtime::Runtime,
};
use koord_model::SandboxId;
use koord_proto::cri;
use std::{error::Error, net::IpAddr};
use tracing::debug;

/// Pods that are asked about in one list. Each takes a millisecond or less.
const ASKED: usize = 256;

/// What a runtime says of a sandbox whose network is the node's (`NamespaceMode`).
const NODE: i32 = 2;

/// Asks about some of the pods for which it counts.
pub(super) async fn learn(hub: &Hub, (runtime, patience): (&mut Runtime, &mut Patience)) {
    let (asked, are_more) = unknown(hub);
    for sandbox in asked {
        let question = runtime.sandbox_status(sandbox.as_str());
        let said = match patience.ask(question).await {
            None => {
                let ledger = hub.ledger().borrow();
                return patience.leave(ledger.pod(&sandbox).map_or(0, times));
            }
            Some(Ok(status)) => status.as_ref().and_then(addresses),
            Some(Err(error)) => {
                let error = &error as &dyn Error;
                debug!(%sandbox, error, "the runtime does not say from where a pod sends");
                None
            }
        };
        let mut ledger = hub.ledger().borrow_mut();
        let Some(pod) = ledger.pod_mut(&sandbox) else {
            continue;
        };
        match (said, &mut pod.addresses) {
            (Some(said), addresses) => *addresses = said,
            (None, Addresses::Unknown(times)) => *times = times.saturating_add(1),
            (None, _) => {}
        }
    }
    if are_more {
        hub.relist_soon();
    }
}

/// Some of them, first those about which the runtime was asked in vain least often, and whether there are
/// more about which it was never asked.
fn unknown(hub: &Hub) -> (Vec<SandboxId>, bool) {
    let ledger = hub.ledger().borrow();
    let pods = ledger.pods().filter(|pod| pod.lacks_addresses());
    let mut pods: Vec<(u32, &Pod)> = pods.map(|pod| (times(pod), pod)).collect();
    pods.sort_by_key(|(times, _)| *times);
    let are_more = pods.get(ASKED).is_some_and(|(times, _)| *times == 0);
    let asked = pods.into_iter().take(ASKED);
    let asked = asked.map(|(_, pod)| pod.sandbox.clone()).collect();
    (asked, are_more)
}

fn times(pod: &Pod) -> u32 {
    match pod.addresses {
        Addresses::Unknown(times) => times,
        Addresses::OfNode | Addresses::Own(_) => 0,
    }
}

/// `None` if it does not say.
fn addresses(status: &cri::PodSandboxStatus) -> Option<Addresses> {
    let namespaces = status.linux.and_then(|linux| linux.namespaces);
    let options = namespaces.and_then(|namespaces| namespaces.options);
    if options.is_some_and(|options| options.network == NODE) {
        return Some(Addresses::OfNode);
    }
    let network = status.network.as_ref()?;
    let others = network.additional_ips.iter().map(|other| &other.ip);
    let texts = [&network.ip].into_iter().chain(others);
    let own: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
    (!own.is_empty()).then_some(Addresses::Own(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(network: i32, ips: &[&str]) -> cri::PodSandboxStatus {
        let mut ips = ips.iter().map(|ip| (*ip).to_owned());
        cri::PodSandboxStatus {
            network: Some(cri::PodSandboxNetworkStatus {
                ip: ips.next().unwrap_or_default(),
                additional_ips: ips.map(|ip| cri::PodIp { ip }).collect(),
            }),
            linux: Some(cri::LinuxPodSandboxStatus {
                namespaces: Some(cri::Namespace {
                    options: Some(cri::NamespaceOption { network }),
                }),
            }),
        }
    }

    #[test]
    fn a_pod_sends_from_its_own_addresses_or_from_those_of_the_node() {
        let own = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().unwrap());
            Some(Addresses::Own(addresses.collect()))
        };
        let both = ["10.1.2.3", "fd00::3"];
        assert_eq!(addresses(&said(0, &both)), own(&both));
        assert_eq!(addresses(&said(0, &["10.1.2.3", "none"])), own(&both[..1]));
        // Whatever address a runtime says of such a pod.
        for ips in [&[][..], &["192.0.2.1"]] {
            assert_eq!(addresses(&said(2, ips)), Some(Addresses::OfNode));
        }
        for nothing in [said(0, &[]), cri::PodSandboxStatus::default()] {
            assert_eq!(addresses(&nothing), None);
        }
    }
}
