//! The queue of settles and ends that the store did not take. An end waits behind the settles of its request.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use smallvec::SmallVec;
use tokio::sync::Notify;

use containment::mutex::lock;
use store::{Close, Closing, HoldId};
use telemetry::metrics::{HoldBound, Stats};

/// As many are sent at once.
const SENT_TOGETHER: usize = 500;

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// `HOLDS_MAX_QUEUED`.
    max: usize,
    filled: Notify,
    stats: Arc<Stats>,
}

#[derive(Default)]
struct Waiting {
    list: VecDeque<Closing>,
    /// The settles of each request, because an end waits behind them.
    settles: HashMap<u128, usize>,
}

impl Waiting {
    fn note(&mut self, closing: &Closing) {
        if closing.close != Close::End {
            *self.settles.entry(closing.id.random).or_default() += 1;
        }
    }

    fn forget(&mut self, closing: &Closing) {
        if closing.close != Close::End
            && let Some(settles) = self.settles.get_mut(&closing.id.random)
        {
            *settles -= 1;
            if *settles == 0 {
                self.settles.remove(&closing.id.random);
            }
        }
    }
}

impl Queue {
    pub(super) fn new(max: usize, stats: Arc<Stats>) -> Self {
        Self { waiting: Mutex::default(), max, filled: Notify::new(), stats }
    }

    /// Until something is pushed.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.waiting).list.len()
    }

    pub(super) fn push(&self, closing: Closing) {
        let mut waiting = lock(&self.waiting);
        if waiting.list.len() >= self.max {
            self.stats.holds().refused(HoldBound::Queue).increment();
            return;
        }
        waiting.note(&closing);
        waiting.list.push_back(closing);
        drop(waiting);
        self.filled.notify_one();
    }

    /// The first ones, which stay until they are taken.
    pub(super) fn first(&self) -> SmallVec<[Closing; 3]> {
        lock(&self.waiting).list.iter().take(SENT_TOGETHER).cloned().collect()
    }

    /// Replaces the first `sent` by those of them that the store did not take.
    pub(super) fn keep(&self, sent: usize, left: impl DoubleEndedIterator<Item = Closing>) {
        let mut waiting = lock(&self.waiting);
        for _ in 0..sent {
            if let Some(closing) = waiting.list.pop_front() {
                waiting.forget(&closing);
            }
        }
        for closing in left.rev() {
            waiting.note(&closing);
            waiting.list.push_front(closing);
        }
    }

    /// True if a settle of this request waits.
    pub(super) fn has_settle(&self, id: &HoldId) -> bool {
        lock(&self.waiting).settles.contains_key(&id.random)
    }
}
