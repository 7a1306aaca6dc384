//! One call of a script that counts keys: its bytes, and the states in its reply.
//!
//! The keys are counted one by one, or in units: a key alone, or the keys of a rule with several limits, which count all
//! or nothing. Successive callers with the same hits form a run. The script counts all runs at one time of the server's
//! clock and replies with the states before, from which the algorithms compute each caller's outcome.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "numbers and indexes of what one pipeline holds; the length of a reply is checked before"
)]

use std::{borrow::Cow, ops::Range};

use smallvec::SmallVec;

use super::{PendingCheck, clamped, reply_state::ReplyState};
use crate::{
    resp::{self, Reply},
    script::{self, Form, Script},
};
use clock::Time;
use counters::{CounterId, Member};
use limit::{Algorithm, FixedWindow, Hits, SlidingLog, SlidingWindow};
use wire::{Keys, at, at_mut, index};

/// Maximum number of keys that are counted one by one: the call blocks the server, and the index of an argument is one
/// byte.
const MAX_KEYS: usize = 255;

/// Number of previous arguments that are searched for an equal one.
const ARGUMENT_WINDOW: usize = 8;

/// A check that a script counts.
pub(crate) struct ScriptCheck<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) algorithm: Algorithm,
    /// The expiry of a fixed window; for others the random jitter of the expiry.
    pub(crate) seconds: u32,
    /// The hash of a fixed window's key and the end of the window, if the key may expire earlier.
    pub(crate) uncached: Option<(CounterId, Time)>,
    pub(crate) hits: Hits,
    pub(crate) member: Member,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CountMode {
    /// Each key by itself, in a call that others may join.
    Each,
    Units,
    /// If the request is refused, only those alone that are over; the others read. By [`Refusal::codes`](limit::Refusal).
    Guarded(Box<[u64]>),
}

pub(super) struct ScriptCall {
    counts: CountMode,
    keys: Keys,
    counters: Vec<ScriptCounter>,
}

struct ScriptCounter {
    key: Range<u32>,
    algorithm: Algorithm,
    seconds: u32,
    uncached: Option<(CounterId, Time)>,
    member: Member,
    runs: SmallVec<[Run; 1]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    hits: Hits,
    times: u32,
}

/// The states of a call's counters before the next caller's hits, and their time.
pub(super) struct ScriptReply {
    now: Time,
    is_refused: bool,
    counters: Vec<CounterReply>,
    /// The next caller's hits on the unit whose first counter was counted last are not counted.
    is_barred: bool,
}

struct CounterReply {
    member: Member,
    state: Result<ReplyState, super::CheckResult>,
    is_over: bool,
}

