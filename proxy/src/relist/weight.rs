//! How the runtime of this node turns shares into weights.
//!
//! There are two curves, and only a running container whose shares the runtime knows can tell which
//! one it uses. So a few are asked about with each list, until it is known. Somebody may have written
//! the weight of one by the other curve: what most of them tell counts. Where there are no others, a tie tells of a
//! runtime that has learnt the newer curve while they ran.

use super::{
    Patience,
    origin::{asked_in_vain, least_in_vain},
};
use crate::{
    hub::Hub,
    ledger::Life,
    runtime::{Info, Runtime},
};
use koord_kernel::cgroup::{Generation, WeightCurve};
use koord_model::{ContainerId, CpuShares, CpuWeight, Setting};
use tracing::info;

/// Containers that are asked about in one list to learn how the runtime weighs.
const ASKED: usize = 4;

/// Containers whose weight is read in one list to find these.
const LOOKED_AT: usize = 64;

/// Containers that can tell.
#[derive(Default)]
struct Weighed {
    asked: Vec<(ContainerId, CpuWeight)>,
    /// There are no others.
    are_all: bool,
}

/// Asks about a few running containers. Whether the curve is known since now.
pub(super) async fn learn(hub: &Hub, (runtime, patience): (&mut Runtime, &mut Patience)) -> bool {
    let mut told = Vec::new();
    let Weighed { asked, are_all } = weighed(hub);
    let count = asked.len();
    for (id, weight) in asked {
        let question = runtime.container_info(id.as_str());
        let info = match patience.ask(question).await {
            Some(Ok(info)) => info,
            Some(Err(error)) => {
                asked_in_vain(hub, &id, &error);
                continue;
            }
            // Each list has one such question, and that may do.
            None => break,
        };
        let shares = info.as_ref().and_then(shares_of);
        told.extend(shares.and_then(|shares| WeightCurve::detect(shares, weight)));
    }
    let Some(curve) = most(&told, are_all && told.len() == count) else {
        return false;
    };
    info!(?curve, "the runtime's weights are known");
    hub.writer().cgroups().set_weight_curve(curve);
    true
}

/// The curve that most of these are, and of as many the newer one if they `are_all`; else `None`, so that others are
/// asked with the next list.
fn most(told: &[WeightCurve], are_all: bool) -> Option<WeightCurve> {
    let count = |curve| told.iter().filter(|it| **it == curve).count();
    let is_most = |curve: &&WeightCurve| count(**curve) * 2 > told.len();
    let newer = WeightCurve::Quadratic;
    let most = WeightCurve::ALL.iter().find(is_most).copied();
    most.or((are_all && told.contains(&newer)).then_some(newer))
}

/// A few running containers with their weights, while the curve is unknown. The least weight comes
/// from the same shares by both.
fn weighed(hub: &Hub) -> Weighed {
    let cgroups = hub.writer().cgroups();
    let weights = cgroups.generation(Setting::CpuShares) == Some(Generation::V2);
    if !weights || cgroups.weight_curve().is_some() {
        return Weighed::default();
    }
    let ledger = hub.ledger().borrow();
    let containers = ledger.pods().flat_map(|pod| &pod.containers);
    let running = containers.filter(|container| container.life == Life::Running);
    let mut running: Vec<_> = running.collect();
    // Most may have the least weight. Each list looks at others, since each look is a read.
    let turn = usize::try_from(*hub.lists().borrow()).unwrap_or_default();
    let first = first_of(turn, running.len());
    running.rotate_left(first);
    let are_all = running.len() <= LOOKED_AT;
    let mut weighed = least_in_vain(running.into_iter(), LOOKED_AT).filter_map(|container| {
        let weight = cgroups.weight(container.target.at.as_ref()?).ok()??;
        (weight.get() > 1).then(|| (container.id.clone(), weight))
    });
    Weighed {
        asked: weighed.by_ref().take(ASKED).collect(),
        are_all: are_all && weighed.next().is_none(),
    }
}

/// The one of so many that a list begins with. Where all are looked at it is others that are asked about.
fn first_of(turn: usize, running: usize) -> usize {
    let step = if running <= LOOKED_AT {
        ASKED
    } else {
        LOOKED_AT
    };
    turn.wrapping_mul(step) % running.max(1)
}

/// The shares that a runtime stored for a container, from what it says beyond the API.
fn shares_of(info: &Info) -> Option<CpuShares> {
    CpuShares::new(info.shares()?).ok()
}

#[cfg(test)]
mod tests {
    use super::{
        WeightCurve::{Linear, Quadratic},
        first_of, most,
    };

    #[test]
    fn who_wrote_by_the_other_curve_is_outvoted_or_others_are_asked() {
        for are_all in [false, true] {
            assert_eq!(most(&[], are_all), None);
            assert_eq!(most(&[Linear], are_all), Some(Linear));
            assert_eq!(
                most(&[Linear, Quadratic, Quadratic], are_all),
                Some(Quadratic)
            );
            assert_eq!(
                most(&[Linear, Quadratic, Linear, Linear], are_all),
                Some(Linear)
            );
        }
        assert_eq!(most(&[Linear, Quadratic], false), None);
    }

    #[test]
    fn where_there_are_no_others_the_newer_of_two_curves_counts() {
        assert_eq!(most(&[Linear, Quadratic], true), Some(Quadratic));
        assert_eq!(most(&[Quadratic, Linear], true), Some(Quadratic));
    }

    #[test]
    fn each_list_begins_with_another() {
        let firsts = |running| [0, 1, 2, 3].map(|turn| first_of(turn, running));
        assert_eq!(firsts(0), [0, 0, 0, 0]);
        assert_eq!(firsts(3), [0, 1, 2, 0]);
        assert_eq!(firsts(8), [0, 4, 0, 4]);
        assert_eq!(firsts(64), [0, 4, 8, 12]);
        assert_eq!(firsts(128), [0, 64, 0, 64]);
        assert_eq!(firsts(200), [0, 64, 128, 192]);
    }
}
