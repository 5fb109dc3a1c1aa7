//! The admin socket: metrics, health, the log filter, and the ledger, by HTTP/1.1 on a unix socket.
//!
//! For root only, as the runtime's own socket is. Everything is bounded (connections, time, sizes),
//! so that a stuck client here cannot be felt on the data path.

use crate::{
    config::{BesideKoordlet, Front, Mode},
    hub::Hub,
    log::{LogControl, RateLimited},
    pods::PodsState,
    policy_file::PolicyState,
    reconcile,
    socket::peer_is_root_or_us,
    status::chain_of,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use koord_model::{Setting, excerpt};
use koord_proto::{Issues, policy::NodePolicy};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    convert::Infallible,
    error::Error,
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, error, info, warn};

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// How long one connection may take for all it wants.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a request's body: a log filter.
const MAX_BODY: usize = 4096;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is said about the whole process.
#[derive(Debug)]
pub struct Condition {
    pub mode: Mode,
    pub front: Front,
    pub beside_koordlet: BesideKoordlet,
    /// What a person should know since the start: why hooks are off, what is not served.
    pub remarks: Vec<String>,
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The name of this node in the policy.
    pub node_name: String,
    /// What the policy file last said; `None` without one.
    pub policy: RefCell<Option<PolicyState>>,
    /// What the source of pods last said; `None` without one.
    pub pods: Option<watch::Receiver<PodsState>>,
    pub draining: Cell<bool>,
}

/// What the admin socket can tell and change.
#[derive(Clone)]
pub struct Admin {
    pub hub: Rc<Hub>,
    pub condition: Rc<Condition>,
    pub log: LogControl,
}

type Reply = Response<Full<Bytes>>;

// === impl Admin ===

