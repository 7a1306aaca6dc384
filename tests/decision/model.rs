//! What a rate limit request means: the model that [`random`](super::random) compares the service with.
//!
//! The model is slow and plain on purpose. It has one caller at a time, one domain, exact counters and no store, and it
//! shares no code with the service. Read [`Model::answer`] first: it is the whole decision. A window never ends here,
//! and a request names each counter at most once.

mod types;

use std::collections::BTreeMap;

pub(crate) use types::{
    Answer, Closing, Descriptor, Entries, Hold, Limit, Most, Override, Request, Rule, Status, Target, Unit,
};
use types::{Check, Counter, Held, Limited, Meaning, State};

/// The largest number that a request adds to a counter.
const MOST_ADDED: u64 = 1 << 53;

pub(crate) struct Model {
    rules: Vec<Rule>,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    stops: bool,
    overrides: BTreeMap<Target, Override>,
    counts: BTreeMap<Counter, u64>,
    held: Vec<Held>,
    requests: usize,
}

impl Model {
    pub(crate) fn new(rules: Vec<Rule>, stops: bool) -> Self {
        let counts = BTreeMap::new();
        Self { rules, stops, overrides: BTreeMap::new(), counts, held: Vec::new(), requests: 0 }
    }

    /// Sets or removes the override of a target.
    pub(crate) fn set(&mut self, target: &Target, action: Option<Override>) {
        match action {
            Some(action) => self.overrides.insert(target.clone(), action),
            None => self.overrides.remove(target),
        };
    }

    /// The number of the last request.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// The answer to a request, which is counted. `is_cached` says of each descriptor whether a local cache refused it: a
    /// cache refuses what is over its limit, and nothing of it is counted. `now` is in seconds.
    pub(crate) fn answer(&mut self, request: &Request, is_cached: &[bool], now: u64) -> Answer {
        // Settles come before ends, and both before the request itself: what is settled leaves room for it.
        for closing in request.closings.iter().filter(|closing| closing.cost.is_some()) {
            self.close(closing);
        }
        for closing in request.closings.iter().filter(|closing| closing.cost.is_none()) {
            self.close(closing);
        }
        let replaced = self.replaced(request);
        let descriptors = request.descriptors.iter().zip(is_cached);
        let mut meanings: Vec<Meaning> = descriptors
            .map(|(descriptor, is_cached)| self.meaning(request, descriptor, &replaced, *is_cached))
            .collect();
        if self.stops && refuses(&meanings, Limited::is_known_over) {
            // A request that is refused whatever the other counters say only reads them.
            for limited in meanings.iter_mut().filter_map(Meaning::limited_mut) {
                self.only_read(limited);
            }
        }
        let is_blocked = meanings.iter().any(|meaning| matches!(meaning, Meaning::Blocked));
        let is_refused = refuses(&meanings, Limited::is_over);

        let limited = || meanings.iter().filter_map(Meaning::limited);
        for limited in limited() {
            self.count(limited, is_blocked, is_refused);
        }
        self.requests += 1;
        let mut hold = None;
        for limited in limited().filter(|_| !is_refused) {
            if self.hold(limited) {
                hold = Some(self.requests);
            }
        }

        let statuses = meanings.iter().map(|meaning| self.status(meaning, is_blocked, now));
        let closed = request.closings.iter().map(|_| Status { remaining: Some(0), ..Status::default() });
        Answer { is_refused, statuses: statuses.chain(closed).collect(), hold }
    }

    /// The rules that match a descriptor: each entry has its own level. An equal value comes before patterns, in their
    /// order, and before a key without a value. The first match is final, even if nothing matches below it.
    fn path(&self, entries: &Entries) -> Option<Vec<&Rule>> {
        let mut level = &self.rules;
        let mut path = Vec::new();
        for (key, value) in entries {
            let of_key = || level.iter().filter(|rule| rule.key == *key);
            let equal = of_key().find(|rule| rule.value.as_ref() == Some(value));
            let pattern =
                || of_key().find(|rule| rule.prefix().is_some_and(|prefix| value.starts_with(prefix)));
            let bare = || of_key().find(|rule| rule.value.is_none());
            let rule = equal.or_else(pattern).or_else(bare)?;
            level = &rule.below;
            path.push(rule);
        }
        Some(path)
    }

