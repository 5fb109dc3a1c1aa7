//! The random model: a plugin and a runtime, a wire between them that cuts as it likes, and calls of
//! all sizes both ways. Every call has one outcome, every payload arrives as sent and in order, what
//! is written keeps the rules that the Go reader needs, and nothing is kept for longer than needed.
//!
//! A failure names its seed; `NRI_SEED=<seed> cargo test -p koord-nri --test model` runs that one
//! alone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use koord_nri::{CallId, Code, Event, Limits, Peer, RequestId, Role, SendError, Status};
use support::go::{self, Go};
use support::reframe::Reframe;
use support::rng::Rng;
use support::wire::{REQUEST, RESPONSE};

const RUNS: u64 = 1_000;

/// The largest body that may be sent.
const MAX_BODY: usize = 4_194_304;

/// Sizes of payloads around everything that something could be compared with. The last ones make a
/// request, and a response, of exactly 4 MiB and of one byte more.
const EDGES: [usize; 18] = [
    0, 1, 100, 127, 128, 4_073, 4_074, 4_075, 4_079, 4_080, 4_083, 4_084, 4_096, 8_192, 16_383,
    16_384, 65_535, 65_536,
];
const LARGE: [usize; 6] = [
    1 << 20,
    2_097_152,
    4_194_293,
    4_194_294,
    4_194_299,
    4_194_300,
];

/// What one run does.
struct Plan {
    /// Most bytes handed over at a time.
    chunk: usize,
    largest: usize,
    reframed: bool,
    /// Largest message that either end takes.
    limit: usize,
    /// Whether the wire breaks at some point.
    breaks: bool,
}

/// One end and its books.
struct End {
    peer: Peer,
    /// The wire to the other end: written, not yet taken.
    wire: Reframe,
    raw: VecDeque<u8>,
    go: Go,
    /// Calls to be made.
    planned: VecDeque<Vec<u8>>,
    /// Calls that the other end was not told of, in order.
    sent: VecDeque<Sent>,
    /// Outcomes of calls, by their number in the order in which they were made.
    calls: Vec<Call>,
    ids: BTreeMap<CallId, usize>,
    /// Requests of the other end that wait, with the number of the call.
    waiting: Vec<(RequestId, usize)>,
    last_stream: u32,
}

struct Sent {
    number: usize,
    payload: Vec<u8>,
    timeout: Option<Duration>,
}

struct Call {
    /// The length of the request's body.
    body: usize,
    expected: Option<Result<Vec<u8>, Code>>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Answered,
    GivenUp,
    Lost,
}

struct World {
    rng: Rng,
    plan: Plan,
    ends: [End; 2],
    broken: bool,
}

impl Plan {
    fn random(rng: &mut Rng) -> Self {
        let chunk = rng.pick(&[1, 30, 5_000, 5_000, 70_000, 1 << 20]);
        let limit = if rng.one_in(5) { 10_000 } else { 64 << 20 };
        Self {
            chunk,
            largest: match chunk {
                1 => 300,
                30 => 9_000,
                1_048_576 if rng.one_in(20) => 4_200_000,
                _ => 70_000,
            },
            reframed: rng.one_in(2),
            limit,
            breaks: rng.one_in(4),
        }
    }
}

impl End {
    fn new(role: Role, rng: &mut Rng, plan: &Plan) -> Self {
        let limits = Limits {
            message: plan.limit,
            ..Limits::default()
        };
        let count = rng.below(12);
        Self {
            peer: Peer::new(role, limits),
            wire: Reframe::default(),
            raw: VecDeque::new(),
            go: Go::default(),
            planned: (0..count).map(|_| payload(rng, plan)).collect(),
            sent: VecDeque::new(),
            calls: Vec::new(),
            ids: BTreeMap::new(),
            waiting: Vec::new(),
            last_stream: 0,
        }
    }

    /// What Go would read of what was written.
    fn check_written(&mut self, role: Role, message: &go::Message) {
        let (calls, serves) = match role {
            Role::Plugin => (2, 1),
            Role::Runtime => (1, 2),
        };
        assert_eq!(message.flags, 0);
        match message.kind {
            REQUEST => {
                assert_eq!(message.connection, calls);
                assert_eq!(
                    message.stream,
                    self.last_stream.max(1) + 2 * u32::from(self.last_stream > 0)
                );
                self.last_stream = message.stream;
            }
            RESPONSE => assert_eq!(message.connection, serves),
            other => panic!("a message of type {other}"),
        }
    }
}

fn payload(rng: &mut Rng, plan: &Plan) -> Vec<u8> {
    let size = match rng.below(4) {
        0 => rng.below(600),
        1 if plan.largest > 1 << 20 => rng.pick(&LARGE),
        1 | 2 => rng.pick(&EDGES),
        _ => rng.below(plan.largest),
    };
    rng.bytes(size.min(plan.largest))
}

