//! Requests that hold, as a seed plans them: budgets in different slots, and streams that settle what they cost.

use limit::Unit;
use serde::{Deserialize, Serialize};

use crate::{
    limits::LimitPlan,
    named,
    plan::{Action, ActionPlan, Plan, ReplicaPlan, SECOND, Scenario},
    random::Random,
    topology::Topology,
    world::Micros,
};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StreamsPlan {
    pub budgets: Vec<BudgetPlan>,
    pub callers: Vec<StreamCaller>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BudgetPlan {
    #[serde(with = "named::unit")]
    pub unit: Unit,
    /// A number of streams at a time, whatever the unit.
    pub is_concurrency: bool,
    pub limit: u64,
    pub amount: u64,
    pub ttl: Micros,
    /// What a hold without a cost is charged; `None` for what it held.
    pub unknown: Option<u64>,
    pub currency: Currency,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Currency {
    Dollars,
    Tokens,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamCaller {
    pub budgets: Vec<usize>,
    /// Requests per second.
    pub rate: u64,
    /// What a request holds; `None` for the amount of each budget.
    pub estimate: Option<u64>,
    /// The most that a stream costs.
    pub most: u64,
    /// The mean time of a stream.
    pub lasts: Micros,
    /// How long the caller waits for the answer.
    pub patience: Micros,
    /// One in so many callers leaves before the answer, and one in so many during the stream.
    pub leaves: u64,
    /// All requests come in the first tenth of each of these periods.
    #[serde(default)]
    pub period: Option<Micros>,
    /// A limit that does not hold, of which each request takes a hit too.
    #[serde(default)]
    pub beside: Option<usize>,
}

impl Currency {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dollars => "dollars",
            Self::Tokens => "tokens",
        }
    }
}

impl BudgetPlan {
    /// What a request holds.
    pub fn held(&self, estimate: Option<u64>) -> u64 {
        if self.is_concurrency { 1 } else { estimate.unwrap_or(self.amount).min(self.limit) }
    }

    pub fn unknown(&self, held: u64) -> u64 {
        if self.is_concurrency { 0 } else { self.unknown.unwrap_or(held) }
    }
}

/// Half of all plans have streams.
pub fn draw(seed: u64) -> Option<StreamsPlan> {
    let random = &mut Random::new(seed ^ 0x0005_01d5);
    if random.one_in(2) {
        return None;
    }
    let budgets: Vec<_> = (0..random.between(1, 4)).map(|_| budget(random)).collect();
    let callers = (0..random.between(1, 3)).map(|_| caller(random, budgets.len())).collect();
    Some(StreamsPlan { budgets, callers })
}

/// What some plans with streams have besides.
pub fn add_actions(plan: &mut Plan, until: Micros) {
    if plan.streams.is_some() {
        end_while_unreachable(plan, until);
        lose_a_node(plan);
        burst(plan);
        set_clocks(plan, until);
    }
}

/// One node of a cluster answers nothing while many streams end. There are no other faults.
fn lose_a_node(plan: &mut Plan) {
    let random = &mut Random::new(plan.seed ^ 0x0010_57ed);
    let may_fail = !matches!(plan.scenario, Scenario::Steady | Scenario::Operators);
    if plan.topology != Topology::Cluster || !may_fail || !random.one_in(3) {
        return;
    }
    let action = Action::Freeze(random.below(3) as usize);
    plan.actions = vec![ActionPlan { at: random.between(3, 5) * SECOND, lasts: 6 * SECOND, action }];
    plan.weather.late = 0;
    plan.replicas.fill(ReplicaPlan::default());
    for caller in plan.streams.iter_mut().flat_map(|streams| &mut streams.callers) {
        caller.rate = 120;
        caller.lasts = caller.lasts.min(SECOND);
    }
}

/// The clocks of replicas differ, or those of the servers are set back.
fn set_clocks(plan: &mut Plan, until: Micros) {
    let random = &mut Random::new(plan.seed ^ 0x000c_10c5);
    let is_meant = matches!(plan.scenario, Scenario::Steady | Scenario::Processes);
    if is_meant && random.one_in(2) {
        for replica in &mut plan.replicas {
            replica.offset = random.between(0, 400_000).cast_signed() - 200_000;
        }
    }
    if is_meant && random.one_in(3) {
        let back = random.choose(&[SECOND / 2, 4 * SECOND, 3600 * SECOND]);
        let at = random.between(SECOND, until - SECOND);
        plan.actions.push(ActionPlan { at, lasts: 0, action: Action::SetServersBack(back) });
        plan.actions.sort_by_key(|one| one.at);
    }
}

/// Bursts of streams outlive their holds, which expire together just before the next burst.
fn burst(plan: &mut Plan) {
    let random = &mut Random::new(plan.seed ^ 0x00b0_57ed);
    let Some(streams) = &mut plan.streams else { return };
    if plan.scenario != Scenario::Steady || random.one_in(2) {
        return;
    }
    for budget in &mut streams.budgets {
        (budget.ttl, budget.limit) = (SECOND, budget.limit.min(60));
    }
    for caller in &mut streams.callers {
        (caller.rate, caller.lasts, caller.period) = (60, 3 * SECOND, Some(SECOND + SECOND / 10));
    }
}

/// Redis cannot be reached for a moment, and meanwhile a replica ends.
fn end_while_unreachable(plan: &mut Plan, until: Micros) {
    let random = &mut Random::new(plan.seed ^ 0x00ad_ac71);
    let is_meant = matches!(plan.scenario, Scenario::Network | Scenario::Mixed) && random.one_in(2);
    if !is_meant {
        return;
    }
    let (at, replica) = (random.between(SECOND, until - SECOND), random.below(plan.replicas.len() as u64));
    let lost = ActionPlan { at, lasts: 600_000, action: Action::Unreachable(None) };
    let action = Action::Terminate(replica as usize);
    plan.actions.extend([lost, ActionPlan { at: at + 300_000, lasts: 2 * SECOND, action }]);
    plan.actions.sort_by_key(|one| one.at);
    plan.weather.late_until = plan.last_fault();
}

/// Some plans have a budget on which little is held, but by requests that another limit refuses.
pub fn add_refused_callers(plan: &mut Plan) {
    let random = &mut Random::new(plan.seed ^ 0x0000_be51);
    let Some(streams) = plan.streams.as_mut().filter(|_| random.one_in(2)) else { return };
    let budgets = vec![streams.budgets.len()];
    streams.budgets.push(BudgetPlan {
        unit: Unit::Hour,
        is_concurrency: false,
        limit: 20,
        amount: 12,
        ttl: 60 * SECOND,
        unknown: Some(0),
        currency: Currency::Tokens,
    });
    let rare = StreamCaller {
        budgets: budgets.clone(),
        rate: 20,
        estimate: Some(1),
        most: 0,
        lasts: 20_000,
        patience: 100_000,
        leaves: 1000,
        period: None,
        beside: None,
    };
    let refused = StreamCaller {
        // Sometimes with others, in other slots.
        budgets: if random.one_in(2) { budgets } else { (0..streams.budgets.len()).collect() },
        rate: random.choose(&[100, 400]),
        estimate: Some(12),
        beside: Some(plan.limits.len()),
        ..rare.clone()
    };
    streams.callers.extend([rare, refused]);
    plan.limits.push(LimitPlan::fixed(Unit::Hour, 5, random.one_in(2)));
}

fn budget(random: &mut Random) -> BudgetPlan {
    let is_concurrency = random.one_in(4);
    let limit = if is_concurrency { random.between(1, 8) } else { random.choose(&[20, 60, 200, 1000]) };
    BudgetPlan {
        unit: random.choose(&[Unit::Minute, Unit::Minute, Unit::Hour, Unit::Day]),
        is_concurrency,
        limit,
        amount: random.between(1, 12),
        ttl: random.choose(&[1, 2, 3, 5, 60]) * SECOND,
        unknown: random.choose(&[None, None, Some(0), Some(0), Some(8)]),
        currency: random.choose(&[Currency::Dollars, Currency::Tokens]),
    }
}

fn caller(random: &mut Random, budgets: usize) -> StreamCaller {
    let mut own: Vec<usize> = (0..budgets).filter(|_| !random.one_in(3)).collect();
    if own.is_empty() {
        own.push(random.below(budgets as u64) as usize);
    }
    let estimate = (!random.one_in(3)).then(|| random.between(1, 12));
    StreamCaller {
        budgets: own,
        rate: random.choose(&[2, 5, 15, 40]),
        estimate,
        // Estimates that cover the cost, and others.
        most: if random.one_in(2) { estimate.unwrap_or(1) } else { random.between(1, 20) },
        lasts: random.choose(&[20_000, 200_000, SECOND, 3 * SECOND]),
        patience: random.choose(&[30_000, 100_000, 500_000]),
        leaves: random.choose(&[4, 10, 50]),
        period: None,
        beside: None,
    }
}

/// The rules of the budgets, after those of the limits.
pub fn rules_text(plan: &StreamsPlan) -> String {
    let budgets = plan.budgets.iter().enumerate();
    let rule = |(at, budget): (usize, &BudgetPlan)| {
        let BudgetPlan { unit, limit, amount, ttl, currency, .. } = budget;
        let (seconds, currency) = (ttl / SECOND, currency.name());
        if budget.is_concurrency {
            let hold = format!("hold: {{ttl: {seconds}s}}");
            return format!(
                "  - key: h{at}\n    rate_limit: {{algorithm: concurrency, requests_per_unit: {limit}, {hold}}}\n"
            );
        }
        let unknown = budget.unknown.map_or("held".to_owned(), |hits| hits.to_string());
        let hold = format!("hold: {{amount: {amount}, ttl: {seconds}s, unknown: {unknown}, in: {currency}}}");
        format!(
            "  - key: h{at}\n    rate_limit: {{unit: {}, requests_per_unit: {limit}, {hold}}}\n",
            unit.name()
        )
    };
    budgets.map(rule).collect()
}
