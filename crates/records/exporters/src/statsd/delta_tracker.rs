//! The counts, and the part of them that a sink has received; the difference is sent next.
//!
//! Nothing is queued for an unreachable sink: unsent counts are sent later. A removed name stays here until its sum was
//! sent, and returns as another counter. The memory is that of the current names, which are bounded elsewhere, and of
//! [`MAX_GONE`] removed ones.

use std::{collections::HashMap, io};

use super::{line::Amount, outbox::Outbox, times::Times};
use metrics::{
    Gauges, Metric, MetricType, OVERFLOW, RuleCounter, Stats, Value, labels::statsd_key,
    rows::DOMAIN_NOT_FOUND, statsd_names,
};

/// Maximum number of removed names with unsent sums.
const MAX_GONE: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct DeltaTracker {
    rules: Accounts<{ RuleCounter::ALL.len() }>,
    domains: Accounts<1>,
    counters: Accounts<1>,
    times: HashMap<Box<str>, Times>,
    gauges: Vec<(String, u64)>,
    round: u64,
}

impl DeltaTracker {
    /// Reads all counters. No counting thread waits for it.
    pub(super) fn enter(&mut self, stats: &Stats, gauges: &Gauges<'_>) {
        self.round = self.round.wrapping_add(1);
        let Self { rules, domains, counters, times, gauges: current, round } = self;
        stats.for_each_rule(|rule, counts| rules.enter(rule.full_key(), rule.number, counts, *round));
        stats.for_each_unknown_domain(|name, number, n| domains.enter(name, number, [n], *round));
        current.clear();
        let take = &mut |metric: &Metric, labels: &[&str], value: Value<'_>| {
            let Some(name) = statsd_names::of_single(metric, labels) else { return };
            match value {
                Value::Whole(n) if metric.kind == MetricType::Gauge => current.push((name, n)),
                // Entered above, domain by domain.
                Value::Whole(_) if metric.name == DOMAIN_NOT_FOUND.name => {}
                Value::Whole(n) => counters.enter(&name, 0, [n], *round),
                Value::Times(snapshot) => times.entry(name.into()).or_default().enter(snapshot),
                // No metric with a statsd name has one.
                Value::Float(_) | Value::Distribution(_) => {}
            }
        };
        stats.samples(gauges, take);
        rules.forget_gone(*round, |full_key| {
            let domain = full_key.split('.').next().unwrap_or_default();
            format!("{domain}.{OVERFLOW}")
        });
        domains.forget_gone(*round, |_| OVERFLOW.to_owned());
        counters.forget_gone(*round, str::to_owned);
    }

    /// The number of counts that the sink has not received.
    pub(super) fn unsent(&mut self) -> u64 {
        let times: usize = self.times.values_mut().map(|times| times.owed().count()).sum();
        self.rules.unsent() + self.domains.unsent() + self.counters.unsent() + times as u64
    }

    /// Sends the unsent counts, and the gauges.
    pub(super) fn send<'l>(&'l mut self, outbox: &mut Outbox<'_, 'l>) -> io::Result<()> {
        let rule =
            |full_key: &str, at: usize| RuleCounter::ALL.get(at).map(|c| statsd_names::of_rule(full_key, *c));
        self.rules.send(outbox, rule)?;
        let domain = |name: &str, _| statsd_names::of_single(&DOMAIN_NOT_FOUND, &[&statsd_key(name)]);
        self.domains.send(outbox, domain)?;
        self.counters.send(outbox, |name, _| Some(name.to_owned()))?;
        for (name, times) in &mut self.times {
            for (amount, sent, counted) in times.owed() {
                outbox.put(name, amount, Some((sent, counted)))?;
            }
        }
        for (name, n) in &self.gauges {
            outbox.put(name, Amount::Gauge(*n), None)?;
        }
        outbox.send()
    }
}

#[derive(Debug, Default)]
struct Accounts<const N: usize>(HashMap<Box<str>, Account<N>>);

#[derive(Debug)]
struct Account<const N: usize> {
    /// The last counter of the name, and its last values.
    number: u64,
    seen: [u64; N],
    counted: [u64; N],
    sent: [u64; N],
    /// The round that read it last.
    round: u64,
}

impl<const N: usize> Account<N> {
    fn new(number: u64, round: u64) -> Self {
        Self { number, seen: [0; N], counted: [0; N], sent: [0; N], round }
    }

    fn owed(&self) -> [u64; N] {
        std::array::from_fn(|at| self.counted[at] - self.sent[at])
    }