/// Bytes of a number on the wire.
fn varint_length(number: usize) -> usize {
    (1..).find(|bytes| number >> (7 * bytes) == 0).unwrap()
}

/// Bytes of a field of bytes.
fn field_length(length: usize) -> usize {
    if length == 0 {
        0
    } else {
        1 + varint_length(length) + length
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::random(&mut rng);
        let ends = [Role::Plugin, Role::Runtime].map(|role| End::new(role, &mut rng, &plan));
        Self {
            rng,
            plan,
            ends,
            broken: false,
        }
    }

    fn run(mut self) {
        let mut idle = 0;
        while idle < 3 && !self.broken {
            // The last resort: everything that somebody could do, is done.
            let forced = idle > 0;
            idle = if self.round(forced) { 0 } else { idle + 1 };
        }
        if self.broken {
            self.check_broken();
        } else {
            self.check();
        }
    }

    fn round(&mut self, forced: bool) -> bool {
        let mut progress = false;
        for who in [0, 1] {
            if self.rng.one_in(3) || forced {
                progress |= self.call(who);
            }
            if self.rng.one_in(2) || forced {
                progress |= self.write(who);
            }
            if self.rng.one_in(2) || forced {
                progress |= self.deliver(who);
            }
            if self.rng.one_in(3) || forced {
                progress |= self.reply(who);
            }
            if self.rng.one_in(60) {
                self.give_up(who);
            }
        }
        if self.plan.breaks && self.rng.one_in(200) {
            self.broken = true;
        }
        progress
    }

    fn call(&mut self, who: usize) -> bool {
        let timeout = self.rng.one_in(2).then_some(Duration::from_millis(2));
        let end = &mut self.ends[who];
        let Some(payload) = end.planned.pop_front() else {
            return false;
        };
        // Two milliseconds are a number of three bytes: 2,000,000.
        let timeout_length = timeout.map_or(0, |_| 4);
        let body = 3 + 3 + field_length(payload.len()) + timeout_length;
        match end.peer.call("S", "M", &payload, timeout) {
            Ok(id) => {
                assert!(body <= MAX_BODY);
                assert!(end.ids.last_key_value().is_none_or(|(last, _)| *last < id));
                let number = end.calls.len();
                end.ids.insert(id, number);
                end.calls.push(Call {
                    body,
                    expected: None,
                    state: State::Open,
                });
                end.sent.push_back(Sent {
                    number,
                    payload,
                    timeout,
                });
            }
            Err(error) => {
                let (length, limit) = (body, MAX_BODY);
                assert!(body > MAX_BODY);
                assert_eq!(error, SendError::TooLarge { length, limit });
            }
        }
        true
    }

    /// From an end to its wire.
    fn write(&mut self, who: usize) -> bool {
        let count = 1 + self.rng.below(self.plan.chunk);
        let end = &mut self.ends[who];
        let pending = end.peer.output();
        let bytes = pending[..pending.len().min(count)].to_vec();
        end.peer.advance(bytes.len());
        for message in end.go.read(&bytes) {
            let role = [Role::Plugin, Role::Runtime][who];
            end.check_written(role, &message);
        }
        if self.plan.reframed {
            end.wire.push(&bytes);
        } else {
            end.raw.extend(&bytes);
        }
        !bytes.is_empty()
    }

    /// From the other end's wire to an end.
    fn deliver(&mut self, who: usize) -> bool {
        let from = &mut self.ends[1 - who];
        if self.plan.reframed && from.raw.len() < self.plan.chunk {
            let most = self.plan.chunk.min(20_000);
            from.raw.extend(from.wire.next(&mut self.rng, most));
        }
        let count = (1 + self.rng.below(self.plan.chunk)).min(from.raw.len());
        let bytes: Vec<u8> = from.raw.drain(..count).collect();
        let before = self.ends[who].peer.held_bytes();
        self.ends[who].peer.feed(&bytes).unwrap();
        // A refusal is written for a head of ten bytes, which may have come before.
        let refusals = 200 * (1 + count / 18);
        assert!(self.ends[who].peer.held_bytes() <= before + count + refusals);
        self.events(who);
        count > 0
    }

    fn events(&mut self, who: usize) {
        while let Some(event) = self.ends[who].peer.next_event() {
            match event {
                Event::Request(request) => {
                    assert_eq!((&*request.service, &*request.method), ("S", "M"));
                    self.skip_refused(1 - who);
                    let sent = self.ends[1 - who].sent.pop_front().unwrap();
                    assert!(sent.payload == request.payload);
                    assert_eq!(sent.timeout, request.timeout);
                    self.ends[who].waiting.push((request.id, sent.number));
                }
                Event::Answer { call, result } => self.answered(who, call, result),
                Event::Lost { call } => {
                    assert!(self.broken);
                    let end = &mut self.ends[who];
                    let call = &mut end.calls[end.ids[&call]];
                    assert_eq!(call.state, State::Open);
                    call.state = State::Lost;
                }
            }
        }
    }

    /// The other end is not told of calls that are over its limit.
    fn skip_refused(&mut self, who: usize) {
        let End { sent, calls, .. } = &mut self.ends[who];
        while let Some(next) = sent.front()
            && calls[next.number].body > self.plan.limit
        {
            sent.pop_front();
        }
    }

    fn answered(&mut self, who: usize, id: CallId, result: Result<Vec<u8>, Status>) {
        let limit = self.plan.limit;
        let end = &mut self.ends[who];
        let call = &mut end.calls[end.ids[&id]];
        assert_eq!(call.state, State::Open);
        call.state = State::Answered;
        let expected = match call.expected.take() {
            Some(Ok(payload)) if field_length(payload.len()) > limit => {
                Err(Code::RESOURCE_EXHAUSTED)
            }
            Some(expected) => expected,
            None => {
                assert!(call.body > limit, "nobody answered this");
                Err(Code::RESOURCE_EXHAUSTED)
            }
        };
        assert!(result.map_err(|status| status.code) == expected);
    }

    fn reply(&mut self, who: usize) -> bool {
        if self.ends[who].waiting.is_empty() {
            return false;
        }
        let chosen = self.rng.below(self.ends[who].waiting.len());
        let (id, number) = self.ends[who].waiting.swap_remove(chosen);
        let answer = payload(&mut self.rng, &self.plan);
        let status = Status::new(Code::FAILED_PRECONDITION, "not today");
        let refuses = self.rng.one_in(5);
        let peer = &mut self.ends[who].peer;
        let result = if refuses { Err(&status) } else { Ok(&*answer) };
        let expected = match peer.reply(id, result) {
            Ok(()) if refuses => Err(Code::FAILED_PRECONDITION),
            Ok(()) => Ok(answer),
            Err(SendError::TooLarge { length, limit }) => {
                assert_eq!((length, limit), (field_length(answer.len()), MAX_BODY));
                assert!(length > limit);
                assert_eq!(peer.reply(id, Err(&status)), Ok(()));
                Err(Code::FAILED_PRECONDITION)
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(peer.reply(id, Ok(b"")), Err(SendError::NotAsked));
        self.ends[1 - who].calls[number].expected = Some(expected);
        true
    }

    fn give_up(&mut self, who: usize) {
        let end = &mut self.ends[who];
        if end.ids.is_empty() {
            return;
        }
        let ids: Vec<CallId> = end.ids.keys().copied().collect();
        let id = self.rng.pick(&ids);
        let call = &mut end.calls[end.ids[&id]];
        let was_open = call.state == State::Open;
        assert_eq!(end.peer.give_up(id), was_open);
        if was_open {
            call.state = State::GivenUp;
        }
    }

    /// What has to be true when nothing moves any more.
    fn check(&mut self) {
        for who in [0, 1] {
            self.skip_refused(who);
            let end = &mut self.ends[who];
            assert!(end.planned.is_empty() && end.waiting.is_empty());
            let open = end.calls.iter().filter(|call| call.state == State::Open);
            assert_eq!(open.count(), 0, "calls without an outcome");
            assert!(end.sent.is_empty(), "calls that never arrived");
            assert!(!end.ids.keys().any(|call| end.peer.give_up(*call)));
            assert_eq!(end.peer.held_bytes(), 0);
            assert!(end.go.is_empty(), "half a message");
            assert_eq!(end.peer.end(), Ok(()));
        }
    }

    /// And when the wire broke: every call has an outcome all the same.
    fn check_broken(&mut self) {
        for who in [0, 1] {
            // It may have ended inside of a message.
            let ended = self.ends[who].peer.end();
            self.events(who);
            let end = &mut self.ends[who];
            let open = end.calls.iter().filter(|call| call.state == State::Open);
            assert_eq!(open.count(), 0, "calls without an outcome");
            assert!(!end.ids.keys().any(|call| end.peer.give_up(*call)));
            assert_eq!(end.peer.held_bytes(), 0);
            assert_eq!(end.peer.output(), b"");
            assert_eq!(end.peer.call("S", "M", b"", None), Err(SendError::Over));
            assert_eq!(end.peer.end(), ended);
        }
    }
}

#[test]
fn every_order_of_bytes_and_calls_gives_each_call_its_outcome() {
    let only = std::env::var("NRI_SEED").ok();
    let seeds = match only.map(|seed| seed.parse().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 0..RUNS,
    };
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
        assert!(run.is_ok(), "NRI_SEED={seed}");
    }
}
