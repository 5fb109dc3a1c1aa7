//! A connection that wakes its thread when there is something to read, and when there is room again
//! where a write has found none.
//!
//! Whoever waits for room all the time is woken whenever the other end has read something, and it is
//! that end's read that has to wake it: twice a call, once at the runtime and once at the client.

use crate::readiness::registered;
use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::unix::net::UnixStream,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net,
};

/// So many writes in a row have to find room before nobody is told of it any more: to begin and to end
/// that for each part of a long reply would cost more than it spares.
const CALM: u32 = 32;

/// A connection; whoever polls it polls for both directions, with one waker.
#[derive(Debug)]
pub(super) struct Stream {
    /// `None` once the kernel would not take it again.
    socket: Option<AsyncFd<UnixStream>>,
    /// Whether room to write is told of, and how many writes have found it since.
    awaits_room: bool,
    calm: u32,
}

// === impl Stream ===

impl Stream {
    /// # Errors
    ///
    /// When the kernel does not let it be waited for.
    pub(super) fn new(stream: net::UnixStream) -> io::Result<Self> {
        let socket = registered(stream.into_std()?, Interest::READABLE)?;
        Ok(Self {
            socket: Some(socket),
            awaits_room: false,
            calm: 0,
        })
    }

    /// Reads once; nothing is the end of what comes.
    ///
    /// # Errors
    ///
    /// As `read(2)`.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let socket = self.socket()?;
        loop {
            let mut guard = ready!(socket.poll_read_ready(cx))?;
            match guard.try_io(|socket| socket.get_ref().read(buffer)) {
                Ok(Ok(count)) => {
                    // One that gave less than it was asked for is empty: the next change is told.
                    if (1..buffer.len()).contains(&count) {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Ok(Err(error)) if error.kind() != ErrorKind::Interrupted => {
                    return Poll::Ready(Err(error));
                }
                // Interrupted, or it is empty, which is remembered: it is waited for then.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Writes once, as much of all parts as there is room for.
    ///
    /// # Errors
    ///
    /// As `writev(2)`.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: [&[u8]; 3],
    ) -> Poll<io::Result<usize>> {
        let whole = parts.iter().map(|part| part.len()).sum();
        if !self.awaits_room {
            match write(self.socket()?.get_ref(), parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            self.await_room(cx, true)?;
        }
        let count = loop {
            let mut guard = ready!(self.socket()?.poll_write_ready(cx))?;
            if let Ok(written) = guard.try_io(|socket| write(socket.get_ref(), parts)) {
                let count = written?;
                if count < whole {
                    guard.clear_ready();
                }
                break count;
            }
        };
        self.calm = if count < whole { 0 } else { self.calm + 1 };
        if self.calm == CALM {
            self.await_room(cx, false)?;
        }
        Poll::Ready(Ok(count))
    }

    fn socket(&self) -> io::Result<&AsyncFd<UnixStream>> {
        self.socket
            .as_ref()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Has room to write be told of from now on, or no more.
    fn await_room(&mut self, cx: &Context<'_>, awaits_room: bool) -> io::Result<()> {
        let interest = match awaits_room {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        if let Some(socket) = self.socket.take() {
            let socket = registered(socket.into_inner(), interest)?;
            self.socket = Some(socket);
        }
        (self.awaits_room, self.calm) = (awaits_room, 0);
        // Whoever waited for something to read waited at the old registration.
        cx.waker().wake_by_ref();
        Ok(())
    }
}

fn write(mut socket: &UnixStream, parts: [&[u8]; 3]) -> io::Result<usize> {
    loop {
        let written = match parts {
            [one, [], []] | [[], one, []] | [[], [], one] => socket.write(one),
            _ => socket.write_vectored(&parts.map(IoSlice::new)),
        };
        match written {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            written => return written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
        time::Duration,
    };
    use tokio::{
        sync::Notify,
        time::{sleep, timeout},
    };

    #[derive(Default)]
    struct Woken {
        /// How often it was woken.
        times: AtomicUsize,
        told: Notify,
    }

    impl Woken {
        /// Waits until it is woken, if it was not since the last time that somebody looked.
        async fn wait(&self) {
            while self.times.swap(0, Ordering::SeqCst) == 0 {
                self.told.notified().await;
            }
        }
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.times.fetch_add(1, Ordering::SeqCst);
            self.told.notify_one();
        }
    }

    fn pair() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours = net::UnixStream::from_std(ours).unwrap();
        (Stream::new(ours).unwrap(), theirs)
    }

    async fn read(stream: &mut Stream, buffer: &mut [u8]) -> usize {
        let read = poll_fn(|cx| stream.poll_read(cx, buffer));
        timeout(Duration::from_secs(30), read)
            .await
            .unwrap()
            .unwrap()
    }

    async fn write(stream: &mut Stream, parts: [&[u8]; 3]) -> usize {
        let written = poll_fn(|cx| stream.poll_write(cx, parts));
        timeout(Duration::from_secs(30), written)
            .await
            .unwrap()
            .unwrap()
    }

    /// Writes until there is no room, and waits for it. How much was written.
    fn fill(stream: &mut Stream, cx: &mut Context<'_>) -> usize {
        let mut written = 0;
        while let Poll::Ready(count) = stream.poll_write(cx, [&[1; 10_000], &[2; 10_000], &[]]) {
            written += count.unwrap();
        }
        written
    }

    fn take_all(mut theirs: &UnixStream) -> usize {
        let mut taken = 0;
        while let Ok(count @ 1..) = theirs.read(&mut [0; 30_000]) {
            taken += count;
        }
        taken
    }

    #[tokio::test]
    async fn all_parts_go_out_in_their_order_and_what_comes_is_read_to_its_end() {
        let (mut stream, mut theirs) = pair();
        for parts in [
            [&b"one"[..], &b", "[..], &b"two"[..]],
            [b"one, ", b"", b"two"],
            [b"", b"", b"one, two"],
            [b"", b"one, two", b""],
            [b"one, two", b"", b""],
        ] {
            assert_eq!(write(&mut stream, parts).await, 8);
            let mut heard = [0; 20];
            assert_eq!(theirs.read(&mut heard).unwrap(), 8);
            assert_eq!(&heard[..8], b"one, two");
        }
        theirs.write_all(b"three").unwrap();
        drop(theirs);
        let mut heard = [0; 3];
        assert_eq!(read(&mut stream, &mut heard).await, 3);
        assert_eq!(&heard, b"thr");
        assert_eq!(read(&mut stream, &mut heard).await, 2);
        assert_eq!(read(&mut stream, &mut heard).await, 0);
    }

    #[tokio::test]
    async fn that_the_other_end_has_read_wakes_nobody_who_waits_for_no_room() {
        let (mut stream, theirs) = pair();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        assert!(stream.poll_read(&mut cx, &mut [0; 8]).is_pending());
        assert!(stream.poll_write(&mut cx, [b"said", b"", b""]).is_ready());
        assert_eq!(take_all(&theirs), 4);
        let socket = stream.socket.as_ref().unwrap();
        // Nobody is told of room: whoever asks for it waits for good.
        let mut room = pin!(socket.writable());
        assert!(
            timeout(Duration::from_millis(50), room.as_mut())
                .await
                .is_err()
        );
        assert_eq!(woken.times.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn who_finds_no_room_is_woken_when_there_is_some_and_still_hears() {
        let (mut stream, mut theirs) = pair();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        assert!(stream.poll_read(&mut cx, &mut [0; 8]).is_pending());
        let written = fill(&mut stream, &mut cx);
        // It is to poll both again, for it waited to read where nobody tells it any more.
        assert_eq!(woken.times.swap(0, Ordering::SeqCst), 1);
        assert!(stream.poll_read(&mut cx, &mut [0; 8]).is_pending());
        sleep(Duration::from_millis(20)).await;
        assert_eq!(woken.times.load(Ordering::SeqCst), 0);

        assert_eq!(take_all(&theirs), written);
        timeout(Duration::from_secs(30), woken.wait())
            .await
            .expect("of room somebody tells");
        theirs.write_all(b"heard").unwrap();
        assert_eq!(read(&mut stream, &mut [0; 8]).await, 5);
        assert_eq!(write(&mut stream, [b"again", b"", b""]).await, 5);
    }

    #[tokio::test]
    async fn after_32_writes_that_found_room_nobody_is_told_of_it() {
        let (mut stream, mut theirs) = pair();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        fill(&mut stream, &mut cx);
        take_all(&theirs);
        for _ in 0..31 {
            assert_eq!(write(&mut stream, [b"x", b"", b""]).await, 1);
        }
        assert!(stream.awaits_room);
        assert_eq!(write(&mut stream, [b"x", b"", b""]).await, 1);
        assert!(!stream.awaits_room);
        theirs.write_all(b"heard").unwrap();
        assert_eq!(read(&mut stream, &mut [0; 8]).await, 5);
        // And the next that finds none is told again.
        let written = fill(&mut stream, &mut cx);
        assert!(stream.awaits_room);
        assert_eq!(take_all(&theirs), written + 32);
        assert_eq!(write(&mut stream, [b"x", b"", b""]).await, 1);
    }
}