    fn add(&mut self, amounts: [u64; N]) {
        for (counted, amount) in self.counted.iter_mut().zip(amounts) {
            *counted = counted.saturating_add(amount);
        }
    }
}

impl<const N: usize> Accounts<N> {
    /// Enters the values of a counter. A new number is a counter that restarted at zero because the name was forgotten
    /// meanwhile.
    fn enter(&mut self, name: &str, number: u64, reads: [u64; N], round: u64) {
        if !self.0.contains_key(name) {
            self.0.insert(name.into(), Account::new(number, round));
        }
        let Some(account) = self.0.get_mut(name) else { return };
        let seen = if account.number == number { account.seen } else { [0; N] };
        let mut more = reads;
        for (more, seen) in more.iter_mut().zip(seen) {
            // A counter that decreased has restarted as well.
            *more = more.checked_sub(seen).unwrap_or(*more);
        }
        account.add(more);
        (account.number, account.seen, account.round) = (number, reads, round);
    }

    /// Forgets removed names once their sums were sent. Too many of them are summed up under another name, so that the
    /// memory for an unreachable sink is bounded.
    fn forget_gone(&mut self, round: u64, overflow: impl Fn(&str) -> String) {
        self.0.retain(|_, account| account.round == round || account.owed() != [0; N]);
        if self.0.values().filter(|account| account.round != round).count() <= MAX_GONE {
            return;
        }
        let gone: Vec<_> = self.0.extract_if(|_, account| account.round != round).collect();
        for (name, account) in gone {
            let sum = self.0.entry(overflow(&name).into()).or_insert_with(|| Account::new(0, round));
            sum.add(account.owed());
        }
    }

    fn unsent(&self) -> u64 {
        let owed = self.0.values().map(|account| account.owed().iter().filter(|owed| **owed > 0).count());
        owed.sum::<usize>() as u64
    }

    fn send<'l>(
        &'l mut self,
        outbox: &mut Outbox<'_, 'l>,
        name_of: impl Fn(&str, usize) -> Option<String>,
    ) -> io::Result<()> {
        for (name, account) in &mut self.0 {
            for (at, (sent, counted)) in account.sent.iter_mut().zip(account.counted).enumerate() {
                let owed = counted - *sent;
                if owed > 0
                    && let Some(name) = name_of(name, at)
                {
                    outbox.put(&name, Amount::Count(owed), Some((sent, counted)))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed(accounts: &Accounts<1>) -> Vec<(String, u64)> {
        let mut owed: Vec<_> =
            accounts.0.iter().map(|(name, one)| (name.to_string(), one.owed()[0])).collect();
        owed.sort();
        owed
    }

    fn settle(accounts: &mut Accounts<1>) {
        accounts.0.values_mut().for_each(|account| account.sent = account.counted);
    }

    #[test]
    fn a_counter_that_was_forgotten_and_returns_is_sent_from_zero() {
        let mut accounts = Accounts::<1>::default();
        accounts.enter("a", 1, [50], 1);
        settle(&mut accounts);
        accounts.enter("a", 1, [60], 2);
        assert_eq!(owed(&accounts), [("a".to_owned(), 10)]);
        // It counted more than before within one round.
        accounts.enter("a", 2, [70], 3);
        assert_eq!(owed(&accounts), [("a".to_owned(), 80)]);
        settle(&mut accounts);
        accounts.enter("a", 2, [3], 4);
        assert_eq!(owed(&accounts), [("a".to_owned(), 3)], "a counter that decreased has restarted");
    }

    #[test]
    fn a_removed_counter_is_kept_until_it_is_sent() {
        let mut accounts = Accounts::<1>::default();
        accounts.enter("a", 1, [50], 1);
        accounts.forget_gone(2, str::to_owned);
        assert_eq!(owed(&accounts), [("a".to_owned(), 50)]);
        settle(&mut accounts);
        accounts.forget_gone(3, str::to_owned);
        assert!(owed(&accounts).is_empty());
    }

    #[test]
    fn removed_counters_beyond_the_bound_are_summed_up() {
        for (gone, left) in [(MAX_GONE, MAX_GONE + 1), (MAX_GONE + 1, 2)] {
            let mut accounts = Accounts::<1>::default();
            for n in 0..gone {
                accounts.enter(&n.to_string(), n as u64, [3], 1);
            }
            accounts.enter("living", 0, [1], 2);
            accounts.forget_gone(2, |_| "rest".to_owned());
            assert_eq!(owed(&accounts).len(), left);
            assert_eq!(owed(&accounts).iter().map(|(_, n)| n).sum::<u64>(), 3 * gone as u64 + 1);
        }
    }
}
