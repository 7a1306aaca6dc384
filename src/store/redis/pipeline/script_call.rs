//! Keys that a script on the server counts, as many in one command as were asked for together.
//!
//! Who asks a key for as many hits as the one before makes a run with it. The script carries out all runs at
//! one moment of the server's own time, and answers that moment and what was kept before. From these the
//! algorithm itself tells everyone in turn what it would have told each alone.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    at,
    reply_state::{self, ReplyState},
};
use crate::{
    clock::Time,
    limiter::algorithm::{Algorithm, Bucket, Hits, Kind, SlidingLog, SlidingWindow},
    store::redis::{
        resp::{self, Reply},
        script::{self, Form, Script},
    },
};

/// A command has no more keys: the server does nothing else meanwhile, and a byte tells what is asked of one.
const MOST_KEYS: usize = 255;

/// What is asked of a key is looked for among so many that were asked before it.
const LAST_ARGUMENTS: usize = 8;

/// A limit that a script knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::redis) struct ScriptCall {
    by: By,
    /// What rules call it.
    kind: Kind,
    /// Seconds that a key may live longer than needed.
    slack: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    Bucket(Bucket),
}

/// What is asked of several keys in one command.
pub(super) struct PendingScriptCall {
    script: &'static Script,
    /// All keys, one behind the other.
    keys: Vec<u8>,
    asked: Vec<Asked>,
}

/// What is asked of one key.
struct Asked {
    key: Range<u32>,
    judge: ScriptCall,
    runs: SmallVec<[Run; 1]>,
}

/// So many, one after the other, who ask for the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// At most [`MAX_HITS`](super::MAX_HITS).
    pub(super) hits: Hits,
    pub(super) times: u32,
}

impl ScriptCall {
    /// None for a fixed window, which no script counts. A key may live `slack` seconds longer than needed.
    pub(in crate::store::redis) fn new(algorithm: Algorithm, slack: impl FnOnce() -> u32) -> Option<Self> {
        let by = match algorithm {
            Algorithm::FixedWindow(_) => return None,
            Algorithm::SlidingWindow(limit) => By::SlidingWindow(limit),
            Algorithm::SlidingLog(limit) => By::SlidingLog(limit),
            Algorithm::Bucket(limit) => By::Bucket(limit),
        };
        Some(Self { by, kind: algorithm.kind(), slack: slack() })
    }

    /// True when both hold hits against the same limit; for how long a key lives is drawn anew for each.
    pub(super) fn is_same_limit(self, other: Self) -> bool {
        self.by == other.by
    }

    /// A log is too long to be read with others.
    pub(super) fn is_log(&self) -> bool {
        matches!(self.by, By::SlidingLog(_))
    }

    /// Writes an argument that asks these runs.
    pub(super) fn write(&self, runs: &[Run], into: &mut Vec<u8>) {
        let (letter, numbers) = match self.by {
            By::SlidingWindow(SlidingWindow { limit, window }) => (b'w', [limit.into(), window.seconds(), 0]),
            By::SlidingLog(SlidingLog { limit, window }) => (b'l', [limit.into(), window.seconds(), 0]),
            By::Bucket(limit) => (b'b', [limit.ticks_per_second(), limit.ticks_per_hit(), limit.burst()]),
        };
        write_argument(letter, self.slack, numbers, runs, into);
    }

    /// Reads what a script tells of a key.
    ///
    /// # Errors
    /// In Redis's own way, when something else is under the key.
    pub(super) fn read(&self, told: Reply) -> Result<ReplyState, String> {
        let kept = match self.by {
            By::SlidingWindow(limit) => ReplyState::window(limit, &told),
            By::SlidingLog(limit) => ReplyState::log(limit, &told),
            By::Bucket(limit) => ReplyState::bucket(limit, &told),
        };
        kept.ok_or_else(|| match told {
            Reply::Error(error) if !error.starts_with("WRONGTYPE") => error,
            _ => format!("WRONGTYPE what is under the key is not kept by a {}", self.kind.name()),
        })
    }
}

