//! The random model: two strict ends with their own books, a pair between them, and a driver that
//! answers as it likes. Nothing may overrun a window, nothing may stall for good, and every byte
//! has to arrive as sent, or exactly as patched.
//!
//! A failure names its seed; `RELAY_SEED=<seed> cargo test -p koord-relay --test model` runs that
//! one alone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use koord_relay::{Claims, Event, Limits, Pair, Released, Side, StreamId, Tag};
use support::end::{End, Half, INITIAL, Part, Values};
use support::hpack::{Field, field};
use support::rng::Rng;

const RUNS: u64 = 3_000;
const MAX_MESSAGE: usize = 300_000;
const CLAIMED: [&str; 2] = ["/claimed/One", "/claimed/Two"];

/// Sizes around everything that something could be compared with.
const EDGES: [usize; 14] = [
    0, 1, 4, 5, 100, 8_192, 16_374, 16_379, 16_384, 32_768, 65_525, 65_530, 65_535, 70_000,
];

/// What the driver did with a claimed request.
#[derive(Clone, Debug)]
enum Decision {
    AsSent,
    Patched(Vec<u8>),
    Refused(u32),
}

/// What one run does.
struct Plan {
    /// Cancels, resets and early replies.
    chaos: bool,
    drain: bool,
    /// Most bytes handed over at a time.
    chunk: usize,
    largest: usize,
    slots: usize,
    connection_window: i64,
}

struct World {
    rng: Rng,
    plan: Plan,
    pair: Pair,
    client: End,
    runtime: End,
    /// Requests not opened yet.
    planned: VecDeque<Request>,
    /// Requests opened, by stream.
    requests: BTreeMap<StreamId, Request>,
    replies: BTreeMap<StreamId, Reply>,
    decisions: BTreeMap<StreamId, Decision>,
    undecided: Vec<StreamId>,
    wanted: VecDeque<StreamId>,
    granted: BTreeSet<StreamId>,
    responses: BTreeMap<StreamId, (Option<u32>, Option<Vec<u8>>)>,
    next_stream: StreamId,
}

struct Request {
    claimed: Option<Tag>,
    fields: Vec<Field>,
    body: Vec<u8>,
}

struct Reply {
    blocks: Vec<Vec<Field>>,
    body: Vec<u8>,
    status: u32,
}

