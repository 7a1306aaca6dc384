//! Who is rejected, expires and is sent, by the clock of the test.

use clock::timer::Sleep;
use std::pin::Pin;

use super::*;
use crate::callers::Callers;

const TIMEOUT: Duration = Duration::from_millis(10);

/// A time that stands still.
struct Still(Instant);

impl Timer for Still {
    fn now(&self) -> Instant {
        self.0
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        unreachable!("a queue does not sleep")
    }
}

#[derive(Default)]
struct Numbers(Callers<u8, u8>);

impl Pipeline for Numbers {
    type Check = u8;
    type CheckResult = u8;

    fn callers(&self) -> &Callers<u8, u8> {
        &self.0
    }

    fn callers_mut(&mut self) -> &mut Callers<u8, u8> {
        &mut self.0
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

type Waiting = oneshot::Receiver<Answered<u8>>;

/// A queue whose server was slow: with `in_flight` checks of a window of one.
fn held_back(start: Instant) -> Queue<Numbers> {
    let mut queue = Queue::new(TIMEOUT);
    queue.window.answered(1, start, start, true);
    queue.window.look(start + TIMEOUT, start, 1);
    queue.in_flight = 1;
    queue
}

fn add(queue: &mut Queue<Numbers>, patience: Patience, at: Instant) -> Waiting {
    queue.add_caller(patience, None, |pipeline| pipeline.0.push(0), &Still(at))
}

fn reason(waiting: &mut Waiting) -> Option<FailureReason> {
    waiting.try_recv().ok().map(|answer| answer.expect_err("nothing is answered").reason)
}

fn overloaded() -> StoreError {
    StoreError { reason: FailureReason::Overloaded, message: "slow".into() }
}

#[test]
fn each_caller_is_held_for_a_quarter_of_its_own_time() {
    let start = Instant::now();
    let mut queue = held_back(start);
    queue.window = Window::new(TIMEOUT);
    queue.window.answered(1, start, start, true);
    let after = |millis| start + Duration::from_millis(millis);
    let until = |millis| Patience::Until(after(millis));
    // One pipeline, which a window of 128 does not seal.
    let patiences = [until(20), until(1_000), Patience::Timeout, Patience::Unlimited];
    let mut callers = patiences.map(|patience| add(&mut queue, patience, start));
    assert_eq!(queue.pipelines.len(), 1);
    queue.window.look(after(10), start, 1);
    assert!(queue.take(start).is_none(), "it is held");
    for (at, expected) in [(2, [0, 0, 0, 0]), (3, [0, 0, 1, 1]), (5, [1, 0, 1, 1]), (249, [1, 0, 1, 1])] {
        queue.reject_held(after(at), overloaded);
        let is_failed =
            callers.each_mut().map(|caller| u8::from(caller.try_recv().is_ok() || caller.is_terminated()));
        assert_eq!(is_failed, expected, "after {at} ms");
    }
    assert_eq!((queue.checks, queue.pipelines.len()), (4, 1), "one waits, so its pipeline does");
    assert_eq!(queue.reject_held(after(250), overloaded), 1);
    assert_eq!((queue.checks, queue.pipelines.len()), (0, 0));
}

#[test]
fn those_of_a_pipeline_that_soon_would_be_rejected_go_with_the_first() {
    let start = Instant::now();
    let after = |millis| start + Duration::from_millis(millis);
    let mut queue = held_back(start);
    queue.window = Window::new(TIMEOUT);
    queue.window.answered(1, start, start, true);
    // Held for 250, 262 and 300 ms, of which seven eighths are 229 and 262.
    let mut callers =
        [1_000, 1_050, 1_200].map(|until| add(&mut queue, Patience::Until(after(until)), start));
    queue.window.look(after(10), start, 1);
    assert!(queue.take(start).is_none(), "it is held");
    assert_eq!(queue.reject_held(after(249), overloaded), 0, "none has waited for all of it");
    assert_eq!(queue.reject_held(after(250), overloaded), 2);
    assert_eq!(callers.each_mut().map(|caller| reason(caller).is_some()), [true, true, false]);
    assert_eq!(queue.reject_held(after(299), overloaded), 0);
    assert_eq!(queue.reject_held(after(300), overloaded), 1);
    assert!(queue.is_empty());
}

#[test]
fn who_was_late_is_told_by_where_the_time_went() {
    let start = Instant::now();
    let end = start + TIMEOUT;
    // Never sent and never held back: this process had no time for it.
    let mut queue = Queue::new(TIMEOUT);
    let mut caller = add(&mut queue, Patience::Until(end), start);
    assert_eq!(queue.expire("redis", start + TIMEOUT / 2), 0);
    assert_eq!(reason(&mut caller), None);
    assert_eq!(queue.expire("redis", end), 1);
    assert_eq!(reason(&mut caller), Some(FailureReason::WorkerLate));
    assert!(queue.is_empty());
    // Held back from the start: the server had the time.
    let mut queue = held_back(start);
    let mut caller = add(&mut queue, Patience::Until(end), start);
    assert!(queue.take(start).is_none());
    queue.expire("redis", end);
    assert_eq!(reason(&mut caller), Some(FailureReason::Timeout));
}

#[test]
fn the_oldest_is_sent_first_also_by_a_server_that_was_slow() {
    let start = Instant::now();
    let mut queue = held_back(start);
    let mut callers = [1, 2, 3].map(|_| add(&mut queue, Patience::Timeout, start));
    assert_eq!(queue.pipelines.len(), 3, "a window of one seals each");
    assert!(queue.take(start).is_none());
    queue.in_flight = 0;
    let mut sent = queue.take(start).expect("nothing else is in flight").pipeline;
    sent.0.complete(|_| 7);
    assert_eq!(callers[0].try_recv().expect("it is answered").expect("without an error")[..], [7]);
    assert!(callers[1].try_recv().is_err() && queue.take(start).is_none(), "the window is full again");
}

#[test]
fn a_queue_is_bounded_and_takes_any_caller_when_it_is_empty() {
    let mut queue = Queue::<Numbers>::new(TIMEOUT);
    assert!(queue.admits(usize::MAX, 1));
    let _first = add(&mut queue, Patience::Timeout, Instant::now());
    assert!(queue.admits(1, 2) && !queue.admits(2, 2) && !queue.admits(usize::MAX, 2));
}