impl ScriptCall {
    pub(super) fn new(counts: CountMode) -> Self {
        Self { counts, keys: Keys::default(), counters: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.counters.len() >= MAX_KEYS
    }

    pub(super) fn keys(&self) -> usize {
        self.counters.len()
    }

    /// Adds a counter without callers, and returns its index.
    pub(super) fn push(&mut self, check: &ScriptCheck<'_>) -> u32 {
        let ScriptCheck { algorithm, seconds, uncached, member, .. } = *check;
        let key = self.keys.push(&check.key);
        self.counters.push(ScriptCounter {
            key,
            algorithm,
            seconds,
            uncached,
            member,
            runs: SmallVec::new(),
        });
        index(self.counters.len() - 1)
    }

    /// True if the unit that begins at a counter has these keys and algorithms.
    pub(super) fn is_unit(&self, first: u32, checks: &[ScriptCheck<'_>]) -> bool {
        let first = first as usize;
        let rest = self.counters[first + 1..].iter().take_while(|counter| counter.member == Member::Next);
        let unit = &self.counters[first..=first + rest.count()];
        let is_same = |(counter, check): (&ScriptCounter, &ScriptCheck<'_>)| {
            counter.algorithm == check.algorithm && self.keys.get(&counter.key) == check.key.as_bytes()
        };
        unit.len() == checks.len() && unit.iter().zip(checks).all(is_same)
    }

    /// Adds a caller of a counter, and returns the index of its run.
    pub(super) fn join(&mut self, counter: u32, hits: Hits) -> u32 {
        let runs = &mut at_mut(&mut self.counters, counter).runs;
        let hits = clamped(hits);
        match runs.last_mut() {
            // Each refund of a log sees another newest entry, so refunds do not share runs.
            Some(run) if run.hits == hits && matches!(hits, Hits::Take(_)) => run.times += 1,
            _ => runs.push(Run { hits, times: 1 }),
        }
        index(runs.len() - 1)
    }

    fn is_timed(&self) -> bool {
        self.counters.iter().any(|counter| !matches!(counter.algorithm, Algorithm::FixedWindow(_)))
    }

    pub(super) fn script(&self) -> &'static Script {
        match &self.counts {
            CountMode::Each if is_log(self.counters[0].algorithm) => &script::LOGS,
            CountMode::Each => &script::STATES,
            CountMode::Units | CountMode::Guarded(_) if self.is_timed() => &script::UNITS,
            CountMode::Units | CountMode::Guarded(_) => &script::COUNTERS,
        }
    }

    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let (arguments, first) = match &self.counts {
            CountMode::Each => self.shared_arguments(),
            CountMode::Units => (self.counters.iter().collect(), SmallVec::new()),
            CountMode::Guarded(codes) => (self.counters.iter().collect(), guard(codes)),
        };
        self.script().begin(into, form, self.keys(), arguments.len() + 1);
        for counter in &self.counters {
            resp::write_word(into, self.keys.get(&counter.key));
        }
        resp::write_word(into, &first);
        let mut argument = Vec::with_capacity(48);
        for counter in arguments {
            argument.clear();
            counter.write(&mut argument);
            resp::write_word(into, &argument);
        }
    }

    /// The arguments, of which equal ones are shared, and for each key a byte with the index of its own.
    fn shared_arguments(&self) -> (Vec<&ScriptCounter>, SmallVec<[u8; 32]>) {
        let mut arguments: Vec<&ScriptCounter> = Vec::new();
        let indexes = self.counters.iter().map(|counter| {
            let latest = arguments.iter().rev().take(ARGUMENT_WINDOW);
            // The random expiries may differ.
            let is_same =
                |known: &&ScriptCounter| known.algorithm == counter.algorithm && known.runs == counter.runs;
            let behind = latest.copied().position(|known| is_same(&known)).unwrap_or_else(|| {
                arguments.push(counter);
                0
            });
            u8::try_from(arguments.len() - behind).expect("a call has at most 255 keys")
        });
        let indexes = indexes.collect();
        (arguments, indexes)
    }

    /// Reads the states. `failed` converts an error in place of a state. Adds the keys whose expiry is confirmed to
    /// `expiring`.
    pub(super) fn read(
        &self,
        reply: Reply,
        expiring: &mut Vec<(CounterId, Time)>,
        mut failed: impl FnMut(&str) -> super::CheckResult,
    ) -> Result<ScriptReply, String> {
        let is_guarded = matches!(self.counts, CountMode::Guarded(_));
        let keys = self.keys();
        let is_timed = self.is_timed();
        let mut list = reply.into_list(keys + usize::from(is_guarded) + 2 * usize::from(is_timed))?;
        let now = if is_timed { time(&list.split_off(list.len() - 2))? } else { Time::default() };
        let over = if is_guarded { list.split_off(keys).remove(0).into_list(keys + 1)? } else { Vec::new() };
        let over = over.into_iter().map(|over| over.into_count().map(|over| over == 1));
        let mut over = over.collect::<Result<Vec<_>, _>>()?;
        over.resize(keys + 1, false);
        let is_refused = over[keys];
        let counters = self.counters.iter().zip(list).zip(over).map(|((counter, state), is_over)| {
            let state = ReplyState::read(counter.algorithm, state, counter.runs.len());
            let state = state.map_err(|error| failed(&error));
            CounterReply { member: counter.member, state, is_over }
        });
        let reply = ScriptReply { now, is_refused, counters: counters.collect(), is_barred: false };
        let mut unit = 0;
        for (index, counter) in self.counters.iter().enumerate() {
            if counter.member != Member::Next {
                unit = index;
            }
            let hits = counter.runs[0].hits;
            // The expiry of a counter is set when it counts.
            if counter.uncached.is_some() && hits.taken() > 0 && !reply.bars(unit, hits) {
                expiring.extend(counter.uncached);
            }
        }
        Ok(reply)
    }
}