impl Admin {
    /// Answers until it is dropped. Must run in a `LocalSet`.
    pub async fn serve(self, listener: UnixListener) {
        let mut connections = JoinSet::new();
        let mut complaints = RateLimited::default();
        loop {
            tokio::select! {
                // Those that have ended leave their places before somebody is turned away.
                biased;
                Some(ended) = connections.join_next() => if let Err(died) = ended {
                    error!(error = &died as &dyn Error, "a connection of the admin socket died");
                },
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &mut connections),
                    Err(error) => {
                        if let Some(suppressed) = complaints.permit("-", "accept", Instant::now()) {
                            let error = &error as &dyn Error;
                            warn!(error, suppressed, "cannot accept on the admin socket");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn admit(&self, stream: UnixStream, connections: &mut JoinSet<()>) {
        if !peer_is_root_or_us(&stream) {
            debug!("refused a connection to the admin socket: its peer is not root");
            return;
        }
        if connections.len() >= CONNECTIONS {
            debug!("refused a connection to the admin socket: the cap is reached");
            return;
        }
        let admin = self.clone();
        connections.spawn_local(async move {
            // A client that fails or is too slow has only itself to blame.
            timeout(DEADLINE, admin.connection(stream)).await.ok();
        });
    }

    async fn connection(self, stream: UnixStream) -> Result<(), hyper::Error> {
        let service = service_fn(move |request| {
            let admin = self.clone();
            async move { Ok::<_, Infallible>(admin.answer(request).await) }
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(DEADLINE)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .await
    }

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        match (request.method(), path.as_str()) {
            (&Method::GET, "/metrics") => match self.hub.metrics().encode() {
                Ok(text) => reply(StatusCode::OK, OPEN_METRICS, text),
                Err(error) => failed(&error),
            },
            (&Method::GET, "/healthz") => reply(StatusCode::OK, TEXT, "ok\n"),
            (&Method::GET, "/readyz") => self.ready(),
            (&Method::GET, "/status") => self.status(),
            (&Method::GET, "/policy") => self.policy(),
            (&Method::GET, "/ledger") => self.ledger(None).await,
            (&Method::GET, "/explain") => match id_of(request.uri().query()) {
                Some(id) => self.ledger(Some(&id)).await,
                None => reply(StatusCode::BAD_REQUEST, TEXT, "say ?id=POD-OR-CONTAINER\n"),
            },
            (&Method::GET, "/log") => match self.log.filter() {
                Ok(filter) => reply(StatusCode::OK, TEXT, filter + "\n"),
                Err(error) => failed(&error),
            },
            (&Method::PUT, "/log") => self.set_log(request.into_body()).await,
            (&Method::PUT, "/hooks") => self.switch_hook(request.into_body()).await,
            (
                _,
                "/metrics" | "/healthz" | "/readyz" | "/status" | "/policy" | "/ledger"
                | "/explain" | "/log" | "/hooks",
            ) => reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "not by this method\n"),
            (_, page) => reply(
                StatusCode::NOT_FOUND,
                TEXT,
                format!(
                    "no page {:?}; there are /metrics, /healthz, /readyz, /status, /policy, /ledger, \
                     /explain?id=POD, /log and /hooks\n",
                    excerpt(page)
                ),
            ),
        }
    }

    fn ready(&self) -> Reply {
        // Without hooks nothing is asked of the runtime, and clients see for themselves.
        let hooks = self.condition.mode != Mode::PassThrough;
        let reason = if self.condition.draining.get() {
            "draining\n"
        } else if !hooks {
            return reply(StatusCode::OK, TEXT, "ready\n");
        } else if !self.hub.runtime_is_up() {
            "the runtime does not answer\n"
        } else if self.condition.front == Front::Nri && !self.hub.plugin_is_up() {
            "the runtime does not ask us as its plugin\n"
        } else if !self.hub.is_whole() {
            "the runtime has not been listed yet\n"
        } else if !self.hub.knows_of_koordlet() {
            "whether koordlet runs here is not known yet\n"
        } else {
            return reply(StatusCode::OK, TEXT, "ready\n");
        };
        reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason)
    }

    fn status(&self) -> Reply {
        let policy = self.hub.policy();
        let hooks: Vec<_> = policy
            .chain()
            .hooks()
            .map(|meta| {
                let unsupported = policy.chain().unsupported(policy.node());
                let why = unsupported
                    .filter(|(other, _)| other.name == meta.name)
                    .map(|(_, why)| why)
                    .next();
                let mut row = serde_json::json!({ "name": meta.name });
                if let Some(why) = why {
                    row["unsupported"] = why.into();
                }
                if policy.chain().resting().contains(meta.name) {
                    row["rests"] = "koordlet does its part".into();
                }
                if policy.chain().switched_off().contains(meta.name) {
                    row["switchedOff"] = "until it is switched on, or we restart".into();
                }
                row
            })
            .collect();
        let runtime = self
            .hub
            .runtime()
            .map(|(name, version)| serde_json::json!({ "name": name, "version": version }));
        let plugin = self.condition.front == Front::Nri;
        let names = |settings: &BTreeSet<Setting>| -> Vec<_> {
            settings.iter().map(|setting| setting.name()).collect()
        };
        let status = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "mode": self.condition.mode.as_str(),
            "front": self.condition.front.as_str(),
            "runtime": runtime,
            "remarks": self.remarks(),
            "runtimeUp": self.hub.runtime_up(),
            "pluginUp": plugin.then(|| self.hub.plugin_is_up()),
            "feed": self.hub.watches().then(|| self.hub.feed()),
            "pluginSets": plugin.then(|| names(&policy.sayable())),
            "besideKoordlet": self.condition.beside_koordlet.as_str(),
            "leftSettings": names(policy.chain().left()),
            "ledgerWhole": self.hub.is_whole(),
            "podElsewhere": self.hub.pod_elsewhere().map(|it| it.to_string()),
            "hooks": hooks,
            "policy": self.policy_report(),
            "pods": self.pods_report(),
        });
        reply(StatusCode::OK, JSON, status.to_string() + "\n")
    }

    /// What a person should know: since the start, and at this moment.
    fn remarks(&self) -> Vec<String> {
        let (hub, condition) = (&self.hub, &self.condition);
        let mut remarks = condition.remarks.clone();
        let now = [
            hub.standing_by(),
            hub.koordlet_remark(),
            hub.queue().standstill(),
            reconcile::refused_switch(hub),
        ];
        remarks.extend(now.into_iter().flatten().map(str::to_owned));
        remarks.extend(hub.queue().hang_remarks(hub));
        // Nothing is asked of it to pass calls through, nor was anything yet right after the start.
        if condition.mode != Mode::PassThrough && hub.runtime_up() == Some(false) {
            remarks.push(format!(
                "the runtime does not answer at {}: what is known of its pods may be old, and it is \
                 asked again until it answers",
                condition.runtime.display()
            ));
        }
        let asks = condition.mode != Mode::PassThrough && condition.front == Front::Nri;
        if asks && !hub.plugin_is_up() {
            let remark = "the runtime does not ask us as its plugin: no hook sees its pods";
            remarks.push(remark.to_owned());
        }
        let policy = condition.policy.borrow();
        remarks.extend(policy.iter().flat_map(|it| self.policy_remarks(it)));
        remarks.extend(self.pods_remark());
        if let Some(directory) = hub.pod_elsewhere() {
            let policy = hub.policy();
            remarks.push(format!(
                "a pod's control group is {directory}, which is not below {}, where the kubelet's \
                 pods are taken to be: is --cgroup-root the kubelet's cgroupRoot?",
                policy.node().tiers.kubepods
            ));
        }
        remarks
    }

    fn pods_remark(&self) -> Option<String> {
        let states = self.condition.pods.as_ref()?.borrow();
        let (_, error) = states.failure.as_ref()?;
        let known = match states.answer {
            Some(_) => "what it said last",
            None => "what requests and lists say",
        };
        let error = chain_of(&**error);
        Some(format!(
            "the source of pods tells nothing, so {known} counts of pods: {error}"
        ))
    }

    fn policy_remarks(&self, state: &PolicyState) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(error) = &state.error {
            let in_force = match state.is_of_file {
                true => "what it said when it last could be used stays in force",
                false => "there is no policy in force",
            };
            remarks.push(format!(
                "the policy file cannot be used as it is, so {in_force}: {}",
                chain_of(&**error)
            ));
        }
        if state.other_nodes > 0 && *state.policy == NodePolicy::default() {
            remarks.push(format!(
                "the policy file is about other nodes alone: is {} this node's name in the cluster?",
                self.condition.node_name
            ));
        }
        if !state.issues.is_empty() {
            remarks.push(format!(
                "parts of the policy are wrong and not in force, {} of them: `policy` says which",
                state.issues.count()
            ));
        }
        remarks
    }

