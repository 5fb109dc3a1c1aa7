#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use crate::status::chain_of;
use koord_testkit::{CLIENT_PEM, poll::wait_until};
use std::{
    error::Error,
    io::{Read, Write},
    net::TcpListener,
    thread::{self, JoinHandle},
    time::Duration,
};

/// Answers one request with `reply` and gives it back.
fn serve(listener: TcpListener, reply: Vec<u8>) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut piece) = (Vec::new(), [0; 1024]);
        while !request.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..length]);
        }
        // Whoever has heard enough closes.
        stream.write_all(&reply).ok();
        String::from_utf8(request).unwrap()
    })
}

fn listen() -> (TcpListener, Kubelet) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let config = Kubelet {
        url: url.parse().unwrap(),
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(60),
        token_file: None,
        ca_file: "/nowhere".into(),
        client: None,
        server_name: "node-1".to_owned(),
    };
    (listener, config)
}

fn reply(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// What comes of one question, and what was asked.
fn asked(config: impl FnOnce(&mut Kubelet), reply: Vec<u8>) -> (Result<Text, String>, String) {
    let (listener, mut kubelet) = listen();
    config(&mut kubelet);
    let served = serve(listener, reply);
    let answer = PodsOfKubelet::at(&kubelet).read();
    let answer = answer.map_err(|error| error.to_string());
    (answer, served.join().unwrap())
}

#[test]
fn a_kubelet_is_asked_for_its_pods() {
    let (answer, request) = asked(|_| {}, reply("200 OK", b"{\"items\":[]}"));
    let (text, left_out) = answer.unwrap();
    assert_eq!(text, b"{\"items\":[]}");
    assert!(left_out.is_empty());
    assert!(request.starts_with("GET /pods HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nhost: 127.0.0.1:"), "{request}");
    assert!(!request.contains("authorization"), "{request}");
}

#[test]
fn a_token_is_read_each_time_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    for token in ["secret-1", "secret-2"] {
        std::fs::write(&path, format!("{token}\n")).unwrap();
        let with_token = |config: &mut Kubelet| config.token_file = Some(path.clone());
        let (_, request) = asked(with_token, reply("200 OK", b""));
        let header = format!("\r\nauthorization: Bearer {token}\r\n");
        assert!(request.contains(&header), "{request}");
    }
    let (_listener, mut kubelet) = listen();
    kubelet.token_file = Some(path.clone());
    for bad in ["", "secret\nsecret"] {
        std::fs::write(&path, bad).unwrap();
        let error = PodsOfKubelet::at(&kubelet).read().unwrap_err();
        assert!(matches!(error, KubeletError::Token { .. }), "{bad:?}");
        assert!(!format!("{error:?}{error}").contains("secret"));
    }
    std::fs::remove_file(&path).unwrap();
    let error = PodsOfKubelet::at(&kubelet).read().unwrap_err();
    assert!(matches!(error, KubeletError::File { .. }));
}

#[test]
fn an_answer_that_is_none_is_told() {
    for (reply, error) in [
        (reply("403 Forbidden", b"no"), "it answered 403 Forbidden"),
        (reply("302 Found", b""), "it answered 302 Found"),
        (b"SSH-2.0-x\r\n".to_vec(), "the connection failed"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx".to_vec(),
            "the connection failed",
        ),
        (
            reply("200 OK", &vec![b' '; MAX_LENGTH + 1]),
            "its answer is longer than 67108864 bytes",
        ),
    ] {
        assert_eq!(asked(|_| {}, reply).0.unwrap_err(), error);
    }
}

#[test]
fn what_a_kubelet_does_not_say_is_told_with_its_address() {
    let (listener, kubelet) = listen();
    let port = listener.local_addr().unwrap().port();
    let served = serve(listener, reply("403 Forbidden", b"no"));
    let mut way = crate::pods::Way::Kubelet(PodsOfKubelet::at(&kubelet));
    assert_eq!(
        chain_of(&way.read(false).unwrap_err()),
        format!(
            "the kubelet does not say them at http://127.0.0.1:{port}/pods: it answered 403 \
             Forbidden"
        )
    );
    served.join().unwrap();
}

#[test]
fn an_answer_without_room_for_all_pods_is_one_without_the_largest() {
    let pod = |name: &str, length: usize| {
        let long = "x".repeat(length);
        format!(r#"{{"metadata":{{"namespace":"n","name":"{name}"}},"status":"{long}"}}"#)
    };
    let list = |pods: &[String]| format!(r#"{{"kind":"PodList","items":[{}]}}"#, pods.join(","));
    let (small, other) = (pod("small", 1), pod("other", 20 << 20));
    let all = list(&[
        small.clone(),
        pod("large", 40 << 20),
        other.clone(),
        pod("larger", 30 << 20),
        small.clone(),
    ]);
    let (answer, _) = asked(|_| {}, reply("200 OK", all.as_bytes()));
    let (text, left_out) = answer.unwrap();
    let rest = list(&[small.clone(), other, pod("larger", 30 << 20), small]);
    assert!(text == rest.as_bytes(), "{} bytes", text.len());
    let told: Vec<String> = left_out.iter().map(|it| chain_of(it)).collect();
    let reason = "it is one of the largest, and all together have more than 67108864 bytes";
    assert_eq!(told, [format!("n/large is left out: {reason}")]);
}

#[test]
fn a_kubelet_that_is_slow_or_not_there_costs_no_more_than_its_time() {
    let (listener, mut kubelet) = listen();
    kubelet.timeout = Duration::from_millis(100);
    // The kernel takes the connection, and nobody answers on it.
    let error = PodsOfKubelet::at(&kubelet).read().unwrap_err();
    assert!(matches!(error, KubeletError::Late));
    drop(listener);
    kubelet.timeout = Duration::from_secs(60);
    // Threads and children of other tests have copies for a moment, on which nobody answers either.
    wait_until("nobody listens there any more", || {
        let answer = PodsOfKubelet::at(&kubelet).read();
        answer.is_err_and(|error| matches!(error, KubeletError::Connect(_)))
    });
}

#[test]
fn what_speaks_no_tls_is_not_spoken_to_otherwise() {
    let (listener, mut kubelet) = listen();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let error = |kubelet: &Kubelet| {
        let error = PodsOfKubelet::at(kubelet).read().unwrap_err();
        let source = error.source().map(ToString::to_string);
        (error.to_string(), source.unwrap_or_default())
    };
    kubelet.url.tls = true;
    kubelet.ca_file = ca.clone();
    let (told, _) = error(&kubelet);
    assert_eq!(told, format!("cannot read {}", ca.display()));
    for (text, source) in [
        ("", format!("there is no certificate in {}", ca.display())),
        (
            "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
            format!("what is in {} cannot be used", ca.display()),
        ),
        (CLIENT_PEM, "the kubelet and we do not agree".to_owned()),
    ] {
        std::fs::write(&ca, text).unwrap();
        let served = (text == CLIENT_PEM).then(|| {
            let listener = listener.try_clone().unwrap();
            thread::spawn(move || {
                // Those of the questions before are there too.
                for stream in listener.incoming().take(4) {
                    let reply = b"HTTP/1.1 400 Bad Request\r\n\r\n";
                    stream.unwrap().write_all(reply).ok();
                }
            })
        });
        let expected = ("no TLS connection came about".to_owned(), source);
        assert_eq!(error(&kubelet), expected, "{text}");
        if let Some(served) = served {
            served.join().unwrap();
        }
    }
}
