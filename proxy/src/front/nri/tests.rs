use super::watchdog::Watchdog;
use super::*;
use crate::view::Inputs;
use koord_nri::{CallId, Code, Limits, Peer, Request, Role, Status};
use koord_proto::nri::{
    Container, ContainerUpdate, Event, EventMask, LinuxResources, PodSandbox, name,
};
use std::{
    io::{Read, Write},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{Instant, advance, timeout},
};

/// The runtime's end, scripted by each test.
pub(super) struct Double {
    stream: UnixStream,
    peer: Peer,
}

impl Double {
    async fn flush(&mut self) {
        self.stream.write_all(self.peer.output()).await.unwrap();
        self.peer.advance(usize::MAX);
    }

    async fn event(&mut self) -> koord_nri::Event {
        loop {
            if let Some(event) = self.peer.next_event() {
                return event;
            }
            self.flush().await;
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "the plugin has closed the connection");
            self.peer.feed(&bytes[..count]).unwrap();
        }
    }

    async fn request(&mut self) -> Request {
        match self.event().await {
            koord_nri::Event::Request(request) => request,
            other => panic!("no request but {other:?}"),
        }
    }

    pub(super) async fn ask(&mut self, method: &str, payload: &[u8]) -> CallId {
        self.ask_within(method, payload, None).await
    }

    /// Says with the question how long it waits.
    async fn ask_within(
        &mut self,
        method: &str,
        payload: &[u8],
        limit: Option<Duration>,
    ) -> CallId {
        let call = self.peer.call(name::PLUGIN, method, payload, limit);
        self.flush().await;
        call.unwrap()
    }

    pub(super) async fn answer(&mut self, of: CallId) -> Result<Vec<u8>, Status> {
        match self.event().await {
            koord_nri::Event::Answer { call, result } if call == of => result,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Asks from a thread of its own, which tells the answer and ends.
    fn ask_elsewhere(mut self, method: &'static str) -> mpsc::Receiver<Result<Vec<u8>, Status>> {
        let mut stream = self.stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let payload = b"\x0a\x03\x0a\x01p";
            let call = self.peer.call(name::PLUGIN, method, payload, None).unwrap();
            stream.write_all(self.peer.output()).unwrap();
            self.peer.advance(usize::MAX);
            loop {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                self.peer.feed(&bytes[..count]).unwrap();
                if let Some(event) = self.peer.next_event() {
                    match event {
                        koord_nri::Event::Answer { call: of, result } if of == call => {
                            tell.send(result).unwrap();
                        }
                        other => panic!("no answer but {other:?}"),
                    }
                    return;
                }
            }
        });
        told
    }

    async fn reply(&mut self, request: &Request, result: Result<&[u8], &Status>) {
        self.peer.reply(request.id, result).unwrap();
        self.flush().await;
    }
}

fn plugin() -> Plugin {
    let wanted = [
        Event::RunPodSandbox,
        Event::CreateContainer,
        Event::UpdatePodSandbox,
    ];
    Plugin {
        identity: Identity::new("koord", "10").unwrap(),
        events: EventMask::of(&wanted),
        inputs: Arc::new(Inputs::new(["k"], [])),
    }
}

fn connected() -> (UnixStream, Double) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let peer = Peer::new(Role::Runtime, Limits::default());
    (
        ours,
        Double {
            stream: theirs,
            peer,
        },
    )
}

/// Runtime "containerd" of version "v2.2.0", without limits.
const CONFIGURE: &[u8] = b"\x12\x0acontainerd\x1a\x06v2.2.0";

/// A session as it is after a registration.
pub(super) async fn session() -> (Session, Double) {
    let (stream, mut runtime) = connected();
    let plugin = plugin();
    let register = Session::register(stream, &plugin);
    let (session, ()) = tokio::join!(register, async {
        let request = runtime.request().await;
        runtime.reply(&request, Ok(b"")).await;
        let call = runtime.ask("Configure", CONFIGURE).await;
        runtime.answer(call).await.unwrap();
    });
    (session.unwrap(), runtime)
}

/// Answers and writes it, as the session does with what it waits for next.
fn answered(session: &mut Session, ticket: Ticket, answer: Answer) -> bool {
    let said = session.answer(ticket, answer).unwrap();
    session.watched().desk.hand().wire.flush().unwrap();
    said
}

