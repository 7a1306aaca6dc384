//! Replays logs: decides their requests with the real limiter on the log's clock, and reports what rules would have
//! done.
//!
//! ```text
//! Log ─▶ read (blocks, a thread a log) ─▶ order (by time) ─▶ Decider::decide (rules, and others to compare) ─▶ Report
//!          └ line, or access_log                                       └ tally, changes
//! ```
//!
//! The command line opens the logs, loads the rules and shows the report. Nothing here reads the clock.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod access_log;
mod block;
mod changes;
mod decider;
mod instant;
mod line;
mod order;
mod read;
mod report;
mod share;
mod tally;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

pub use self::{
    access_log::{AccessLog, Format, Template},
    block::{LogNotes, Sample, SampledBy, Unlogged},
    changes::Slot,
    decider::Decider,
    order::WINDOW,
    read::{Log, Unreadable},
    report::{KeyReport, LimitReport, Report, RuleReport, UseReport},
    share::Fraction,
};
use self::{
    changes::{Changes, Timeline},
    order::Ordered,
    read::Blocks,
};
use clock::Time;
use limiter::{Answer, Code, Request, RequestError};

pub struct Replay {
    pub logs: Vec<Log>,
    /// How requests are made from the lines of Envoy's access logs; `None` for logs of requests.
    pub access_log: Option<AccessLog>,
    pub rules: Decider,
    pub against: Option<Decider>,
    /// Only requests from this time on.
    pub from: Option<Time>,
    /// Only requests before this time.
    pub to: Option<Time>,
    /// The share of keys that a suggested limit refuses.
    pub suggest: Option<Fraction>,
}

#[derive(Debug)]
pub enum Failed {
    Unreadable(Unreadable),
    /// The system denies a thread.
    System(io::Error),
    /// More counters were in use at one time than fit.
    TooManyKeys,
}

impl From<Unreadable> for Failed {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

pub struct Decision<'a, 'm> {
    /// From 1.
    pub number: u64,
    pub request: &'a Request<'m>,
    pub time: Time,
    /// The answer by the rules.
    pub answer: Answer,
    /// The bytes of the logs, as they are stored, that were read so far.
    pub bytes_read: u64,
}

impl Replay {
    /// Replays the logs, and shows each decision.
    pub fn run(self, show: &mut dyn FnMut(&Decision<'_, '_>)) -> Result<Report, Failed> {
        let Self { logs, access_log, mut rules, mut against, from, to, suggest } = self;
        let read = Arc::new(AtomicU64::new(0));
        let access_log = access_log.map(Arc::new);
        let blocks = logs.into_iter().map(|log| Blocks::start(log, access_log.clone(), read.clone()));
        let blocks = blocks.collect::<io::Result<Vec<_>>>().map_err(Failed::System)?;
        let mut ordered = Ordered::new(blocks);
        if let Some(other) = &against {
            other.tally().counts_uses = false;
        }
        let mut outcome = Outcome::default();
        while let Some(next) = ordered.next()? {
            if from.is_some_and(|from| next.time < from) || to.is_some_and(|to| next.time >= to) {
                continue;
            }
            let request = next.block.request(next.index);
            if !rules.takes(&request) {
                continue;
            }
            let hold = next.block.hold_of(next.index);
            let answer = outcome.decide(&request, hold, next.time, &mut rules, against.as_mut());
            let answer = answer.map_err(|error| Unreadable {
                log: next.block.log.to_string(),
                line: Some(next.block.line(next.index)),
                message: error.to_string(),
            })?;
            let number = outcome.requests;
            let bytes_read = read.load(Relaxed);
            show(&Decision { number, request: &request, time: next.time, answer, bytes_read });
        }
        if [Some(&rules), against.as_ref()].into_iter().flatten().any(Decider::has_evicted) {
            return Err(Failed::TooManyKeys);
        }
        Ok(Report::new(&rules, against.as_ref(), &outcome, ordered.notes, suggest))
    }
}

/// The outcome of the requests so far.
#[derive(Default)]
struct Outcome {
    requests: u64,
    refused: u64,
    refusals: Changes,
    allowances: Changes,
    timeline: Timeline,
}

impl Outcome {
    fn decide(
        &mut self,
        request: &Request<'_>,
        hold: Option<u128>,
        now: Time,
        rules: &mut Decider,
        against: Option<&mut Decider>,
    ) -> Result<Answer, RequestError> {
        let answer = rules.decide(request, hold, now)?;
        let is_refused = answer.code == Code::OverLimit;
        let (other, was_refused) = match against {
            Some(other) => {
                let was_refused = other.decide(request, hold, now)?.code == Code::OverLimit;
                (Some(&*other), was_refused)
            }
            // Compared with no rules, which refuse nothing.
            None => (None, false),
        };
        self.requests += 1;
        self.refused += u64::from(is_refused);
        self.timeline.add(
            now,
            Slot {
                time: now,
                requests: 1,
                admitted: u64::from(!is_refused),
                refused: u64::from(is_refused),
                newly_refused: u64::from(is_refused && !was_refused),
                newly_allowed: u64::from(was_refused && !is_refused),
            },
        );
        let (changes, by) = match (is_refused, was_refused, other) {
            (true, false, _) => (&mut self.refusals, &*rules),
            (false, true, Some(other)) => (&mut self.allowances, other),
            _ => return Ok(answer),
        };
        changes.requests += 1;
        let tally = by.tally();
        for refusing in tally.refusing() {
            let entries = request.descriptors.get(refusing.descriptor).map(|one| &*one.entries);
            changes.note(*refusing, now, || tally.key(refusing.rule, entries.unwrap_or_default()));
        }
        Ok(answer)
    }
}
