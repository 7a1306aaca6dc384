//! The queue of settles and ends that the store did not take: by request, because an end waits behind the settles of its
//! request, and requests whose servers fail behind all others.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    mem,
    sync::{Arc, Mutex},
};

use smallvec::{SmallVec, smallvec};
use tokio::sync::Notify;

use counters::{Close, Closing, HoldId};
use faults::mutex::lock;
use metrics::HoldBound;

use crate::effects::Effects;

/// As many requests are sent at once.
const SENT_TOGETHER: usize = 500;

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// `HOLDS_MAX_QUEUED`.
    max: usize,
    filled: Notify,
    effects: Arc<Effects>,
}

#[derive(Default)]
struct Waiting {
    /// What waits of each request, in its order. Empty while it is sent.
    requests: HashMap<u128, SmallVec<[Closing; 3]>>,
    /// Those that were not sent yet, and those that were not taken, in the order in which they are sent again.
    new: VecDeque<u128>,
    failed: VecDeque<u128>,
    closings: usize,
}

/// What is sent of a request.
pub(super) struct Sent {
    request: u128,
    count: usize,
    /// What the store has not taken.
    pub(super) left: SmallVec<[Closing; 3]>,
}

impl Queue {
    pub(super) fn new(max: usize, effects: Arc<Effects>) -> Self {
        Self { waiting: Mutex::default(), max, filled: Notify::new(), effects }
    }

    /// A closing whose effects are counted, however often it is sent.
    pub(crate) fn closing(&self, id: HoldId, close: Close, currency: Option<Box<str>>) -> Closing {
        Closing::new(id, close, currency, self.effects.clone())
    }

    /// Until something is pushed.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// With what is being sent.
    pub(super) fn len(&self) -> usize {
        lock(&self.waiting).closings
    }

    /// The number of requests that were not taken.
    pub(super) fn failed(&self) -> usize {
        lock(&self.waiting).failed.len()
    }

    pub(super) fn push(&self, closing: Closing) {
        let mut waiting = lock(&self.waiting);
        if waiting.closings >= self.max {
            self.effects.stats.holds().refused(HoldBound::Queue).increment();
            return;
        }
        waiting.closings += 1;
        let request = closing.id.random;
        match waiting.requests.entry(request) {
            Entry::Occupied(mut known) => known.get_mut().push(closing),
            Entry::Vacant(unknown) => {
                unknown.insert(smallvec![closing]);
                waiting.new.push_back(request);
            }
        }
        drop(waiting);
        self.filled.notify_one();
    }

    /// The requests to send: new ones, then as many that were not taken. They stay in the queue until
    /// [`keep`](Self::keep).
    pub(super) fn next(&self, again: &mut usize) -> Vec<Sent> {
        let Waiting { requests, new, failed, .. } = &mut *lock(&self.waiting);
        let mut batch = Vec::new();
        while batch.len() < SENT_TOGETHER {
            let request = new.pop_front().or_else(|| {
                *again = again.checked_sub(1)?;
                failed.pop_front()
            });
            let Some(request) = request else { break };
            let left = requests.get_mut(&request).map(mem::take).unwrap_or_default();
            batch.push(Sent { request, count: left.len(), left });
        }
        batch
    }

    /// What was not taken waits behind what failed before, and before what came of its request meanwhile.
    pub(super) fn keep(&self, batch: Vec<Sent>) {
        let mut waiting = lock(&self.waiting);
        for Sent { request, count, mut left } in batch {
            let has_failed = !left.is_empty();
            waiting.closings -= count - left.len();
            let Entry::Occupied(mut known) = waiting.requests.entry(request) else { continue };
            left.append(known.get_mut());
            if left.is_empty() {
                known.remove();
                continue;
            }
            *known.get_mut() = left;
            if has_failed { &mut waiting.failed } else { &mut waiting.new }.push_back(request);
        }
    }

    /// True if something of this request waits.
    pub(super) fn has(&self, id: &HoldId) -> bool {
        lock(&self.waiting).requests.contains_key(&id.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clock::SystemClock;
    use metrics::{Stats, StatsOptions};

    fn queue(max: usize) -> Queue {
        let stats = Arc::new(Stats::new(StatsOptions::default()));
        Queue::new(max, Arc::new(Effects::new(stats, None, Arc::new(SystemClock))))
    }

    fn closing(queue: &Queue, request: u128, close: Close) -> Closing {
        queue.closing(HoldId { random: request, slots: smallvec![0] }, close, None)
    }

    /// Sends all that is due; a server is lost that has the requests below 1,000.
    fn send(queue: &Queue, mut again: usize) -> Vec<u128> {
        let mut order = Vec::new();
        loop {
            let mut batch = queue.next(&mut again);
            if batch.is_empty() {
                return order;
            }
            assert!(batch.len() <= SENT_TOGETHER);
            order.extend(batch.iter().map(|sent| sent.request));
            batch.iter_mut().filter(|sent| sent.request >= 1000).for_each(|sent| sent.left.clear());
            queue.keep(batch);
        }
    }

    #[test]
    fn what_a_lost_server_does_not_take_delays_nothing_else() {
        let queue = queue(10_000);
        for request in 0..2000 {
            queue.push(closing(&queue, request, Close::Settle(1)));
        }
        assert_eq!(send(&queue, 0), (0..2000).collect::<Vec<_>>());
        assert_eq!((queue.len(), queue.failed()), (1000, 1000));
        queue.push(closing(&queue, 5000, Close::End));
        assert_eq!(send(&queue, 0), [5000], "what is new does not wait");
        queue.push(closing(&queue, 6000, Close::End));
        let order = send(&queue, queue.failed());
        assert_eq!((order[0], order.len()), (6000, 1001), "and comes first");
        assert_eq!(order[1..], (0..1000).collect::<Vec<_>>(), "each is sent once more");
    }

    #[test]
    fn what_comes_of_a_request_waits_behind_what_is_queued_of_it() {
        let queue = queue(3);
        let all = [Close::Settle(1), Close::End, Close::Cancel].map(|close| closing(&queue, 1, close));
        queue.push(all[0].clone());
        let sent = queue.next(&mut 0);
        assert!(queue.has(&all[0].id) && queue.len() == 1, "it is being sent");
        queue.push(all[1].clone());
        assert!(queue.next(&mut 9).is_empty(), "not before what is being sent");
        queue.keep(sent);
        queue.push(all[2].clone());
        queue.push(all[2].clone());
        assert_eq!(queue.len(), 3, "there is a bound");
        let mut sent = queue.next(&mut 1);
        assert!(sent[0].left.iter().map(|one| one.close).eq(all.iter().map(|one| one.close)));
        sent[0].left.clear();
        queue.keep(sent);
        assert!(!queue.has(&all[0].id) && queue.len() == 0);
    }
}
