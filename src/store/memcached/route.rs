//! From a request's checks to the connections that own their keys, and back to its outcomes.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{
    MemcachedStore,
    backend::{Connection, PendingReply},
};
use crate::store::memcached::key::name;
use crate::{
    clock::Time,
    limiter::algorithm::Hits,
    net::random,
    rules::Limit,
    store::{
        Applied, Batch, Check, Counting, FailureReason, Member, Outcome, StoreError, batch::NextHits, looking,
    },
};

/// The longest time that memcached takes for seconds from now: 30 days. A larger number is a date.
const LONGEST: u64 = 30 * 24 * 3600;

/// The last date that memcached can hold.
const LAST_DATE: u64 = i32::MAX.unsigned_abs() as u64;

/// What was asked of one connection: which checks, and where their outcomes come from.
struct Asked {
    checks: SmallVec<[usize; 4]>,
    answer: PendingReply,
}

/// The checks of a request that one server counts, by their places and names.
struct Group<'b> {
    connection: Arc<Connection>,
    checks: SmallVec<[(usize, Cow<'b, str>); 4]>,
}

impl MemcachedStore {
    /// Counts every check, and of a group all or nothing.
    pub(super) fn count<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        let look = batch.counting == Counting::Look;
        if batch.has_groups() && !look {
            return Applied::Later(Box::pin(self.count_groups(batch, now)));
        }
        let hits = |_: usize, check: &Check<'_>| Some(if look { looking(check.hits) } else { check.hits });
        match self.ask(batch, now, hits) {
            Ok(asked) => Applied::Later(Box::pin(self.hear(batch, asked))),
            Err(error) => Applied::Now(Err(error)),
        }
    }

    /// Counts every check that is alone, and looks at those of groups; then counts the groups that fit.
    async fn count_groups(&self, batch: &mut Batch<'_>, now: Time) -> Result<(), StoreError> {
        let is_looked_at = |check: &Check<'_>| check.member != Member::Alone && check.takes();
        let looked: SmallVec<[bool; 8]> = batch.checks().iter().map(is_looked_at).collect();
        let hits =
            |_: usize, check: &Check<'_>| Some(if is_looked_at(check) { Hits::Take(0) } else { check.hits });
        let asked = self.ask(batch, now, hits)?;
        self.hear(batch, asked).await?;
        let hits = batch.hits_that_fit(|place| looked.get(place) == Some(&true));
        self.count_what_fits(batch, now, hits).await
    }

    /// Counts every check unless one would be over its limit; then only those that would be.
    ///
    /// memcached has no step that does both, so the counters are read first and changed then: a request that
    /// comes between finds the room that this one found. A group gives back its hits when that has happened.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch<'_>, now: Time) -> Result<(), StoreError> {
        let asked = self.ask(batch, now, |_, _| Some(Hits::Take(0)))?;
        self.hear(batch, asked).await?;
        let hits = batch.hits_after_look();
        self.count_what_fits(batch, now, hits).await
    }

    /// Counts these hits, and gives back those of a group that has gone over a limit meanwhile: its counters
    /// never admit more than their limits, and keep nothing of what was refused.
    async fn count_what_fits(
        &self,
        batch: &mut Batch<'_>,
        now: Time,
        hits: NextHits,
    ) -> Result<(), StoreError> {
        if hits.iter().all(Option::is_none) {
            return Ok(());
        }
        let asked = self.ask(batch, now, |place, _| hits.get(place).copied().flatten())?;
        self.hear(batch, asked).await?;
        let back = batch.hits_to_give_back(&hits);
        if back.iter().all(Option::is_none) {
            return Ok(());
        }
        let over: SmallVec<[bool; 8]> = batch.checks().iter().map(Check::is_over).collect();
        let asked = self.ask(batch, now, |place, _| back.get(place).copied().flatten())?;
        self.hear(batch, asked).await?;
        batch.refuse_given_back(&back, &over);
        Ok(())
    }

    /// Asks each connection for the checks whose keys it owns, all at once.
    fn ask(
        &self,
        batch: &Batch<'_>,
        now: Time,
        hits: impl Fn(usize, &Check<'_>) -> Option<Hits>,
    ) -> Result<SmallVec<[Asked; 1]>, StoreError> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        for (place, check) in batch.checks().iter().enumerate() {
            if hits(place, check).is_none() {
                continue;
            }
            refuse_what_is_not_countable(check.limit)?;
            let name = name(batch.key(check));
            let connection = self.servers.connection(&name)?;
            match groups.iter_mut().find(|group| Arc::ptr_eq(&group.connection, &connection)) {
                Some(group) => group.checks.push((place, name)),
                None => groups.push(Group { connection, checks: SmallVec::from_iter([(place, name)]) }),
            }
        }
        let asked = groups.into_iter().map(|Group { connection, checks }| {
            let answer = connection.ask(checks.len(), batch.until, |pipeline| {
                for (place, name) in &checks {
                    if let Some(check) = batch.checks().get(*place)
                        && let Some(hits) = hits(*place, check)
                    {
                        pipeline.add(name, hits, expiry(check.limit, self.jitter, now));
                    }
                }
            })?;
            Ok(Asked { checks: checks.into_iter().map(|(place, _)| place).collect(), answer })
        });
        asked.collect()
    }

    /// Waits for the connections' answers and sets the outcomes.
    async fn hear(&self, batch: &mut Batch<'_>, asked: SmallVec<[Asked; 1]>) -> Result<(), StoreError> {
        for Asked { checks, mut answer } in asked {
            let outcomes = answer.within(batch.until).await?;
            for (place, outcome) in checks.into_iter().zip(outcomes) {
                let after = outcome.map_err(|failure| StoreError {
                    reason: FailureReason::BadAnswer,
                    message: failure.message.as_str().into(),
                })?;
                batch.set(place, Outcome::Counted(after));
            }
        }
        Ok(())
    }
}