async fn asked(session: &mut Session) -> (Ticket, Asked) {
    match session.next().await.unwrap() {
        Incoming::Asked(ticket, asked) => (ticket, *asked),
        other => panic!("no question but {other:?}"),
    }
}

#[tokio::test]
async fn registration_says_who_we_are_and_configuration_what_the_runtime_knows() {
    for (version, mask) in [
        // RUN_POD_SANDBOX and CREATE_CONTAINER, and since 2.2 UPDATE_POD_SANDBOX.
        (&b"\x1a\x06v1.7.1"[..], &b"\x10\x09"[..]),
        (b"\x1a\x06v2.2.0", b"\x10\x89\x10"),
    ] {
        let (stream, mut runtime) = connected();
        let plugin = plugin();
        let register = Session::register(stream, &plugin);
        let (session, ()) = tokio::join!(register, async {
            let request = runtime.request().await;
            let called = (&*request.service, &*request.method);
            let expected = ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin");
            assert_eq!(called, expected);
            assert_eq!(request.payload, b"\x0a\x05koord\x12\x0210\x1a\x07v0.12.0");
            // The configuration may come before the answer, and tell limits: 600 ms for a request.
            let configure = [b"\x12\x0acontainerd", version, b"\x28\xd8\x04"].concat();
            let call = runtime.ask("Configure", &configure).await;
            assert_eq!(runtime.answer(call).await.unwrap(), mask);
            runtime.reply(&request, Ok(b"")).await;
        });
        let session = session.unwrap();
        assert_eq!(session.runtime().name, "containerd");
        let limit = session.runtime().request_timeout;
        assert_eq!(limit, Some(Duration::from_millis(600)));
    }
}

#[tokio::test]
async fn who_asks_before_it_has_answered_the_registration_has_taken_us() {
    let (stream, mut runtime) = connected();
    let plugin = plugin();
    let register = Session::register(stream, &plugin);
    let (session, call) = tokio::join!(register, async {
        let request = runtime.request().await;
        let call = runtime.ask("Configure", CONFIGURE).await;
        runtime.answer(call).await.unwrap();
        let call = runtime.ask("Synchronize", b"").await;
        runtime.reply(&request, Ok(b"")).await;
        call
    });
    let mut session = session.unwrap();
    let (ticket, question) = asked(&mut session).await;
    assert!(matches!(question, Asked::Synchronize { .. }));
    assert!(answered(&mut session, ticket, Answer::Nothing));
    assert_eq!(runtime.answer(call).await.unwrap(), b"");
}

