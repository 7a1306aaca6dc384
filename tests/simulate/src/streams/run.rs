//! Streams ask, run and end: as Envoy with its clients does it.

use std::time::{Duration, Instant};

use clock::{Clock as _, timer::Timer};
use limiter::{Answer, Code, Decided, Descriptor, Entry, Request, RequestError, Waiting};

use super::{
    ledger::{Account, Costs, Part, Phase, Stream},
    plan::{BudgetPlan, StreamCaller},
};
use crate::{
    checks::Invariant,
    ledger::Asked,
    plan::SECOND,
    replica::Replica,
    simulation::Simulation,
    topology::Topology,
    world::{Event, Process},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEvent {
    /// The next request of a caller.
    Arrive(usize),
    /// A stream begins, whose caller got the id.
    Begin(usize),
    /// A stream is refused, and may come back after as many seconds.
    Refused(usize, Option<u64>),
    /// The end of a stream.
    End(usize),
    /// The end of a stream comes once more, at another cost.
    EndAgain(usize),
}

impl Simulation {
    pub fn stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Arrive(caller) => self.stream_arrives(caller),
            StreamEvent::Begin(stream) => self.stream_begins(stream),
            StreamEvent::Refused(stream, wait) => self.check_refused(stream, wait),
            StreamEvent::End(stream) => self.stream_ends(stream, true),
            StreamEvent::EndAgain(stream) => self.stream_ends(stream, false),
        }
    }

    fn stream_arrives(&mut self, caller: usize) {
        let now = self.now();
        if now >= self.plan.traffic {
            return;
        }
        let asking = &self.stream_plan().callers[caller];
        let (rate, period) = (asking.rate as f64, asking.period);
        let next = match period {
            Some(period) if now % period >= period / 10 => (now / period + 1) * period,
            Some(_) => now + 1 + self.chance.exponential(SECOND as f64 / rate / 10.0) as u64,
            None => now + 1 + self.chance.exponential(SECOND as f64 / rate) as u64,
        };
        self.world.at(next, Event::Stream(StreamEvent::Arrive(caller)));
        if let Some(number) = self.any_replica() {
            self.stream_asks(number, caller);
        }
    }

    /// A replica that accepts requests and runs.
    fn any_replica(&mut self) -> Option<usize> {
        let accepts = |replica: &Replica| {
            !replica.is_draining && replica.is_ready() && !self.world.is_stopped(replica.process)
        };
        let able = (0..self.replicas.len()).filter(|at| self.replicas[*at].as_ref().is_some_and(accepts));
        let able: Vec<usize> = able.collect();
        able.get(self.chance.below(able.len() as u64) as usize).copied()
    }

    fn stream_asks(&mut self, number: usize, caller: usize) {
        let plan = self.stream_plan().clone();
        let asking = &plan.callers[caller];
        let estimate = asking.estimate.map(|most| self.chance.between(1, most));
        let leaves_after = self.chance.one_in(asking.leaves).then(|| self.chance.below(2_000));
        let replica = self.replicas[number].as_ref().expect("it accepts requests");
        let (time, process) = (replica.clock.now(), replica.process);
        let stream = self.add_stream(caller, process, time.seconds(), estimate);
        let keys = keys(asking);
        let shown = keys.join(" ");
        let until = replica.edges.timer.now() + Duration::from_micros(asking.patience);
        let beside = asking.beside.map(|limit| format!("k{limit}"));
        let descriptors = keys.iter().map(|key| descriptor(&[(key, "v")], estimate));
        let descriptors = descriptors.chain(beside.iter().map(|key| descriptor(&[(key, "v")], None)));
        if let Some(limit) = asking.beside {
            self.ledger().asks(limit, time.seconds(), Asked::Take(1));
        }
        let may_be_split = keys.len() > 1 && self.plan.topology == Topology::Cluster;
        let request = Request { domain: "sim", descriptors: descriptors.collect(), ..Request::default() };
        let leaves = leaves_after.map(|after| replica.edges.timer.now() + Duration::from_micros(after));
        let timer = replica.edges.timer.clone();
        let decided = replica.limiter.try_decide(&request, time, Some(until), None);
        let store = replica.store.clone();
        let (streams, ledger, world) = (self.streams.clone(), self.ledger.clone(), self.world.clone());
        replica.edges.start(async move {
            let answer = match decided {
                Ok(Decided::Answer(answer)) => Some(Ok(answer)),
                Err(error) => Some(Err(error)),
                Ok(Decided::Wait(decision)) => waited(decision, leaves, &*timer).await,
            };
            // The failure policy decides by other counters.
            let is_failed = store.take_failed().is_some();
            if let Some(answer) = &answer {
                ledger.lock().expect("nothing panics with it").counted(process, answer);
            }
            // A caller who has left gets no answer.
            let answer = answer.filter(|_| leaves.is_none_or(|leaves| timer.now() < leaves));
            if let Some(Ok(answer)) = answer.as_ref()
                && answer.code == Code::OverLimit
            {
                let wait = answer.response_headers.iter().find_map(|header| header.value.parse().ok());
                world.at(world.now(), Event::Stream(StreamEvent::Refused(stream, wait)));
            }
            let has_begun = {
                let mut streams = streams.lock().expect("nothing panics with it");
                streams.answered(stream, answer, is_failed, may_be_split, world.now())
            };
            world.tell(&process, format_args!("stream {stream} of {shown}: holds {has_begun}"));
            if has_begun {
                world.at(world.now(), Event::Stream(StreamEvent::Begin(stream)));
            }
        });
    }

    /// Adds a stream that asks now. Returns its number.
    fn add_stream(&self, caller: usize, process: Process, second: u64, estimate: Option<u64>) -> usize {
        let (now, plan) = (self.now(), self.stream_plan());
        let budgets = &plan.callers[caller].budgets;
        let part = |budget: &usize| part(*budget, &plan.budgets[*budget], second, estimate);
        let mut streams = self.streams();
        streams.streams.push(Stream {
            caller,
            process,
            id: None,
            parts: budgets.iter().map(part).collect(),
            refused: Vec::new(),
            phase: Phase::Asks,
            again: None,
            longest: budgets.iter().map(|budget| plan.budgets[*budget].ttl).max().unwrap_or(0),
            asked: now,
            answered: now,
            is_orphan: false,
        });
        streams.streams.len() - 1
    }

    /// The caller has the id.
    fn stream_begins(&mut self, stream: usize) {
        let now = self.now();
        let (caller, accounts) = {
            let streams = self.streams();
            let own = &streams.streams[stream];
            (own.caller, own.parts.iter().map(|part| part.account).collect::<Vec<_>>())
        };
        let lasts = self.stream_plan().callers[caller].lasts;
        let lasts = self.chance.exponential(lasts as f64) as u64;
        self.world.at(now + lasts, Event::Stream(StreamEvent::End(stream)));
        for account in accounts {
            self.check_occupied(account);
        }
    }

    /// Envoy sends what a stream cost, and its end.
    fn stream_ends(&mut self, stream: usize, is_first: bool) {
        let now = self.now();
        let Some(number) = self.any_replica() else {
            // Nobody repeats it: it is as if the caller's proxy had ended.
            return;
        };
        let (caller, id) = {
            let streams = self.streams();
            let own = &streams.streams[stream];
            (own.caller, own.id.clone().expect("it has begun"))
        };
        let asking = self.stream_plan().callers[caller].clone();
        let keys = keys(&asking);
        let costs = Costs {
            dollars: self.chance.between(0, asking.most),
            tokens: self.chance.between(0, asking.most),
        };
        let costs = (!self.chance.one_in(asking.leaves)).then_some(costs);
        let replica = self.replicas[number].as_ref().expect("it accepts requests");
        let process = replica.process;
        if is_first {
            self.streams().streams[stream].phase = Phase::Ended { at: now, costs, by: process };
            if self.chance.one_in(8) {
                let again = now + self.chance.below(2 * SECOND);
                self.world.at(again, Event::Stream(StreamEvent::EndAgain(stream)));
            }
        } else {
            self.streams().streams[stream].again = Some(costs);
        }
        let replica = self.replicas[number].as_ref().expect("it accepts requests");
        self.world.tell(
            &process,
            format_args!("stream {stream} of {keys:?} ends {id}: {costs:?}, first {is_first}"),
        );
        let settled = |name, cost| descriptor(&[("hold_settle", &id), ("hold_in", name)], Some(cost));
        let mut descriptors = vec![descriptor(&[("hold_end", &id)], None)];
        if let Some(Costs { dollars, tokens }) = costs {
            descriptors.extend([settled("tokens", tokens), settled("dollars", dollars)]);
        }
        descriptors.reverse();
        let request =
            Request { domain: "sim", descriptors: descriptors.into_iter().collect(), ..Request::default() };
        let decided = replica.limiter.try_decide(&request, replica.clock.now(), None, None);
        let timer = replica.edges.timer.clone();
        // The callers of some leave at once or soon.
        let leaves = stream
            .is_multiple_of(4)
            .then(|| timer.now() + Duration::from_micros(stream as u64 * 389 % 2_000));
        // It is counted before it waits for the store.
        self.ledger().codes.entry(process).or_default()[0] += 1;
        let (ledger, world) = (self.ledger.clone(), self.world.clone());
        replica.edges.start(async move {
            let answer = match decided {
                Ok(Decided::Answer(answer)) => Some(Ok(answer)),
                Err(error) => Some(Err(error)),
                Ok(Decided::Wait(decision)) => waited(decision, leaves, &*timer).await,
            };
            let Some(answer) = answer else { return };
            let is_ok = answer.as_ref().is_ok_and(|answer| answer.code == Code::Ok && answer.hold.is_none());
            let mut ledger = ledger.lock().expect("nothing panics with it");
            ledger.checks.hold(Invariant::Ends, is_ok, world.now(), || {
                format!("the end of stream {stream} was answered with {answer:?}")
            });
        });
    }
}

/// The answer to a caller, if it does not leave before.
async fn waited(
    decision: Waiting,
    leaves: Option<Instant>,
    timer: &dyn Timer,
) -> Option<Result<Answer, RequestError>> {
    let concluded = match leaves {
        Some(leaves) => timer.timeout_at(leaves, decision).await?,
        None => decision.await,
    };
    Some(concluded.decided)
}

/// What a request holds of a budget, in the window of this time.
fn part(index: usize, budget: &BudgetPlan, seconds: u64, estimate: Option<u64>) -> Part {
    let length = budget.unit.seconds();
    let start = if budget.is_concurrency { 0 } else { seconds / length * length };
    Part { account: Account { budget: index, start }, held: budget.held(estimate) }
}

/// The keys of the descriptors of a request.
fn keys(caller: &StreamCaller) -> Vec<String> {
    caller.budgets.iter().map(|budget| format!("h{budget}")).collect()
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: Option<u64>) -> Descriptor<'a> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value });
    Descriptor { entries: entries.collect(), hits_addend: hits, ..Descriptor::default() }
}
