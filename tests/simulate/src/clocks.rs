//! The clocks of a process: the time of day with an offset, a drift and steps, and a monotonic clock with the drift.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use clock::{
    Clock, Time,
    timer::{Sleep, Timer},
};

use crate::world::{Event, Micros, World};

/// Instants have no zero; only their differences matter.
static ORIGIN: LazyLock<Instant> = LazyLock::new(|| Instant::now() + Duration::from_secs(3600));

/// Timers fire up to this late, in microseconds, since tokio's have a grain of a millisecond.
const GRAIN: u64 = 1000;

pub struct ProcessClock {
    world: Arc<World>,
    /// The time of day when the simulation began, in microseconds since 1970.
    began: u64,
    offset: AtomicI64,
    /// Microseconds per second.
    drift: i64,
}

impl ProcessClock {
    pub fn new(world: &Arc<World>, began: u64, offset: i64, drift: i64) -> Arc<Self> {
        Arc::new(Self { world: world.clone(), began, offset: AtomicI64::new(offset), drift })
    }

    pub fn step(&self, by: i64) {
        self.offset.fetch_add(by, Relaxed);
    }

    fn elapsed(&self, now: Micros) -> u64 {
        now.saturating_add_signed(now.cast_signed() * self.drift / 1_000_000)
    }

    /// The first moment at which this much has elapsed.
    fn when(&self, elapsed: u64) -> Micros {
        let mut at = u128::from(elapsed) * 1_000_000 / (1_000_000 + i128::from(self.drift)).cast_unsigned();
        while self.elapsed(at as u64) < elapsed {
            at += 1;
        }
        at as u64
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> Time {
        let now = self.elapsed(self.world.now()).saturating_add_signed(self.offset.load(Relaxed));
        Time::from_micros(self.began + now)
    }
}

/// The timer of a process.
pub struct ProcessTimer(pub Arc<ProcessClock>);

impl Timer for ProcessTimer {
    fn now(&self) -> Instant {
        *ORIGIN + Duration::from_micros(self.0.elapsed(self.0.world.now()))
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Sleep>> {
        let mut wait = Wait { clock: self.0.clone(), due: 0, alarm: Arc::default() };
        wait.end_at(at);
        Box::pin(wait)
    }
}

struct Wait {
    clock: Arc<ProcessClock>,
    due: Micros,
    alarm: Arc<Alarm>,
}

/// What the queue knows of a wait.
#[derive(Default)]
pub struct Alarm(Mutex<AlarmState>);

#[derive(Default)]
struct AlarmState {
    due: Micros,
    /// The time of the event that counts; of several, the earliest.
    queued: Option<Micros>,
    waker: Option<Waker>,
}

impl Alarm {
    /// Its event has come.
    pub fn ring(self: Arc<Self>, world: &World) {
        let mut state = self.0.lock().expect("nothing panics with it");
        let now = world.now();
        if state.queued != Some(now) {
            return;
        }
        state.queued = None;
        if now < state.due {
            // The wait was given a later end.
            if state.waker.is_some() {
                state.queued = Some(state.due);
                world.at(state.due, Event::Alarm(self.clone()));
            }
            return;
        }
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Wait {
    fn end_at(&mut self, at: Instant) {
        let elapsed = at.saturating_duration_since(*ORIGIN).as_micros() as u64;
        let due = self.clock.when(elapsed);
        let world = &self.clock.world;
        self.due = if due <= world.now() { due } else { due + world.random(|random| random.below(GRAIN)) };
        self.alarm.0.lock().expect("nothing panics with it").due = self.due;
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = &self.clock.world;
        let mut state = self.alarm.0.lock().expect("nothing panics with it");
        if world.now() >= self.due {
            state.waker = None;
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        if state.queued.is_none_or(|queued| self.due < queued) {
            state.queued = Some(self.due);
            world.at(self.due, Event::Alarm(self.alarm.clone()));
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.alarm.0.lock().expect("nothing panics with it").waker = None;
    }
}

impl Sleep for Wait {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.end_at(at);
    }
}
