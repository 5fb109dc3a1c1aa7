use super::*;
use std::future::poll_fn;
use tokio::time::timeout;

const WITHOUT_END: Duration = Duration::MAX;

fn tenants(slots: &Slots) -> [Tenant; 2] {
    [1, 2].map(|id| Tenant::new(ConnectionId(id), slots.clone()))
}

/// What it has to hear now.
async fn news(tenant: &mut Tenant) -> Option<SlotNews> {
    poll_fn(|cx| match tenant.poll_news(cx) {
        Poll::Ready(news) => Poll::Ready(Some(news)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn places_go_to_the_first_who_asked() {
    let [mut a, mut b] = tenants(&Slots::new(1));
    a.want(1);
    b.want(1);
    a.want(3);
    assert_eq!(news(&mut a).await, Some(SlotNews::Granted(1)));
    assert_eq!(news(&mut a).await, None);
    assert_eq!(news(&mut b).await, None);
    a.free(1);
    assert_eq!(news(&mut b).await, Some(SlotNews::Granted(1)));
    assert_eq!(news(&mut a).await, None);
    b.free(1);
    assert_eq!(news(&mut a).await, Some(SlotNews::Granted(3)));
}

#[tokio::test]
async fn a_place_that_becomes_free_wakes_who_waits_for_it() {
    let [mut a, mut b] = tenants(&Slots::new(1));
    a.want(1);
    b.want(5);
    let heard = poll_fn(|cx| b.poll_news(cx));
    let freed = async { a.free(1) };
    let (heard, ()) = tokio::join!(biased; heard, freed);
    assert_eq!(heard, SlotNews::Granted(5));
}

#[tokio::test]
async fn who_wants_no_place_any_more_neither_gets_nor_keeps_one() {
    let [mut a, mut b] = tenants(&Slots::new(1));
    a.want(1);
    a.want(3);
    b.want(1);
    a.want(5);
    // One that is granted and not heard of, one that waits, and one that is known.
    a.free(1);
    a.free(5);
    assert_eq!(news(&mut a).await, Some(SlotNews::Granted(3)));
    assert_eq!(news(&mut a).await, None);
    a.free(3);
    a.free(3);
    assert_eq!(news(&mut b).await, Some(SlotNews::Granted(1)));
}

#[tokio::test]
async fn a_closed_connection_gives_everything_back() {
    let [mut a, mut b] = tenants(&Slots::new(1));
    a.want(1);
    a.want(3);
    b.want(1);
    drop(a);
    assert_eq!(news(&mut b).await, Some(SlotNews::Granted(1)));
}

#[tokio::test]
async fn they_are_crowded_while_somebody_waits() {
    let slots = Slots::new(1);
    let [mut a, mut b] = tenants(&slots);
    let told = async || timeout(Duration::ZERO, slots.crowded()).await.is_ok();
    a.want(1);
    assert!(!told().await);
    let (heard, ()) =
        tokio::join!(biased; timeout(Duration::from_secs(9), slots.crowded()), async { b.want(1) });
    assert_eq!(heard, Ok(()));
    assert!(told().await && told().await);
    a.free(1);
    assert!(!told().await);
}

#[tokio::test(start_paused = true)]
async fn a_place_is_taken_back_only_while_others_wait() {
    let slots = Slots::new(1);
    let [mut a, mut b] = tenants(&slots);
    a.want(1);
    assert_eq!(news(&mut a).await, Some(SlotNews::Granted(1)));
    tokio::time::advance(Duration::from_secs(11)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut a).await, None);
    b.want(1);
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut a).await, Some(SlotNews::Overdue(1)));
    assert_eq!(news(&mut b).await, None);
    // What comes of that has as long again.
    tokio::time::advance(Duration::from_secs(10)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut a).await, None);
    tokio::time::advance(Duration::from_secs(1)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut a).await, Some(SlotNews::Overdue(1)));
    assert_eq!(news(&mut a).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_moves_keeps_its_place_and_one_that_stands_still_does_not() {
    let slots = Slots::new(2);
    let [mut slow, mut stuck] = tenants(&slots);
    slow.want(1);
    stuck.want(1);
    // Somebody waits all the while.
    stuck.want(3);
    for queued in [100, 101, 102, 80, 1] {
        for tenant in [&mut slow, &mut stuck] {
            assert!(!matches!(news(tenant).await, Some(SlotNews::Overdue(_))));
            tenant.note_headway(|_| Some(queued));
        }
        tokio::time::advance(Duration::from_secs(9)).await;
        slots.evict_overdue(Instant::now(), WITHOUT_END);
    }
    stuck.note_headway(|_| Some(1));
    slow.note_headway(|_| Some(0));
    tokio::time::advance(Duration::from_secs(2)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut slow).await, None);
    assert_eq!(news(&mut stuck).await, Some(SlotNews::Overdue(1)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_us_stands_still_only_once_it_may_go_on() {
    let slots = Slots::new(1);
    let [mut held, mut waits] = tenants(&slots);
    held.want(1);
    waits.want(1);
    assert_eq!(news(&mut held).await, Some(SlotNews::Granted(1)));
    held.note_headway(|_| Some(100));
    held.note_headway(|_| None);
    tokio::time::advance(Duration::from_secs(30)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut held).await, None);
    // As much of it is here as before.
    held.note_headway(|_| Some(100));
    tokio::time::advance(Duration::from_secs(10)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut held).await, None);
    tokio::time::advance(Duration::from_secs(1)).await;
    slots.evict_overdue(Instant::now(), WITHOUT_END);
    assert_eq!(news(&mut held).await, Some(SlotNews::Overdue(1)));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_longer_than_a_call_may_be_held_waits_no_more() {
    let slots = Slots::new(1);
    let [mut a, mut b] = tenants(&slots);
    a.want(1);
    assert_eq!(news(&mut a).await, Some(SlotNews::Granted(1)));
    b.want(1);
    b.want(3);
    let sweep = || slots.evict_overdue(Instant::now(), Duration::from_millis(500));
    tokio::time::advance(Duration::from_millis(500)).await;
    sweep();
    assert_eq!(news(&mut b).await, None);
    tokio::time::advance(Duration::from_millis(1)).await;
    sweep();
    b.free(3);
    assert_eq!(news(&mut b).await, Some(SlotNews::Expired(1)));
    assert_eq!(news(&mut b).await, None);
    assert_eq!(b.messages, 0);
    a.free(1);
    assert_eq!(news(&mut b).await, None);
}
