#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use std::{
    io::{Read, Write},
    path::Path,
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Long for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than that: what is seen was noticed.
const PERIOD: Duration = Duration::from_secs(3_600);

fn pod(name: &str) -> String {
    format!("kind: Pod\nmetadata:\n  name: {name}\n  uid: uid-{name}\n  labels: {{a: b, c: d}}\n")
}

/// A file that is kept in line, and what becomes of it.
struct Kept {
    dir: TempDir,
    state: watch::Receiver<PodsState>,
    reload: Rc<Notify>,
    metrics: Rc<Metrics>,
}

impl Kept {
    /// Must run in a `LocalSet`.
    fn start(text: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods.yaml");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let metrics = Rc::new(Metrics::new());
        let inputs = Arc::new(Inputs::new(["a"], []));
        let config = config::Pods::File(path.clone());
        let mut source = PodSource::open(&config, inputs, metrics.clone()).unwrap();
        source.rhythm = Rhythm::Changes(PERIOD);
        let state = source.subscribe();
        let reload = Rc::new(Notify::new());
        tokio::task::spawn_local(source.run(reload.clone()));
        Self {
            dir,
            state,
            reload,
            metrics,
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn replace(&self, text: &str) {
        std::fs::write(self.path().join("fresh"), text).unwrap();
        std::fs::rename(self.path().join("fresh"), self.path().join("pods.yaml")).unwrap();
    }

    async fn until(&mut self, what: impl FnMut(&PodsState) -> bool) -> PodsState {
        let found = tokio::time::timeout(PATIENCE, self.state.wait_for(what)).await;
        found.expect("noticed in time").unwrap().clone()
    }

    fn counts(&self, line: &str) -> bool {
        let text = self.metrics.encode().unwrap();
        text.lines().any(|found| found == line)
    }
}

fn names(state: &PodsState) -> Vec<String> {
    let answer = state.answer.as_ref();
    let pods = answer.map(|answer| answer.pods.iter().map(|pod| pod.name.clone()));
    pods.map(Iterator::collect).unwrap_or_default()
}

async fn locally(test: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_file_is_read_at_start_and_when_another_takes_its_place() {
    locally(async {
        let mut kept = Kept::start(Some(&pod("a")));
        assert_eq!(names(&kept.state.borrow()), ["a"]);
        kept.replace(&format!("{}---\n{}", pod("a"), pod("b")));
        let state = kept.until(|state| names(state).len() == 2).await;
        let answer = state.answer.unwrap();
        assert_eq!(answer.word, Word::Stands);
        // What nobody here reads is not kept.
        assert_eq!(answer.pods[0].labels.len(), 1);
        assert!(kept.counts("koord_runtime_proxy_pods_answers_total{result=\"ok\"} 2"));
        assert!(kept.counts("koord_runtime_proxy_pods_source_up 1"));
    })
    .await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_leaves_what_was_said_last() {
    locally(async {
        let mut kept = Kept::start(Some(&pod("a")));
        // As the shell leaves it, before kubectl has written.
        for bad in ["", "kind: [", "{", "kind: Status\nmessage: Unauthorized\n"] {
            kept.replace(bad);
            let state = kept.until(|state| state.failure.is_some()).await;
            assert_eq!(names(&state), ["a"]);
            kept.replace(&pod("a"));
            kept.until(|state| state.failure.is_none()).await;
        }
        assert!(kept.counts("koord_runtime_proxy_pods_answers_total{result=\"error\"} 4"));
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_not_there_yet_is_read_when_it_comes() {
    locally(async {
        let mut kept = Kept::start(None);
        assert!(kept.state.borrow().failure.is_some());
        assert!(kept.counts("koord_runtime_proxy_pods_source_up 0"));
        kept.replace(&pod("a"));
        kept.until(|state| state.failure.is_none() && names(state) == ["a"])
            .await;
    })
    .await;
}

#[tokio::test]
async fn what_is_left_out_of_a_file_is_in_the_state() {
    locally(async {
        let kept = Kept::start(Some(&format!("{}---\nkind: Pod\n", pod("a"))));
        assert_eq!(names(&kept.state.borrow()), ["a"]);
        assert_eq!(kept.state.borrow().issues.iter().next().unwrap().pod, "?/?");
        assert!(kept.counts("koord_runtime_proxy_pods_issues 1"));
    })
    .await;
}

#[tokio::test]
async fn a_list_in_json_without_room_for_all_pods_is_one_without_the_largest() {
    let pod = |name: &str, length: usize| {
        let long = "x".repeat(length);
        format!(
            r#"{{"kind":"Pod","metadata":{{"namespace":"n","name":"{name}","uid":"uid-{name}"}},"long":"{long}"}}"#
        )
    };
    let large = (0..45).map(|number| pod(&format!("large-{number}"), 3 << 19));
    let pods: Vec<String> = [pod("a", 1)].into_iter().chain(large).collect();
    let pods = [pods, vec![pod("b", 1)]].concat().join(",");
    let list = format!("\n{{\"kind\":\"List\",\"items\":[{pods}]}}");
    locally(async move {
        let kept = Kept::start(Some(&list));
        let state = kept.state.borrow();
        let read = names(&state);
        assert_eq!(read.first().map(String::as_str), Some("a"));
        assert_eq!(read.last().map(String::as_str), Some("b"));
        assert_eq!((read.len(), state.issues.count()), (36, 11));
        let reason = "it is one of the largest, and all together have more than 67108864 bytes";
        let told = chain_of(state.issues.iter().next().unwrap());
        assert!(told.ends_with(reason), "{told}");
    })
    .await;
    locally(async move {
        // Of YAML only a parser knows where a pod begins.
        let kept = Kept::start(Some(&format!("kind: Pod\n#{}", "x".repeat(64 << 20))));
        let state = kept.state.borrow();
        let (_, error) = state.failure.as_ref().unwrap();
        let error = chain_of(&**error);
        assert!(
            error.ends_with("it is larger than 67108864 bytes"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_as_it_was_says_nothing_new_unless_it_is_asked_anew() {
    locally(async {
        let mut kept = Kept::start(Some(&pod("a")));
        kept.state.mark_unchanged();
        kept.replace(&pod("a"));
        let quiet = tokio::time::timeout(Duration::from_millis(500), kept.state.changed());
        assert!(quiet.await.is_err());
        kept.reload.notify_one();
        let told = tokio::time::timeout(PATIENCE, kept.state.changed());
        told.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn who_wants_to_hear_it_anew_has_the_source_asked_once() {
    locally(async {
        let (tell, mut asked) = mpsc::channel(1);
        let desk = Worker::new("pods", STACK, move |(anew, done): Question| {
            tell.try_send(anew).unwrap();
            done.send((None, Ok(None))).ok();
        });
        let source = PodSource {
            desk,
            rhythm: Rhythm::Every(Duration::from_secs(3_600)),
            state: watch::Sender::default(),
            metrics: Rc::new(Metrics::new()),
        };
        let reload = Rc::new(Notify::new());
        tokio::task::spawn_local(source.run(reload.clone()));
        for anew in [false, true, true] {
            let question = tokio::time::timeout(PATIENCE, asked.recv());
            assert_eq!(question.await.unwrap(), Some(anew));
            reload.notify_one();
        }
    })
    .await;
}

/// Pods of a kubelet that gives each of these answers once, and then goes.
fn of_kubelet(answers: &'static [&'static str]) -> PodSource {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let kubelet = config::Kubelet {
        url: url.parse().unwrap(),
        interval: PERIOD,
        timeout: PATIENCE,
        token_file: None,
        ca_file: "/nowhere".into(),
        client: None,
        server_name: "node-1".to_owned(),
    };
    let config = config::Pods::Kubelet(Box::new(kubelet));
    let inputs = Arc::new(Inputs::new(["a"], []));
    PodSource::open(&config, inputs, Rc::new(Metrics::new())).unwrap()
}

const STARTING: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const NO_PODS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 29\r\n\r\n\
    {\"kind\":\"PodList\",\"items\":[]}";
const TWO_PODS: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
    {\"kind\":\"PodList\",\"items\":[\
    {\"metadata\":{\"namespace\":\"n\",\"name\":\"a\",\"uid\":\"u\"}},\
    {\"metadata\":{\"namespace\":\"n\",\"name\":\"b\",\"uid\":\"v\"}}]}";
const ONE_POD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
    {\"kind\":\"PodList\",\"items\":[{\"metadata\":{\"namespace\":\"n\",\"name\":\"a\",\"uid\":\"u\"}}]}";

#[tokio::test]
async fn a_kubelet_that_does_not_know_all_pods_yet_is_asked_again() {
    let source = of_kubelet(&[STARTING, NO_PODS, ONE_POD, TWO_PODS]);
    let are_two = |answer: &PodsAnswer| answer.pods.len() == 2;
    let state = source.said(PATIENCE, are_two).await;
    assert_eq!(names(&state), ["a", "b"]);
    assert!(state.failure.is_none());
}

#[tokio::test]
async fn a_kubelet_that_knows_no_pods_is_not_asked_without_end() {
    let source = of_kubelet(&[NO_PODS]);
    let state = source.said(Duration::ZERO, |_| false).await;
    assert!(state.failure.is_none());
    assert!(state.answer.unwrap().pods.is_empty());
}
