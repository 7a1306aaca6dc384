//! The messages of a channel, over a connection of its own.
//!
//! Each server of a cluster, and each of two that both believe to be the master, has subscribers of its own. So a
//! subscription ends when another server owns the channel.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use super::{
    command_pool::CommandPool,
    dialer::{Dialer, REDIS_AUTH},
    failure,
    resp::{self, FramedStream, Reply},
};
use net::ServerAddress;

/// The maximum size of a message; a sender splits what is longer.
pub const MAX_MESSAGE: usize = 1 << 20;

/// The messages of a channel, until the connection ends.
pub struct Messages<'p> {
    pool: &'p CommandPool,
    channel: String,
    owner: ServerAddress,
    demotions: u64,
    stream: FramedStream,
}

/// Why no message follows.
pub enum End {
    /// Another server may own the channel: to be subscribed to anew, at once.
    Moved,
    Failed(String),
}

/// Counts how often a server refused to work as a master.
#[derive(Default)]
pub(super) struct Demotions {
    count: AtomicU64,
    noted: Notify,
}

impl Demotions {
    pub(super) fn note(&self) {
        self.count.fetch_add(1, Relaxed);
        self.noted.notify_waiters();
    }
}

impl<'p> Messages<'p> {
    pub(super) async fn subscribe(
        pool: &'p CommandPool,
        dialer: &Dialer,
        owner: ServerAddress,
        channel: &str,
    ) -> Result<Self, String> {
        let demotions = pool.demotions.count.load(Relaxed);
        let opened = async {
            let mut stream = dialer.dial(&owner, false).await?;
            let command = [&b"SUBSCRIBE"[..], channel.as_bytes()];
            match stream.request(|into| resp::write_command(into, &command)).await? {
                Reply::Error(error) => {
                    let kind = failure::kind_of_reply(&error);
                    let what = format!(
                        "{error}; the user of {REDIS_AUTH} needs the channel {channel:?}{}",
                        failure::hint(kind)
                    );
                    Err(stream.failure(kind, what))
                }
                _ => Ok(stream),
            }
        };
        let stream = opened.await.map_err(|failure| failure.message)?;
        Ok(Self { pool, channel: channel.to_owned(), owner, demotions, stream })
    }

    /// The next message. Cancel safe.
    pub async fn next(&mut self) -> Result<String, End> {
        let Self { pool, channel, owner, demotions, stream } = self;
        let message = async {
            loop {
                stream.expect_message(MAX_MESSAGE);
                // The others confirm the subscription.
                if let Some(message) = payload(stream.receive().await?) {
                    return Ok(message);
                }
            }
        };
        tokio::select! {
            biased;
            message = message => message.map_err(|failure: super::failure::Failure| End::Failed(failure.message)),
            () = moved(pool, channel, owner, *demotions) => Err(End::Moved),
        }
    }
}

/// Waits until another server owns a channel, or may do so. While none is known to own it, the subscription stays.
async fn moved(pool: &CommandPool, channel: &str, from: &ServerAddress, demotions: u64) {
    let changed = pool.topology.changed();
    loop {
        // No change is missed from here on.
        let next = changed.notified();
        let demoted = pool.demotions.noted.notified();
        let is_other = pool.owner(channel).is_ok_and(|owner| owner != *from);
        if is_other || pool.demotions.count.load(Relaxed) != demotions {
            return;
        }
        tokio::select! {
            () = next => {}
            () = demoted => {}
        }
    }
}

fn payload(reply: Reply) -> Option<String> {
    let Reply::List(words) = reply else { return None };
    let kind = words.first()?.text()?;
    let payload = words.get(2)?;
    (kind == "message").then(|| payload.text().unwrap_or_default().to_owned())
}
