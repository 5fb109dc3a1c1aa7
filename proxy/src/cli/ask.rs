//! One HTTP request over the admin socket.

use super::Answer;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    net::UnixStream,
    time::{Instant, sleep, timeout},
};

/// How long an answer may take; the proxy itself gives a connection ten seconds.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long whoever asks for the status right after the start waits for the runtime's first answer, and how
/// often it is looked for.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of an answer: many times a ledger of a full node.
const MAX_ANSWER: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    #[error("cannot reach a proxy at {}", socket.display())]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{page:?} cannot be asked for")]
    Page {
        page: String,
        #[source]
        source: hyper::http::Error,
    },
    #[error("the connection failed")]
    Http(#[from] hyper::Error),
    #[error("the answer cannot be read")]
    Answer(#[source] Box<dyn Error + Send + Sync>),
    #[error("the answer is not of the form that this version knows")]
    Form(#[from] serde_json::Error),
    #[error("no answer came within {} s", DEADLINE.as_secs())]
    Late,
}

pub(super) async fn get(socket: &Path, page: &str) -> Result<Answer, AskError> {
    ask(socket, Method::GET, page, "").await
}

/// What it says of itself. It is ready to serve before it has asked the runtime for the first time, and
/// whether that is up is what a person wants to know.
pub(super) async fn status(socket: &Path) -> Result<Answer, AskError> {
    let start = Instant::now();
    loop {
        let answer = get(socket, "/status").await?;
        if !is_early(&answer.text) || start.elapsed() >= PATIENCE {
            return Ok(answer);
        }
        sleep(PAUSE).await;
    }
}

/// Whether the runtime was not asked yet, and will be.
fn is_early(status: &str) -> bool {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    status["runtimeUp"].is_null()
        && status["mode"]
            .as_str()
            .is_some_and(|it| it != "pass-through")
}

pub(super) async fn put(socket: &Path, page: &str, body: &str) -> Result<Answer, AskError> {
    ask(socket, Method::PUT, page, body).await
}

async fn ask(socket: &Path, method: Method, page: &str, body: &str) -> Result<Answer, AskError> {
    let answer = timeout(DEADLINE, exchange(socket, method, page, body));
    answer.await.unwrap_or(Err(AskError::Late))
}

async fn exchange(
    socket: &Path,
    method: Method,
    page: &str,
    body: &str,
) -> Result<Answer, AskError> {
    let request = Request::builder()
        .method(method)
        .uri(page)
        .header(header::HOST, "localhost")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .map_err(|source| AskError::Page {
            page: page.to_owned(),
            source,
        })?;
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| AskError::Connect {
            socket: socket.to_owned(),
            source,
        })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let reply = async {
        let reply = sender.send_request(request).await?;
        let good = reply.status().is_success();
        let body = Limited::new(reply.into_body(), MAX_ANSWER).collect().await;
        let text = body.map_err(AskError::Answer)?.to_bytes();
        Ok(Answer {
            text: String::from_utf8_lossy(&text).into_owned(),
            good,
        })
    };
    let mut reply = std::pin::pin!(reply);
    // The connection moves only while it is polled; the answer may be complete before it ends.
    tokio::select! {
        answer = &mut reply => answer,
        ended = connection => {
            ended?;
            reply.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_early;

    #[test]
    fn a_status_is_early_until_the_runtime_was_asked_if_it_ever_is() {
        assert!(is_early(r#"{"mode":"enforce","runtimeUp":null}"#));
        assert!(is_early(r#"{"mode":"observe"}"#));
        for status in [
            r#"{"mode":"observe","runtimeUp":true}"#,
            r#"{"mode":"enforce","runtimeUp":false}"#,
            r#"{"mode":"pass-through","runtimeUp":null}"#,
            "not ours",
        ] {
            assert!(!is_early(status), "{status}");
        }
    }
}
