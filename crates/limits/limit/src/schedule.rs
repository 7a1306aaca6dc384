//! The schedule of a limit: other numbers of requests at some times of the week.
//!
//! The number in force changes at boundaries, and is remembered until the next one. The counter is the same throughout.

use std::{fmt, ops::Range, sync::Arc};

use arc_swap::ArcSwap;

use super::limit::Limit;
use crate::calendar::schedule::{self, TimeRange};
use clock::Time;

/// The most entries of a schedule. All are looked at when a boundary is computed.
pub const MAX_ENTRIES: usize = 50;

#[derive(Debug)]
pub struct Schedule {
    ranges: Box<[TimeRange]>,
    /// For each range the limit that is in force instead, and at the end the limit itself. They have no schedule.
    limits: Box<[Limit]>,
    /// What was looked up last: around a boundary both sides of it are in use.
    recent: [ArcSwap<InForce>; 2],
}

/// What is in force until the next boundary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InForce {
    /// The index of the entry; `None` for the limit itself.
    pub entry: Option<usize>,
    /// The boundary; `None` if nothing changes.
    pub until: Option<Time>,
    /// `mon-fri 08:00-20:00 Europe/Berlin, then 100 at 20:00`
    pub words: Box<str>,
    /// The seconds in which it is valid.
    pub seconds: Range<u64>,
}

impl Schedule {
    /// The entries of a limit, each with its number of requests. `None` if its state depends on that number.
    pub fn new(limit: &Limit, entries: &[(TimeRange, u64)]) -> Option<Self> {
        let (ranges, numbers): (Vec<TimeRange>, Vec<u64>) = entries.iter().copied().unzip();
        let others = numbers.into_iter().map(|requests| limit.with_requests(requests));
        let limits = others.chain([Some(limit.clone())]).collect::<Option<_>>()?;
        // Valid in no second.
        let recent = [(); 2].map(|()| ArcSwap::from_pointee(InForce::default()));
        Some(Self { ranges: ranges.into(), limits, recent })
    }

    pub fn limit(&self, now: Time) -> &Limit {
        let known = self.recent.iter().map(ArcSwap::load).find(|known| known.holds(now));
        self.limit_of(known.map_or_else(|| self.computed(now).entry, |known| known.entry))
    }

    fn limit_of(&self, entry: Option<usize>) -> &Limit {
        &self.limits[entry.unwrap_or(self.ranges.len())]
    }

    /// What is in force at an instant. It is computed once a boundary.
    pub fn in_force(&self, now: Time) -> Arc<InForce> {
        let known = self.recent.iter().map(ArcSwap::load).find(|known| known.holds(now));
        known.map_or_else(|| self.computed(now), |known| Arc::clone(&known))
    }

    fn computed(&self, now: Time) -> Arc<InForce> {
        let found = schedule::in_force(&self.ranges, now);
        let next = found.next;
        let in_force = Arc::new(InForce {
            entry: found.range,
            until: next.map(|_| Time::from_seconds(found.until)),
            words: self.words(&found, now).into(),
            seconds: found.since..found.until,
        });
        // The one that is further away makes room.
        let [one, other] = &self.recent;
        let [from_one, from_other] =
            [one, other].map(|known| known.load().seconds.start.abs_diff(found.since));
        (if from_one >= from_other { one } else { other }).store(Arc::clone(&in_force));
        in_force
    }

    fn words(&self, found: &schedule::InForce, now: Time) -> String {
        let range = |index: Option<usize>| self.ranges.get(index?);
        let own = range(found.range).map(ToString::to_string);
        let then = found.next.map(|next| {
            let requests = self.limit_of(next).requests_per_unit;
            let zone = range(found.range).or(range(next)).map(|range| range.zone);
            let moment = zone.map(|zone| schedule::moment(zone, now, found.until)).unwrap_or_default();
            let zone = zone.filter(|_| own.is_none()).map(|zone| format!(" {}", zone.name()));
            format!("then {requests} {moment}{}", zone.unwrap_or_default())
        });
        own.into_iter().chain(then).collect::<Vec<_>>().join(", ")
    }

    /// True if an entry is in another zone than UTC.
    pub fn is_local(&self) -> bool {
        self.ranges.iter().any(|range| range.zone != crate::calendar::Zone::utc())
    }
}

impl InForce {
    fn holds(&self, now: Time) -> bool {
        self.seconds.contains(&now.seconds())
    }
}

/// `500 mon-fri 08:00-20:00 Europe/Berlin, 50 sat-sun UTC`
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (range, limit)) in self.ranges.iter().zip(&self.limits).enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{} {range}", limit.requests_per_unit)?;
        }
        Ok(())
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.ranges, &self.limits) == (&other.ranges, &other.limits)
    }
}

impl Eq for Schedule {}
