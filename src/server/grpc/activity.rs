//! What a gRPC connection reports to the registry: whether it has sent its preface, and whether a request is under
//! way.
//!
//! `worker` makes an [`Activity`] for each connection. `driver` knows both by itself; the tonic `reference` puts a
//! [`Watched`] stream below HTTP/2 and holds an [`UnderWay`] for each request.

use std::{
    future,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::sleep,
};

use super::OpenConnection;
use crate::{server::connections::Handle, telemetry::metrics::ConnectionClosed};

/// How long a peer may take to send its preface and its first SETTINGS.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The preface, and the header of the SETTINGS behind it.
const PREFACE: usize = 24 + 9;

/// What a connection reports to the registry: whether any request is under way.
pub(super) struct Activity {
    open: OpenConnection,
    requests: AtomicUsize,
}

impl Activity {
    pub(super) fn new(open: OpenConnection) -> Self {
        Self { open, requests: AtomicUsize::new(0) }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.open.handle
    }

    /// Completes, and is counted, when no preface came in time.
    pub(super) async fn preface_timeout(&self) {
        sleep(PREFACE_TIMEOUT).await;
        if !self.handle().is_silent() {
            future::pending::<()>().await;
        }
        self.handle().count(ConnectionClosed::PrefaceTimeout);
    }
}

/// A request that is under way, until this is dropped.
pub(super) struct UnderWay(Arc<Activity>);

impl UnderWay {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.handle().busy();
        Self(activity)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // The last of them: requests of one connection begin and end on one thread.
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.handle().idle(Instant::now());
        }
    }
}

/// A stream that notes when the preface has come.
pub(super) struct Watched<S> {
    stream: S,
    read: usize,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, read: 0, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.read < PREFACE {
            self.read = self.read.saturating_add(buffer.filled().len().saturating_sub(before));
            if self.read >= PREFACE {
                self.activity.handle().ready(Instant::now());
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
