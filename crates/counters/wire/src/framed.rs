//! A framed stream: writes commands, decodes replies, and counts the pending ones, even after a wait was cancelled.

#![expect(
    clippy::expect_used,
    reason = "counts of bytes and commands in memory; asserts that a reply was expected"
)]

use std::{io, marker::PhantomData};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::{Failure, FailureKind};
use net::edges::Transport;

/// A server's protocol, as far as reading replies.
pub trait Codec: Send + 'static {
    type Reply: Send;
    const NAME: &'static str;

    /// Decodes the reply at the front of `bytes`, and returns it with its length; `None` while it is incomplete.
    fn decode(bytes: &[u8]) -> Result<Option<(Self::Reply, usize)>, ProtocolError>;

    /// How to skip the incomplete reply at the front of `bytes`, if it is a value that declares its length.
    fn skip(bytes: &[u8]) -> Option<Skip<Self::Reply>>;
}

/// A value that is too long to be kept: another program wrote it, and only its own key fails.
pub struct Skip<R> {
    /// The bytes of the reply that are still to be discarded.
    pub left: usize,
    /// The error in place of the value.
    pub error: R,
}

/// Bytes that are not of the protocol: the first of them, escaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtocolError(pub String);

impl ProtocolError {
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.get(..40).unwrap_or(bytes).escape_ascii().to_string())
    }
}

/// A connection with a codec. Every method is cancel safe.
pub struct FramedStream<C: Codec> {
    transport: Transport,
    server: String,
    /// Bytes to write, and how many of them were written.
    out: Vec<u8>,
    written: usize,
    /// The undecoded bytes.
    pub incoming: BytesMut,
    pub pending: usize,
    /// How many undecoded bytes are accepted.
    allowed: usize,
    /// Bytes arrived while no reply was pending.
    unsolicited: bool,
    /// The pending reply that is being skipped.
    skip: Option<Skip<C::Reply>>,
    codec: PhantomData<C>,
}

/// Bytes that are accepted whatever was sent: the longest error. Longer values of foreign keys are skipped.
const ALWAYS_ALLOWED: usize = 128 * 1024;

/// Bytes that are accepted in addition for each byte sent. Replies are at most three times as long as their commands:
/// 38 bytes for the 16 of a run in a script's argument.
const ALLOWED_PER_BYTE_SENT: usize = 8;

impl<C: Codec> FramedStream<C> {
    pub fn new(transport: Transport, server: String) -> Self {
        Self {
            transport,
            server,
            out: Vec::with_capacity(16 * 1024),
            written: 0,
            incoming: BytesMut::with_capacity(16 * 1024),
            pending: 0,
            allowed: ALWAYS_ALLOWED,
            unsolicited: false,
            skip: None,
            codec: PhantomData,
        }
    }

    /// Accepts a message of at most this many bytes, for which no command has asked.
    pub fn expect_message(&mut self, most: usize) {
        if self.pending == 0 {
            (self.pending, self.allowed) = (1, most);
        }
    }

    /// Accepts this many undecoded bytes more, until all pending replies were received.
    pub fn allow(&mut self, bytes: usize) {
        self.allowed += bytes;
    }

    /// Appends commands to the unsent bytes. `write` returns the number of their replies.
    /// [`flush`](Self::flush) sends them.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> usize {
        if self.pending == 0 {
            self.unsolicited |= !self.incoming.is_empty();
            self.allowed = ALWAYS_ALLOWED;
        }
        let before = self.out.len();
        let replies = write(&mut self.out);
        self.pending += replies;
        let sent = self.out.len() - before;
        self.allow(sent * ALLOWED_PER_BYTE_SENT);
        replies
    }

    pub async fn send(&mut self, replies: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        self.write(|out| {
            write(out);
            replies
        });
        self.flush().await
    }

    pub async fn flush(&mut self) -> Result<(), Failure> {
        if self.unsolicited {
            // They would be taken for the replies to the next commands.
            return Err(self.protocol_error(&ProtocolError::new(&self.incoming)));
        }
        if self.out.is_empty() {
            return Ok(());
        }
        while let Some(unsent) = self.out.get(self.written..).filter(|unsent| !unsent.is_empty()) {
            match self.transport.write(unsent).await {
                Ok(0) => return Err(self.lost(&io::ErrorKind::WriteZero.into())),
                Ok(written) => self.written += written,
                Err(error) => return Err(self.lost(&error)),
            }
        }
        self.transport.flush().await.map_err(|error| self.lost(&error))?;
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    pub async fn receive(&mut self) -> Result<C::Reply, Failure> {
        loop {
            if let Some(reply) = self.decode()? {
                return Ok(reply);
            }
            self.read().await.map_err(|error| self.lost(&error))?;
        }
    }

    /// The next pending reply, if it was received completely.
    pub fn decode(&mut self) -> Result<Option<C::Reply>, Failure> {
        if let Some(mut skip) = self.skip.take() {
            let arrived = skip.left.min(self.incoming.len());
            skip.left -= arrived;
            if skip.left == 0 {
                return Ok(Some(self.received(skip.error, arrived)));
            }
            self.incoming.advance(arrived);
            self.skip = Some(skip);
            return Ok(None);
        }
        match C::decode(&self.incoming) {
            Ok(Some((reply, length))) => Ok(Some(self.received(reply, length))),
            Ok(None) if self.incoming.len() > self.allowed => {
                self.skip = C::skip(&self.incoming);
                if self.skip.is_some() {
                    return self.decode();
                }
                let allowed = self.allowed;
                let pending = self.pending;
                let what =
                    format_args!("sent more than {allowed} bytes, the maximum for {pending} pending replies");
                Err(self.failure(FailureKind::ProtocolError, what))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.protocol_error(&error)),
        }
    }

    /// Removes a pending reply that ends after `length` bytes.
    fn received(&mut self, reply: C::Reply, length: usize) -> C::Reply {
        self.incoming.advance(length);
        let left = self.pending.checked_sub(1);
        self.pending = left.expect("a reply is decoded only while one is pending");
        reply
    }

    pub async fn read(&mut self) -> io::Result<()> {
        match self.transport.read_buf(&mut self.incoming).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends a command, and waits for its reply.
    pub async fn request(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<C::Reply, Failure> {
        self.send(1, write).await?;
        self.receive().await
    }

    /// Sends the unsent bytes, and discards all pending replies.
    pub async fn drain(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        while self.pending > 0 {
            self.receive().await?;
        }
        Ok(())
    }

    /// Completes when the server closes the connection, or sends unsolicited bytes.
    pub async fn idle(&mut self) -> Failure {
        match self.read().await {
            Ok(()) => self.protocol_error(&ProtocolError::new(&self.incoming)),
            Err(error) => self.lost(&error),
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.failure(FailureKind::Lost, "connection closed by the server")
            }
            _ => self.failure(FailureKind::Lost, format_args!("connection lost: {error}")),
        }
    }

    fn protocol_error(&self, ProtocolError(seen): &ProtocolError) -> Failure {
        self.failure(
            FailureKind::ProtocolError,
            format_args!("expected a {} reply, received \"{seen}\"", C::NAME),
        )
    }

    pub fn failure(&self, kind: FailureKind, what: impl std::fmt::Display) -> Failure {
        Failure::new(kind, format!("{}: {what}", self.server))
    }
}
