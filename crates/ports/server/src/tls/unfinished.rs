//! The memory of unfinished TLS handshakes.
//!
//! rustls buffers a handshake message until it is complete, before anything is known about the client. Each handshake has
//! [`FREE`] bytes, which belong to its connection; further ones are charged to the memory of all. When that is full, the
//! handshake with the most bytes ends, and the oldest of equal ones.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use budget::{Budget, Reservation};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

use faults::mutex::lock;

/// The handshakes of most clients are smaller, also with their certificates.
const FREE: usize = 4 * 1024;

/// The size of a ClientHello. The largest known ones, with post-quantum keys and session tickets, have 4 KB.
const CLIENT_HELLO: usize = 16 * 1024;

pub(super) struct Unfinished {
    memory: Arc<Budget>,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    last: u64,
    /// The handshakes that are charged, those with the most bytes and the oldest of them last.
    charged: BTreeMap<(usize, Reverse<u64>), Charged>,
}

struct Charged {
    _share: Reservation,
    displaced: Arc<Notify>,
}

/// The charge of one handshake.
pub(super) struct Charge {
    unfinished: Arc<Unfinished>,
    key: (usize, Reverse<u64>),
    displaced: Arc<Notify>,
}

/// Why a handshake ends before rustls judges it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Excess {
    ClientHello,
    /// The memory of all handshakes, in bytes.
    Memory(usize),
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientHello => write!(f, "the ClientHello has more than {CLIENT_HELLO} bytes"),
            Self::Memory(limit) => {
                write!(f, "unfinished handshakes have reached {limit} bytes (MEMORY_LIMIT)")
            }
        }
    }
}

impl std::error::Error for Excess {}

impl Unfinished {
    pub(super) fn new(memory: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { memory, all: Mutex::default() })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Charge {
        let mut all = lock(&self.all);
        all.last += 1;
        Charge { unfinished: self.clone(), key: (0, Reverse(all.last)), displaced: Arc::default() }
    }

    pub(super) fn full(&self) -> Excess {
        Excess::Memory(self.memory.limit())
    }
}

impl Charge {
    /// Completes when this handshake has to end for others.
    pub(super) fn displaced(&self) -> Arc<Notify> {
        self.displaced.clone()
    }

    /// Charges this many bytes; false if this handshake is the one that has to end.
    fn resize(&mut self, bytes: usize) -> bool {
        let mut all = lock(&self.unfinished.all);
        let was_displaced = all.charged.remove(&self.key).is_none() && self.key.0 > 0;
        let key = (bytes, self.key.1);
        let mut share = Reservation::new(&self.unfinished.memory);
        if was_displaced {
            return false;
        }
        while !share.resize(bytes) {
            let Some((_, largest)) = all
                .charged
                .last_entry()
                .filter(|largest| *largest.key() > key)
                .map(std::collections::btree_map::OccupiedEntry::remove_entry)
            else {
                self.key.0 = 0;
                return false;
            };
            largest.displaced.notify_one();
        }
        all.charged.insert(key, Charged { _share: share, displaced: self.displaced.clone() });
        self.key = key;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        lock(&self.unfinished.all).charged.remove(&self.key);
    }
}

/// A stream that is charged for what it receives until its handshake is finished.
pub struct Counted<S> {
    stream: S,
    handshake: Option<Box<Handshake>>,
}

struct Handshake {
    charge: Charge,
    received: usize,
    /// The ClientHello was complete.
    has_answered: bool,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S, charge: Charge) -> Self {
        Self { stream, handshake: Some(Box::new(Handshake { charge, received: 0, has_answered: false })) }
    }

    pub(super) fn finish(&mut self) {
        self.handshake = None;
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    fn note_write(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.has_answered = true;
        }
    }
}

impl Handshake {
    fn receive(&mut self, bytes: usize) -> Result<(), Excess> {
        self.received += bytes;
        if !self.has_answered && self.received > CLIENT_HELLO {
            return Err(Excess::ClientHello);
        }
        let beyond = self.received.saturating_sub(FREE);
        let is_kept = beyond == 0 || self.charge.resize(beyond);
        if is_kept { Ok(()) } else { Err(self.charge.unfinished.full()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, handshake } = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(context, buffer))?;
        if let Some(handshake) = handshake {
            handshake.receive(buffer.filled().len() - before).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.note_write();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note_write();
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn handshake(unfinished: &Arc<Unfinished>) -> Handshake {
        Handshake { charge: unfinished.begin(), received: 0, has_answered: false }
    }

    fn is_displaced(handshake: &Handshake) -> bool {
        handshake.charge.displaced.notified().now_or_never().is_some()
    }

    #[test]
    fn the_handshake_with_the_most_bytes_ends_and_the_oldest_of_equal_ones() {
        let unfinished = Unfinished::new(Budget::new(10_000));
        let [mut large, mut old, mut young, mut small] = std::array::from_fn(|_| handshake(&unfinished));
        assert_eq!(small.receive(FREE), Ok(()));
        assert_eq!(large.receive(FREE + 6_000), Ok(()));
        assert_eq!(old.receive(FREE + 2_000), Ok(()));
        assert_eq!(young.receive(FREE + 2_001), Ok(()), "the largest one makes room");
        assert_eq!([&large, &old, &young].map(is_displaced), [true, false, false]);
        assert_eq!(large.receive(1), Err(Excess::Memory(10_000)));
        assert_eq!(old.receive(1), Ok(()));
        assert_eq!(small.receive(7_000), Err(Excess::Memory(10_000)), "it would be the largest one itself");
        assert_eq!(small.receive(1), Err(Excess::Memory(10_000)));
        let mut equal = handshake(&unfinished);
        assert_eq!(equal.receive(FREE + 2_001), Ok(()));
        assert_eq!(handshake(&unfinished).receive(FREE), Ok(()), "small ones are free");
        let mut last = handshake(&unfinished);
        assert_eq!(last.receive(FREE + 2_001), Ok(()));
        assert_eq!(handshake(&unfinished).receive(FREE + 2_001), Ok(()));
        assert_eq!([&old, &young, &equal, &last].map(is_displaced), [true, false, false, false]);
        drop((large, old, young, small, equal, last));
        assert_eq!(unfinished.memory.used(), 0);
    }

    #[test]
    fn a_client_hello_is_bounded_and_what_follows_the_answer_is_not() {
        let unfinished = Unfinished::new(Budget::new(100_000));
        let mut hello = handshake(&unfinished);
        assert_eq!((hello.receive(CLIENT_HELLO), hello.receive(1)), (Ok(()), Err(Excess::ClientHello)));
        let mut answered = handshake(&unfinished);
        assert_eq!(answered.receive(CLIENT_HELLO), Ok(()));
        answered.has_answered = true;
        assert_eq!(answered.receive(60_000), Ok(()), "certificates");
    }
}