/// Rules that ask for another algorithm are refused when they are read. Who reads them without
/// [`COUNTABLE`](MemcachedStore::COUNTABLE) is told here: as fixed windows their counters would never end.
fn refuse_what_is_not_countable(limit: &Limit) -> Result<(), StoreError> {
    let kind = limit.algorithm.kind();
    if MemcachedStore::COUNTABLE.has(kind) {
        return Ok(());
    }
    let message = format!("memcached counts fixed windows only, and is asked for a `{}`", kind.name());
    Err(StoreError { reason: FailureReason::BadAnswer, message: message.into() })
}

/// When a counter that is made now may be forgotten, as memcached is told: its window's length from now, and
/// a part of the jitter. One second more, because memcached's clock ticks once a second: what is to live for
/// one may be gone at once.
fn expiry(limit: &Limit, jitter: u64, now: Time) -> u64 {
    let lives = limit.window().seconds().saturating_add(1);
    told(lives.saturating_add(random::below(jitter)), now)
}

/// So many seconds from now, in the form that memcached does not take for something else.
fn told(seconds: u64, now: Time) -> u64 {
    let date = now.seconds().saturating_add(seconds);
    match seconds {
        ..=LONGEST => seconds,
        _ if date <= LAST_DATE => date,
        _ => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limiter::algorithm::Kind, rules::Unit};

    #[test]
    fn long_times_are_told_as_dates() {
        let now = Time::from_seconds(1_800_000_000);
        for (seconds, expected) in [
            (2, 2),
            (LONGEST, LONGEST),
            (LONGEST + 1, 1_800_000_000 + LONGEST + 1),
            (365 * 86_400, 1_800_000_000 + 365 * 86_400),
            (30 * 365 * 86_400, LONGEST),
        ] {
            assert_eq!(told(seconds, now), expected, "{seconds}");
        }
    }

    #[test]
    fn counters_live_longer_than_their_windows_by_less_than_the_jitter() {
        let limit = Limit::plain(1, Unit::Minute);
        let seen: std::collections::BTreeSet<_> =
            (0..500).map(|_| expiry(&limit, 10, Time::from_seconds(7))).collect();
        assert_eq!(seen, (61..71).collect());
        assert_eq!(expiry(&limit, 0, Time::from_seconds(7)), 61);
    }

    #[test]
    fn only_fixed_windows_are_counted() {
        for kind in Kind::ALL {
            let quarter = Limit::new(5, Unit::Minute, 15.try_into().unwrap(), kind, None).unwrap();
            let refused = refuse_what_is_not_countable(&quarter).map_err(|error| error.to_string());
            let told = format!("memcached counts fixed windows only, and is asked for a `{}`", kind.name());
            assert_eq!(refused, if kind == Kind::FixedWindow { Ok(()) } else { Err(told) });
        }
    }
}
