//! The stream below HTTP/1: notes when bytes move, and gives up a peer that does not read its answer.

use std::{
    cell::Cell,
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::socket::Socket;
use crate::{server::connections::Handle, telemetry::metrics::ConnectionClosed};

/// What a connection does, for the registry of its port: busy while an answer is being made, else idle since
/// bytes last moved.
pub(super) struct Activity {
    pub(super) handle: Handle,
    is_busy: Cell<bool>,
    /// Bytes came since the last answer.
    is_asked: Cell<bool>,
    /// What is not yet sent is dropped with the connection, not kept by the kernel for a peer that does not read.
    is_discarded: Cell<bool>,
}

impl Activity {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, is_busy: Cell::new(false), is_asked: Cell::new(false), is_discarded: Cell::new(false) }
    }

    /// An answer is being made.
    pub(super) fn begin(&self) {
        self.is_busy.set(true);
        self.handle.busy();
    }

    /// It is made.
    pub(super) fn end(&self) {
        self.is_busy.set(false);
        self.handle.idle(Instant::now());
    }

    pub(super) fn discard(&self) {
        self.is_discarded.set(true);
    }

    /// Counts that no head of a request came in time; not where a peer merely kept its connection open.
    pub(super) fn count_late_head(&self) {
        if self.handle.is_silent() {
            self.handle.count(ConnectionClosed::PrefaceTimeout);
        } else if self.is_asked.get() {
            self.handle.count(ConnectionClosed::ReadTimeout);
        }
    }

    fn bytes_came(&self) {
        self.is_asked.set(true);
        if self.handle.is_silent() {
            self.handle.ready(Instant::now());
        } else {
            self.bytes_moved();
        }
    }

    fn bytes_moved(&self) {
        if !self.is_busy.get() {
            self.handle.idle(Instant::now());
        }
    }
}

/// A stream whose peer has so much time to read an answer.
pub(super) struct Watched {
    stream: Socket,
    activity: Rc<Activity>,
    timeout: Duration,
    /// The end of that time, from the first byte of an answer that the kernel had no room for.
    deadline: Option<Pin<Box<Sleep>>>,
    has_written: bool,
}

impl Watched {
    pub(super) fn new(stream: Socket, activity: Rc<Activity>, timeout: Duration) -> Self {
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
        self.activity.handle.count(ConnectionClosed::WriteTimeout);
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
            self.activity.bytes_came();
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

    /// hyper flushes when all of an answer is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.has_written) {
            self.deadline = None;
            self.activity.is_asked.set(false);
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
