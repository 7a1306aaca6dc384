//! Notifies the over-limit caches of other replicas of resets of counters.
//!
//! memcached has no messages. One key holds the last resets, until a minute after the latest. It is changed with `cas`, so
//! that concurrent changes are not lost, and each replica with an over-limit cache reads it twice a second over a separate
//! connection, so that no request waits.

use std::{convert::Infallible, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tracing::Level;

use super::{
    reply::{FramedStream, Reply},
    servers::{Servers, key_name},
};
use counters::Resets;
use net::{ServerAddress, edges::Edges};

/// The interval of reads: a reset takes effect everywhere within a second.
const POLL: Duration = Duration::from_millis(400);

const TIMEOUT: Duration = Duration::from_secs(5);

/// The expiry of the key after the last reset.
const LIFETIME_SECONDS: u64 = 60;

/// A replica that has not read the key for longer may have missed some resets.
const LONGEST_GAP: Duration = Duration::from_secs(LIFETIME_SECONDS / 2);

/// The longest value: the oldest resets are dropped. Each reset writes the value, and each replica reads it twice a
/// second for a minute.
const MAX_BYTES: usize = 16 * 1024;

#[derive(Clone)]
pub struct ResetLog {
    servers: Arc<Servers>,
    key: String,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
struct Entries {
    /// A random number, new whenever the key is created.
    id: u64,
    dropped: u64,
    /// The full keys of each reset, the newest last.
    resets: Vec<Vec<String>>,
}

/// What a replica has read: the identifier of the value, and the number of its resets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Position {
    id: u64,
    seen: u64,
}

impl ResetLog {
    pub(super) fn new(servers: Arc<Servers>, key_prefix: &str) -> Self {
        // Without `_`, which follows the domain in the key of every counter.
        Self { servers, key: key_name(&format!("{key_prefix}tollgate:resets")).into_owned() }
    }

    pub async fn announce(&self, resets: &Resets) -> Result<(), String> {
        let address = self.server()?;
        let announced = self.edges().timer.timeout(TIMEOUT, async {
            let mut stream = self.dial(&address).await?;
            // After a concurrent change by another replica it is read again.
            while !self.add(&mut stream, resets).await? {}
            Ok(())
        });
        announced.await.unwrap_or_else(|| Err(late(&address)))
    }

    /// Reads and changes the value; returns false if another replica has changed it meanwhile.
    async fn add(&self, stream: &mut FramedStream, resets: &Resets) -> Result<bool, String> {
        let (known, unique) = match self.read(stream).await? {
            Reply::Unique(value, unique) => (serde_json::from_slice(&value).ok(), Some(unique)),
            _ => (None, None),
        };
        let mut entries = known.unwrap_or_else(|| Entries::new(self.edges().random.number()));
        entries.add(resets);
        let value = serde_json::to_vec(&entries).map_err(|error| error.to_string())?;
        let key = &self.key;
        let length = value.len();
        let command = match unique {
            Some(unique) => format!("cas {key} 0 {LIFETIME_SECONDS} {length} {unique}\r\n"),
            None => format!("add {key} 0 {LIFETIME_SECONDS} {length}\r\n"),
        };
        match query(stream, &[command.as_bytes(), &value, b"\r\n"]).await? {
            Reply::Stored => Ok(true),
            Reply::NotStored | Reply::Missing => Ok(false),
            _ => Err("memcached: unexpected reply to cas".to_owned()),
        }
    }

    /// Follows the resets of all replicas; never returns.
    pub async fn follow(&self, on_reset: impl Fn(&Resets)) -> Infallible {
        let metrics = &self.servers.pool.shared.metrics;
        let mut connection = None;
        let mut position = Position::default();
        let mut last_read = self.edges().timer.now();
        let mut failing = false;
        loop {
            match self.poll(&mut connection).await {
                Ok(entries) => {
                    let now = self.edges().timer.now();
                    if now.duration_since(last_read) > LONGEST_GAP {
                        on_reset(&Resets::Unknown);
                    }
                    last_read = now;
                    if let Some(resets) = entries.and_then(|entries| position.advance(entries)) {
                        on_reset(&resets);
                    }
                    if std::mem::take(&mut failing) {
                        metrics.log(Level::INFO, "recovered", "resets of counters: recovered");
                    }
                }
                Err(failure) => {
                    connection = None;
                    failing = true;
                    let missed = "the over-limit cache may miss some";
                    metrics.log(
                        Level::WARN,
                        "resets",
                        format_args!("resets of counters: {failure}; {missed}"),
                    );
                }
            }
            self.edges().timer.sleep(POLL).await;
        }
    }

    /// Reads the value; `None` if there is none, or another program wrote it.
    async fn poll(
        &self,
        connection: &mut Option<(ServerAddress, FramedStream)>,
    ) -> Result<Option<Entries>, String> {
        let address = self.server()?;
        let read = self.edges().timer.timeout(TIMEOUT, async {
            let mut stream = match connection.take() {
                Some((known, stream)) if known == address => stream,
                _ => self.dial(&address).await?,
            };
            let reply = self.read(&mut stream).await?;
            *connection = Some((address.clone(), stream));
            Ok(match reply {
                Reply::Unique(value, _) => serde_json::from_slice(&value).ok(),
                _ => None,
            })
        });
        read.await.unwrap_or_else(|| Err(late(&address)))
    }

    async fn read(&self, stream: &mut FramedStream) -> Result<Reply, String> {
        query(stream, &[b"gets ", self.key.as_bytes(), b"\r\n"]).await
    }

    fn edges(&self) -> &Edges {
        &self.servers.pool.shared.edges
    }

    fn server(&self) -> Result<ServerAddress, String> {
        let connection = self.servers.connection(&self.key).map_err(|error| error.to_string())?;
        Ok(connection.address.clone())
    }

    async fn dial(&self, address: &ServerAddress) -> Result<FramedStream, String> {
        let backend = &self.servers.pool.shared.backend;
        backend.open(address).await.map_err(|failure| failure.message)
    }
}

async fn query(stream: &mut FramedStream, command: &[&[u8]]) -> Result<Reply, String> {
    match stream.request(|into| into.extend(command.iter().copied().flatten())).await {
        Ok(Reply::Error(error)) => Err(format!("memcached: error reply \"{error}\"")),
        Ok(reply) => Ok(reply),
        Err(failure) => Err(failure.message),
    }
}

fn late(address: &ServerAddress) -> String {
    format!("memcached {address}: no reply within {TIMEOUT:?}")
}

impl Entries {
    fn new(id: u64) -> Self {
        Self { id, dropped: 0, resets: Vec::new() }
    }

    /// Adds a reset. Drops the oldest if the value would be too long: whoever has not read them knows that there were some.
    fn add(&mut self, resets: &Resets) {
        match resets {
            Resets::Of(full_keys) => self.resets.push(full_keys.clone()),
            Resets::Unknown => {
                let all = self.resets.drain(..).count() as u64;
                self.dropped = self.dropped.saturating_add(all + 1);
            }
        }
        // The quotes, commas and escapes of JSON.
        let length = |reset: &Vec<String>| serde_json::to_string(reset).map_or(MAX_BYTES, |text| text.len());
        let mut bytes = 0_usize;
        let fit = self.resets.iter().rev().take_while(|reset| {
            bytes += length(reset) + 1;
            bytes <= MAX_BYTES
        });
        let too_many = self.resets.len() - fit.count();
        self.resets.drain(..too_many);
        self.dropped = self.dropped.saturating_add(too_many as u64);
    }
}

impl Position {
    /// The resets that were not read before.
    fn advance(&mut self, entries: Entries) -> Option<Resets> {
        let Entries { id, dropped, mut resets } = entries;
        let seen = if self.id == id { self.seen } else { 0 };
        *self = Self { id, seen: dropped.saturating_add(resets.len() as u64) };
        let Some(known) = seen.checked_sub(dropped) else { return Some(Resets::Unknown) };
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(resets.len());
        let new: Vec<String> = resets.drain(known..).flatten().collect();
        (!new.is_empty()).then_some(Resets::Of(new))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reset(key: &str) -> Resets {
        Resets::Of(vec![key.to_owned()])
    }

    #[test]
    fn a_reset_that_does_not_fit_is_reported_as_unknown() {
        let (mut entries, mut position) = (Entries::new(7), Position::default());
        entries.add(&reset("a"));
        assert_eq!(position.advance(entries.clone()), Some(reset("a")));
        assert_eq!(position.advance(entries.clone()), None);
        entries.add(&reset(&"x".repeat(MAX_BYTES - 5)));
        assert_eq!((entries.dropped, entries.resets.len()), (1, 1), "the largest");
        entries.add(&reset(&"x".repeat(MAX_BYTES - 4)));
        assert_eq!((entries.dropped, entries.resets.len()), (3, 0), "one more");
        assert_eq!(position.advance(entries.clone()), Some(Resets::Unknown));
        entries.add(&reset("b"));
        assert_eq!(position.advance(entries.clone()), Some(reset("b")));
        entries.add(&Resets::Unknown);
        assert_eq!(position.advance(entries.clone()), Some(Resets::Unknown));
        entries.add(&reset("c"));
        assert_eq!(position.advance(entries), Some(reset("c")));
    }

    #[test]
    fn a_value_keeps_its_form() {
        let mut entries = Entries::new(7);
        entries.add(&reset("d_k_\"v\"\r\n_0#0.1.1.3/60"));
        let written = serde_json::to_vec(&entries).unwrap();
        assert!(!written.contains(&b'\n'), "it is one line");
        assert_eq!(serde_json::from_slice::<Entries>(&written).unwrap(), entries);
        assert!(serde_json::from_slice::<Entries>(b"12").is_err());
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Reset(u16),
        Large(u16),
        Expire,
        Read(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => any::<u16>().prop_map(Event::Reset),
            1 => any::<u16>().prop_map(Event::Large),
            1 => Just(Event::Expire),
            4 => (0..3_usize).prop_map(Event::Read),
        ]
    }

    proptest! {
        /// Unless the key expired, a replica receives every reset once, or that it has missed some.
        #[test]
        fn every_reset_is_received_once_or_known_to_be_missed(events in prop::collection::vec(event(), 0..60)) {
            let (mut value, mut number) = (None::<Entries>, 0);
            let mut unread: [Vec<String>; 3] = Default::default();
            let mut positions = [Position::default(); 3];
            for event in events {
                match event {
                    Event::Reset(n) | Event::Large(n) => {
                        let length = if matches!(event, Event::Large(_)) { MAX_BYTES / 3 } else { 1 };
                        let key = format!("{n}{}", "x".repeat(length));
                        value.get_or_insert_with(|| Entries::new(number)).add(&reset(&key));
                        for list in &mut unread {
                            list.push(key.clone());
                        }
                    }
                    Event::Expire => {
                        // By then every replica has read it.
                        for (list, position) in unread.iter_mut().zip(&mut positions) {
                            list.clear();
                            value.clone().map(|value| position.advance(value));
                        }
                        value = None;
                        number += 1;
                    }
                    Event::Read(replica) => {
                        let received = value.clone().and_then(|value| positions[replica].advance(value));
                        let expected = std::mem::take(&mut unread[replica]);
                        match received {
                            Some(Resets::Unknown) => {
                                prop_assert!(expected.iter().map(String::len).sum::<usize>() > MAX_BYTES / 2);
                            }
                            Some(Resets::Of(keys)) => prop_assert_eq!(keys, expected),
                            None => prop_assert!(expected.is_empty()),
                        }
                    }
                }
                if let Some(value) = &value {
                    prop_assert!(serde_json::to_vec(value).unwrap().len() <= MAX_BYTES + 80);
                }
            }
        }
    }
}