impl PendingScriptCall {
    /// A command for logs, or for what is no log.
    pub(super) fn new(logs: bool) -> Self {
        let script = if logs { &script::LOGS } else { &script::STATES };
        Self { script, keys: Vec::new(), asked: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.asked.len() >= MOST_KEYS
    }

    /// Adds a key, and returns its place.
    pub(super) fn push(&mut self, key: &str, judge: ScriptCall) -> u32 {
        let start = at(self.keys.len());
        self.keys.extend_from_slice(key.as_bytes());
        self.asked.push(Asked { key: start..at(self.keys.len()), judge, runs: SmallVec::new() });
        at(self.asked.len() - 1)
    }

    /// Adds one who asks this key, and returns in which run.
    pub(super) fn join(&mut self, key: u32, hits: Hits) -> u32 {
        let Some(asked) = self.asked.get_mut(key as usize) else { return 0 };
        match asked.runs.last_mut() {
            // Each who gives back to a log finds another to be the newest.
            Some(run) if run.hits == hits && matches!(hits, Hits::Take(_)) => run.times += 1,
            _ => asked.runs.push(Run { hits, times: 1 }),
        }
        at(asked.runs.len() - 1)
    }

    /// How many keys it has.
    pub(super) fn keys(&self) -> usize {
        self.asked.len()
    }

    /// Writes the command: the keys, a byte for each that tells its argument, and the arguments.
    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let mut arguments: SmallVec<[&Asked; LAST_ARGUMENTS]> = SmallVec::new();
        let which = self.asked.iter().map(|asked| {
            let last = arguments.len().saturating_sub(LAST_ARGUMENTS);
            let known = arguments[last..].iter().position(|known| known.asks_as(asked));
            let place = known.map_or(arguments.len(), |place| last + place);
            if known.is_none() {
                arguments.push(asked);
            }
            u8::try_from(place + 1).unwrap_or(u8::MAX)
        });
        let which: SmallVec<[u8; MOST_KEYS]> = which.collect();
        self.script.begin(into, form, self.asked.len(), 1 + arguments.len());
        for asked in &self.asked {
            let key = self.keys.get(asked.key.start as usize..asked.key.end as usize);
            resp::write_word(into, key.unwrap_or_default());
        }
        resp::write_word(into, &which);
        let mut argument = Vec::with_capacity(48);
        for asked in arguments {
            argument.clear();
            asked.judge.write(&asked.runs, &mut argument);
            resp::write_word(into, &argument);
        }
    }

    /// Reads what the script has told of each key, and the moment of its doing.
    ///
    /// # Errors
    /// When the command failed as a whole.
    pub(super) fn read(&self, told: Reply) -> Result<(Time, Vec<Result<ReplyState, String>>), String> {
        let (now, told) = reply_state::at_one_moment(told, self.asked.len())?;
        Ok((now, told.into_iter().zip(&self.asked).map(|(told, asked)| asked.judge.read(told)).collect()))
    }
}

impl Run {
    /// Writes it as the scripts read it.
    pub(super) fn write(self, into: &mut Vec<u8>) {
        into.extend(self.signed().to_le_bytes());
        into.extend(self.times.to_le_bytes());
    }

    /// Below 0 when given back.
    pub(super) const fn signed(self) -> i64 {
        match self.hits {
            Hits::Take(hits) => hits.cast_signed(),
            Hits::Refund(hits) => -hits.cast_signed(),
        }
    }
}

impl Asked {
    /// The same is asked of both, but for the slack, which is drawn anew for each.
    fn asks_as(&self, other: &Self) -> bool {
        self.judge.by == other.judge.by && self.runs == other.runs
    }
}

/// Writes an argument as the scripts read it.
pub(super) fn write_argument(letter: u8, seconds: u32, numbers: [u64; 3], runs: &[Run], into: &mut Vec<u8>) {
    into.push(letter);
    into.extend(seconds.to_le_bytes());
    for number in numbers {
        into.extend(number.to_le_bytes());
    }
    for run in runs {
        run.write(into);
    }
}
