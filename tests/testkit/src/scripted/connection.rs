//! One connection of a scripted runtime: accepts streams, records them, walks through their steps.

use std::future::poll_fn;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::Script;
use super::record::{CallEnd, Recorder};
use super::script::{Reply, Step, status_block};
use crate::wire::{Frame, Frames};

/// What is asked of every open connection at once.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    GoAway,
    AbruptGoAway(Reason),
    Disconnect,
}

/// What the scripted runtime offers: windows wide enough never to be the reason for a stall.
pub(super) fn settings() -> Builder {
    let mut settings = Builder::new();
    settings
        .initial_window_size(1 << 20)
        .initial_connection_window_size(64 << 20)
        .max_concurrent_streams(100_000)
        .max_header_list_size(1 << 20);
    settings
}

pub(super) async fn serve<S>(
    stream: S,
    settings: &Builder,
    script: &Script,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut orders = script.orders.subscribe();
    let number = script.next_connection();
    let mut connection = settings.handshake::<_, Bytes>(stream).await?;
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(accepted) => {
                    let (request, respond) = accepted?;
                    calls.spawn(Call::begin(script, number, request, respond).run());
                }
                None => return Ok(()),
            },
            order = orders.recv() => match order {
                Ok(Order::GoAway) => connection.graceful_shutdown(),
                Ok(Order::AbruptGoAway(reason)) => connection.abrupt_shutdown(reason),
                Ok(Order::Disconnect) | Err(_) => return Ok(()),
            },
            Some(_) = calls.join_next() => {}
        }
    }
}

/// A stream between its headers and its end.
struct Call {
    recorder: Recorder,
    orders: broadcast::Sender<Order>,
    reply: Reply,
    request: Option<RecvStream>,
    frames: Frames,
    messages: Vec<Frame>,
    respond: SendResponse<Bytes>,
    body: Option<SendStream<Bytes>>,
}

impl Call {
    fn begin(
        script: &Script,
        connection: u64,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
    ) -> Self {
        let (parts, body) = request.into_parts();
        let (recorder, reply) = script.begin(connection, &parts);
        let unexpected = || {
            Reply::steps(vec![
                Step::AwaitEnd,
                Step::TrailersOnly(status_block(12, "not in the script")),
            ])
        };
        Self {
            recorder,
            orders: script.orders.clone(),
            reply: reply.unwrap_or_else(unexpected),
            request: Some(body),
            frames: Frames::default(),
            messages: Vec::new(),
            respond,
            body: None,
        }
    }

    async fn run(mut self) {
        for step in std::mem::take(&mut self.reply.steps) {
            if let Err(error) = self.take(step).await {
                let end = match error.reason() {
                    Some(reason) if !error.is_go_away() => CallEnd::Reset(reason),
                    _ => CallEnd::Lost,
                };
                self.recorder.end(end, self.frames.rest());
                return;
            }
        }
    }

    async fn take(&mut self, step: Step) -> Result<(), h2::Error> {
        match step {
            Step::AwaitMessages(count) => self.read(|call| call.messages.len() >= count).await,
            Step::AwaitEnd => self.read(|_| false).await,
            Step::Headers(headers) => {
                self.body = Some(self.respond.send_response(head(headers), false)?);
                Ok(())
            }
            Step::Message(frame) => self.body().send_data(frame.encode(), false),
            Step::Data(data) => self.body().send_data(data, false),
            Step::Echo => {
                for frame in std::mem::take(&mut self.messages) {
                    self.body().send_data(frame.encode(), false)?;
                }
                Ok(())
            }
            Step::Delay(delay) => self.unless_reset(tokio::time::sleep(delay)).await,
            Step::Hold(gate) => self.unless_reset(gate.passed()).await,
            Step::Trailers(trailers) => self.body().send_trailers(trailers),
            Step::TrailersOnly(headers) => {
                self.body = Some(self.respond.send_response(head(headers), true)?);
                Ok(())
            }
            Step::Reset(reason) => {
                match &mut self.body {
                    Some(body) => body.send_reset(reason),
                    None => self.respond.send_reset(reason),
                }
                Ok(())
            }
            Step::GoAway => self.order(Order::GoAway),
            Step::AbruptGoAway(reason) => self.order(Order::AbruptGoAway(reason)),
            Step::Disconnect => self.order(Order::Disconnect),
        }
    }

    fn order(&self, order: Order) -> Result<(), h2::Error> {
        // The connection of this very call listens, so somebody hears it.
        drop(self.orders.send(order));
        Ok(())
    }

    fn body(&mut self) -> &mut SendStream<Bytes> {
        self.body.as_mut().expect("a script sends headers first")
    }

    /// Reads and records the request until `enough` or its end.
    async fn read(&mut self, enough: impl Fn(&Self) -> bool) -> Result<(), h2::Error> {
        while !enough(self) {
            let Some(request) = &mut self.request else {
                return Ok(());
            };
            if let Some(data) = request.data().await {
                let data = data?;
                request.flow_control().release_capacity(data.len())?;
                self.frames.push(&data);
                let new: Vec<Frame> = self.frames.by_ref().collect();
                self.recorder.received(&new);
                self.messages.extend(new);
            } else {
                self.recorder.trailers(request.trailers().await?);
                self.recorder.end(CallEnd::Complete, self.frames.rest());
                self.request = None;
            }
        }
        Ok(())
    }

    /// Waits for `event`; a reset by the client ends the waiting with that error.
    async fn unless_reset(&mut self, event: impl Future<Output = ()>) -> Result<(), h2::Error> {
        let Self { respond, body, .. } = self;
        let reset = poll_fn(|context| match body {
            Some(body) => body.poll_reset(context),
            None => respond.poll_reset(context),
        });
        tokio::select! {
            () = event => Ok(()),
            reason = reset => Err(reason?.into()),
        }
    }
}

fn head(headers: HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
        .headers_mut()
        .entry("content-type")
        .or_insert(HeaderValue::from_static("application/grpc"));
    response
}
