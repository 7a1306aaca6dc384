//! One connection's bytes: commands go out, answers come in, and what is still owed is known even when
//! waiting for it was given up.

use std::{io, marker::PhantomData};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::{Failure, Kind};
use crate::store::remote::transport::Transport;

/// What a server answers in, and how it is read.
pub(in crate::store) trait Codec: Send + 'static {
    /// One answer.
    type Reply: Send;
    /// Its name.
    const NAME: &'static str;

    /// Reads the answer at the front of `bytes`, and says how many bytes it takes; none while it is not
    /// whole.
    ///
    /// # Errors
    /// When this is another language.
    fn read(bytes: &[u8]) -> Result<Option<(Self::Reply, usize)>, ProtocolError>;
}

/// Bytes that are not of the language; with as many of them as help to see what speaks there instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct ProtocolError(pub(in crate::store) String);

/// A connection in use. Every step can be given up and taken up again.
pub(in crate::store) struct FramedStream<L> {
    wire: Transport,
    /// As failures name the server.
    server: String,
    /// What is to be written, and how much of it has been.
    out: Vec<u8>,
    written: usize,
    incoming: BytesMut,
    /// Answers that are still to come.
    owed: usize,
    /// How many bytes of them may wait to be read.
    allowed: usize,
    /// Bytes came while no answer was owed.
    unasked: bool,
    language: PhantomData<L>,
}

/// So many bytes may come however little was asked: the longest error, and the largest value under a key that
/// is not ours.
const ALWAYS_ALLOWED: usize = 128 * 1024;

/// And so many for each byte of what was asked. The answers to all that we ask are at most three times as long:
/// 38 bytes for the 16 of a run in the argument of a script.
const ALLOWED_FOR_A_BYTE: usize = 8;

impl<L: Codec> FramedStream<L> {
    pub(in crate::store) fn new(wire: Transport, server: String) -> Self {
        let incoming = BytesMut::with_capacity(16 * 1024);
        Self {
            wire,
            server,
            out: Vec::with_capacity(16 * 1024),
            written: 0,
            incoming,
            owed: 0,
            allowed: ALWAYS_ALLOWED,
            unasked: false,
            language: PhantomData,
        }
    }

    /// Answers that are still to come.
    pub(in crate::store) fn owed(&self) -> usize {
        self.owed
    }

    /// Puts behind what is unsent what `write` writes, which as many answers are to follow as it returns. They
    /// are sent by [`flush`](Self::flush).
    pub(in crate::store) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> usize {
        if self.owed == 0 {
            self.unasked |= !self.incoming.is_empty();
            self.allowed = ALWAYS_ALLOWED;
        }
        let before = self.out.len();
        let answers = write(&mut self.out);
        self.owed = self.owed.saturating_add(answers);
        let asked = self.out.len().saturating_sub(before);
        self.allowed = self.allowed.saturating_add(asked.saturating_mul(ALLOWED_FOR_A_BYTE));
        answers
    }

    /// Sends what `write` writes, which so many answers are to follow.
    pub(in crate::store) async fn send(
        &mut self,
        answers: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Failure> {
        self.write(|out| {
            write(out);
            answers
        });
        self.flush().await
    }

    /// Sends what is unsent.
    pub(in crate::store) async fn flush(&mut self) -> Result<(), Failure> {
        if self.unasked {
            // It would be taken for the answer to what is sent now.
            return Err(self.garbage(&self.shown()));
        }
        if self.out.is_empty() {
            return Ok(());
        }
        while let Some(unsent) = self.out.get(self.written..).filter(|unsent| !unsent.is_empty()) {
            match self.wire.write(unsent).await {
                Ok(0) => return Err(self.lost(&io::ErrorKind::WriteZero.into())),
                Ok(written) => self.written = self.written.saturating_add(written),
                Err(error) => return Err(self.lost(&error)),
            }
        }
        self.wire.flush().await.map_err(|error| self.lost(&error))?;
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// The next answer that is owed.
    pub(in crate::store) async fn receive(&mut self) -> Result<L::Reply, Failure> {
        loop {
            match L::read(&self.incoming) {
                Ok(Some((reply, length))) => {
                    self.incoming.advance(length);
                    self.owed = self.owed.saturating_sub(1);
                    return Ok(reply);
                }
                Ok(None) => self.read().await?,
                Err(garbage) => return Err(self.garbage(&garbage.0)),
            }
        }
    }

    /// Sends what is unsent, and drops the answers that are owed.
    pub(in crate::store) async fn settle(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        while self.owed > 0 {
            self.receive().await?;
        }
        Ok(())
    }

    /// Ends when the server ends the connection, or says what it was not asked.
    pub(in crate::store) async fn idle(&mut self) -> Failure {
        match self.read().await {
            Ok(()) => self.garbage(&self.shown()),
            Err(failure) => failure,
        }
    }

    async fn read(&mut self) -> Result<(), Failure> {
        if self.incoming.len() > self.allowed {
            let message = format!(
                "{}: it sends more than the {} bytes that the {} answers still owed can have",
                self.server, self.allowed, self.owed
            );
            return Err(Failure::new(Kind::ProtocolError, message));
        }
        match self.wire.read_buf(&mut self.incoming).await {
            Ok(0) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => format!("the connection broke ({error})"),
        };
        Failure::new(Kind::Lost, format!("{}: {why}", self.server))
    }

    /// The beginning of what came and was not asked for.
    fn shown(&self) -> String {
        self.incoming.iter().take(80).flat_map(|byte| byte.escape_ascii()).map(char::from).collect()
    }

    fn garbage(&self, seen: &str) -> Failure {
        let seen: String = seen.chars().take(80).collect();
        let message = format!("{}: it speaks no {} but \"{seen}\"", self.server, L::NAME);
        Failure::new(Kind::ProtocolError, message)
    }
}
