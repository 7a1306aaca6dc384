//! The pipelines in flight on one connection.

use std::{
    collections::VecDeque,
    future, mem,
    time::{Duration, Instant},
};

use clock::timer::{Timer, after};

use super::{
    Backend, Pipeline,
    backend::{Reply, Stream},
    callers::Patience,
    queue::{Queued, Waits},
};
use crate::failure::Failure;
use counters::StoreError;

/// A caller waits for a silent server for a quarter of its own timeout, as it does for the window, or for the server's timeout
/// if that is longer.
const GIVEN: u32 = 4;

pub(super) struct Sent<B: Backend> {
    pub(super) pipeline: B::Pipeline,
    waits: Waits,
    /// When its commands were written.
    first_at: Instant,
    /// When those were that are answered now, if some were sent again.
    pub(super) at: Instant,
    /// Nothing else was in flight.
    pub(super) was_alone: bool,
    expected: usize,
    replies: Vec<Reply<B>>,
    /// The replies of the first round, if some commands were sent again.
    first: Option<Vec<Reply<B>>>,
    pub(super) is_late: bool,
    /// It has no commands of its own: the one reply is that to the probe.
    pub(super) is_probe: bool,
}

pub(super) struct Flight<B: Backend> {
    sent: VecDeque<Sent<B>>,
    /// The last ones, which wait for the socket.
    unwritten: usize,
    /// When the server last replied within the timeout.
    pub(super) last_in_time: Instant,
    was_late: bool,
    has_answered: bool,
    /// When the last pipeline completed, or a reply was seen to have arrived.
    last_answer: Instant,
    /// A reply arrived since the last look.
    has_replied: bool,
}

impl<B: Backend> Flight<B> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sent: VecDeque::new(),
            unwritten: 0,
            last_in_time: now,
            was_late: false,
            has_answered: false,
            last_answer: now,
            has_replied: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// True if the server was sent checks on this connection, and has answered none.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.is_empty() && !self.has_answered
    }

    /// Writes a pipeline, or the probe if it has no commands; [`next_complete`](Self::next_complete) sends it.
    pub(super) fn push(&mut self, stream: &mut Stream<B>, queued: Queued<B::Pipeline>, now: Instant) {
        if self.sent.is_empty() {
            // Time without anything in flight does not count.
            let empty = now.duration_since(self.last_answer);
            self.last_in_time = if self.was_late { after(self.last_in_time, empty) } else { now };
        }
        let Queued { pipeline, mut waits } = queued;
        waits.for_server.get_or_insert(now);
        let commands = stream.write(|into| B::write(&pipeline, into));
        let is_probe = commands == 0;
        let expected = if is_probe { stream.write(probe::<B>) } else { commands };
        self.sent.push_back(Sent {
            pipeline,
            waits,
            first_at: now,
            at: now,
            was_alone: self.sent.is_empty(),
            expected,
            replies: Vec::with_capacity(expected),
            first: None,
            is_late: false,
            is_probe,
        });
        self.unwritten += 1;
    }

    /// When the oldest pipeline was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Everything was written by `now`: a server's time does not begin while this process is kept from writing.
    fn written(&mut self, now: Instant) {
        for sent in self.sent.iter_mut().rev().take(mem::take(&mut self.unwritten)) {
            sent.at = now;
            if sent.first.is_none() {
                sent.first_at = now;
            }
        }
    }

    /// Waits for the oldest pipeline's replies, and removes it. Cancel safe. Must not be called while nothing is in
    /// flight.
    pub(super) async fn next_complete(
        &mut self,
        stream: &mut Stream<B>,
        timer: &dyn Timer,
    ) -> Result<(Sent<B>, Vec<Reply<B>>), Failure> {
        loop {
            stream.flush().await?;
            if self.unwritten > 0 {
                self.written(timer.now());
            }
            let Some(front) = self.sent.front_mut() else { return future::pending().await };
            while front.replies.len() < front.expected {
                front.replies.push(stream.receive().await?);
                self.has_replied = true;
            }
            let Some(mut sent) = self.sent.pop_front() else { continue };
            let replies = mem::take(&mut sent.replies);
            if let Some(mut first) = sent.first.take() {
                B::merge(&sent.pipeline, &mut first, replies);
                return Ok((sent, first));
            }
            let again = if sent.is_probe {
                0
            } else {
                stream.write(|into| B::write_again(&sent.pipeline, &replies, into))
            };
            if again == 0 {
                return Ok((sent, replies));
            }
            // Their replies follow those to everything that was sent meanwhile.
            sent.expected = again;
            sent.first = Some(replies);
            self.sent.push_back(sent);
            self.unwritten += 1;
        }
    }

    /// Records a complete pipeline.
    pub(super) fn record(&mut self, sent: &Sent<B>, now: Instant) {
        self.was_late = sent.is_late;
        self.last_answer = now;
        self.has_answered = true;
        if !sent.is_late {
            self.last_in_time = now;
        }
    }

    /// Excludes a pause of this process from the server's time: the server may have been descheduled as well.
    pub(super) fn pause(&mut self, by: Duration) {
        for sent in &mut self.sent {
            sent.first_at = after(sent.first_at, by);
        }
        self.last_answer = after(self.last_answer, by);
        self.last_in_time = after(self.last_in_time, by);
    }

    /// Fails the callers that wait no longer at `seen`: those whose own deadlines have passed, and, with the error
    /// `timed_out`, those whose server has had its time. Whoever has a deadline gives a server time as long as it answers
    /// anything: what it answers late because it has much to do is in time for who waits longer. Returns true if the server
    /// was late. The pipelines stay in flight until the replies arrive.
    pub(super) fn expire(
        &mut self,
        seen: Instant,
        timeout: Duration,
        timed_out: impl Fn() -> StoreError,
    ) -> bool {
        // A pipeline of 128 scripts takes Redis longer than the timeout, but its replies arrive one by one.
        if mem::take(&mut self.has_replied) {
            self.last_answer = seen;
        }
        let mut was_late = false;
        // Nobody waits for a probe: only a server that fails is late with one.
        for Sent { waits, first_at, pipeline, is_late, .. } in
            self.sent.iter_mut().filter(|sent| !sent.is_probe)
        {
            let callers = pipeline.callers_mut();
            callers.expire(seen, || waits.error(B::NAME, seen));
            if seen < after(*first_at, timeout) {
                continue;
            }
            let silent = seen.saturating_duration_since(self.last_answer.max(*first_at));
            was_late |= silent >= timeout && !mem::replace(is_late, true);
            let failed = callers.fail_if(&timed_out, |patience| match patience {
                Patience::Until(until) => {
                    silent >= timeout.max(until.saturating_duration_since(*first_at) / GIVEN)
                }
                Patience::Timeout => true,
                Patience::Unlimited => false,
            });
            was_late |= failed > 0;
        }
        was_late
    }

    /// Fails all callers that time out, and keeps the pipelines of the others.
    pub(super) fn time_out(&mut self, error: &StoreError) {
        for sent in &mut self.sent {
            sent.pipeline.callers_mut().time_out(error);
        }
    }

    pub(super) fn fail(&mut self, error: &StoreError) {
        for mut sent in self.sent.drain(..) {
            sent.pipeline.callers_mut().fail(error);
        }
    }
}

/// Writes the probe; returns the number of its replies.
fn probe<B: Backend>(into: &mut Vec<u8>) -> usize {
    into.extend_from_slice(B::PROBE);
    1
}
