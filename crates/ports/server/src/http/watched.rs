//! The stream below HTTP/1: records when bytes move, and closes a connection whose peer does not read.

use std::{
    cell::{Cell, OnceCell},
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
    time::{Sleep, sleep},
};

use crate::{connections::Handle, socket::Socket};
use metrics::ConnectionClosed;

/// The time for a client to read the response to a request whose body was not read.
const LINGER: Duration = Duration::from_secs(1);

/// The activity of a connection, for the registry of its port: busy while a response is being made, else idle since
/// bytes last moved.
pub(super) struct HttpActivity {
    /// Its place, or the one of a connection that waits for a place.
    first: Handle,
    place: OnceCell<Handle>,
    /// It has waited or still waits: it serves one request, and needs a place unless that is a probe.
    pub(super) is_waiting: bool,
    is_busy: Cell<bool>,
    /// Bytes were received since the last response.
    has_received: Cell<bool>,
    /// The peer let the connection wait since the last request.
    has_waited: Cell<bool>,
    /// Unsent bytes are dropped with the connection, not kept by the kernel for a peer that does not read.
    is_discarded: Cell<bool>,
    /// The last request has a body that is not read.
    pub(super) has_unread_body: Cell<bool>,
}

impl HttpActivity {
    pub(super) fn new(first: Handle, is_waiting: bool) -> Self {
        Self {
            first,
            place: OnceCell::new(),
            is_waiting,
            is_busy: Cell::default(),
            has_received: Cell::default(),
            has_waited: Cell::new(true),
            is_discarded: Cell::default(),
            has_unread_body: Cell::default(),
        }
    }

    pub(super) fn handle(&self) -> &Handle {
        self.place.get().unwrap_or(&self.first)
    }

    /// Adds the place that it has waited for. From now on only that one makes room.
    pub(super) fn hold(&self, place: Handle) {
        place.ready(Instant::now());
        self.first.busy();
        // A connection that waits serves one request, so it never has one already.
        let _ = self.place.set(place);
    }

    pub(super) fn begin(&self) {
        self.is_busy.set(true);
        self.handle().busy();
    }

    /// Ends the turn if the request was pipelined. Others come before it, and sockets that became ready: tokio looks at
    /// them when nothing else is to do, or after 61 turns.
    pub(super) async fn take_turns(&self) {
        if !self.has_waited.replace(false) {
            yield_now().await;
        }
    }

    pub(super) fn end(&self) {
        self.is_busy.set(false);
        self.handle().idle(Instant::now());
    }

    pub(super) fn discard(&self) {
        self.is_discarded.set(true);
    }

    /// Counts a request whose head was late; not a connection that is only kept open.
    pub(super) fn count_late_head(&self) {
        if self.handle().is_silent() {
            self.handle().count(ConnectionClosed::PrefaceTimeout);
        } else if self.has_received.get() {
            self.handle().count(ConnectionClosed::ReadTimeout);
        }
    }

    fn bytes_received(&self) {
        self.has_received.set(true);
        if self.handle().is_silent() {
            self.handle().ready(Instant::now());
        } else {
            self.bytes_moved();
        }
    }

    fn bytes_moved(&self) {
        if !self.is_busy.get() {
            self.handle().idle(Instant::now());
        }
    }
}

/// A stream with a timeout for reading a response.
pub(super) struct Watched {
    stream: Box<dyn Socket>,
    activity: Rc<HttpActivity>,
    timeout: Duration,
    /// Set when the kernel has no room for a response.
    deadline: Option<Pin<Box<Sleep>>>,
    has_written: bool,
}

impl Watched {
    pub(super) fn new(stream: Box<dyn Socket>, activity: Rc<HttpActivity>, timeout: Duration) -> Self {
        Self { stream, activity, timeout, deadline: None, has_written: false }
    }

    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.has_written = true;
            self.activity.bytes_moved();
            return written;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(deadline.as_mut().poll(context));
        self.activity.handle().count(ConnectionClosed::WriteTimeout);
        self.activity.discard();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.activity.is_discarded.get() {
            self.stream.discard_unsent();
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.bytes_received();
        }
        if read.is_pending() {
            self.activity.has_waited.set(true);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when a response is written completely, and reads the next request after that.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if std::mem::take(&mut self.has_written) {
            self.deadline = None;
            self.activity.has_received.set(false);
        }
        flushed
    }

    /// Discards what a client still sends of a body that was not read. A reset, which the kernel answers it with, could
    /// overtake the response.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        if !self.activity.has_unread_body.get() {
            return Poll::Ready(Ok(()));
        }
        let Self { stream, deadline, .. } = &mut *self;
        let deadline = deadline.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        while deadline.as_mut().poll(context).is_pending() {
            let mut buffer = [0; 8 * 1024];
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}