impl Plan {
    fn random(rng: &mut Rng) -> Self {
        let chunk = rng.pick(&[1, 30, 300, 5_000, 5_000, 40_000, 65_536, 65_536]);
        Self {
            chaos: rng.one_in(2),
            drain: rng.one_in(6),
            chunk,
            largest: match chunk {
                1 => 300,
                30 => 5_000,
                300 => 17_000,
                _ if rng.one_in(4) => 320_000,
                _ => 70_000,
            },
            slots: 1 + rng.below(3),
            connection_window: rng.pick(&[65_535, 65_535, 65_535, 100_000, 1 << 20]),
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::random(&mut rng);
        let claims = Claims::new(CLAIMED.iter().zip([Tag(1), Tag(2)]).map(|(p, t)| (*p, t)));
        let limits = Limits {
            max_message: MAX_MESSAGE,
            reply_message: 2_000,
            ..Limits::default()
        };
        let mut client = End::new(true);
        client.announce(random_values(&mut rng));
        let mut runtime = End::new(false);
        runtime.window_target = plan.connection_window;
        runtime.announce(random_values(&mut rng));
        let count = 1 + rng.below(14);
        let planned = (0..count).map(|_| request(&mut rng, &plan)).collect();
        Self {
            pair: Pair::new(claims, limits),
            client,
            runtime,
            planned,
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            decisions: BTreeMap::new(),
            undecided: Vec::new(),
            wanted: VecDeque::new(),
            granted: BTreeSet::new(),
            responses: BTreeMap::new(),
            next_stream: 1,
            rng,
            plan,
        }
    }

    fn run(mut self) {
        let mut idle = 0;
        while idle < 3 {
            // The last resort: everything that somebody could do, is done.
            let forced = idle > 0;
            let progress = self.round(forced);
            idle = if progress { 0 } else { idle + 1 };
        }
        self.check();
    }

    fn round(&mut self, forced: bool) -> bool {
        let mut progress = false;
        for _ in 0..8 {
            progress |= match self.rng.below(8) {
                0 => self.open(),
                1 => self.client.send(&mut self.rng),
                2 => self.runtime.send(&mut self.rng),
                3 => self.deliver(Side::Client),
                4 => self.deliver(Side::Runtime),
                5 => self.collect(Side::Client),
                6 => self.collect(Side::Runtime),
                _ => self.disturb(),
            };
            self.events();
        }
        if self.rng.one_in(3) || forced {
            progress |= self.reply();
        }
        if self.rng.one_in(3) || forced {
            progress |= self.decide(forced);
        }
        if self.rng.one_in(4) || forced {
            progress |= self.client.grant(forced, &mut self.rng);
            progress |= self.runtime.grant(forced, &mut self.rng);
        }
        if forced {
            progress |= self.open() | self.client.send(&mut self.rng);
            progress |= self.runtime.send(&mut self.rng);
            progress |= self.deliver(Side::Client) | self.deliver(Side::Runtime);
            progress |= self.collect(Side::Client) | self.collect(Side::Runtime);
        }
        self.events();
        progress
    }

    fn open(&mut self) -> bool {
        if !self.client.goaways.is_empty() {
            return !std::mem::take(&mut self.planned).is_empty();
        }
        let Some(request) = self.planned.pop_front() else {
            return false;
        };
        let id = self.next_stream;
        self.next_stream += 2 * (1 + u32::from(self.rng.one_in(5)));
        let half = self.client.open(id);
        let bare = request.body.is_empty() && self.rng.one_in(2);
        half.to_send
            .push_back(Part::Headers(request.fields.clone(), bare));
        if !bare {
            half.to_send
                .push_back(Part::Data(request.body.clone(), true));
        }
        self.requests.insert(id, request);
        // Stream ids rise on the wire, so the headers go at once.
        self.client.send_first(id, &mut self.rng);
        true
    }

    /// From an end into the pair.
    fn deliver(&mut self, side: Side) -> bool {
        if !self.pair.wants_read(side) {
            return false;
        }
        let end = match side {
            Side::Client => &mut self.client,
            Side::Runtime if self.pair.preface_seen() => &mut self.runtime,
            Side::Runtime => return false,
        };
        let bytes = end.take(1 + self.rng.below(self.plan.chunk));
        if self.rng.one_in(2) {
            self.pair.feed(side, &bytes).unwrap();
        } else {
            let through = self.pair.feed_through(side, &bytes).unwrap();
            self.write_through(side.other(), through);
        }
        !bytes.is_empty()
    }

    /// As a driver does: what waits and what passes in one go, as far as the socket takes it.
    fn write_through(&mut self, side: Side, through: &[u8]) {
        let waiting = self.pair.output(side).concat();
        let all = [&waiting, through].concat();
        let written = self.rng.below(all.len() + 1);
        let waited = waiting.len().min(written);
        self.pair.keep(side, &through[written - waited..]);
        self.pair.advance(side, waited);
        match side {
            Side::Client => self.client.receive(&all[..written]),
            Side::Runtime => self.runtime.receive(&all[..written]),
        }
    }

    /// From the pair to an end.
    fn collect(&mut self, side: Side) -> bool {
        let pending = self.pair.output(side).concat();
        let count = pending.len().min(1 + self.rng.below(self.plan.chunk));
        let bytes = pending[..count].to_vec();
        self.pair.advance(side, count);
        match side {
            Side::Client => self.client.receive(&bytes),
            Side::Runtime => self.runtime.receive(&bytes),
        }
        count > 0
    }

    /// What need not happen: changed SETTINGS, no room, cancels, resets, a drain.
    fn disturb(&mut self) -> bool {
        if self.rng.one_in(12) {
            let values = random_values(&mut self.rng);
            let client = self.rng.one_in(2);
            let end = if client {
                &mut self.client
            } else {
                &mut self.runtime
            };
            if end.announced_count() < 3 {
                end.announce(values);
            }
        }
        if self.rng.one_in(40) {
            self.pair.set_crowded(self.rng.one_in(2));
        }
        if self.plan.drain && self.planned.len() < 3 && self.rng.one_in(10) {
            self.pair.drain();
        }
        if self.plan.chaos && self.rng.one_in(10) {
            let client = self.rng.one_in(2);
            let end = if client {
                &mut self.client
            } else {
                &mut self.runtime
            };
            let open = |(_, half): &(&u32, &mut Half)| !half.is_over() && !half.sent_end;
            let mut open: Vec<_> = end.streams.iter_mut().filter(open).collect();
            if !open.is_empty() {
                let chosen = self.rng.below(open.len());
                let half = &mut open[chosen].1;
                if client || half.headers.len() == 1 {
                    half.to_send.clear();
                    half.to_send.push_back(Part::Reset(8));
                }
            }
        }
        false
    }

    /// The runtime's handlers: an answer when the request is whole, rarely earlier.
    fn reply(&mut self) -> bool {
        let mut progress = false;
        for (id, half) in &mut self.runtime.streams {
            let early = self.plan.chaos && self.rng.one_in(60);
            if half.is_reset() || self.replies.contains_key(id) || !(half.got_end || early) {
                continue;
            }
            let reply = reply(&mut self.rng, &self.plan);
            let trailers_only = reply.blocks.len() == 1;
            half.to_send
                .push_back(Part::Headers(reply.blocks[0].clone(), trailers_only));
            if !trailers_only {
                half.to_send
                    .push_back(Part::Data(reply.body.clone(), false));
                half.to_send
                    .push_back(Part::Headers(reply.blocks[1].clone(), true));
            }
            if !half.got_end && self.rng.one_in(2) {
                half.to_send.push_back(Part::Reset(0));
            }
            self.replies.insert(*id, reply);
            progress = true;
        }
        progress
    }

    fn events(&mut self) {
        while let Some(event) = self.pair.next_event() {
            match event {
                Event::Request { stream, tag, .. } => {
                    let request = &self.requests[&stream];
                    assert_eq!(request.claimed, Some(tag));
                    let held = self.pair.held(stream);
                    assert!(held.is_none_or(|held| request.body[5..].starts_with(held)));
                    self.undecided.push(stream);
                }
                Event::Unopened { stream, .. } => {
                    self.undecided.retain(|waiting| *waiting != stream);
                    self.decisions.insert(stream, Decision::AsSent);
                }
                Event::Response {
                    stream,
                    grpc_status,
                    message,
                    ..
                } => {
                    self.responses.insert(stream, (grpc_status, message));
                }
                Event::Gone { stream, .. } => {
                    assert!(self.plan.chaos, "nobody resets");
                    self.undecided.retain(|waiting| *waiting != stream);
                }
                Event::SlotWanted { stream } => self.wanted.push_back(stream),
                Event::SlotFreed { stream } => {
                    self.wanted.retain(|waiting| *waiting != stream);
                    self.granted.remove(&stream);
                }
            }
        }
        while self.granted.len() < self.plan.slots
            && let Some(stream) = self.wanted.pop_front()
        {
            if self.pair.grant_slot(stream) {
                self.granted.insert(stream);
            }
        }
    }

    fn decide(&mut self, all: bool) -> bool {
        let mut progress = false;
        while !self.undecided.is_empty() && (all || self.rng.one_in(2)) {
            let chosen = self.rng.below(self.undecided.len());
            let stream = self.undecided.swap_remove(chosen);
            let mut decision = match self.rng.below(8) {
                0 | 1 => Decision::AsSent,
                2 => Decision::Refused(7),
                _ => {
                    let length = self.rng.pick(&[0, 1, 300, 5_000, 70_000]);
                    Decision::Patched(self.rng.bytes(length))
                }
            };
            let done = match &decision {
                Decision::AsSent => self.pair.release(stream),
                Decision::Patched(bytes) => match self.pair.release_with(stream, bytes) {
                    Released::Patched => true,
                    Released::AsItCame => {
                        decision = Decision::AsSent;
                        true
                    }
                    Released::Gone => false,
                },
                Decision::Refused(status) => self.pair.refuse(stream, *status, "not today"),
            };
            if done {
                self.decisions.insert(stream, decision);
            }
            progress = true;
        }
        progress
    }
}

/// What has to be true when nothing moves any more.
impl World {
    fn check(&self) {
        let stalled: Vec<_> = self
            .client
            .streams
            .iter()
            .filter(|(_, half)| !half.is_over())
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(stalled, [], "streams that stalled");
        assert!(self.planned.is_empty());
        for (id, half) in &self.client.streams {
            self.check_reply(*id, half);
        }
        for (id, half) in &self.runtime.streams {
            self.check_request(*id, half);
        }
        assert_eq!(self.pair.held_bytes(), 0);
        assert!(self.granted.is_empty(), "slots in use");
        assert!(self.wanted.is_empty(), "slots wanted by nobody");
        // Credit is never lost, in either direction. What was lent may still be out.
        assert!(self.client.send_window >= self.runtime.receive_window);
        assert_eq!(self.runtime.send_window, self.client.receive_window);
        if !self.plan.chaos {
            assert_eq!(self.pair.open_streams(), 0);
            assert!(self.client.goaways.is_empty() || self.pair.is_drained());
        }
    }

