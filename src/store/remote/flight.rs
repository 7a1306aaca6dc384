//! The pipelines that were sent on one connection and are not answered, and how fast they are.

use std::{collections::VecDeque, future, mem, time::Duration};

use tokio::time::Instant;

use super::{Backend, Pipeline, backend::Reply, deadline::after, limit::Capacity, queue::Queued};
use crate::store::{
    StoreError,
    remote::{failure::Failure, framed::FramedStream},
};

/// A pipeline on its way.
pub(super) struct Sent<B: Backend> {
    pub(super) pipeline: B::Pipeline,
    pub(super) since: Instant,
    pub(super) at: Instant,
    pub(super) checks: usize,
    /// Replies that are to come, and those that have.
    expected: usize,
    replies: Vec<Reply<B>>,
    /// The replies to the first round, when some commands were sent again.
    first: Option<Vec<Reply<B>>>,
    /// Its callers were failed, because their time was over.
    pub(super) is_late: bool,
}

pub(super) struct Flight<B: Backend> {
    sent: VecDeque<Sent<B>>,
    pub(super) capacity: Capacity,
    /// Until when the server was known to answer in time.
    pub(super) well: Instant,
    was_late: bool,
    /// When the last pipeline was answered.
    emptied: Instant,
}

impl<B: Backend> Flight<B> {
    pub(super) fn new(timeout: Duration) -> Self {
        let (capacity, now) = (Capacity::new(timeout), Instant::now());
        Self { sent: VecDeque::new(), capacity, well: now, was_late: false, emptied: now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Writes a pipeline, to be sent by [`answered`](Self::answered).
    pub(super) fn push(
        &mut self,
        line: &mut FramedStream<B::Codec>,
        queued: Queued<B::Pipeline>,
        now: Instant,
    ) {
        if self.sent.is_empty() {
            // Time in which nothing was sent says nothing.
            let empty = now.saturating_duration_since(self.emptied);
            self.well = if self.was_late { after(self.well, empty) } else { now };
        }
        let Queued { pipeline, since } = queued;
        let expected = line.write(|into| B::write(&pipeline, into));
        let checks = pipeline.checks();
        self.sent.push_back(Sent {
            pipeline,
            since,
            at: now,
            checks,
            expected,
            replies: Vec::with_capacity(expected),
            first: None,
            is_late: false,
        });
    }

    /// Waits until the oldest pipeline is answered, and takes it with its replies. May be given up and called
    /// again. Not to be called while nothing is on its way.
    pub(super) async fn answered(
        &mut self,
        line: &mut FramedStream<B::Codec>,
    ) -> Result<(Sent<B>, Vec<Reply<B>>), Failure> {
        loop {
            line.flush().await?;
            let Some(front) = self.sent.front_mut() else { return future::pending().await };
            while front.replies.len() < front.expected {
                front.replies.push(line.receive().await?);
            }
            let Some(mut sent) = self.sent.pop_front() else { continue };
            let replies = mem::take(&mut sent.replies);
            if let Some(mut first) = sent.first.take() {
                B::merge(&sent.pipeline, &mut first, replies);
                return Ok((sent, first));
            }
            let again = line.write(|into| B::write_again(&sent.pipeline, &replies, into));
            if again == 0 {
                return Ok((sent, replies));
            }
            // These replies come behind those to everything that was sent meanwhile.
            sent.expected = again;
            sent.first = Some(replies);
            self.sent.push_back(sent);
        }
    }

    /// Notes that a pipeline was answered. `has_shed` as [`Capacity::answered`] takes it.
    pub(super) fn note(&mut self, sent: &Sent<B>, now: Instant, has_shed: bool) {
        self.capacity.answered(sent.checks, sent.at, now, has_shed);
        (self.was_late, self.emptied) = (sent.is_late, now);
        if !sent.is_late {
            self.well = now;
        }
    }

    /// Fails the callers whose time is over; returns true when there were any. What was sent stays on its way:
    /// its replies come all the same.
    pub(super) fn expire(&mut self, now: Instant, timeout: Duration, error: impl Fn() -> StoreError) -> bool {
        let late = |sent: &&mut Sent<B>| !sent.is_late && after(sent.since, timeout) <= now;
        let mut any = None;
        for sent in self.sent.iter_mut().filter(late) {
            sent.is_late = true;
            sent.pipeline.fail(any.get_or_insert_with(&error));
        }
        any.is_some()
    }

    /// Fails all callers, and forgets what was sent.
    pub(super) fn fail(&mut self, error: &StoreError) {
        for mut sent in self.sent.drain(..) {
            sent.pipeline.fail(error);
        }
    }
}
