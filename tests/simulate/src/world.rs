//! Simulated time, the queue of events, and the tasks of all replicas: one thread, one order.
//!
//! Tasks that are ready run in the order in which they became ready. When none is, time moves to the next event.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use net::edges::Task;

use crate::{clocks::Alarm, random::Random, streams::StreamEvent, trace::Trace};

/// Microseconds since the simulation began.
pub type Micros = u64;

/// Who runs a task: a process from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Process(pub u32);

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

pub enum Event {
    Alarm(Arc<Alarm>),
    /// A connection's first packet, its bytes in both directions, and its end by the client, by the connection's number.
    Open(usize),
    Opened(usize, bool),
    ToServer(usize),
    ToClient(usize),
    ClientClosed(usize),
    /// The next request of a caller.
    Arrive(usize),
    /// An action of the plan, and its end.
    Act(usize),
    End(usize),
    /// Clients may learn of other masters.
    Announce,
    /// A copy of the data of Redis, which an action will restore.
    Snapshot(usize),
    Stream(StreamEvent),
    /// Envoys that are assigned quotas act.
    Envoys,
    /// The maintenance and the checks of each second.
    Second,
}

struct Queued {
    at: Micros,
    sequence: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

pub struct World {
    now: AtomicU64,
    state: Mutex<State>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<TaskId>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TaskId {
    index: usize,
    /// Tells a task from an earlier one with the same index.
    birth: u64,
}

struct TaskWaker {
    id: TaskId,
    is_ready: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Relaxed) {
            self.ready.0.lock().expect("nothing panics with it").push_back(self.id);
        }
    }
}

struct Running {
    process: Process,
    /// `None` while it is polled.
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

struct State {
    queue: BinaryHeap<Reverse<Queued>>,
    sequence: u64,
    tasks: Vec<Option<Running>>,
    free: Vec<usize>,
    /// Stopped processes, with their tasks that became ready meanwhile.
    stopped: BTreeMap<Process, Vec<TaskId>>,
    stops: BTreeMap<Process, u64>,
    random: Random,
    trace: Trace,
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> Arc<Self> {
        let state = State {
            queue: BinaryHeap::new(),
            sequence: 0,
            tasks: Vec::new(),
            free: Vec::new(),
            stopped: BTreeMap::new(),
            stops: BTreeMap::new(),
            random: Random::new(seed),
            trace,
        };
        Arc::new(Self { now: AtomicU64::new(0), state: Mutex::new(state), ready: Arc::default() })
    }

    pub fn now(&self) -> Micros {
        self.now.load(Relaxed)
    }

    pub fn random<R>(&self, draw: impl FnOnce(&mut Random) -> R) -> R {
        draw(&mut self.lock().random)
    }

    pub fn trace<R>(&self, write: impl FnOnce(&mut Trace, Micros) -> R) -> R {
        write(&mut self.lock().trace, self.now())
    }

    /// Adds a line to the story, if it is told.
    pub fn tell(&self, who: &dyn fmt::Display, what: fmt::Arguments<'_>) {
        self.trace(|trace, now| trace.tell(now, who, what));
    }

    /// Queues an event. Of those at the same time, the earlier one comes first.
    pub fn at(&self, at: Micros, event: Event) {
        let mut state = self.lock();
        state.sequence += 1;
        let sequence = state.sequence;
        state.queue.push(Reverse(Queued { at: at.max(self.now()), sequence, event }));
    }

    /// Moves time to the next event, unless it is after `end`.
    pub fn next(&self, end: Micros) -> Option<Event> {
        let mut state = self.lock();
        if state.queue.peek()?.0.at > end {
            return None;
        }
        let Reverse(next) = state.queue.pop()?;
        self.now.store(next.at, Relaxed);
        Some(next.event)
    }

    pub fn start(&self, process: Process, task: Task) {
        let mut state = self.lock();
        state.sequence += 1;
        let birth = state.sequence;
        let index = state.free.pop().unwrap_or(state.tasks.len());
        let id = TaskId { index, birth };
        let waker = Arc::new(TaskWaker { id, is_ready: AtomicBool::new(false), ready: self.ready.clone() });
        let running = Some(Running { process, task: Some(task), waker: waker.clone() });
        match state.tasks.get_mut(index) {
            Some(slot) => *slot = running,
            None => state.tasks.push(running),
        }
        drop(state);
        waker.wake_by_ref();
    }

    /// Runs all tasks that are ready.
    pub fn run_ready(&self) {
        loop {
            let next = self.ready.0.lock().expect("nothing panics with it").pop_front();
            let Some(id) = next else { return };
            let Some((mut task, waker)) = self.take(id) else { continue };
            waker.is_ready.store(false, Relaxed);
            let polled = task.as_mut().poll(&mut Context::from_waker(&Waker::from(waker)));
            let mut state = self.lock();
            // A task that ends its own process is gone.
            let slot = state.tasks[id.index].as_mut().filter(|running| running.waker.id == id);
            match (polled, slot) {
                (Poll::Pending, Some(running)) => running.task = Some(task),
                (Poll::Ready(()), Some(_)) => {
                    state.tasks[id.index] = None;
                    state.free.push(id.index);
                    drop(state);
                    drop(task);
                }
                (_, None) => {
                    drop(state);
                    drop(task);
                }
            }
        }
    }

    fn take(&self, id: TaskId) -> Option<(Task, Arc<TaskWaker>)> {
        let mut state = self.lock();
        let State { tasks, stopped, .. } = &mut *state;
        let running = tasks[id.index].as_mut().filter(|running| running.waker.id == id)?;
        if let Some(held) = stopped.get_mut(&running.process) {
            held.push(id);
            return None;
        }
        Some((running.task.take()?, running.waker.clone()))
    }

    /// Stops the tasks of a process, as by SIGSTOP.
    pub fn stop(&self, process: Process) {
        let mut state = self.lock();
        state.stopped.entry(process).or_default();
        *state.stops.entry(process).or_default() += 1;
    }

    pub fn is_stopped(&self, process: Process) -> bool {
        self.lock().stopped.contains_key(&process)
    }

    /// How often a process was stopped.
    pub fn stops(&self, process: Process) -> u64 {
        self.lock().stops.get(&process).copied().unwrap_or(0)
    }

    pub fn resume(&self, process: Process) {
        let held = self.lock().stopped.remove(&process).unwrap_or_default();
        self.ready.0.lock().expect("nothing panics with it").extend(held);
    }

    /// Drops the tasks of a process.
    pub fn kill(&self, process: Process) {
        let mut state = self.lock();
        state.stopped.remove(&process);
        let mut dropped = Vec::new();
        for index in 0..state.tasks.len() {
            if state.tasks[index].as_ref().is_some_and(|running| running.process == process) {
                dropped.extend(state.tasks[index].take());
                state.free.push(index);
            }
        }
        drop(state);
        drop(dropped);
    }

    /// The number of tasks of a process.
    pub fn tasks(&self, process: Process) -> usize {
        self.lock().tasks.iter().flatten().filter(|running| running.process == process).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics with it")
    }
}
