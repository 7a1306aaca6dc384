//! The window with servers of known rates, asked by a worker that may be late.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(10);
const TICK: Duration = Duration::from_millis(1);

/// A server that takes `each` for a check, and answers after a round trip.
struct Server {
    each: Duration,
    trip: Duration,
    /// When it has completed all pipelines.
    free: Instant,
}

impl Server {
    /// When the reply to a pipeline arrives that is sent at `sent`.
    fn answers(&mut self, checks: usize, sent: Instant) -> Instant {
        self.free = self.free.max(sent + self.trip / 2) + self.each * u32::try_from(checks).unwrap();
        self.free + self.trip / 2
    }
}

/// A connection with more callers than it can serve, whose worker looks in turns of these lengths. Returns what was
/// answered within the timeout, and what was answered, in checks.
fn serve(window: &mut Window, server: &mut Server, offered: Duration, turns: &[Duration]) -> (usize, usize) {
    let mut flight = VecDeque::<(usize, Instant, Instant)>::new();
    let (mut in_flight, mut in_time, mut answered) = (0, 0, 0);
    let start = server.free;
    let (mut now, mut taken) = (start, start);
    for turn in turns {
        // What arrived before the turn is read, then the front is known to be missing.
        while let Some((checks, sent, _)) = flight.pop_front_if(|(_, _, arrives)| *arrives <= now) {
            window.answered(checks, sent, now, in_flight == checks);
            in_flight -= checks;
            answered += checks;
            if now - sent <= TIMEOUT {
                in_time += checks;
            }
        }
        if let Some((_, sent, _)) = flight.front() {
            window.look(now, *sent, in_flight);
        }
        // Callers come at a constant rate; those that the window holds back give up.
        while taken + offered * u32::try_from(window.pipeline()).unwrap() <= now {
            let checks = window.pipeline();
            taken += offered * u32::try_from(checks).unwrap();
            if window.admits(in_flight, checks) {
                flight.push_back((checks, now, server.answers(checks, now)));
                in_flight += checks;
            }
        }
        now += *turn;
    }
    (in_time, answered)
}

proptest! {
    /// However late the worker is, a server that answers everything in a fraction of the timeout is not slow.
    #[test]
    fn a_late_worker_does_not_take_its_server_for_slow(
        turns in prop::collection::vec(0_u64..200, 50),
        trip in 0_u64..2_000,
    ) {
        let mut window = Window::new(TIMEOUT);
        let mut server =
            Server { each: Duration::from_nanos(50), trip: Duration::from_micros(trip), free: Instant::now() };
        // Turns of up to 200 ms, after each of which the worker is on time once.
        let turns: Vec<Duration> =
            turns.into_iter().flat_map(|millis| [Duration::from_millis(millis), TICK]).collect();
        let (_, answered) = serve(&mut window, &mut server, Duration::from_micros(10), &turns);
        prop_assert_eq!(window.size(), OPEN);
        prop_assert!(answered > 0);
    }

    /// A slow server gets what it answers in time: neither more, nor so little that it idles.
    #[test]
    fn a_slow_server_is_kept_busy_and_in_time(micros in 20_u64..500, load in 2_u32..6, trip in 50_u64..3_000) {
        let mut window = Window::new(TIMEOUT);
        let each = Duration::from_micros(micros);
        let mut server = Server { each, trip: Duration::from_micros(trip), free: Instant::now() };
        let begun = server.free;
        let (in_time, answered) = serve(&mut window, &mut server, each / load, &vec![TICK; 3_000]);
        let could = (server.free - begun).as_secs_f64() / each.as_secs_f64();
        prop_assert!(window.size() < OPEN);
        #[expect(clippy::cast_precision_loss, reason = "a few hundred thousand checks")]
        let (in_time, answered) = (in_time as f64, answered as f64);
        prop_assert!(in_time >= 0.8 * answered, "{in_time} of {answered} in time");
        prop_assert!(answered >= 0.8 * could.min(3.0 / each.as_secs_f64()), "{answered} of {could}");
    }
}

#[test]
fn a_server_that_was_slow_is_forgotten_once_nothing_is_held_back() {
    let (mut window, start) = (Window::new(TIMEOUT), Instant::now());
    assert!(window.admits(0, 4_000));
    window.look(start + TIMEOUT, start, 4_000);
    assert!(!window.admits(4_000, 1));
    window.answered(4_000, start, start + 2 * TIMEOUT, true);
    assert!(window.size() < 4_000, "{}", window.size());
    // One pause may be this worker's.
    for (at, is_forgotten) in [(10, false), (11, true)] {
        let sent = start + TIMEOUT * at;
        assert!(window.admits(0, 1));
        window.answered(1, sent, sent + TICK, true);
        assert_eq!(window.size() == OPEN, is_forgotten, "{}", window.size());
    }
}

#[test]
fn a_window_never_closes() {
    let (mut window, start) = (Window::new(TIMEOUT), Instant::now());
    for round in 1..100 {
        let sent = start + TIMEOUT * round;
        window.look(sent + TIMEOUT, sent, 1);
        assert!(window.size() >= 1 && window.pipeline() >= 1 && window.admits(0, 500));
    }
}