    fn policy(&self) -> Reply {
        reply(
            StatusCode::OK,
            JSON,
            self.policy_report().to_string() + "\n",
        )
    }

    /// Which documents are in force, and what is wrong with the file; null without a file.
    fn policy_report(&self) -> serde_json::Value {
        let state = self.condition.policy.borrow();
        let Some(PolicyState {
            policy,
            issues,
            other_nodes,
            error,
            ..
        }) = &*state
        else {
            return serde_json::Value::Null;
        };
        let documents = [
            ("NodeSLO", policy.slo.is_some()),
            ("NodeResourceTopology", policy.topology.is_some()),
            ("Node", policy.node.is_some()),
        ];
        let in_force = documents.iter().filter(|(_, there)| *there);
        serde_json::json!({
            "inForce": in_force.map(|(kind, _)| *kind).collect::<Vec<_>>(),
            "node": self.condition.node_name,
            "otherNodes": other_nodes,
            "error": error.as_deref().map(|error| chain_of(error)),
            "issues": told(issues),
            "moreIssues": more_than_told(issues),
        })
    }

    /// How many pods the source knows, what is wrong with them, and for how long it has said nothing
    /// that can be used; null without a source.
    fn pods_report(&self) -> serde_json::Value {
        let Some(states) = &self.condition.pods else {
            return serde_json::Value::Null;
        };
        let PodsState {
            answer,
            issues,
            failure,
        } = &*states.borrow();
        let seconds = |since: tokio::time::Instant| since.elapsed().as_secs();
        serde_json::json!({
            "pods": answer.as_ref().map(|answer| answer.pods.len()),
            "answeredSecondsAgo": answer.as_ref().map(|answer| seconds(answer.asked)),
            "issues": told(issues),
            "moreIssues": more_than_told(issues),
            "failsForSeconds": failure.as_ref().map(|(since, _)| seconds(*since)),
            "error": failure.as_ref().map(|(_, error)| chain_of(&**error)),
        })
    }