    /// The rule of a descriptor; `None` if it has no limit.
    pub(crate) fn rule(&self, entries: &Entries) -> Option<&Rule> {
        let rule = *self.path(entries)?.last()?;
        (rule.is_unlimited || !rule.limits.is_empty()).then_some(rule)
    }

    /// True if an override of this target is for a descriptor: it has a rule, and each level the value or what the matched
    /// rule has in its place.
    pub(crate) fn meets(&self, target: &Target, entries: &Entries) -> bool {
        let Some(path) = self.path(entries).filter(|_| self.rule(entries).is_some()) else { return false };
        let mut levels = path.iter().zip(target).zip(values(target, entries));
        let is_met = levels
            .all(|((rule, (key, value)), is_value)| rule.key == *key && (is_value || rule.value == *value));
        is_met && target.len() == entries.len()
    }

    /// The override of a descriptor: the one with the most values, then the one whose values come first.
    fn action(&self, entries: &Entries) -> Option<Override> {
        let met = self.overrides.iter().filter(|(target, _)| self.meets(target, entries));
        let rank = |target: &Target| {
            let values = values(target, entries);
            (values.iter().filter(|is_value| **is_value).count(), values)
        };
        met.max_by_key(|(target, _)| rank(target)).map(|(_, action)| *action)
    }

    /// The rule in force for a descriptor. A limit that comes with the descriptor has none, unless an operator's override
    /// takes its place.
    fn rule_in_force(&self, descriptor: &Descriptor) -> Option<&Rule> {
        let has_own = descriptor.limit.is_some() && self.action(&descriptor.entries).is_none();
        if has_own { None } else { self.rule(&descriptor.entries) }
    }

    /// The names of limits that do not count in this request.
    fn replaced(&self, request: &Request) -> Vec<String> {
        let rules = request.descriptors.iter().filter_map(|descriptor| self.rule_in_force(descriptor));
        rules.flat_map(|rule| rule.replaces.clone()).collect()
    }

    fn meaning(
        &self,
        request: &Request,
        descriptor: &Descriptor,
        replaced: &[String],
        is_cached: bool,
    ) -> Meaning {
        let rule = self.rule_in_force(descriptor);
        let action = self.action(&descriptor.entries);
        let first = rule.and_then(|rule| rule.limits.first());
        let mut limits = match (action, &descriptor.limit) {
            (Some(Override::Block), _) => return Meaning::Blocked,
            (Some(Override::Allow), _) => return Meaning::Unlimited,
            // An override replaces all limits of a list, and keeps the name and the hold of the first.
            (Some(Override::Limit(requests, unit)), _) => {
                let name = first.and_then(|first| first.name.clone());
                let hold = first.and_then(|first| first.hold.clone());
                let is_at_a_time = first.is_some_and(|first| first.unit == Unit::AtATime);
                let unit = if is_at_a_time { Unit::AtATime } else { unit };
                vec![Limit { requests, unit, units: 1, name, hold }]
            }
            (None, Some(own)) => vec![own.clone()],
            (None | Some(Override::Shadow), _) => match rule {
                None => return Meaning::NoLimit,
                Some(rule) if rule.is_unlimited => return Meaning::Unlimited,
                Some(rule) => rule.limits.clone(),
            },
        };
        let is_list = limits.len() > 1;
        limits.retain(|limit| limit.name.as_ref().is_none_or(|name| !replaced.contains(name)));
        if limits.is_empty() {
            return Meaning::NoLimit;
        }
        // Also for a limit that comes with the request.
        let list = self.rule(&descriptor.entries).map_or(&[][..], |rule| &rule.limits);
        let checks = limits.into_iter().map(|limit| self.check(request, descriptor, limit, list));
        Meaning::Limited(Limited {
            checks: checks.collect(),
            is_list,
            is_shadow: matches!(action, Some(Override::Shadow)) || rule.is_some_and(|rule| rule.is_shadow),
            is_quota: rule.is_some_and(|rule| rule.is_quota),
            is_refund: descriptor.is_refund,
            is_cached,
        })
    }

