//! What was counted, and what of it a sink was told: the difference is what the next lines say.
//!
//! Nothing is queued for a sink that is away. What it was not told is still counted, so it is told with
//! the rest when it is back. The memory this takes is that of the names, which are bounded elsewhere.

use std::{collections::HashMap, io};

use super::{line::Amount, outbox::Outbox, times::Times};
use crate::stats::{
    Stats,
    flat::{self, Value},
    gauges::Gauges,
    names::Kind,
    rule::RuleCounter,
};

/// The accounts of one sink.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    rules: Accounts<{ RuleCounter::ALL.len() }>,
    counters: Accounts<1>,
    times: HashMap<Box<str>, Times>,
    gauges: Vec<(String, u64)>,
    round: u64,
}

impl Ledger {
    /// Takes note of all that is counted by now. Nobody who counts waits for it.
    pub(super) fn enter(&mut self, stats: &Stats, gauges: &Gauges) {
        self.round += 1;
        let Self { rules, counters, times, round, .. } = self;
        stats.registry.for_each(|full_key, counts| rules.enter(full_key, counts, *round));
        self.gauges.clear();
        for single in stats.singles(gauges) {
            match single.value {
                Value::Number(n) if single.metric.kind == Kind::Gauge => self.gauges.push((single.name, n)),
                Value::Number(n) => counters.enter(&single.name, [n], *round),
                Value::Times(snapshot) => times.entry(single.name.into()).or_default().enter(&snapshot),
            }
        }
        rules.forget_gone(*round);
        counters.forget_gone(*round);
    }

    /// Tells what was not told yet, and the gauges.
    ///
    /// # Errors
    /// Those of the sink. What it did not take is told the next time.
    pub(super) fn tell<'l>(&'l mut self, outbox: &mut Outbox<'_, 'l>) -> io::Result<()> {
        let rule = |full_key: &str, at: usize| RuleCounter::ALL.get(at).map(|c| flat::of_rule(full_key, *c));
        self.rules.tell(outbox, rule)?;
        self.counters.tell(outbox, |name, _| Some(name.to_owned()))?;
        for (name, times) in &mut self.times {
            for (amount, told, counted) in times.owed() {
                outbox.put(name, amount, Some((told, counted)))?;
            }
        }
        for (name, n) in &self.gauges {
            outbox.put(name, Amount::Gauge(*n), None)?;
        }
        outbox.send()
    }
}

/// Sums by name, `N` to a name.
#[derive(Debug)]
struct Accounts<const N: usize>(HashMap<Box<str>, Account<N>>);

impl<const N: usize> Default for Accounts<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

#[derive(Debug)]
struct Account<const N: usize> {
    counted: [u64; N],
    told: [u64; N],
    /// When it was seen last.
    round: u64,
}

impl<const N: usize> Accounts<N> {
    fn enter(&mut self, name: &str, counted: [u64; N], round: u64) {
        if let Some(account) = self.0.get_mut(name) {
            let began_anew = account.told.iter().zip(counted).any(|(told, counted)| counted < *told);
            let told = if began_anew { [0; N] } else { account.told };
            *account = Account { counted, told, round };
        } else {
            self.0.insert(name.into(), Account { counted, told: [0; N], round });
        }
    }

    /// Forgets names that are not counted any more.
    fn forget_gone(&mut self, round: u64) {
        self.0.retain(|_, account| account.round == round);
    }

    fn tell<'l>(
        &'l mut self,
        outbox: &mut Outbox<'_, 'l>,
        name_of: impl Fn(&str, usize) -> Option<String>,
    ) -> io::Result<()> {
        for (name, account) in &mut self.0 {
            for (at, (told, counted)) in account.told.iter_mut().zip(account.counted).enumerate() {
                let owed = counted - *told;
                if owed > 0
                    && let Some(name) = name_of(name, at)
                {
                    outbox.put(&name, Amount::Count(owed), Some((told, counted)))?;
                }
            }
        }
        Ok(())
    }
}