    async fn ledger(&self, filter: Option<&str>) -> Reply {
        let report = self.hub.report(filter).await;
        // The node is always there, though nothing may be decided for it.
        let named = filter.filter(|filter| *filter != "node");
        if let Some(named) = named
            && report.pods.is_empty()
            && report.node.is_empty()
        {
            let named = excerpt(named);
            let unknown = format!("no pod, container or group of the node is {named:?}\n");
            return reply(StatusCode::NOT_FOUND, TEXT, unknown);
        }
        match serde_json::to_string(&report) {
            Ok(text) => reply(StatusCode::OK, JSON, text + "\n"),
            Err(error) => failed(&error),
        }
    }

    /// Takes `NAME=on` and `NAME=off`.
    async fn switch_hook(&self, body: Incoming) -> Reply {
        let switch = match text_of(body, "switch").await {
            Ok(switch) => switch,
            Err(refusal) => return refusal,
        };
        let (hook, on) = match switch.split_once('=') {
            Some((hook, "on")) => (hook, true),
            Some((hook, "off")) => (hook, false),
            _ => return reply(StatusCode::BAD_REQUEST, TEXT, "say HOOK=on or HOOK=off\n"),
        };
        if !self.hub.switch_hook(hook, on) {
            let hook = excerpt(hook);
            let unknown = format!("no hook {hook:?} here; status names those that there are\n");
            return reply(StatusCode::NOT_FOUND, TEXT, unknown);
        }
        if on {
            info!(hook, "a hook was switched on");
        } else {
            warn!(
                hook,
                "a hook was switched off: what it had decided is given back"
            );
        }
        reply(StatusCode::OK, TEXT, "ok\n")
    }

    async fn set_log(&self, body: Incoming) -> Reply {
        let filter = match text_of(body, "filter").await {
            Ok(filter) => filter,
            Err(refusal) => return refusal,
        };
        match self.log.set_filter(&filter) {
            Ok(()) => {
                info!(filter, "the log filter was changed");
                reply(StatusCode::OK, TEXT, "ok\n")
            }
            Err(error) => reply(StatusCode::BAD_REQUEST, TEXT, chain_of(&error) + "\n"),
        }
    }
}

/// The issues of a text that are told.
fn told(issues: &Issues<impl Error + 'static>) -> Vec<String> {
    issues.iter().map(|issue| chain_of(issue)).collect()
}

/// How many there are beside them; nothing if these are all.
fn more_than_told<T>(issues: &Issues<T>) -> Option<usize> {
    Some(issues.more()).filter(|more| *more > 0)
}

/// A short text that was put.
async fn text_of(body: Incoming, what: &str) -> Result<String, Reply> {
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        let too_long = format!("too long for a {what}\n");
        return Err(reply(StatusCode::PAYLOAD_TOO_LARGE, TEXT, too_long));
    };
    match str::from_utf8(&body.to_bytes()) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => {
            let no_text = format!("a {what} is text\n");
            Err(reply(StatusCode::BAD_REQUEST, TEXT, no_text))
        }
    }
}

/// The value of `id` in a query; ids and pod names need no decoding.
fn id_of(query: Option<&str>) -> Option<String> {
    query?
        .split('&')
        .find_map(|pair| pair.strip_prefix("id="))
        .filter(|id| !id.is_empty())
        .map(str::to_owned)
}

fn failed(error: &dyn Error) -> Reply {
    reply(
        StatusCode::INTERNAL_SERVER_ERROR,
        TEXT,
        chain_of(error) + "\n",
    )
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_from_the_query() {
        assert_eq!(id_of(Some("x=1&id=web")), Some("web".to_owned()));
        assert_eq!(id_of(Some("id=")), None);
        assert_eq!(id_of(None), None);
    }
}