/// The first argument of a guarded call: the code of each key.
fn guard(codes: &[u64]) -> SmallVec<[u8; 32]> {
    let mut text = SmallVec::from_slice(b"g");
    for code in codes {
        text.push(b' ');
        text.extend_from_slice(itoa::Buffer::new().format(*code).as_bytes());
    }
    text
}

pub(super) fn is_log(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingLog(_))
}

/// The time of a reply: a second and microseconds.
fn time(reply: &[Reply]) -> Result<Time, String> {
    let number = |reply: &Reply| reply.text()?.parse::<u64>().ok();
    let parts = match reply {
        [second, micros] => number(second).zip(number(micros)),
        _ => None,
    };
    let micros = parts.and_then(|(second, micros)| second.checked_mul(1_000_000)?.checked_add(micros));
    micros.map(Time::from_micros).ok_or_else(|| Reply::Nil.unexpected("a time"))
}

impl ScriptCounter {
    fn write(&self, into: &mut Vec<u8>) {
        let (letter, numbers) = match self.algorithm {
            Algorithm::FixedWindow(FixedWindow { limit, .. }) => {
                (b'c', [limit, u64::from(self.uncached.is_some()), 0])
            }
            Algorithm::SlidingWindow(SlidingWindow { limit, window }) => (b'w', [limit, window.seconds(), 0]),
            Algorithm::SlidingLog(SlidingLog { limit, window }) => (b'l', [limit, window.seconds(), 0]),
            Algorithm::Concurrency(_) => unreachable!("holds have a script of their own"),
            Algorithm::Bucket(limit) => {
                (b'b', [limit.ticks_per_second(), limit.ticks_per_hit(), limit.burst()])
            }
        };
        let unit = match self.member {
            Member::Alone => b'a',
            Member::First => b'f',
            Member::Next => b'n',
        };
        into.extend([letter, unit]);
        into.extend(self.seconds.to_le_bytes());
        into.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        for run in &self.runs {
            let (hits, times) = match run.hits {
                Hits::Take(hits) => (hits.cast_signed(), run.times),
                // A script knows a refund by its sign.
                Hits::Refund(0) => (-1, 0),
                Hits::Refund(hits) => (-hits.cast_signed(), run.times),
            };
            into.extend(hits.to_le_bytes());
            into.extend(times.to_le_bytes());
        }
    }
}

impl ScriptReply {
    /// The outcome of the next check of a counter. A caller's checks of a unit are adjacent.
    pub(super) fn outcome(&mut self, check: &PendingCheck) -> super::CheckResult {
        let hits = check.hits;
        let now = self.now;
        let member = at(&self.counters, check.key).member;
        if member != Member::Next {
            self.is_barred = matches!(hits, Hits::Take(_)) && self.bars(check.key as usize, hits);
        }
        let is_barred = self.is_barred;
        let state = match &mut at_mut(&mut self.counters, check.key).state {
            Err(failed) => return failed.clone(),
            Ok(state) => state,
        };
        super::CheckResult::Counted(match member {
            _ if !is_barred => state.apply(check.run, hits, now),
            Member::First | Member::Next if !state.fits(hits, now) => state.reject(check.run, hits, now),
            _ => state.apply(check.run, Hits::Take(0), now),
        })
    }

    /// True if these hits on the unit that begins at a counter are not counted.
    fn bars(&self, first: usize, hits: Hits) -> bool {
        let (counter, rest) =
            self.counters[first..].split_first().expect("a check is of a counter of its call");
        if counter.member == Member::Alone {
            return self.is_refused && !counter.is_over;
        }
        let rest = rest.iter().take_while(|counter| counter.member == Member::Next);
        let fits =
            |counter: &CounterReply| counter.state.as_ref().is_ok_and(|state| state.fits(hits, self.now));
        self.is_refused || !std::iter::once(counter).chain(rest).all(fits)
    }
}
