//! The measured bound with servers of known rates.

#![expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]

use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(10);

/// A server that takes `each` per check, and pauses for `pause` in every `every`.
struct Server {
    each: Duration,
    pause: Duration,
    every: Duration,
    start: Instant,
    /// When it has completed all pipelines.
    free: Instant,
}

impl Server {
    fn new(each: Duration, pause: Duration, every: Duration) -> Self {
        let start = Instant::now();
        Self { each, pause, every, start, free: start }
    }

    /// When it completes a pipeline that is sent at `sent`.
    fn answers(&mut self, checks: usize, sent: Instant) -> Instant {
        let mut now = self.free.max(sent);
        for _ in 0..checks {
            let within = (now - self.start).as_nanos() % self.every.as_nanos().max(1);
            let pause = self.pause.as_nanos();
            if within < pause {
                now += Duration::from_nanos(u64::try_from(pause - within).unwrap());
            }
            now += self.each;
        }
        self.free = now;
        now
    }

    /// Checks per second.
    fn rate(&self) -> f64 {
        let share = 1.0 - self.pause.as_secs_f64() / self.every.as_secs_f64();
        share / self.each.as_secs_f64()
    }
}

/// Keeps a server busy for this time, as a connection does; returns the bounds.
fn busy(server: &mut Server, capacity: &mut Capacity, time: Duration) -> Vec<Bound> {
    let (mut flight, mut outstanding) = (std::collections::VecDeque::<(usize, Instant, Instant)>::new(), 0);
    let (mut now, mut seen) = (server.free, Vec::new());
    let end = now + time;
    while now < end {
        let bound = capacity.bound;
        while flight.is_empty() || outstanding < bound.window {
            flight.push_back((bound.pipeline, now, server.answers(bound.pipeline, now)));
            outstanding += bound.pipeline;
        }
        let (checks, sent, answered) = flight.pop_front().unwrap();
        outstanding -= checks;
        now = answered;
        capacity.record(checks, sent, answered, true);
        seen.push(capacity.bound);
    }
    seen
}

proptest! {
    /// At any rate, with or without pauses, outstanding checks are answered in time and keep the server busy.
    #[test]
    fn the_server_answers_outstanding_checks_in_time(
        nanos in 500_u64..1_000_000,
        pause in 0_u64..3,
    ) {
        let (pause, every) = (Duration::from_millis(pause), Duration::from_millis(4));
        let mut server = Server::new(Duration::from_nanos(nanos), pause, every);
        let mut capacity = Capacity::new(TIMEOUT);
        let seen = busy(&mut server, &mut capacity, Duration::from_millis(600));
        let rate = server.rate();
        let in_time = TIMEOUT.as_secs_f64() * rate;
        for bound in &seen[seen.len() / 2..] {
            let (most, window) = (bound.outstanding as f64, bound.window as f64);
            prop_assert!(most <= in_time + 1.0, "{bound:?}, {rate} per second");
            prop_assert!(most >= in_time * 0.4 - 1.0, "{bound:?}, {rate} per second");
            prop_assert!(window <= in_time * 0.6 + 1.0, "{bound:?}, {rate} per second");
            prop_assert!(bound.pipeline >= 1 && bound.pipeline <= MAX_PIPELINE);
        }
    }
}

#[test]
fn an_idle_server_has_only_the_bound_of_the_queue() {
    let mut capacity = Capacity::new(TIMEOUT);
    let mut now = Instant::now();
    for _ in 0..1000 {
        let sent = now;
        now += Duration::from_micros(900);
        capacity.record(1, sent, now, false);
    }
    assert_eq!(capacity.bound, Bound::UNKNOWN);
}

#[test]
fn few_checks_with_occasional_delays_are_not_bounded() {
    let mut capacity = Capacity::new(TIMEOUT);
    let mut now = Instant::now();
    for round in 0..1000_u32 {
        let sent = now;
        // One is sent after the other, and both are answered late.
        now += Duration::from_millis((round % 9).into());
        capacity.record(1, sent, now, round % 5 == 0);
        capacity.record(1, sent + (now - sent) / 2, now + Duration::from_millis((round % 7).into()), false);
        now += Duration::from_millis(20);
        assert_eq!(capacity.bound, Bound::UNKNOWN, "{round}");
    }
}

