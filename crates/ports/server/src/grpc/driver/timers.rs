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

/// What a connection waits for until a time.
#[derive(Clone, Copy)]
enum Deadline {
    /// The peer's side is closed.
    Linger,
    /// The preface and the first SETTINGS are complete.
    Preface,
    /// The frame or header block is complete.
    Frame,
    /// The peer has read what was written.
    Unread,
    /// The peer has opened its windows for the oldest response.
    Blocked,
    /// Open requests of a connection that is closing have ended.
    Grace,
    /// The PING is acknowledged.
    Pong,
    /// The messages of calls are complete.
    Calls,
    /// The next PING of an idle connection.
    Ping,
    Age,
    FinalGoaway,
}

impl<S: Socket> Driver<S> {
    /// Sets the timer for the next [`tick`](Self::tick); true if that is due now.
    pub(super) fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let Some(due) = self.deadlines().into_iter().filter_map(|(_, at)| at).min() else { return false };
        if due <= self.calls.now {
            return true;
        }
        if let Some(timer) = &self.timer {
            let set = timer.deadline().into_std();
            // An early wake-up sets it again.
            if self.calls.now < set && set <= due {
                return false;
            }
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
        timer.as_mut().reset(due.into());
        // One poll is enough: it stores the waker of this task.
        pin!(unconstrained(timer.as_mut())).poll(context).is_ready()
    }

    /// All deadlines, those that close the connection first.
    fn deadlines(&self) -> [(Deadline, Option<Instant>); 11] {
        let Lifetime { grace, keepalive_interval, keepalive_timeout, .. } = self.lifetime;
        let is_serving = self.stage == Stage::Serving;
        let is_open = is_serving && !self.http.awaits_preface();
        let linger_end = match self.stage {
            Stage::Lingering(end) => Some(end),
            Stage::Serving | Stage::Ending => None,
        };
        let next_ping = keepalive_interval.map(|interval| after(self.last_read, interval));
        let final_goaway = self.left.filter(|_| self.http.has_announced_goaway());
        [
            (Deadline::Linger, linger_end),
            (Deadline::Preface, (is_serving && !is_open).then(|| self.preface_deadline())),
            (Deadline::Frame, self.frame_deadline().filter(|_| is_open)),
            (Deadline::Unread, self.unread.map(|(since, _)| after(since, STALLED))),
            (Deadline::Blocked, self.blocked_due.filter(|_| is_open)),
            (Deadline::Grace, self.left.zip(grace).map(|(left, grace)| after(left, grace))),
            (Deadline::Pong, self.pinged.map(|pinged| after(pinged, keepalive_timeout))),
            (Deadline::Calls, self.calls.due.filter(|_| is_open)),
            (Deadline::Ping, next_ping.filter(|_| is_serving && self.pinged.is_none())),
            (Deadline::Age, self.age.filter(|_| is_serving && self.left.is_none())),
            (
                Deadline::FinalGoaway,
                final_goaway.filter(|_| is_serving).map(|left| after(left, FINAL_GOAWAY)),
            ),
        ]
    }

    /// Handles the deadlines that have passed; false if the connection has ended.
    pub(super) fn tick(&mut self) -> bool {
        let now = self.calls.now;
        for (deadline, at) in self.deadlines() {
            if at.is_none_or(|at| at > now) {
                continue;
            }
            match deadline {
                Deadline::Linger | Deadline::Grace | Deadline::Pong => return false,
                Deadline::Preface => return self.close(ConnectionClosed::PrefaceTimeout),
                Deadline::Frame => return self.close(ConnectionClosed::ReadTimeout),
                Deadline::Unread => return self.close(ConnectionClosed::WriteTimeout),
                Deadline::Blocked => {
                    // Others may be blocked since.
                    self.blocked_due = self.http.oldest_blocked().map(|oldest| after(oldest, STALLED));
                    if self.blocked_due.is_some_and(|due| due <= now) {
                        return self.close(ConnectionClosed::WriteTimeout);
                    }
                }
                Deadline::Calls => {
                    self.calls.check_unfinished(&mut self.http);
                    self.note_requests(self.last_read);
                }
                Deadline::Ping => {
                    self.http.send_ping();
                    self.pinged = Some(now);
                }
                Deadline::Age => self.leave(now),
                Deadline::FinalGoaway => self.http.send_final_goaway(),
            }
        }
        true
    }

    /// Counts a connection that is closed for this reason; false, as it has ended.
    fn close(&self, reason: ConnectionClosed) -> bool {
        self.activity.handle.count(reason);
        false
    }

    /// The deadline of an incomplete frame or header block, unless it is ours to read on.
    fn frame_deadline(&self) -> Option<Instant> {
        let is_ours = self.http.is_interrupted() || self.unwritten() > MAX_UNWRITTEN;
        let since = self.incomplete.filter(|_| !is_ours)?;
        Some(after(since, self.calls.calls.receive_timeout))
    }

    fn preface_deadline(&self) -> Instant {
        let end = after(self.opened, PREFACE_TIMEOUT);
        self.left.map_or(end, |left| end.min(after(left, LAST_PREFACE)))
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
