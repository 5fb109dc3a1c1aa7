//! Pods from the kubelet's `/pods`.
//!
//! Each question has a connection and a small runtime of its own on the thread that asks it, so that
//! nothing of it, neither TLS nor megabytes, is on the data path's. Token, certificates and key are
//! read each time: whoever renews them tells nobody.

use super::{
    Text,
    tls::{self, TlsError},
};
use crate::{
    config::{Kubelet, KubeletUrl},
    regular_file::{self, FileError},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use koord_proto::{
    Issues,
    pods::{MAX_LENGTH, make_room},
};
use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime,
    time::timeout,
};

/// Bytes of a token, a certificate or a key.
const MAX_FILE: u64 = 1 << 20;

/// Why a kubelet did not say its pods.
#[derive(Debug, Error)]
pub enum KubeletError {
    #[error("the means to ask it are not there")]
    Runtime(#[source] io::Error),
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: FileError,
    },
    #[error("what is in {} is no token", path.display())]
    Token { path: PathBuf },
    #[error("cannot connect to it")]
    Connect(#[source] io::Error),
    #[error("no TLS connection came about")]
    Tls(#[from] TlsError),
    #[error("the connection failed")]
    Http(#[from] hyper::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("its answer is longer than {MAX_LENGTH} bytes")]
    TooLarge,
    #[error("it did not answer in time")]
    Late,
}

/// Asks a kubelet.
#[derive(Debug)]
pub(super) struct PodsOfKubelet {
    config: Box<Kubelet>,
}

// === impl PodsOfKubelet ===

impl PodsOfKubelet {
    pub(super) fn at(config: &Kubelet) -> Self {
        Self {
            config: Box::new(config.clone()),
        }
    }

    /// Where it is asked, for people.
    pub(super) fn url(&self) -> String {
        self.config.url.to_string()
    }

    /// What it says now. Waits for it.
    pub(super) fn read(&self) -> Result<Text, KubeletError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(KubeletError::Runtime)?;
        let answer = runtime.block_on(async {
            let answer = timeout(self.config.timeout, self.ask());
            answer.await.unwrap_or(Err(KubeletError::Late))
        });
        // A name that is still being looked up is waited for by nobody.
        runtime.shutdown_background();
        answer
    }

    async fn ask(&self) -> Result<Text, KubeletError> {
        let KubeletUrl {
            tls, host, port, ..
        } = &self.config.url;
        let request = self.request()?;
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.map_err(KubeletError::Connect)?;
        if !tls {
            return exchange(stream, request).await;
        }
        let stream = tls::connect(stream, &self.config).await?;
        exchange(stream, request).await
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, KubeletError> {
        let KubeletUrl {
            authority, path, ..
        } = &self.config.url;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = path.clone();
        let headers = request.headers_mut();
        let host = HeaderValue::try_from(authority);
        headers.insert(HOST, host.expect("what is one of an address can be said"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some(path) = &self.config.token_file {
            let bad = || KubeletError::Token { path: path.clone() };
            let token = read(path)?;
            let token = token.trim_ascii();
            let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
                .ok()
                .filter(|_| !token.is_empty())
                .ok_or_else(bad)?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        Ok(request)
    }
}

/// A file that somebody may renew at any time.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, KubeletError> {
    regular_file::read(path, MAX_FILE).map_err(|source| KubeletError::File {
        path: path.to_owned(),
        source,
    })
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
) -> Result<Text, KubeletError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let reply = sender.send_request(request).await?;
        if reply.status() != StatusCode::OK {
            return Err(KubeletError::Status(reply.status()));
        }
        let mut body = reply.into_body();
        let (mut bytes, mut left_out) = (Vec::new(), Issues::default());
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if bytes.len() + data.len() > MAX_LENGTH {
                left_out.append(make_room(&mut bytes));
            }
            if bytes.len() + data.len() > MAX_LENGTH {
                return Err(KubeletError::TooLarge);
            }
            bytes.extend_from_slice(data);
        }
        Ok((bytes, left_out))
    };
    let mut answer = pin!(answer);
    // The connection moves only while it is polled; the answer may be complete before it ends.
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended?;
            answer.await
        }
    }
}

#[cfg(test)]
mod tests;
