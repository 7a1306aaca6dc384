//! The pipelines in flight on one connection, and the rate at which the server completes them.

use std::{
    collections::VecDeque,
    future, mem,
    time::{Duration, Instant},
};

use clock::timer::after;

use super::{
    Backend, Pipeline,
    backend::{Reply, Stream},
    limit::Capacity,
    queue::Queued,
};
use crate::failure::Failure;
use counters::StoreError;

pub(super) struct Sent<B: Backend> {
    pub(super) pipeline: B::Pipeline,
    /// When its first caller was added.
    pub(super) since: Instant,
    pub(super) at: Instant,
    expected: usize,
    replies: Vec<Reply<B>>,
    /// The replies of the first round, if some commands were sent again.
    first: Option<Vec<Reply<B>>>,
    pub(super) is_late: bool,
}

pub(super) struct Flight<B: Backend> {
    sent: VecDeque<Sent<B>>,
    pub(super) capacity: Capacity,
    /// When the server last replied within the timeout.
    pub(super) last_in_time: Instant,
    was_late: bool,
    /// When the last pipeline completed.
    emptied: Instant,
}

impl<B: Backend> Flight<B> {
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        let capacity = Capacity::new(timeout);
        Self { sent: VecDeque::new(), capacity, last_in_time: now, was_late: false, emptied: now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Writes a pipeline; [`next_complete`](Self::next_complete) sends it.
    pub(super) fn push(&mut self, stream: &mut Stream<B>, queued: Queued<B::Pipeline>, now: Instant) {
        if self.sent.is_empty() {
            // Time without anything in flight does not count.
            let empty = now.duration_since(self.emptied);
            self.last_in_time = if self.was_late { after(self.last_in_time, empty) } else { now };
        }
        let Queued { pipeline, since } = queued;
        let expected = stream.write(|into| B::write(&pipeline, into));
        self.sent.push_back(Sent {
            pipeline,
            since,
            at: now,
            expected,
            replies: Vec::with_capacity(expected),
            first: None,
            is_late: false,
        });
    }

    /// Waits for the oldest pipeline's replies, and removes it. Cancel safe. Must not be called while nothing is in
    /// flight.
    pub(super) async fn next_complete(
        &mut self,
        stream: &mut Stream<B>,
    ) -> Result<(Sent<B>, Vec<Reply<B>>), Failure> {
        loop {
            stream.flush().await?;
            let Some(front) = self.sent.front_mut() else { return future::pending().await };
            while front.replies.len() < front.expected {
                front.replies.push(stream.receive().await?);
            }
            let Some(mut sent) = self.sent.pop_front() else { continue };
            let replies = mem::take(&mut sent.replies);
            if let Some(mut first) = sent.first.take() {
                B::merge(&sent.pipeline, &mut first, replies);
                return Ok((sent, first));
            }
            let again = stream.write(|into| B::write_again(&sent.pipeline, &replies, into));
            if again == 0 {
                return Ok((sent, replies));
            }
            // Their replies follow those to everything that was sent meanwhile.
            sent.expected = again;
            sent.first = Some(replies);
            self.sent.push_back(sent);
        }
    }

    /// Records a complete pipeline. `is_pressed` is passed to [`Capacity::record`].
    pub(super) fn record(&mut self, sent: &Sent<B>, now: Instant, is_pressed: bool) {
        self.capacity.record(sent.pipeline.checks(), sent.at, now, is_pressed);
        (self.was_late, self.emptied) = (sent.is_late, now);
        if !sent.is_late {
            self.last_in_time = now;
        }
    }

    /// Fails callers that timed out; returns true if there were any. Their pipelines stay in flight until the replies
    /// arrive.
    pub(super) fn expire(&mut self, now: Instant, timeout: Duration, error: impl Fn() -> StoreError) -> bool {
        let late = |sent: &&mut Sent<B>| !sent.is_late && after(sent.since, timeout) <= now;
        let mut any = None;
        for sent in self.sent.iter_mut().filter(late) {
            sent.is_late = true;
            sent.pipeline.time_out(any.get_or_insert_with(&error));
        }
        any.is_some()
    }

    /// Fails all callers that time out, and keeps the pipelines of the others.
    pub(super) fn time_out(&mut self, error: &StoreError) {
        for sent in &mut self.sent {
            sent.pipeline.time_out(error);
        }
    }

    pub(super) fn fail(&mut self, error: &StoreError) {
        for mut sent in self.sent.drain(..) {
            sent.pipeline.fail(error);
        }
    }
}