#[tokio::test]
async fn a_configuration_that_begins_in_one_read_and_ends_in_another_is_read() {
    let (stream, mut runtime) = connected();
    let plugin = plugin();
    let register = Session::register(stream, &plugin);
    let (session, ()) = tokio::join!(register, async {
        let request = runtime.request().await;
        // A text of 100,000 bytes, which comes behind the answer at once.
        let text = [b"\x0a\xa0\x8d\x06".to_vec(), vec![b'x'; 100_000]].concat();
        let configure = [&text, CONFIGURE].concat();
        runtime.peer.reply(request.id, Ok(b"")).unwrap();
        let call = runtime.ask("Configure", &configure).await;
        runtime.answer(call).await.unwrap();
    });
    assert_eq!(session.unwrap().runtime().name, "containerd");
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_does_not_come_to_pass_is_an_error() {
    let plugin = plugin();

    let (stream, mut runtime) = connected();
    let (session, ()) = tokio::join!(Session::register(stream, &plugin), async {
        let request = runtime.request().await;
        let status = Status::new(Code::INVALID_ARGUMENT, "no");
        runtime.reply(&request, Err(&status)).await;
    });
    assert!(matches!(session, Err(SessionError::Refused(_))));

    let (stream, runtime) = connected();
    drop(runtime);
    let closed = Session::register(stream, &plugin).await;
    assert!(matches!(
        closed,
        Err(SessionError::Closed | SessionError::Io(_))
    ));

    let (stream, mut runtime) = connected();
    let (session, _) = tokio::join!(
        Session::register(stream, &plugin),
        runtime.ask("CreateContainer", b"")
    );
    let method = "CreateContainer".to_owned();
    assert!(matches!(session, Err(SessionError::Unconfigured(it)) if it == method));

    let (stream, mut runtime) = connected();
    let nothing = Plugin {
        events: EventMask::of(&[]),
        ..plugin.clone()
    };
    let (session, _) = tokio::join!(
        Session::register(stream, &nothing),
        runtime.ask("Configure", CONFIGURE)
    );
    assert!(matches!(session, Err(SessionError::NoEvent)));

    let (stream, _silent) = connected();
    let start = Instant::now();
    let session = Session::register(stream, &plugin).await;
    assert!(matches!(session, Err(SessionError::Registration)));
    assert!((5_000..5_010).contains(&start.elapsed().as_millis()));
}

#[tokio::test]
async fn who_answers_after_the_end_is_told_why_it_ended() {
    let (mut session, mut runtime) = session().await;
    runtime.ask("RunPodSandbox", b"\x0a\x03\x0a\x01p").await;
    let (ticket, _) = asked(&mut session).await;
    drop(runtime);
    // As a watchdog does it while the data path stands still.
    let desk = session.watched().desk;
    desk.hand().set_readable();
    desk.hand().turn(Duration::ZERO);
    assert!(!answered(&mut session, ticket, Answer::Nothing));
    let ended = session.next().await;
    assert!(matches!(ended, Err(SessionError::Closed)), "{ended:?}");
}

#[tokio::test]
async fn parts_of_a_synchronisation_are_one_question() {
    let (mut session, mut runtime) = session().await;
    // Pod "p" with labels "k" and "l", more; then container "c" of it.
    let part = b"\x0a\x13\x0a\x01p\x2a\x06\x0a\x01k\x12\x011\x2a\x06\x0a\x01l\x12\x012\x18\x01";
    let first = runtime.ask("Synchronize", part).await;
    let second = runtime.ask("Synchronize", b"\x12\x03\x0a\x01c").await;
    let (ticket, question) = asked(&mut session).await;
    let pod = PodSandbox {
        id: "p".to_owned(),
        // Nobody reads the other label.
        labels: [("k".to_owned(), "1".to_owned())].into(),
        ..PodSandbox::default()
    };
    let container = Container {
        id: "c".to_owned(),
        ..Container::default()
    };
    let expected = Asked::Synchronize {
        pods: vec![pod],
        containers: vec![container],
    };
    assert_eq!(question, expected);
    let update = ContainerUpdate::new("c", LinuxResources::default());
    assert!(answered(&mut session, ticket, Answer::Update(vec![update])));
    assert_eq!(runtime.answer(first).await.unwrap(), b"\x10\x01");
    let last = runtime.answer(second).await.unwrap();
    assert_eq!(last, b"\x0a\x07\x0a\x01c\x12\x02\x0a\x00");

    // The next one begins with nothing.
    runtime.ask("Synchronize", b"").await;
    let nothing = Asked::Synchronize {
        pods: Vec::new(),
        containers: Vec::new(),
    };
    assert_eq!(asked(&mut session).await.1, nothing);
}

#[tokio::test]
async fn an_event_is_the_same_in_either_form() {
    let (mut session, mut runtime) = session().await;
    let own = runtime.ask("StartContainer", b"\x0a\x03\x0a\x01p\x12\x03\x0a\x01c");
    let own = own.await;
    let (ticket, question) = asked(&mut session).await;
    assert!(answered(&mut session, ticket, Answer::Nothing));
    assert_eq!(runtime.answer(own).await.unwrap(), b"");
    let Asked::Happened {
        event,
        pod: Some(pod),
        container: Some(container),
    } = &question
    else {
        panic!("{question:?}");
    };
    let said = (*event, &*pod.id, &*container.id);
    assert_eq!(said, (Event::StartContainer, "p", "c"));

    let old = b"\x08\x06\x12\x03\x0a\x01p\x1a\x03\x0a\x01c";
    runtime.ask("StateChange", old).await;
    assert_eq!(asked(&mut session).await.1, question);
}

#[tokio::test]
async fn each_question_has_the_answer_of_its_form() {
    let (mut session, mut runtime) = session().await;
    let update = || Answer::Update(vec![ContainerUpdate::new("c", LinuxResources::default())]);
    let adjust = Answer::Adjust(Box::default());
    let updated = &b"\x0a\x07\x0a\x01c\x12\x02\x0a\x00"[..];
    for (method, answer, expected) in [
        ("CreateContainer", adjust.clone(), &b"\x0a\x00"[..]),
        (
            "CreateContainer",
            update(),
            b"\x12\x07\x0a\x01c\x12\x02\x0a\x00",
        ),
        ("UpdateContainer", update(), updated),
        ("StopContainer", update(), updated),
        ("CreateContainer", Answer::Nothing, b""),
        // There is no place for it.
        ("UpdateContainer", adjust, b""),
        ("UpdatePodSandbox", update(), b""),
    ] {
        let call = runtime.ask(method, b"\x0a\x03\x0a\x01p").await;
        let (ticket, _) = asked(&mut session).await;
        assert!(answered(&mut session, ticket, answer));
        assert_eq!(runtime.answer(call).await.unwrap(), expected, "{method}");
        assert!(!answered(&mut session, ticket, Answer::Nothing));
    }
}

#[tokio::test]
async fn a_refusal_fails_the_call_and_says_why() {
    let (mut session, mut runtime) = session().await;
    let call = runtime.ask("CreateContainer", b"").await;
    let (ticket, _) = asked(&mut session).await;
    let refusal = Answer::Refuse("a hook insists".to_owned());
    assert!(answered(&mut session, ticket, refusal));
    let expected = Status::new(Code::FAILED_PRECONDITION, "a hook insists");
    assert_eq!(runtime.answer(call).await, Err(expected));
}

#[tokio::test]
async fn what_is_unknown_is_said_to_be_and_what_is_unreadable_stops_no_pod() {
    let (mut session, mut runtime) = session().await;
    let unknown = runtime.ask("ValidateContainerAdjustment", b"").await;
    let unreadable = runtime.ask("CreateContainer", b"\x0a\x05").await;
    let service = runtime.peer.call("other", "CreateContainer", b"", None);
    let service = service.unwrap();
    let readable = runtime.ask("CreateContainer", b"").await;
    let (ticket, _) = asked(&mut session).await;
    answered(&mut session, ticket, Answer::Nothing);
    let status = runtime.answer(unknown).await.unwrap_err();
    assert_eq!(status.code, Code::UNIMPLEMENTED);
    assert_eq!(runtime.answer(unreadable).await.unwrap(), b"");
    let status = runtime.answer(service).await.unwrap_err();
    assert_eq!(status.code, Code::UNIMPLEMENTED);
    assert_eq!(runtime.answer(readable).await.unwrap(), b"");
    let told = session.next().await.unwrap();
    assert!(matches!(told, Incoming::Unreadable(method) if method == "CreateContainer"));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_is_answered_with_no_change_in_half_of_its_time() {
    let (mut session, mut runtime) = session().await;
    // Of two seconds, as runtimes give that say nothing else; of what the question says, shorter or
    // longer, where the runtime said nothing before it.
    for (said, half) in [(None, 1_000), (Some(700), 350), (Some(60_000), 30_000)] {
        let start = Instant::now();
        let limit = said.map(Duration::from_millis);
        let call = runtime.ask_within("CreateContainer", b"", limit).await;
        let (ticket, _) = asked(&mut session).await;
        // Who answers knows when it comes to that.
        let due = ticket.due.duration_since(start);
        assert!((half..half + 10).contains(&due.as_millis()));
        let late = session.next().await.unwrap();
        assert!(matches!(late, Incoming::Late(1)));
        assert!((half..half + 10).contains(&start.elapsed().as_millis()));
        assert_eq!(runtime.answer(call).await.unwrap(), b"");
        let adjust = Answer::Adjust(Box::default());
        assert!(!answered(&mut session, ticket, adjust));
    }
}

#[test]
fn of_two_limits_that_a_runtime_says_the_shorter_one_is_its() {
    let limit = |millis| Some(Duration::from_millis(millis));
    let runtime = Runtime {
        name: "containerd".to_owned(),
        version: "v2.3.0".to_owned(),
        events: EventMask::of(&[]),
        request_timeout: limit(600),
    };
    let waits = |left| runtime.waits(left).as_millis();
    let waited = [waits(None), waits(limit(500)), waits(limit(60_000))];
    assert_eq!(waited, [600, 500, 600]);
}

#[tokio::test(start_paused = true)]
async fn questions_for_a_data_path_that_stands_still_are_kept_up_to_a_bound() {
    let (mut session, mut runtime) = session().await;
    let desk = session.watched().desk;
    // As its watchdog does.
    let turn = || {
        let mut desk = desk.hand();
        desk.set_readable();
        while desk.turn(Duration::ZERO) {}
    };
    for _ in 0..256 {
        runtime.ask("CreateContainer", b"").await;
    }
    turn();
    advance(Duration::from_secs(1)).await;
    turn();
    for _ in 0..256 {
        runtime.event().await;
    }
    // What comes on top is answered at once and kept by nobody.
    for _ in 0..3 {
        let call = runtime.ask("CreateContainer", b"").await;
        turn();
        let answer = timeout(Duration::from_secs(1), runtime.answer(call)).await;
        assert_eq!(answer.expect("it waits").unwrap(), b"");
    }
    let mut kept = 0;
    let late = loop {
        match session.next().await.unwrap() {
            Incoming::Asked(..) => kept += 1,
            Incoming::Late(late) => break late,
            Incoming::Unreadable(method) => panic!("{method} can be read"),
        }
    };
    assert_eq!((kept, late), (256, 259));
}

#[test]
fn a_data_path_that_stands_still_is_answered_for_and_told() {
    let pulse = Pulse::new().unwrap();
    let data_path = pulse.runtime().unwrap();
    let watchdog = Watchdog::new(pulse);
    data_path.block_on(async {
        let (mut session, runtime) = session().await;
        watchdog.watch(&session);
        // It goes to rest once, so what counts is when it wakes.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let told = runtime.ask_elsewhere("CreateContainer");
        // Until then it neither reads nor answers.
        let answer = told.recv_timeout(Duration::from_secs(30));
        assert_eq!(answer.unwrap().unwrap(), b"");
        let (ticket, question) = asked(&mut session).await;
        assert!(matches!(question, Asked::CreateContainer(_)));
        assert!(matches!(session.next().await.unwrap(), Incoming::Late(1)));
        assert!(!answered(&mut session, ticket, Answer::Nothing));

        // The other end is gone now, and that is seen for the data path too.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let desk = session.watched().desk;
        let begun = std::time::Instant::now();
        while !desk.hand().is_over() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(matches!(session.next().await, Err(SessionError::Closed)));
    });
}

#[test]
fn a_watchdog_that_finds_no_thread_starts_when_there_is_one() {
    let pulse = Pulse::new().unwrap();
    let data_path = pulse.runtime().unwrap();
    let mut watchdog = Watchdog::new(pulse);
    let stack = watchdog.stack_bytes;
    // More than there are addresses: such a thread cannot be had.
    watchdog.stack_bytes = 1 << 50;
    data_path.block_on(async {
        let (mut session, mut runtime) = session().await;
        watchdog.watch(&session);
        assert!(!watchdog.start());
        // The data path answers itself.
        let call = runtime.ask("CreateContainer", b"\x0a\x03\x0a\x01p").await;
        let (ticket, _) = asked(&mut session).await;
        assert!(answered(&mut session, ticket, Answer::Nothing));
        assert_eq!(runtime.answer(call).await.unwrap(), b"");

        watchdog.stack_bytes = stack;
        assert!(watchdog.start());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let told = runtime.ask_elsewhere("CreateContainer");
        let answer = told.recv_timeout(Duration::from_secs(30));
        assert_eq!(answer.unwrap().unwrap(), b"");
    });
}

#[tokio::test]
async fn answers_of_one_moment_go_out_together_with_what_is_waited_for_next() {
    let (mut session, mut runtime) = session().await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(runtime.ask("StopPodSandbox", b"").await);
    }
    let mut tickets = Vec::new();
    for _ in 0..3 {
        tickets.push(asked(&mut session).await.0);
    }
    for ticket in tickets {
        assert!(session.answer(ticket, Answer::Nothing).unwrap());
    }
    let early = timeout(Duration::from_millis(50), runtime.answer(calls[0])).await;
    assert!(early.is_err(), "one went out alone");
    let nothing = timeout(Duration::from_millis(50), session.next()).await;
    assert!(nothing.is_err(), "nothing else was asked");
    for call in calls {
        assert_eq!(runtime.answer(call).await.unwrap(), b"");
    }
}

#[tokio::test]
async fn the_end_of_the_connection_ends_the_session() {
    let (mut session, runtime) = session().await;
    drop(runtime);
    assert!(matches!(session.next().await, Err(SessionError::Closed)));

    let (mut session, mut runtime) = self::session().await;
    // A frame of 4 GiB.
    let bytes = b"\0\0\0\x01\xff\xff\xff\xff";
    runtime.stream.write_all(bytes).await.unwrap();
    let error = session.next().await.unwrap_err();
    assert!(matches!(error, SessionError::Violation(_)));
}