    /// Compares a limit with its counter as it is before the request. `list` has the limits of the descriptor's rule.
    fn check(&self, request: &Request, descriptor: &Descriptor, limit: Limit, list: &[Limit]) -> Check {
        let of_request = u64::from(request.hits);
        let hits = match (descriptor.hits, &limit.hold) {
            (hits, _) if limit.unit == Unit::AtATime => u64::from(hits != Some(0) && !descriptor.is_refund),
            (Some(hits), _) => hits,
            (None, Some(hold)) if request.hits == 0 && !descriptor.is_refund => hold.amount,
            (None, _) => of_request.max(1),
        };
        let most = limit.hold.as_ref().filter(|_| !descriptor.is_refund).and_then(|hold| hold.most);
        let hits = match most {
            _ if limit.unit == Unit::AtATime => hits,
            Some(Most::Hits(most)) => hits.min(most),
            // A part of a hit is a hit, and of none as well: who asks for hits of a limit of 0 is refused.
            Some(Most::Percent(percent)) => hits.min((limit.requests * percent).div_ceil(100).max(1)),
            None => hits,
        };
        // A counter is named by its own window. One per unit has the Go service's name; of a list, that is the longest.
        let of_go = list.iter().filter(|other| other.units == 1 && other.unit != Unit::AtATime);
        let longest = of_go.map(Limit::seconds).max().filter(|_| list.len() > 1);
        let is_of_go = limit.units == 1 && longest.is_none_or(|longest| limit.seconds() == longest);
        let counter = Counter { entries: descriptor.entries.clone(), seconds: limit.seconds(), is_of_go };
        // An estimate is cut to the limit, so that an unused budget admits a request. A limit of 0 still admits none.
        let (fits, is_none) = match limit.hold {
            Some(_) => (hits.min(limit.requests), limit.requests == 0 && hits > 0),
            None => (hits, false),
        };
        let used = if limit.hold.is_some() { self.used(&counter) } else { self.spent(&counter) };
        let is_over = !descriptor.is_refund && (is_none || used.saturating_add(fits) > limit.requests);
        Check { limit, counter, hits, is_over }
    }

    /// Replaces the hits of a descriptor by 0, unless it is known to be over.
    fn only_read(&self, limited: &mut Limited) {
        let is_read = !limited.is_cached && !limited.is_refund;
        for check in limited.checks.iter_mut().filter(|check| is_read && check.limit.hold.is_none()) {
            check.hits = 0;
            check.is_over = self.spent(&check.counter) > check.limit.requests;
        }
    }

    /// Counts the hits of a descriptor. Refunds always count. What does not count:
    ///
    /// - Hits beside a block, so that a blocked caller does not use up the counters that it shares with others.
    /// - Hits of a list of which a limit is over: all or nothing. But a limit alone counts what it refuses, as the Go
    ///   service does.
    /// - Hits beside a limit that refuses the request, with `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`. The limit that is
    ///   over counts.
    fn count(&mut self, limited: &Limited, is_blocked: bool, is_refused: bool) {
        let is_over = limited.is_over();
        let is_skipped = limited.is_cached
            || is_blocked
            || limited.is_list && is_over
            || self.stops && is_refused && !is_over;
        for Check { limit, counter, hits, .. } in &limited.checks {
            let count = self.counts.entry(counter.clone()).or_default();
            if limited.is_refund {
                *count = count.saturating_sub(*hits);
            } else if !is_skipped && limit.hold.is_none() {
                *count = count.saturating_add((*hits).min(MOST_ADDED));
            }
        }
    }

    /// Holds the estimates of a descriptor whose request passes. An exhausted quota holds nothing; shadow mode holds above
    /// the limit. True if it holds.
    fn hold(&mut self, limited: &Limited) -> bool {
        let holds = !limited.is_refund && (limited.is_shadow || !limited.is_over());
        let checks = limited.checks.iter().filter(|check| holds && check.hits > 0);
        let parts = checks.filter_map(|check| Some((check, check.limit.hold.clone()?)));
        let parts = parts.map(|(check, rule)| Held {
            request: self.requests,
            counter: check.counter.clone(),
            amount: check.hits.min(check.limit.requests),
            rule,
            state: State::Open,
        });
        let before = self.held.len();
        self.held.extend(parts);
        self.held.len() > before
    }

    /// The first settle of a hold charges its cost, even after its end. An end charges what `unknown` says. Requests at a
    /// time cost nothing.
    fn close(&mut self, closing: &Closing) {
        let is_meant = |held: &&mut Held| {
            let currency = closing.currency.as_ref();
            held.request == closing.hold && currency.is_none_or(|currency| held.rule.currency == *currency)
        };
        for held in self.held.iter_mut().filter(is_meant) {
            let (before, after, state) = match (held.state, closing.cost) {
                (State::Open, Some(cost)) => (0, cost, State::Settled),
                (State::Ended(charged), Some(cost)) => (charged, cost, State::Settled),
                (State::Open, None) => {
                    let charged = held.rule.unknown.unwrap_or(held.amount);
                    (0, charged, State::Ended(charged))
                }
                (State::Settled, _) | (State::Ended(_), None) => continue,
            };
            held.state = state;
            if held.counter.seconds == Unit::AtATime.seconds() {
                continue;
            }
            let spent = self.counts.entry(held.counter.clone()).or_default();
            *spent = (*spent + after).saturating_sub(before);
        }
    }

