//! Creations of which the runtime was not told what was decided: too late, too long, or never known.

use super::*;
use koord_model::{CpuShares, Value};

/// Whether the shares of the container are taken for given, and what the runtime is taken to have of them.
fn shares_told(bench: &Bench) -> (bool, Option<Value>) {
    let shares = bench.entry(Setting::CpuShares).unwrap();
    (shares.given, shares.told.map(|told| *told))
}

#[tokio::test]
async fn what_a_creation_was_not_told_counts_as_told_neither_before_nor_after_it_is_made() {
    for is_made in [false, true] {
        let (bench, plugin) = plugin();
        plugin.answer(creation()).await;
        if is_made {
            plugin.answer(happened(Event::PostCreateContainer)).await;
            let told = Value::from(CpuShares::new(512).unwrap());
            assert_eq!(shares_told(&bench), (true, Some(told)));
            bench.hub.queue().drain();
        }
        plugin.unsaid("container-1");
        if is_made {
            assert_eq!(bench.hub.queue().drain().len(), 1);
        } else {
            plugin.answer(happened(Event::PostCreateContainer)).await;
        }
        assert_eq!(shares_told(&bench), (false, None), "{is_made}");
    }
}

#[tokio::test]
async fn what_an_update_has_told_since_a_creation_was_not_told_it_counts() {
    let (bench, plugin) = plugin();
    plugin.answer(creation()).await;
    plugin.answer(happened(Event::PostCreateContainer)).await;
    plugin.answer(update(shares(2_048))).await;
    plugin.unsaid("container-1");
    plugin.answer(happened(Event::PostUpdateContainer)).await;
    let told = Value::from(CpuShares::new(512).unwrap());
    assert_eq!(shares_told(&bench), (true, Some(told)));
}
