//! A new connection to a server, until its first commands have succeeded. One timeout covers all steps.
//!
//! Every failure names the server, the step and the variable to check.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use clock::timer::after;

use super::{
    failure::Failure,
    framed::{Codec, FramedStream},
    transport::Connector,
};
use net::ServerAddress;

pub struct Handshake<'c, C: Codec> {
    connector: &'c Connector,
    pub stream: FramedStream<C>,
    /// Advice if the server does not reply.
    advice: &'static str,
    pub until: Instant,
}

impl<'c, C: Codec> Handshake<'c, C> {
    pub async fn begin(connector: &'c Connector, to: &ServerAddress) -> Result<Self, Failure> {
        let until = after(connector.edges.timer.now(), connector.timeout);
        let server = format!("{} {to}", connector.store);
        match connector.connect(to, until).await {
            Ok(transport) => {
                let advice = match to {
                    ServerAddress::Tcp(_) if connector.may_need_tls() => connector.advice.use_tls,
                    _ => "it may be frozen or busy: see its log",
                };
                Ok(Self { connector, stream: FramedStream::new(transport, server), advice, until })
            }
            Err(failure) => Err(Failure::new(failure.kind, format!("{server}: {}", failure.message))),
        }
    }

    pub async fn send(&mut self, replies: usize, commands: &[u8]) {
        // A failed write is ignored: the server may have sent the reason, such as too many clients. If not, reading
        // fails too.
        let sent = self.stream.send(replies, |into| into.extend_from_slice(commands));
        let _ = self.connector.edges.timer.timeout_at(self.until, sent).await;
    }

    /// The next reply, to the command `step`.
    pub async fn receive(&mut self, step: &str) -> Result<C::Reply, Failure> {
        loop {
            match self.stream.decode() {
                Ok(Some(reply)) => {
                    self.connector.has_worked.store(true, Relaxed);
                    return Ok(reply);
                }
                Ok(None) => {}
                Err(failure) => {
                    let advice = match &*self.stream.incoming {
                        // The first bytes of TLS records: an alert or a handshake.
                        [0x15 | 0x16, 3, ..] => self.advice,
                        _ => self.connector.origin,
                    };
                    return Err(Failure::new(failure.kind, format!("{failure}; {advice}")));
                }
            }
            let Failure { kind, message, .. } =
                match self.connector.edges.timer.timeout_at(self.until, self.stream.read()).await {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => self.connector.lost(&error, step, self.advice),
                    None => self.connector.timed_out(step, self.advice),
                };
            return Err(self.stream.failure(kind, message));
        }
    }
}
