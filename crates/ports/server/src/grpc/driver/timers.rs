//! The time limits of a connection: its age, its shutdown, keepalive, and a peer that is too slow.

use std::{
    future::Future,
    pin::pin,
    task::Context,
    time::{Duration, Instant},
};

use tokio::{task::unconstrained, time::sleep_until};

use super::{
    super::{activity::PREFACE_TIMEOUT, framing::after},
    Driver, MAX_UNWRITTEN, Stage,
};
use crate::{grpc::settings::Settings, socket::Socket};
use metrics::ConnectionClosed;

/// The time limit for the preface during shutdown: the first request may be in flight.
const LAST_PREFACE: Duration = Duration::from_secs(1);

/// The time after which the final GOAWAY is sent to a peer that has not acknowledged the first.
const FINAL_GOAWAY: Duration = Duration::from_secs(1);

/// The time for a peer to read a response that does not fit its windows, and for [`MAX_UNWRITTEN`] bytes of responses to
/// be written. Slower peers are disconnected: no response is so large that 3 KB/s is too little for it.
pub(super) const STALLED: Duration = Duration::from_secs(20);

/// The time limits of a connection; see the settings of the same names.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Lifetime {
    pub(in super::super) age: Option<Duration>,
    pub(in super::super) grace: Option<Duration>,
    pub(in super::super) keepalive_interval: Option<Duration>,
    pub(in super::super) keepalive_timeout: Duration,
}

impl Lifetime {
    /// The time limits of the settings, where zero means none.
    pub(in super::super) fn new(settings: &Settings) -> Self {
        let limit = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
        Self {
            age: limit(settings.max_connection_age),
            grace: limit(settings.max_connection_age_grace),
            keepalive_interval: limit(settings.keepalive_interval),
            keepalive_timeout: settings.keepalive_timeout,
        }
    }
}

impl<S: Socket> Driver<S> {
    /// Sets the timer for the next [`tick`](Self::tick); true if that is due now.
    pub(super) fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let Some(due) = self.due() else { return false };
        if due <= self.calls.now {
            self.timer_at = None;
            return true;
        }
        if self.timer_at.is_none_or(|at| due < at || at <= self.calls.now) {
            self.timer_at = Some(due);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
            timer.as_mut().reset(due.into());
            // One poll is enough: it stores the waker of this task.
            return pin!(unconstrained(timer.as_mut())).poll(context).is_ready();
        }
        false
    }

    /// The time of the next [`tick`](Self::tick).
    fn due(&self) -> Option<Instant> {
        let Lifetime { grace, keepalive_interval, keepalive_timeout, .. } = self.lifetime;
        let in_stage = match self.stage {
            Stage::Serving if self.http.awaits_preface() => Some(self.preface_deadline()),
            Stage::Serving => {
                [self.calls.due, self.incomplete_due(), self.blocked_due].into_iter().flatten().min()
            }
            Stage::Ending => None,
            Stage::Lingering(end) => Some(end),
        };
        let alive = match self.pinged {
            Some(pinged) => Some(after(pinged, keepalive_timeout)),
            None if self.stage == Stage::Serving => {
                keepalive_interval.map(|interval| after(self.last_read, interval))
            }
            None => None,
        };
        let unread = self.unread.map(|(since, _)| after(since, STALLED));
        let mut due = [in_stage, alive, unread, self.age, None];
        if let Some(left) = self.left {
            due[3] = self.http.has_announced_goaway().then(|| after(left, FINAL_GOAWAY));
            due[4] = grace.map(|grace| after(left, grace));
        }
        due.into_iter().flatten().min()
    }

    /// Handles timeouts; false if the connection has ended.
    pub(super) fn tick(&mut self) -> bool {
        let now = self.calls.now;
        let past = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        let Lifetime { grace, keepalive_interval, keepalive_timeout, .. } = self.lifetime;
        let is_stalled = self.is_stalled();
        let over = match self.stage {
            Stage::Lingering(end) => end <= now,
            Stage::Serving if self.http.awaits_preface() && self.preface_deadline() <= now => {
                self.activity.handle.count(ConnectionClosed::PrefaceTimeout);
                true
            }
            Stage::Serving if past(self.incomplete_due()) => {
                self.activity.handle.count(ConnectionClosed::ReadTimeout);
                true
            }
            _ if is_stalled => {
                self.activity.handle.count(ConnectionClosed::WriteTimeout);
                true
            }
            _ => false,
        };
        if over
            || past(self.pinged.map(|pinged| after(pinged, keepalive_timeout)))
            || past(self.left.zip(grace).map(|(left, grace)| after(left, grace)))
        {
            return false;
        }
        if self.stage != Stage::Serving {
            return true;
        }
        self.calls.check_unfinished(&mut self.http);
        if !self.http.awaits_preface() {
            self.note_requests(self.last_read);
        }
        if self.left.is_none() && past(self.age) {
            self.leave(now);
        }
        if self.http.has_announced_goaway() && past(self.left.map(|left| after(left, FINAL_GOAWAY))) {
            self.http.send_final_goaway();
        }
        if self.pinged.is_none() && past(keepalive_interval.map(|interval| after(self.last_read, interval))) {
            self.http.send_ping();
            self.pinged = Some(now);
        }
        true
    }

    /// The deadline of an incomplete frame or header block, unless it is ours to read on.
    fn incomplete_due(&self) -> Option<Instant> {
        let is_ours = self.http.is_interrupted() || self.unwritten() > MAX_UNWRITTEN;
        let since = self.incomplete.filter(|_| !is_ours && !self.http.awaits_preface())?;
        Some(after(since, self.calls.calls.receive_timeout))
    }

    fn preface_deadline(&self) -> Instant {
        let end = after(self.opened, PREFACE_TIMEOUT);
        self.left.map_or(end, |left| end.min(after(left, LAST_PREFACE)))
    }

    /// True if the peer has not read its responses in time.
    fn is_stalled(&mut self) -> bool {
        let now = self.calls.now;
        if self.blocked_due.is_some_and(|due| due <= now) {
            self.blocked_due = self.http.oldest_blocked().map(|oldest| after(oldest, STALLED));
        }
        let unread = self.unread.map(|(since, _)| after(since, STALLED));
        [unread, self.blocked_due].into_iter().flatten().any(|due| due <= now)
    }
}

/// ±10 %, so that connections that were opened together are not closed together.
pub(super) fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_at_most_a_tenth() {
        let ages: Vec<_> = (0..1000).map(|_| jittered(Duration::from_secs(1000)).as_secs()).collect();
        assert!(ages.iter().all(|age| (900..=1100).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 950) && ages.iter().any(|age| *age > 1050), "{ages:?}");
    }
}