#[test]
fn bursts_over_a_network_with_jitter_are_not_bounded() {
    let mut capacity = Capacity::new(TIMEOUT);
    let mut now = Instant::now();
    let mut jitter = 0;
    // The round trip is 0.7 to 2 ms, and a pipeline of what came meanwhile follows each millisecond.
    let mut round_trip = || {
        jitter = (jitter * 7 + 311) % 1301;
        Duration::from_micros(700 + jitter)
    };
    for _burst in 0..100 {
        let mut last = now;
        for checks in [1, 3, 1, 6, 2, 1, 4, 1, 5, 2, 1, 1, 3, 8, 1, 2] {
            let answered = last.max(now + round_trip());
            capacity.record(checks, now, answered, false);
            assert_eq!(capacity.bound, Bound::UNKNOWN);
            (now, last) = (now + Duration::from_millis(1), answered);
        }
        now += Duration::from_millis(50);
    }
}

#[test]
fn a_server_that_becomes_slow_is_bounded_before_it_is_late() {
    let mut capacity = Capacity::new(TIMEOUT);
    let mut now = Instant::now();
    for _ in 0..100 {
        let sent = now;
        now += Duration::from_micros(300);
        capacity.record(1, sent, now, false);
    }
    // From now on it takes half a millisecond for each of 4 checks a millisecond.
    let mut server = Server::new(Duration::from_micros(500), Duration::ZERO, TIMEOUT);
    server.free = now;
    let waited = (0..20).find_map(|_| {
        let answered = server.answers(4, now);
        capacity.record(4, now, answered, false);
        let waited = answered - now;
        now += Duration::from_millis(1);
        (capacity.bound != Bound::UNKNOWN).then_some(waited)
    });
    assert!(waited.is_some_and(|waited| waited < TIMEOUT), "{waited:?}");
    assert!(capacity.bound.outstanding.abs_diff(12) <= 2, "{:?}", capacity.bound);
}

#[test]
fn a_stall_barely_changes_the_bound() {
    let mut server = Server::new(Duration::from_micros(10), Duration::ZERO, TIMEOUT);
    let mut capacity = Capacity::new(TIMEOUT);
    let before = busy(&mut server, &mut capacity, Duration::from_millis(500)).pop().unwrap().outstanding;
    for millis in [3, 15, 150, 1500] {
        server.free += Duration::from_millis(millis);
        let seen = busy(&mut server, &mut capacity, Duration::from_millis(500));
        let least = seen.iter().map(|bound| bound.outstanding).min().unwrap();
        assert!(least * 10 >= before * 8, "{before} before a stall of {millis} ms, {least} after it");
    }
}

#[test]
fn a_long_round_trip_does_not_shrink_the_window() {
    let mut server = Server::new(Duration::from_micros(10), Duration::ZERO, TIMEOUT);
    let way = Duration::from_millis(3);
    let mut capacity = Capacity::new(TIMEOUT);
    let (mut flight, mut outstanding) = (std::collections::VecDeque::<(usize, Instant, Instant)>::new(), 0);
    let (mut now, mut done) = (server.free, 0);
    let end = now + Duration::from_secs(1);
    while now < end {
        let bound = capacity.bound;
        while flight.is_empty() || outstanding < bound.window {
            flight.push_back((bound.pipeline, now, server.answers(bound.pipeline, now + way / 2) + way / 2));
            outstanding += bound.pipeline;
        }
        let (checks, sent, answered) = flight.pop_front().unwrap();
        outstanding -= checks;
        (now, done) = (answered, done + checks);
        capacity.record(checks, sent, answered, true);
    }
    assert!(done > 85_000, "{done} of 100000 per second");
}

#[test]
fn the_bound_follows_a_server_that_becomes_faster_or_slower() {
    let mut server = Server::new(Duration::from_millis(1), Duration::ZERO, TIMEOUT);
    let mut capacity = Capacity::new(TIMEOUT);
    for (micros, most) in [(500, 12), (10, 600), (100, 60), (500, 12)] {
        server.each = Duration::from_micros(micros);
        let bound = busy(&mut server, &mut capacity, Duration::from_millis(500)).pop().unwrap();
        assert!(bound.outstanding.abs_diff(most) <= most / 4 + 1, "{micros}: {bound:?}");
    }
    // A bound that rejects no caller is discarded after a while.
    let sent = server.free + 2 * FORGET;
    capacity.record(1, sent, sent + Duration::from_micros(200), false);
    assert_eq!(capacity.bound, Bound::UNKNOWN);
}
