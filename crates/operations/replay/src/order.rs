//! Requests of all logs in the order of their times.
//!
//! The lines of one log may be slightly unordered: Envoy writes a line when a request ends, with the time of its start.
//! Each log is sorted within a window; a line that is older than what was already decided is late, and only counted.
//! Several logs are merged, since they may be those of several replicas.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    mem,
    rc::Rc,
};

use super::{
    block::{Block, LogNotes},
    read::{Blocks, Unreadable},
};
use clock::Time;

/// Microseconds by which a line may be older than a line before it.
pub const WINDOW: u64 = 10_000_000;

/// At most this many requests of a log wait for older ones, of about 150 bytes each.
const MAX_WAITING: usize = 1 << 20;

#[derive(Clone)]
pub(crate) struct Next {
    pub(crate) time: Time,
    pub(crate) block: Rc<Block>,
    pub(crate) index: usize,
}

/// One log, sorted within the window.
struct Sorted {
    blocks: Option<Blocks>,
    /// Requests that are not older than the one before them.
    ordered: VecDeque<(Next, u64)>,
    /// The others.
    behind: BinaryHeap<Reverse<(Time, u64, Later)>>,
    newest: Time,
    /// The time of the last request that was returned.
    returned: Time,
    number: u64,
}

/// A request that is ordered by the fields before it.
struct Later(Next);

impl PartialEq for Later {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Later {}

impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Later {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Sorted {
    fn new(blocks: Blocks) -> Self {
        let (newest, returned) = (Time::default(), Time::default());
        let (ordered, behind) = (VecDeque::new(), BinaryHeap::new());
        Self { blocks: Some(blocks), ordered, behind, newest, returned, number: 0 }
    }

    /// Reads until the oldest request cannot be preceded by another.
    fn fill(&mut self, notes: &mut LogNotes) -> Result<(), Unreadable> {
        while !self.is_ready() {
            let Some(blocks) = &mut self.blocks else { return Ok(()) };
            match blocks.next().transpose()? {
                Some(block) => self.take(block, notes),
                None => self.blocks = None,
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.oldest().is_some_and(|oldest| {
            self.newest.micros() - oldest.micros() > WINDOW
                || self.ordered.len() + self.behind.len() > MAX_WAITING
        })
    }

    fn take(&mut self, mut block: Block, notes: &mut LogNotes) {
        notes.add(mem::take(&mut block.notes));
        let block = Rc::new(block);
        for (index, time) in block.times().enumerate() {
            let next = Next { time, block: block.clone(), index };
            self.number += 1;
            if time >= self.newest {
                self.newest = time;
                self.ordered.push_back((next, self.number));
            } else if time >= self.returned {
                self.behind.push(Reverse((time, self.number, Later(next))));
            } else {
                notes.late += 1;
                notes.first_late.get_or_insert_with(|| (block.log, block.line(index)));
            }
        }
    }

    fn oldest(&self) -> Option<Time> {
        let ordered = self.ordered.front().map(|(next, _)| next.time);
        let behind = self.behind.peek().map(|Reverse((time, ..))| *time);
        match (ordered, behind) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn pop(&mut self) -> Option<Next> {
        let is_behind = match (self.ordered.front(), self.behind.peek()) {
            (Some((next, number)), Some(Reverse((time, other, _)))) => (*time, *other) < (next.time, *number),
            (None, Some(_)) => true,
            _ => false,
        };
        let next = if is_behind {
            self.behind.pop().map(|Reverse((.., Later(next)))| next)
        } else {
            self.ordered.pop_front().map(|(next, _)| next)
        }?;
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