    fn spent(&self, counter: &Counter) -> u64 {
        self.counts.get(counter).copied().unwrap_or_default()
    }

    /// What is spent and held.
    fn used(&self, counter: &Counter) -> u64 {
        let open = self.held.iter().filter(|held| held.state == State::Open && held.counter == *counter);
        self.spent(counter) + open.map(|held| held.amount).sum::<u64>()
    }

    /// The status of a descriptor once the request is counted.
    fn status(&self, meaning: &Meaning, is_blocked: bool, now: u64) -> Status {
        let limited = match meaning {
            Meaning::NoLimit => return Status { remaining: Some(0), ..Status::default() },
            Meaning::Unlimited => return Status { remaining: Some(u64::MAX), ..Status::default() },
            Meaning::Blocked => return Status { is_over: true, remaining: Some(0), ..Status::default() },
            Meaning::Limited(limited) => limited,
        };
        // Beside a block no counter is read: the answer is that of an unused one.
        if is_blocked && !limited.is_refund && !limited.is_cached {
            return Status { remaining: Some(limited.checks[0].limit.requests), ..Status::default() };
        }
        let is_over = limited.is_over();
        Status {
            is_over: is_over && !limited.is_shadow,
            remaining: self.remaining(limited, now),
            is_stale: limited.is_cached && !limited.checks.iter().any(|check| check.is_over),
            is_shadowed: is_over && limited.is_shadow,
        }
    }

    /// What remains of the limit that governs a descriptor: the one that is over for the longest time or, if none is, the
    /// one of which the smallest share remains. The first of equals.
    fn remaining(&self, limited: &Limited, now: u64) -> Option<u64> {
        let remaining = |check: &Check| {
            let is_held = check.limit.hold.is_some();
            let used = if is_held { self.used(&check.counter) } else { self.spent(&check.counter) };
            check.limit.requests.saturating_sub(used)
        };
        let is_over = limited.is_over();
        let has_holds = limited.checks.iter().any(|check| check.limit.hold.is_some());
        // The cache knows some of the limits, and nobody knows when a hold ends.
        if limited.checks.len() > 1 && is_over && (limited.is_cached || has_holds) {
            return None;
        }
        if limited.is_cached {
            return Some(0).filter(|_| limited.checks[0].is_over);
        }
        let mut governing = &limited.checks[0];
        for check in &limited.checks[1..] {
            let governs = match (check.is_over, governing.is_over) {
                (true, true) => check.wait(now) > governing.wait(now),
                (false, false) => {
                    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
                    product(remaining(check), governing.limit.requests)
                        < product(remaining(governing), check.limit.requests)
                }
                (is_over, _) => is_over,
            };
            if governs {
                governing = check;
            }
        }
        Some(remaining(governing))
    }
}

/// The levels at which a target has the value of a descriptor.
fn values(target: &Target, entries: &Entries) -> Vec<bool> {
    let levels = target.iter().zip(entries);
    levels.map(|((_, wanted), (_, value))| wanted.as_ref() == Some(value)).collect()
}

/// True if a request is refused: by a block, whatever else it is limited by, by each ordinary limit that is over, and by
/// its quotas once all of them are. A limit in shadow mode refuses nothing, and a quota in shadow mode is never exhausted.
fn refuses(meanings: &[Meaning], is_over: impl Fn(&Limited) -> bool) -> bool {
    let limited = || meanings.iter().filter_map(Meaning::limited);
    let is_exhausted = |limited: &Limited| is_over(limited) && !limited.is_shadow;
    let quotas: Vec<&Limited> = limited().filter(|limited| limited.is_quota).collect();
    meanings.iter().any(|meaning| matches!(meaning, Meaning::Blocked))
        || limited().any(|limited| !limited.is_quota && is_exhausted(limited))
        || !quotas.is_empty() && quotas.into_iter().all(is_exhausted)
}