    fn check_request(&self, id: StreamId, half: &Half) {
        let request = &self.requests[&id];
        let mut fields = request.fields.clone();
        if request.claimed.is_some() {
            fields.retain(|field| field.name != b"content-length");
        }
        assert_eq!(half.headers, [fields]);
        let mut expected = request.body.clone();
        match self.decisions.get(&id) {
            Some(Decision::AsSent) => {}
            Some(Decision::Patched(patch)) => {
                // Whatever the client sent behind its message stays behind it.
                let length = u32::from_be_bytes(expected[1..5].try_into().unwrap());
                let rest = expected.split_off(5 + length as usize);
                let length = length + u32::try_from(patch.len()).unwrap();
                expected[1..5].copy_from_slice(&length.to_be_bytes());
                expected.extend_from_slice(patch);
                expected.extend_from_slice(&rest);
            }
            Some(Decision::Refused(_)) => expected.clear(),
            None if request.claimed.is_some() => expected.clear(),
            None => {}
        }
        assert!(expected.starts_with(&half.body), "other bytes than sent");
        if half.got_end {
            assert_eq!(expected.len(), half.body.len(), "the end came early");
        } else {
            assert!(half.is_reset() || self.plan.chaos, "the end is missing");
        }
    }

    fn check_reply(&self, id: StreamId, half: &Half) {
        if let Some(Decision::Refused(status)) = self.decisions.get(&id) {
            if half.sent_reset {
                return;
            }
            let own = half.headers.last().unwrap();
            let status = field("grpc-status", status.to_string());
            assert!(own.contains(&status) && own.contains(&field("grpc-message", "not today")));
            assert!(half.got_end);
            return;
        }
        let Some(reply) = self.replies.get(&id) else {
            assert!(self.plan.chaos && half.headers.is_empty());
            return;
        };
        assert!(reply.blocks.starts_with(&half.headers));
        assert!(reply.body.starts_with(&half.body));
        if half.got_end {
            assert_eq!(reply.blocks.len(), half.headers.len());
            assert_eq!(reply.body.len(), half.body.len());
        }
        if half.got_end && self.requests[&id].claimed.is_some() && !half.sent_reset {
            let message = reply.body.get(5..).map(<[u8]>::to_vec);
            let message = message.filter(|message| message.len() <= 2_000);
            assert_eq!(self.responses[&id], (Some(reply.status), message));
        }
    }
}

fn random_values(rng: &mut Rng) -> Values {
    Values {
        table: rng.pick(&[0, 60, 200, 4_096, 4_096, 10_000]),
        window: rng.pick(&[0, 1_000, 16_384, 65_535, 65_535, 70_000, 1 << 20]),
        frame: rng.pick(&[INITIAL.frame, INITIAL.frame, 20_000, 66_000]),
    }
}

fn size(rng: &mut Rng, largest: usize) -> usize {
    let size = match rng.below(3) {
        0 => rng.below(2_000),
        1 => rng.pick(&EDGES),
        _ => rng.below(largest),
    };
    size.min(largest)
}

fn message(rng: &mut Rng, flag: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![flag];
    bytes.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    bytes.extend_from_slice(&rng.bytes(length));
    bytes
}

fn request(rng: &mut Rng, plan: &Plan) -> Request {
    let claimed = (!rng.one_in(3)).then(|| rng.below(2));
    let length = size(rng, plan.largest);
    let mut body = match claimed {
        Some(_) => message(rng, 0, length),
        None => rng.bytes(length),
    };
    // Bodies that are not one plain message.
    match rng.below(16) {
        0 => body[..length.min(1)].fill(1),
        1 => body.truncate(length / 2),
        2 => body.extend_from_slice(&rng.bytes(9)),
        3 => body.clear(),
        _ => {}
    }
    let path = claimed.map_or("/other/Call", |which| CLAIMED[which]);
    let mut fields = vec![
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", "/run/some.sock"),
    ];
    fields.extend(random_fields(rng));
    if rng.one_in(8) {
        fields.push(field("content-length", body.len().to_string()));
    }
    Request {
        claimed: claimed.map(|which| [Tag(1), Tag(2)][which]),
        fields,
        body,
    }
}

fn reply(rng: &mut Rng, plan: &Plan) -> Reply {
    let status = u32::try_from(rng.below(17)).unwrap();
    let mut last = vec![field("grpc-status", status.to_string())];
    last.extend(random_fields(rng));
    let mut blocks = vec![last];
    let mut body = Vec::new();
    if !rng.one_in(5) {
        let mut first = vec![field(":status", "200")];
        first.extend(random_fields(rng));
        blocks.insert(0, first);
        let length = size(rng, plan.largest);
        body = message(rng, 0, length);
    }
    Reply {
        blocks,
        body,
        status,
    }
}

fn random_fields(rng: &mut Rng) -> Vec<Field> {
    let count = rng.below(5);
    let names = ["user-agent", "content-type", "x-a", "x-b", "x-long"];
    (0..count)
        .map(|_| {
            let name = rng.pick(&names);
            let value = match rng.below(300) {
                0 => rng.bytes(20_000),
                1..20 => rng.bytes(400),
                _ => rng.below(6).to_string().into_bytes(),
            };
            Field {
                never: rng.one_in(8),
                ..field(name, value)
            }
        })
        .collect()
}

#[test]
fn every_order_of_events_keeps_windows_bytes_and_headers() {
    let only = std::env::var("RELAY_SEED").ok();
    let seeds = match only.map(|seed| seed.parse().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 0..RUNS,
    };
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
        assert!(run.is_ok(), "RELAY_SEED={seed}");
    }
}
