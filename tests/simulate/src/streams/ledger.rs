//! What callers know of their streams: what each held, what it cost, and what the counters may have been charged for it.

use std::collections::BTreeMap;

use limiter::{Answer, Code, RequestError};

use super::plan::{BudgetPlan, Currency, StreamsPlan};
use crate::{
    plan::SECOND,
    world::{Micros, Process},
};

/// A counter of a budget: the budget, and the second at which its window began; 0 for streams at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Account {
    pub budget: usize,
    pub start: u64,
}

impl Account {
    /// The name of the counter in Redis.
    pub fn name(&self) -> String {
        match self.start {
            0 => format!("sim_h{}_v_c", self.budget),
            start => format!("sim_h{}_v_{start}", self.budget),
        }
    }

    /// The account of a counter, or of its holds.
    fn of(key: &str) -> Option<Self> {
        let (_, name) = key.split_once("sim_h")?;
        let (budget, start) = name.split('#').next()?.split_once("_v_")?;
        let start = if start == "c" { 0 } else { start.parse().ok()? };
        Some(Self { budget: budget.parse().ok()?, start })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Has no answer yet.
    Asks,
    /// Nobody got an id since then.
    Failed {
        at: Micros,
    },
    Runs,
    /// Its end was sent then, with its costs if they are known.
    Ended {
        at: Micros,
        costs: Option<Costs>,
        by: Process,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    pub dollars: u64,
    pub tokens: u64,
}

impl Costs {
    fn of(&self, currency: Currency) -> u64 {
        match currency {
            Currency::Dollars => self.dollars,
            Currency::Tokens => self.tokens,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub caller: usize,
    /// The replica that holds.
    pub process: Process,
    pub id: Option<String>,
    pub parts: Vec<Part>,
    /// The parts that refused it.
    pub refused: Vec<Part>,
    pub phase: Phase,
    /// The longest time to live of its holds.
    pub longest: Micros,
    pub asked: Micros,
    /// When the answer came, or was given up.
    pub answered: Micros,
    /// Its end came once more, with its costs if they are known. The first cost that is taken wins.
    pub again: Option<Option<Costs>>,
    /// A replica was killed that had to end it, so that it may expire instead.
    pub is_orphan: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub account: Account,
    pub held: u64,
}

/// What an account may have been charged for a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charged {
    pub least: u64,
    pub most: u64,
    /// By how much spending may exceed the limit because of it.
    pub excess: u64,
    /// It may still hold.
    pub may_hold: bool,
    /// What the limit surely has no room for: what it holds, or was charged.
    pub occupied: u64,
}

/// What the plan does to the commands of streams.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// When the last fault is over.
    pub faulty_until: Micros,
    /// Redis loses data, so that nothing is certain but the bound.
    pub lost_data: bool,
    /// What has expired may wait for the next request of its counter.
    pub may_be_unswept: bool,
    /// From then on a replica sweeps.
    pub attended: Micros,
}

/// The time after which a command is surely run, without faults: its timeout, and a round of the queue and of the sweeper.
pub const DELAY: Micros = 3 * SECOND;

impl Conditions {
    /// When a command of a time is surely run.
    pub fn done_by(&self, at: Micros) -> Micros {
        at.max(self.faulty_until) + DELAY
    }

    /// When what expires at a time is surely swept.
    fn swept_by(&self, at: Micros) -> Micros {
        if self.may_be_unswept { Micros::MAX } else { self.done_by(at.max(self.attended)) }
    }
}

#[derive(Default)]
pub struct Streams {
    pub streams: Vec<Stream>,
    /// What Redis lost of an account: spent, and held.
    pub lost: BTreeMap<Account, u64>,
    /// What of that was evicted, so that one part of an account is lost, and others are not.
    pub evicted: BTreeMap<Account, u64>,
    /// The list of open requests or their records were evicted, so that only requests sweep, and sums begin anew.
    pub has_no_list: bool,
}

impl Stream {
    /// The number of its parts that may be settled late, without faults.
    pub fn late_parts(&self, plan: &StreamsPlan) -> u64 {
        let Phase::Ended { at, .. } = self.phase else { return 0 };
        let is_late = |part: &&Part| {
            self.again.is_some() || at + DELAY >= self.asked - 1000 + plan.budgets[part.account.budget].ttl
        };
        self.parts.iter().filter(is_late).count() as u64
    }

    /// What an account may have been charged for a part at a time.
    pub fn charged(&self, part: &Part, budget: &BudgetPlan, now: Micros, conditions: Conditions) -> Charged {
        let done_by = |at| conditions.done_by(at);
        let (held, unknown) = (part.held, budget.unknown(part.held));
        let (expires, swept) = (self.expires(budget), self.swept());
        let may_expire = |by: Micros| by >= expires;
        let mut charged = Possible::default();
        match self.phase {
            Phase::Asks => {
                charged.add(0, 0);
                charged.may_hold = true;
                if may_expire(now) {
                    charged.unknown(held, unknown);
                }
            }
            Phase::Failed { at } => {
                charged.add(0, 0);
                charged.may_hold = now < done_by(at) || self.is_orphan && now < conditions.swept_by(swept);
                if self.is_orphan || may_expire(done_by(at)) {
                    charged.unknown(held, unknown);
                }
            }
            Phase::Runs => {
                if now < conditions.swept_by(swept) {
                    charged.add(0, 0);
                    charged.may_hold = true;
                }
                if may_expire(now) {
                    charged.unknown(held, unknown);
                }
            }
            Phase::Ended { at, costs, .. } => {
                self.charged_at_end((at, costs), part, budget, (now, conditions), &mut charged);
            }
        }
        if conditions.lost_data {
            // What was restored is closed again in another way.
            charged.add(0, 0);
            charged.unknown(held, unknown);
            charged.may_hold |= now < conditions.swept_by(swept);
        }
        // A hold whose end was not sent, and which has not expired, occupies what it holds.
        let is_open = self.phase == Phase::Runs && !may_expire(now);
        charged.result(held, is_open)
    }

    /// The most that a part may have taken of its account, held or charged, while another request was decided.
    pub fn taken(&self, part: &Part, charged: u64, other: &Self, conditions: Conditions) -> u64 {
        let is_clean = conditions.faulty_until == 0;
        let released = match self.phase {
            _ if self.asked > other.answered => return 0,
            Phase::Failed { at } | Phase::Ended { at, .. } if is_clean => at + SECOND / 5,
            Phase::Failed { at } | Phase::Ended { at, .. } if !self.is_orphan => conditions.done_by(at),
            _ => Micros::MAX,
        };
        if released < other.asked { charged } else { charged.max(part.held) }
    }

    /// A time to live after it began, of which Redis knows the millisecond.
    fn expires(&self, budget: &BudgetPlan) -> Micros {
        self.asked - 1000 + budget.ttl
    }

    /// Unless another request meets its counter before, it is swept with the last hold of its own request.
    fn swept(&self) -> Micros {
        self.answered.max(self.asked) + self.longest
    }

    fn charged_at_end(
        &self,
        (at, costs): (Micros, Option<Costs>),
        part: &Part,
        budget: &BudgetPlan,
        (now, conditions): (Micros, Conditions),
        charged: &mut Possible,
    ) {
        let done_by = |at| conditions.done_by(at);
        let (held, unknown) = (part.held, budget.unknown(part.held));
        let (expires, swept) = (self.expires(budget), self.swept());
        let may_expire = |by: Micros| by >= expires;
        let is_charged = !budget.is_concurrency;
        let cost_of =
            |costs: Option<Costs>| costs.filter(|_| is_charged).map(|costs| costs.of(budget.currency));
        let is_done = now >= done_by(at) && !self.is_orphan;
        if !is_done {
            charged.add(0, 0);
            charged.may_hold = now < conditions.swept_by(swept);
        }
        let expired = may_expire(if is_done { done_by(at) } else { now });
        // An end through another replica may come before the costs, which wait in a queue.
        let overtaken = self.again == Some(None);
        if cost_of(costs).is_none() || overtaken && !is_done {
            charged.unknown(held, unknown);
        }
        // A cost that comes once more is late: it corrects what an end charged.
        let own = cost_of(costs).map(|cost| (cost, expired || overtaken));
        let again = cost_of(self.again.flatten()).map(|cost| (cost, true));
        for (cost, is_late) in own.into_iter().chain(again) {
            if at < conditions.swept_by(swept) {
                charged.add(cost, cost.saturating_sub(held));
            }
            if is_late {
                // The difference to what was charged.
                charged.add(cost, cost.saturating_sub(unknown) + unknown.saturating_sub(held));
            }
        }
        if expired && (!is_done || done_by(at) >= expires + budget.ttl) {
            charged.unknown(held, unknown);
        }
    }
}

/// The charges that are possible.
#[derive(Default)]
struct Possible {
    least: Option<u64>,
    most: u64,
    excess: u64,
    may_hold: bool,
}

impl Possible {
    fn add(&mut self, hits: u64, excess: u64) {
        self.least = Some(self.least.map_or(hits, |least| least.min(hits)));
        self.most = self.most.max(hits);
        self.excess = self.excess.max(excess);
    }

    fn unknown(&mut self, held: u64, unknown: u64) {
        self.add(unknown, unknown.saturating_sub(held));
    }

    fn result(self, held: u64, is_open: bool) -> Charged {
        let least = self.least.expect("something is possible");
        let occupied = if is_open { held } else { least.min(held) };
        Charged { least, most: self.most, excess: self.excess, may_hold: self.may_hold, occupied }
    }
}

impl Streams {
    /// A request was answered, or was given up; the failure policy answered if it `is_failed`. True if it holds. One that
    /// `may_be_split` holds in several servers.
    pub fn answered(
        &mut self,
        stream: usize,
        answer: Option<Result<Answer, RequestError>>,
        is_failed: bool,
        may_be_split: bool,
        now: Micros,
    ) -> bool {
        let own = &mut self.streams[stream];
        own.answered = now;
        if let (Some(Ok(Answer { code: Code::OverLimit, statuses, .. })), false) = (&answer, is_failed) {
            let refused = own.parts.iter().zip(statuses);
            let refused = refused.filter(|(_, status)| status.code == Code::OverLimit);
            own.refused = refused.map(|(part, _)| *part).collect();
            if !may_be_split {
                // It held nothing at any time.
                own.parts.clear();
            }
        }
        let token = answer.and_then(|answer| answer.ok()?.hold);
        // Without a slot it holds in this replica alone: the policy `local`.
        let Some(token) = token.filter(|token| !token.id().slots.is_empty()) else {
            own.phase = Phase::Failed { at: now };
            return false;
        };
        own.id = Some(token.id().to_string());
        own.phase = Phase::Runs;
        token.delivered();
        true
    }

    /// Redis has evicted a key, with what it counted or held.
    pub fn evicted(&mut self, key: &str, hits: u64) {
        if let Some(account) = Account::of(key) {
            *self.lost.entry(account).or_default() += hits;
            *self.evicted.entry(account).or_default() += hits;
        }
        self.has_no_list |= key.ends_with("}due") || key.ends_with("}holds");
    }

    /// The parts of an account.
    pub fn of(&self, account: Account) -> impl Iterator<Item = (&Stream, &Part)> {
        let parts =
            self.streams.iter().flat_map(|stream| stream.parts.iter().map(move |part| (stream, part)));
        parts.filter(move |(_, part)| part.account == account)
    }

    pub fn accounts(&self) -> Vec<Account> {
        let mut all: Vec<_> =
            self.streams.iter().flat_map(|stream| &stream.parts).map(|part| part.account).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A replica was killed: what it had not sent is lost.
    pub fn killed(&mut self, process: Process, now: Micros, conditions: Conditions) {
        for stream in &mut self.streams {
            match stream.phase {
                Phase::Asks if stream.process == process => {
                    stream.phase = Phase::Failed { at: now };
                    stream.answered = now;
                    stream.is_orphan = true;
                }
                Phase::Failed { at } if stream.process == process && now < conditions.done_by(at) => {
                    stream.is_orphan = true;
                }
                Phase::Ended { at, by, .. } if by == process && now < conditions.done_by(at) => {
                    stream.is_orphan = true;
                }
                _ => {}
            }
        }
    }
}
