//! Calls that wait for their store.
//!
//! They are futures of one connection, polled by its task: responses that arrive together are written together. Each
//! call has a waker of its own, which adds its key to a list, so that a wake-up polls the calls that are ready and no
//! others. [`Signal`] wakes the task.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use http2::meter::{Work, count};
use slab::Slab;

use super::{
    request_head::{RequestHead, concluded},
    status::{self, Failure},
};
use crate::wire::DecisionRpc;
use faults::{
    mutex::lock,
    panics::{self, Boundary, Panicked},
};
use limiter::Answer;

pub(super) struct Waiting {
    calls: Slab<WaitingCall>,
    /// The waker of each key of `calls`, reused by later calls with the same key.
    wakers: Vec<CallWaker>,
    ready: Arc<Ready>,
    /// Keys of calls to poll: new ones, and ready ones that an earlier poll had no time for.
    due: VecDeque<usize>,
}

struct WaitingCall {
    id: u32,
    rpc: DecisionRpc,
    head: RequestHead,
    decision: limiter::Waiting,
}

impl WaitingCall {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Answer, Failure>> {
        let polled = panics::catch(Boundary::GrpcRequest, || {
            Pin::new(&mut self.decision)
                .poll(context)
                .map(|decided| concluded(self.rpc, self.head.span.take(), decided))
        });
        polled.unwrap_or_else(|Panicked| Poll::Ready(Err(status::internal_error().into())))
    }
}

struct Ready {
    keys: Mutex<Vec<usize>>,
    signal: Arc<Signal>,
}

struct CallWaker {
    waker: Waker,
    wake: Arc<CallWake>,
}

struct CallWake {
    key: usize,
    is_listed: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for CallWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            lock(&self.ready.keys).push(self.key);
            self.ready.signal.wake_by_ref();
        }
    }
}

impl Waiting {
    pub(super) fn new(signal: Arc<Signal>) -> Self {
        let ready = Arc::new(Ready { keys: Mutex::default(), signal });
        Self { calls: Slab::new(), wakers: Vec::new(), ready, due: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// True if a call must be polled without a further wake-up.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Adds the call of a stream and returns its key.
    pub(super) fn add(
        &mut self,
        id: u32,
        rpc: DecisionRpc,
        head: RequestHead,
        decision: limiter::Waiting,
    ) -> usize {
        let key = self.calls.insert(WaitingCall { id, rpc, head, decision });
        // Keys are dense: a new one is the number of those before it.
        while self.wakers.len() <= key {
            let key = self.wakers.len();
            let wake =
                Arc::new(CallWake { key, is_listed: AtomicBool::new(false), ready: self.ready.clone() });
            self.wakers.push(CallWaker { waker: wake.clone().into(), wake });
        }
        self.due.push_back(key);
        key
    }

    /// Drops a call whose caller has left. The limiter completes its decision.
    pub(super) fn remove(&mut self, key: usize) {
        self.calls.try_remove(key);
    }

    /// Polls the calls that are new or, if the task was `woken`, ready. Passes each that is decided to `answer`, until
    /// that returns false.
    pub(super) fn poll(
        &mut self,
        woken: bool,
        mut answer: impl FnMut(u32, DecisionRpc, RequestHead, Result<Answer, Failure>) -> bool,
    ) {
        if woken {
            self.due.extend(lock(&self.ready.keys).drain(..));
        }
        while let Some(key) = self.due.pop_front() {
            let Some(CallWaker { waker, wake }) = self.wakers.get(key) else { continue };
            // Before the poll, so that a wake-up during it is not lost.
            wake.is_listed.store(false, Ordering::Release);
            let Some(call) = self.calls.get_mut(key) else { continue };
            count(Work::Polled, 1);
            if let Poll::Ready(decided) = call.poll(&mut Context::from_waker(waker)) {
                let WaitingCall { id, rpc, head, .. } = self.calls.remove(key);
                if !answer(id, rpc, head, decided) {
                    break;
                }
            }
        }
        if self.calls.is_empty() && self.calls.capacity() > 64 {
            *self = Self::new(self.ready.signal.clone());
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
