//! Calls that wait for their store.
//!
//! They are futures of one connection, polled by its task when one of them wakes it: responses that arrive together are
//! written together. [`Signal`] records such a wake-up, so that `driver` does not poll futures that were not woken.

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

use slab::Slab;

use super::framing::Failure;
use crate::{limiter::Answer, mutex::lock};

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) calls: Slab<WaitingCall>,
    /// Keys of calls that were never polled.
    pub(super) fresh: Vec<usize>,
}

pub(super) type Decision = dyn Future<Output = Result<Answer, Failure>>;

pub(super) struct WaitingCall {
    id: u32,
    begun: Instant,
    decision: Pin<Box<Decision>>,
}

impl Waiting {
    /// Adds the call of a stream and returns its key.
    pub(super) fn add(&mut self, id: u32, begun: Instant, decision: Pin<Box<Decision>>) -> usize {
        let key = self.calls.insert(WaitingCall { id, begun, decision });
        self.fresh.push(key);
        key
    }

    pub(super) fn remove(&mut self, key: usize) {
        if self.calls.try_remove(key).is_some() {
            self.fresh.retain(|fresh| *fresh != key);
        }
    }

    /// Polls the new calls, or all of them, and calls `answer` for each that is decided.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        all: bool,
        mut answer: impl FnMut(u32, Instant, Result<Answer, Failure>),
    ) {
        let mut is_pending = |call: &mut WaitingCall| match call.decision.as_mut().poll(context) {
            Poll::Ready(decided) => {
                answer(call.id, call.begun, decided);
                false
            }
            Poll::Pending => true,
        };
        if all {
            self.fresh.clear();
            self.calls.retain(|_, call| is_pending(call));
        } else {
            for key in self.fresh.drain(..) {
                if self.calls.get_mut(key).is_some_and(|call| !is_pending(call)) {
                    self.calls.try_remove(key);
                }
            }
        }
        if self.calls.is_empty() && self.calls.capacity() > 64 {
            *self = Self::default();
        }
    }
}

/// Wakes the task of a connection, and records that its calls are the cause.
#[derive(Default)]
pub(super) struct Signal {
    woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Signal {
    pub(super) fn register(&self, waker: &Waker) {
        let mut task = lock(&self.task);
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// True if the task was woken since the last call.
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

/// A future within a task that is polled only if it was woken itself.
pub(super) struct Signaled<F> {
    future: F,
    signal: Arc<Signal>,
    /// The waker of the task at the last poll.
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
