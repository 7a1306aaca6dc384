//! Monotonic time and chance, from sources that a simulation replaces.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::{Duration, Instant},
};

pub trait Timer: Send + Sync {
    fn now(&self) -> Instant;

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Sleep>>;
}

/// A wait that can be given another end, which costs less than a new one.
pub trait Sleep: Future<Output = ()> + Send {
    fn reset(self: Pin<&mut Self>, at: Instant);
}

impl dyn Timer + '_ {
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(after(self.now(), duration)).await;
    }

    /// The output of a future; `None` if it is not ready before `duration` has passed.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        self.timeout_at(after(self.now(), duration), future).await
    }

    /// The output of a future; `None` if it is not ready before `at`.
    pub async fn timeout_at<F: Future>(&self, at: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = self.sleep_until(at);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

/// Ticks at once, and then this long after each tick was taken.
pub struct Interval<'t> {
    timer: &'t dyn Timer,
    period: Duration,
    next: Pin<Box<dyn Sleep>>,
}

impl<'t> Interval<'t> {
    pub fn new(timer: &'t dyn Timer, period: Duration) -> Self {
        Self { timer, period, next: timer.sleep_until(timer.now()) }
    }

    /// Loses no tick if the future is dropped.
    pub async fn tick(&mut self) {
        self.next.as_mut().await;
        self.next.as_mut().reset(after(self.timer.now(), self.period));
    }
}

pub fn after(moment: Instant, wait: Duration) -> Instant {
    moment + wait
}

/// Random numbers, for jitter and identifiers; not for secrets.
pub trait Random: Send + Sync {
    fn number(&self) -> u64;
}

impl dyn Random + '_ {
    /// A number below `end`, which is above 0. Unbiased but for one in 2⁶⁴ ÷ `end`.
    pub fn below(&self, end: u64) -> u64 {
        let scaled = u128::from(self.number()) * u128::from(end);
        (scaled >> 64) as u64
    }

    /// A number from 0 to 1, without 1.
    pub fn fraction(&self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);

    impl Random for Fixed {
        fn number(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn numbers_are_scaled_below_their_end() {
        for (number, end, expected) in [
            (0, 10, 0),
            (u64::MAX, 10, 9),
            (u64::MAX / 2, 10, 4),
            (u64::MAX, 1, 0),
            (u64::MAX, u64::MAX, u64::MAX - 1),
        ] {
            let random: &dyn Random = &Fixed(number);
            assert_eq!(random.below(end), expected, "{number} below {end}");
            assert!((0.0..1.0).contains(&random.fraction()));
        }
    }
}
