//! A framed stream: writes commands, decodes replies, and knows how many replies are pending, even after a wait was
//! cancelled.

use std::{io, marker::PhantomData};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::{Failure, Kind};
use crate::store::remote::transport::Transport;

/// A server's protocol, as far as reading replies.
pub(in crate::store) trait Codec: Send + 'static {
    /// One reply.
    type Reply: Send;
    /// The protocol's name in errors.
    const NAME: &'static str;

    /// Decodes the reply at the front of `bytes`, and returns it with its length; `None` while it is incomplete.
    ///
    /// # Errors
    /// When the bytes are not of this protocol.
    fn decode(bytes: &[u8]) -> Result<Option<(Self::Reply, usize)>, ProtocolError>;
}

/// Bytes that are not of the protocol; contains the beginning of them, escaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct ProtocolError(pub(in crate::store) String);

/// A connection with a codec. Every method is cancel safe.
pub(in crate::store) struct FramedStream<C> {
    transport: Transport,
    /// The server's name in failures.
    server: String,
    /// Bytes to write, and how many of them were written.
    out: Vec<u8>,
    written: usize,
    incoming: BytesMut,
    /// Replies still to come.
    pending: usize,
    /// How many undecoded bytes are accepted.
    allowed: usize,
    /// Bytes came while no reply was pending.
    unsolicited: bool,
    codec: PhantomData<C>,
}

/// Bytes that are accepted whatever was sent: the longest error, and the largest value of a foreign key.
const ALWAYS_ALLOWED: usize = 128 * 1024;

/// Bytes that are accepted in addition for each byte sent. Replies are at most three times as long as their commands:
/// 38 bytes for the 16 of a run in a script's argument.
const ALLOWED_PER_BYTE_SENT: usize = 8;

impl<C: Codec> FramedStream<C> {
    pub(in crate::store) fn new(transport: Transport, server: String) -> Self {
        let incoming = BytesMut::with_capacity(16 * 1024);
        Self {
            transport,
            server,
            out: Vec::with_capacity(16 * 1024),
            written: 0,
            incoming,
            pending: 0,
            allowed: ALWAYS_ALLOWED,
            unsolicited: false,
            codec: PhantomData,
        }
    }

    /// Replies still to come.
    pub(in crate::store) fn pending(&self) -> usize {
        self.pending
    }

    /// Appends commands to the unsent bytes. `write` returns the number of replies that they get.
    /// [`flush`](Self::flush) sends them.
    pub(in crate::store) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> usize {
        if self.pending == 0 {
            self.unsolicited |= !self.incoming.is_empty();
            self.allowed = ALWAYS_ALLOWED;
        }
        let before = self.out.len();
        let replies = write(&mut self.out);
        self.pending = self.pending.saturating_add(replies);
        let sent = self.out.len().saturating_sub(before);
        self.allowed = self.allowed.saturating_add(sent.saturating_mul(ALLOWED_PER_BYTE_SENT));
        replies
    }

    /// Sends commands that get this many replies.
    pub(in crate::store) async fn send(
        &mut self,
        replies: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Failure> {
        self.write(|out| {
            write(out);
            replies
        });
        self.flush().await
    }

    /// Sends the unsent bytes.
    pub(in crate::store) async fn flush(&mut self) -> Result<(), Failure> {
        if self.unsolicited {
            // They would be taken for the replies to what is sent now.
            return Err(self.protocol_error(&self.received()));
        }
        if self.out.is_empty() {
            return Ok(());
        }
        while let Some(unsent) = self.out.get(self.written..).filter(|unsent| !unsent.is_empty()) {
            match self.transport.write(unsent).await {
                Ok(0) => return Err(self.lost(&io::ErrorKind::WriteZero.into())),
                Ok(written) => self.written = self.written.saturating_add(written),
                Err(error) => return Err(self.lost(&error)),
            }
        }
        self.transport.flush().await.map_err(|error| self.lost(&error))?;
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// The next pending reply.
    pub(in crate::store) async fn receive(&mut self) -> Result<C::Reply, Failure> {
        loop {
            match C::decode(&self.incoming) {
                Ok(Some((reply, length))) => {
                    self.incoming.advance(length);
                    self.pending = self.pending.saturating_sub(1);
                    return Ok(reply);
                }
                Ok(None) => self.read().await?,
                Err(error) => return Err(self.protocol_error(&error.0)),
            }
        }
    }

    /// Sends the unsent bytes, and discards all pending replies.
    pub(in crate::store) async fn drain(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        while self.pending > 0 {
            self.receive().await?;
        }
        Ok(())
    }

    /// Completes when the server closes the connection, or sends unsolicited bytes.
    pub(in crate::store) async fn idle(&mut self) -> Failure {
        match self.read().await {
            Ok(()) => self.protocol_error(&self.received()),
            Err(failure) => failure,
        }
    }

    async fn read(&mut self) -> Result<(), Failure> {
        if self.incoming.len() > self.allowed {
            let message = format!(
                "{}: sent more than {} bytes, the maximum for {} pending replies",
                self.server, self.allowed, self.pending
            );
            return Err(Failure::new(Kind::ProtocolError, message));
        }
        match self.transport.read_buf(&mut self.incoming).await {
            Ok(0) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "connection closed by the server".to_owned(),
            _ => format!("connection lost: {error}"),
        };
        Failure::new(Kind::Lost, format!("{}: {why}", self.server))
    }

    /// The beginning of the unsolicited bytes, escaped.
    fn received(&self) -> String {
        self.incoming.iter().take(80).flat_map(|byte| byte.escape_ascii()).map(char::from).collect()
    }

    fn protocol_error(&self, seen: &str) -> Failure {
        let seen: String = seen.chars().take(80).collect();
        let message = format!("{}: expected a {} reply, received \"{seen}\"", self.server, C::NAME);
        Failure::new(Kind::ProtocolError, message)
    }
}
