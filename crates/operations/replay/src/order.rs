//! Requests of all logs in the order of their times.
//!
//! The lines of one log may be slightly unordered: Envoy writes a line when a request ends, with the time of its start.
//! Each log is sorted within a window; a line that is older than what was already decided is late, and only counted.
//! Several logs are merged, since they may be those of several replicas.

use std::{collections::BTreeMap, mem, rc::Rc};

use super::{
    block::{Block, LogNotes},
    read::{Blocks, Unreadable},
};
use clock::Time;

/// Microseconds by which a line may be older than a line before it.
pub const WINDOW: u64 = 10_000_000;

/// At most this many requests of a log wait for older ones, of about 150 bytes each.
const MAX_WAITING: usize = 1 << 20;

pub(crate) struct Next {
    pub(crate) time: Time,
    pub(crate) block: Rc<Block>,
    pub(crate) index: usize,
}

/// One log, sorted within the window.
struct Sorted {
    /// `None` at the end of the log.
    blocks: Option<Blocks>,
    /// By their times, and those of one time in the order of the log.
    waiting: BTreeMap<(Time, u64), Next>,
    newest: Time,
    /// The time of the last request that was returned.
    returned: Time,
    number: u64,
}

impl Sorted {
    fn new(blocks: Blocks) -> Self {
        Self {
            blocks: Some(blocks),
            waiting: BTreeMap::new(),
            newest: Time::default(),
            returned: Time::default(),
            number: 0,
        }
    }

    /// Reads until the oldest request cannot be preceded by another.
    fn fill(&mut self, notes: &mut LogNotes) -> Result<(), Unreadable> {
        while !self.is_ready() {
            let Some(blocks) = &mut self.blocks else { return Ok(()) };
            match blocks.next()? {
                Some(block) => self.take(block, notes),
                None => self.blocks = None,
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.oldest().is_some_and(|oldest| {
            self.newest.micros() - oldest.micros() > WINDOW || self.waiting.len() > MAX_WAITING
        })
    }

    fn take(&mut self, mut block: Block, notes: &mut LogNotes) {
        notes.add(mem::take(&mut block.notes));
        let block = Rc::new(block);
        for (index, time) in block.times().enumerate() {
            if time < self.returned {
                notes.late += 1;
                notes.first_late.get_or_insert_with(|| format!("{}:{}", block.log, block.line(index)));
                continue;
            }
            self.number += 1;
            self.newest = self.newest.max(time);
            self.waiting.insert((time, self.number), Next { time, block: block.clone(), index });
        }
    }

    fn oldest(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((time, _), _)| *time)
    }

    fn pop(&mut self) -> Option<Next> {
        let (_, next) = self.waiting.pop_first()?;
        self.returned = next.time;
        Some(next)
    }
}

pub(crate) struct Ordered {
    logs: Vec<Sorted>,
    pub(crate) notes: LogNotes,
}

impl Ordered {
    pub(crate) fn new(logs: impl IntoIterator<Item = Blocks>) -> Self {
        Self { logs: logs.into_iter().map(Sorted::new).collect(), notes: LogNotes::default() }
    }

    /// The oldest request that is left.
    pub(crate) fn next(&mut self) -> Result<Option<Next>, Unreadable> {
        let mut first: Option<(Time, &mut Sorted)> = None;
        for log in &mut self.logs {
            log.fill(&mut self.notes)?;
            if let Some(time) = log.oldest()
                && first.as_ref().is_none_or(|(oldest, _)| time < *oldest)
            {
                first = Some((time, log));
            }
        }
        Ok(first.and_then(|(_, log)| log.pop()))
    }
}
