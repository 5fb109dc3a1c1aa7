//! A gRPC client that sends exactly the bytes it is given and returns exactly those that come.
//!
//! It knows no message, method or status: two of its replies can be compared byte for byte, which is
//! how transparency is shown. HTTP/2 is the `h2` library's, so what crosses the wire is legal; raw
//! frames are another tool's business.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::wire::{Frame, Frames};

/// Why a call could not even be sent.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// No connection to the socket.
    #[error("cannot connect to {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    /// The connection refused a new stream.
    #[error("the connection takes no call")]
    Http2(#[from] h2::Error),
    /// The path cannot stand in a request.
    #[error("not a path: {0}")]
    Path(String),
}

/// One call: where to, with what headers, which messages.
#[derive(Debug, Clone)]
pub struct RawRequest {
    pub path: String,
    /// Beside `content-type` and `te`, which every gRPC call has.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub messages: Vec<Frame>,
}

impl RawRequest {
    /// A unary call with one uncompressed message.
    pub fn unary(path: &str, message: impl Into<Bytes>) -> Self {
        Self {
            path: path.to_owned(),
            headers: Vec::new(),
            messages: vec![Frame::plain(message)],
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.push((HeaderName::from_static(name), value));
        self
    }
}

/// How a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawEnd {
    /// Its side of the stream was closed in order.
    Complete,
    /// The stream was reset by the other side.
    Reset(Reason),
    /// The connection went away under it.
    Lost,
}

/// Everything that came back for one call.
#[derive(Debug, Clone, PartialEq)]
pub struct RawReply {
    /// `None` when the stream ended before any header.
    pub status: Option<StatusCode>,
    pub headers: HeaderMap,
    pub messages: Vec<Frame>,
    /// Bytes behind the last whole message.
    pub rest: Bytes,
    /// `None` for a reply of headers alone and for one that was cut off.
    pub trailers: Option<HeaderMap>,
    pub end: RawEnd,
}

impl RawReply {
    /// The value of `grpc-status`, from the trailers or, without such, from the headers.
    pub fn grpc_status(&self) -> Option<i32> {
        self.ending("grpc-status")?.to_str().ok()?.parse().ok()
    }

    /// A header of the block that ends the call.
    pub fn ending(&self, name: &str) -> Option<&HeaderValue> {
        self.trailers.as_ref().unwrap_or(&self.headers).get(name)
    }
}

/// One connection of HTTP/2.
#[derive(Debug)]
pub struct RawClient {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl RawClient {
    /// Connects to a unix socket with wide windows, as a fast client would.
    ///
    /// # Errors
    ///
    /// When nothing listens there or the other side does not speak HTTP/2.
    pub async fn connect(socket: &Path) -> Result<Self, RawError> {
        let failed = |source| RawError::Connect {
            path: socket.to_owned(),
            source,
        };
        let stream = UnixStream::connect(socket).await.map_err(failed)?;
        Self::over(stream, &Self::settings()).await
    }

    /// What [`connect`](Self::connect) offers: start from here to offer something else.
    pub fn settings() -> Builder {
        let mut settings = Builder::new();
        settings
            .initial_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .initial_max_send_streams(10_000)
            .max_header_list_size(1 << 20)
            .enable_push(false);
        settings
    }

    /// Speaks over any stream of bytes, with the caller's settings.
    ///
    /// # Errors
    ///
    /// When the other side does not speak HTTP/2.
    pub async fn over<S>(stream: S, settings: &Builder) -> Result<Self, RawError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (requests, connection) = settings.handshake(stream).await?;
        Ok(Self {
            requests,
            connection: tokio::spawn(connection),
        })
    }

    /// Sends a whole request and collects the whole reply.
    ///
    /// # Errors
    ///
    /// When the request could not be sent; whatever comes back afterwards is a reply.
    pub async fn call(&self, request: RawRequest) -> Result<RawReply, RawError> {
        let mut stream = self.open(&request.path, request.headers).await?;
        let last = request.messages.len().checked_sub(1);
        if last.is_none() {
            stream.send_data(Bytes::new(), true)?;
        }
        for (index, frame) in request.messages.iter().enumerate() {
            stream.send_data(frame.encode(), Some(index) == last)?;
        }
        Ok(stream.collect().await)
    }

    /// Sends the headers of a call and leaves the rest to the caller.
    ///
    /// # Errors
    ///
    /// When the connection takes no new stream.
    pub async fn open(
        &self,
        path: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<RawStream, RawError> {
        let mut request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|_| RawError::Path(path.to_owned()))?;
        request.headers_mut().extend(headers);
        let mut requests = self.requests.clone().ready().await?;
        let (response, send) = requests.send_request(request, false)?;
        Ok(RawStream { send, response })
    }

    /// Waits until the other side ends the connection.
    ///
    /// # Errors
    ///
    /// The error with which it ended, such as a GOAWAY with a code.
    pub async fn closed(self) -> Result<(), h2::Error> {
        drop(self.requests);
        self.connection.await.unwrap_or(Ok(()))
    }
}

/// One open call.
#[derive(Debug)]
pub struct RawStream {
    send: SendStream<Bytes>,
    response: ResponseFuture,
}

impl RawStream {
    /// Sends bytes as DATA, as they are; `end` closes our side.
    ///
    /// # Errors
    ///
    /// When the stream is closed already.
    pub fn send_data(&mut self, data: Bytes, end: bool) -> Result<(), RawError> {
        Ok(self.send.send_data(data, end)?)
    }

    /// Cancels the call.
    pub fn reset(&mut self, reason: Reason) {
        self.send.send_reset(reason);
    }

    /// Waits for the reply's headers and hands over its body, to be read or left unread. A stream
    /// that is left unread grants the other side no window.
    ///
    /// # Errors
    ///
    /// When the stream ends before any header.
    pub async fn response(self) -> Result<(HeaderMap, RecvStream, SendStream<Bytes>), RawError> {
        let (parts, body) = self.response.await?.into_parts();
        Ok((parts.headers, body, self.send))
    }

    /// Waits for the end of the reply.
    pub async fn collect(self) -> RawReply {
        let Self { send, response } = self;
        let mut reply = RawReply {
            status: None,
            headers: HeaderMap::new(),
            messages: Vec::new(),
            rest: Bytes::new(),
            trailers: None,
            end: RawEnd::Complete,
        };
        let mut frames = Frames::default();
        if let Err(error) = read(response, &mut frames, &mut reply).await {
            reply.end = error
                .reason()
                .filter(|_| error.is_reset())
                .map_or(RawEnd::Lost, RawEnd::Reset);
        }
        reply.rest = frames.rest();
        // Held until now: a dropped sender would cancel the call.
        drop(send);
        reply
    }
}

async fn read(
    response: ResponseFuture,
    frames: &mut Frames,
    reply: &mut RawReply,
) -> Result<(), h2::Error> {
    let (parts, mut body) = response.await?.into_parts();
    reply.status = Some(parts.status);
    reply.headers = parts.headers;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        frames.push(&data);
        reply.messages.extend(frames.by_ref());
    }
    reply.trailers = body.trailers().await?;
    Ok(())
}
