//! Calls that wait for their store.
//!
//! They are futures of one connection, polled by its task when any of them was woken: answers that come
//! together are written together. [`Signal`] remembers that, and so spares the `driver` other futures that were not
//! woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use super::framing::Fault;
use crate::{limiter::Answer, mutex::lock};

/// The calls of a connection that wait.
#[derive(Default)]
pub(super) struct Waiting {
    calls: Vec<Option<One>>,
    free: Vec<usize>,
    /// Those that were never polled.
    fresh: Vec<usize>,
}

/// What becomes of a call.
pub(super) type Decision = dyn Future<Output = Result<Answer, Fault>>;

struct One {
    id: u32,
    begun: Instant,
    decision: Pin<Box<Decision>>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.len() == self.free.len()
    }

    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Adds the call of a stream and returns its place.
    pub(super) fn add(&mut self, id: u32, begun: Instant, decision: Pin<Box<Decision>>) -> usize {
        let call = Some(One { id, begun, decision });
        let place = self.free.pop().unwrap_or(self.calls.len());
        match self.calls.get_mut(place) {
            Some(free) => *free = call,
            None => self.calls.push(call),
        }
        self.fresh.push(place);
        place
    }

    /// Gives a call up.
    pub(super) fn remove(&mut self, place: usize) {
        if self.calls.get_mut(place).is_some_and(|call| call.take().is_some()) {
            self.free.push(place);
            self.fresh.retain(|fresh| *fresh != place);
        }
    }

    /// Polls those that are new, and with `all` the others as well; `answer` is called for each that is decided.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        all: bool,
        mut answer: impl FnMut(u32, Instant, Result<Answer, Fault>),
    ) {
        let mut poll = |place: usize, calls: &mut Vec<Option<One>>, free: &mut Vec<usize>| {
            let Some(slot) = calls.get_mut(place) else { return };
            let Some(one) = slot else { return };
            if let Poll::Ready(decided) = one.decision.as_mut().poll(context) {
                let (id, begun) = (one.id, one.begun);
                *slot = None;
                free.push(place);
                answer(id, begun, decided);
            }
        };
        if all {
            self.fresh.clear();
            for place in 0..self.calls.len() {
                poll(place, &mut self.calls, &mut self.free);
            }
        } else {
            for place in self.fresh.drain(..) {
                poll(place, &mut self.calls, &mut self.free);
            }
        }
        if self.is_empty() && self.calls.capacity() > 64 {
            *self = Self::default();
        }
    }
}

/// Wakes the task of a connection, and remembers that calls are why.
#[derive(Default)]
pub(super) struct Signal {
    woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Signal {
    /// From now on this task is woken.
    pub(super) fn register(&self, waker: &Waker) {
        let mut task = lock(&self.task);
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// True if it was woken since this was called last.
    pub(super) fn take(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Some(task) = &*lock(&self.task)
        {
            task.wake_by_ref();
        }
    }
}

/// A future within a task that is polled when it was woken itself, and not whenever the task is.
pub(super) struct Signaled<F> {
    future: F,
    signal: Arc<Signal>,
    /// The waker of the task, once it was polled.
    task: Option<Waker>,
}

impl<F: Future + Unpin> Signaled<F> {
    pub(super) fn new(future: F) -> Self {
        Self { future, signal: Arc::default(), task: None }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let is_known = self.task.as_ref().is_some_and(|task| task.will_wake(context.waker()));
        if !is_known {
            self.signal.register(context.waker());
            self.task = Some(context.waker().clone());
        } else if !self.signal.take() {
            return Poll::Pending;
        }
        let waker = self.signal.clone().into();
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}
