//! Sends a request's checks to the connections that own their keys, and sets the outcomes.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{
    MemcachedStore,
    backend::{Connection, PendingReply},
    pipeline::MemcachedPipeline,
    servers::key_name,
};
use clock::{Time, timer::Random};
use counters::{Batch, Counting, Member, StoreError};
use limit::Rate;
use metrics::FailureReason;
use wire::Patience;

/// The longest relative expiry in memcached: 30 days. A larger number is a date.
const MAX_RELATIVE: u64 = 30 * 24 * 3600;

/// The last date that memcached accepts.
const MAX_DATE: u64 = i32::MAX.unsigned_abs() as u64;

/// A request to one connection: the indexes of its checks, and the pending reply.
struct Submitted {
    checks: SmallVec<[usize; 4]>,
    reply: Result<PendingReply, StoreError>,
}

/// The checks of one connection, by index and key.
struct Group<'b> {
    connection: Arc<Connection>,
    checks: SmallVec<[(usize, Cow<'b, str>); 4]>,
}

impl MemcachedStore {
    /// Counts the open checks. memcached counts the limits of a rule in several steps, so they are read first.
    pub(super) async fn count(
        &self,
        batch: &mut Batch,
        counting: Counting,
        now: Time,
    ) -> Result<(), StoreError> {
        match counting {
            Counting::ReadOnly => batch.only_read(),
            Counting::Always if !batch.has_groups() => {}
            Counting::Always => batch.read_first(|check| check.member != Member::Alone && check.takes()),
            Counting::StopWhenOver => batch.read_first(|_| true),
        }
        let read = self.ask(batch, now).await;
        let groups = batch.count_after_read();
        let counted = self.ask(batch, now).await;
        // Concurrent requests may have found the same room: a rule never exceeds its limits, and what it rejects is not
        // counted.
        batch.give_back(&groups);
        read.and(counted).and(self.ask(batch, now).await)
    }

    /// Asks the servers for what is open, and sets what they find. One server's error does not keep what others find;
    /// returns the first one.
    pub(super) async fn ask(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        let mut error = None;
        for Submitted { checks, reply } in self.submit(batch, now) {
            let outcomes = match reply {
                Ok(mut reply) => reply.wait().await,
                Err(error) => Err(error),
            };
            let outcomes = match outcomes {
                Ok(outcomes) => outcomes,
                Err(lost) => {
                    error.get_or_insert(lost);
                    checks.into_iter().for_each(|index| batch.lose(index));
                    continue;
                }
            };
            assert_eq!(outcomes.len(), checks.len(), "each check has an outcome");
            for (index, outcome) in checks.into_iter().zip(outcomes) {
                match outcome {
                    Ok(after) => batch.found(index, batch.check(index).counted(after, now)),
                    Err(failure) => {
                        error.get_or_insert(failure.to_error(FailureReason::BadAnswer));
                        batch.lose(index);
                    }
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Submits to each connection the open checks whose keys it owns.
    fn submit(&self, batch: &Batch, now: Time) -> SmallVec<[Submitted; 1]> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        let mut submitted = SmallVec::new();
        for (index, check) in batch.checks().iter().enumerate() {
            if check.asked().is_none() {
                continue;
            }
            let name = key_name(batch.key(check));
            let connection = check_countable(&check.limit).and_then(|()| self.servers.connection(&name));
            let connection = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    submitted.push(Submitted { checks: SmallVec::from_slice(&[index]), reply: Err(error) });
                    continue;
                }
            };
            match groups.iter_mut().find(|group| Arc::ptr_eq(&group.connection, &connection)) {
                Some(group) => group.checks.push((index, name)),
                None => groups.push(Group { connection, checks: SmallVec::from_iter([(index, name)]) }),
            }
        }
        let random = &*self.servers.pool.shared.edges.random;
        submitted.extend(groups.into_iter().map(|Group { connection, checks }| {
            let fill = |pipeline: &mut MemcachedPipeline| {
                for (index, name) in &checks {
                    let check = batch.check(*index);
                    if let Some(hits) = check.asked() {
                        pipeline.add(name, hits, expiry(&check.limit, self.jitter, now, random));
                    }
                }
            };
            let reply = connection.submit(checks.len(), Patience::of(batch), batch.lowered.clone(), fill);
            Submitted { checks: checks.into_iter().map(|(index, _)| index).collect(), reply }
        }));
        submitted
    }
}

/// Rules with another algorithm are rejected at load. This catches rules that were loaded without
/// [`COUNTABLE`](MemcachedStore::COUNTABLE): counted as fixed windows, their counters would never expire.
fn check_countable(limit: &Rate) -> Result<(), StoreError> {
    let kind = limit.algorithm.kind();
    if MemcachedStore::COUNTABLE.has(kind) {
        return Ok(());
    }
    let message = format!("memcached supports only fixed windows, not `{}`", kind.name());
    Err(StoreError::new(FailureReason::BadAnswer, message))
}

/// The expiry of a counter that is created now: how long it is kept, random jitter, and one second more because
/// memcached's clock ticks once a second: an expiry of one second may pass at once.
fn expiry(limit: &Rate, jitter: u64, now: Time, random: &dyn Random) -> u64 {
    let seconds = limit.period().seconds_kept(now) + 1 + u64::from(limit.ahead);
    relative_or_date(seconds.saturating_add(random.below(jitter.max(1))), now)
}

/// An expiry in seconds as memcached expects it.
fn relative_or_date(seconds: u64, now: Time) -> u64 {
    let date = now.seconds().saturating_add(seconds);
    match seconds {
        ..=MAX_RELATIVE => seconds,
        _ if date <= MAX_DATE => date,
        _ => MAX_RELATIVE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limit::{Kind, Limit, Unit};

    #[test]
    fn long_expiries_are_sent_as_dates() {
        let now = Time::from_seconds(1_800_000_000);
        for (seconds, expected) in [
            (2, 2),
            (MAX_RELATIVE, MAX_RELATIVE),
            (MAX_RELATIVE + 1, 1_800_000_000 + MAX_RELATIVE + 1),
            (365 * 86_400, 1_800_000_000 + 365 * 86_400),
            (30 * 365 * 86_400, MAX_RELATIVE),
        ] {
            assert_eq!(relative_or_date(seconds, now), expected, "{seconds}");
        }
    }

    #[test]
    fn counters_live_longer_than_their_windows_by_less_than_the_jitter() {
        let random = net::edges::Edges::system().random;
        let limit = Limit::plain(1, Unit::Minute);
        let seen: std::collections::BTreeSet<_> =
            (0..500).map(|_| expiry(&limit, 10, Time::from_seconds(7), &*random)).collect();
        assert_eq!(seen, (61..71).collect());
        assert_eq!(expiry(&limit, 0, Time::from_seconds(7), &*random), 61);
    }

    #[test]
    fn only_fixed_windows_are_counted() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency) {
            let quarter = Limit::new(5, Unit::Minute, 15.try_into().unwrap(), kind, None).unwrap();
            let result = check_countable(&quarter).map_err(|error| error.to_string());
            let expected = format!("memcached supports only fixed windows, not `{}`", kind.name());
            assert_eq!(result, if kind == Kind::FixedWindow { Ok(()) } else { Err(expected) });
        }
    }
}
