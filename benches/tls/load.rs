//! Decisions on open connections: their number, their cost and their duration.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::{Kind, Result, Service, client::Client, tables::quantile};

/// The load.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    connections: usize,
    pace: Pace,
}

enum Pace {
    /// Open requests on each connection; the next one follows an answer.
    Open(usize),
    /// Requests per second on all connections, even if earlier ones are unanswered.
    PerSecond(u32),
}

pub(crate) const LOADS: [Load; 3] = [
    Load { name: "10 connections x 32 streams, closed loop", connections: 10, pace: Pace::Open(32) },
    Load { name: "5,000/s on 10 connections", connections: 10, pace: Pace::PerSecond(5_000) },
    Load { name: "one request at a time", connections: 1, pace: Pace::Open(1) },
];

/// The results of one round of a load.
pub(crate) struct Round {
    pub(crate) per_second: f64,
    /// The service's CPU time per decision, in microseconds.
    pub(crate) cpu: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// The warm-up of connections and caches before the measurement.
const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(400);

/// Sends requests for one round.
pub(crate) async fn measure(
    service: &Service,
    kind: &Kind,
    load: &Load,
    questions: Rc<[Bytes]>,
) -> Result<Round> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(Client::connect(service, kind).await?);
    }
    let desk = Rc::new(Desk { questions, ..Desk::default() });
    let mut asking = JoinSet::new();
    match load.pace {
        Pace::Open(streams) => {
            for client in clients.iter().flat_map(|client| vec![client; streams]) {
                asking.spawn_local(ask_on(client.clone(), desk.clone()));
            }
        }
        Pace::PerSecond(rate) => {
            asking.spawn_local(ask_at(rate, clients, desk.clone()));
        }
    }
    sleep(WARM_UP).await;
    let (begun, before) = (Instant::now(), service.cpu()?);
    desk.phase.set(Phase::Measuring);
    sleep(MEASURED).await;
    desk.phase.set(Phase::Over);
    let (cpu, seconds) = (service.cpu()?.saturating_sub(before), begun.elapsed().as_secs_f64());
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    let mut times = desk.times.take();
    let decisions = f64::from(u32::try_from(times.len())?);
    Ok(Round {
        per_second: decisions / seconds,
        cpu: cpu.as_secs_f64() * 1e6 / decisions,
        p50: quantile(&mut times, 50),
        p99: quantile(&mut times, 99),
    })
}

/// The requests, and the durations of their answers.
#[derive(Default)]
struct Desk {
    questions: Rc<[Bytes]>,
    next: Cell<usize>,
    phase: Cell<Phase>,
    times: RefCell<Vec<Duration>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Warming,
    Measuring,
    Over,
}

impl Desk {
    fn question(&self) -> Bytes {
        let number = self.next.replace(self.next.get() + 1);
        self.questions[number % self.questions.len()].clone()
    }

    fn note(&self, took: Duration) {
        if self.phase.get() == Phase::Measuring {
            self.times.borrow_mut().push(took);
        }
    }

    fn is_over(&self) -> bool {
        self.phase.get() == Phase::Over
    }
}

async fn ask_on(mut client: Client, desk: Rc<Desk>) -> Result<()> {
    while !desk.is_over() {
        let begun = Instant::now();
        client.apply(desk.question()).await?;
        desk.note(begun.elapsed());
    }
    Ok(())
}

/// The duration of an answer counts from the scheduled time of its request.
async fn ask_at(rate: u32, clients: Vec<Client>, desk: Rc<Desk>) -> Result<()> {
    let mut ticks = ticks(rate);
    let mut asking = JoinSet::new();
    let mut turns = clients.iter().cycle();
    while let (Some(due), false) = (ticks.recv().await, desk.is_over()) {
        let (Some(client), desk) = (turns.next(), desk.clone()) else { break };
        let mut client = client.clone();
        asking.spawn_local(async move {
            client.apply(desk.question()).await?;
            desk.note(due.elapsed());
            Result::Ok(())
        });
        while let Some(asked) = asking.try_join_next() {
            asked??;
        }
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    Ok(())
}

/// The times of requests, from a thread that sleeps between them: the runtime's timers have a resolution of milliseconds.
fn ticks(rate: u32) -> mpsc::UnboundedReceiver<Instant> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut due = Instant::now();
    thread::spawn(move || {
        while sender.send(due).is_ok() {
            due += Duration::from_secs(1) / rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    });
    receiver
}
