//! How many hits of each rule there are in a second, from samples of the rules' counters.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use serde::Serialize;

use crate::{
    clock::Time,
    limiter::Served,
    mutex::lock,
    rules::RuleId,
    telemetry::metrics::{RuleCounter, RuleStats},
};

/// Rates are of so many seconds.
const SECONDS: usize = 2;

/// The last samples.
#[derive(Default)]
pub(super) struct RuleRates(Mutex<VecDeque<Sample>>);

/// The counters of a set of rules at one moment, by the ids of the rules.
struct Sample {
    time: Time,
    served: Arc<Served>,
    hits: Vec<Hits>,
}

/// The hits of a rule so far.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Hits {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) near: u64,
    pub(super) shadowed: u64,
}

/// The hits of a rule in a second.
#[derive(Serialize, Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct PerSecond {
    pub(super) allowed: f64,
    pub(super) refused: f64,
    pub(super) near: f64,
    pub(super) shadowed: f64,
}

impl Hits {
    /// What the counters of a rule hold.
    pub(super) fn of(stats: &RuleStats) -> Self {
        let shadowed = stats.get(RuleCounter::ShadowMode);
        Self {
            allowed: stats.get(RuleCounter::WithinLimit),
            refused: stats.get(RuleCounter::OverLimit).saturating_sub(shadowed),
            near: stats.get(RuleCounter::NearLimit),
            shadowed,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "rates are for people")]
    fn per_second(self, before: Self, micros: u64) -> PerSecond {
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 * 1e6 / micros as f64;
        PerSecond {
            allowed: rate(self.allowed, before.allowed),
            refused: rate(self.refused, before.refused),
            near: rate(self.near, before.near),
            shadowed: rate(self.shadowed, before.shadowed),
        }
    }
}

impl RuleRates {
    /// Reads the counters of the rules in service, about once a second.
    pub(super) fn sample(&self, served: Option<Arc<Served>>, now: Time) {
        let Some(served) = served else { return };
        let ids = (0..served.rules.rule_count()).map(RuleId);
        let hits = ids.map(|id| served.attached.stats(id).map(|stats| Hits::of(stats)).unwrap_or_default());
        let sample = Sample { time: now, hits: hits.collect(), served };
        let mut samples = lock(&self.0);
        // Other rules have other ids, and a clock that was set back makes no rate.
        if samples.back().is_some_and(|last| !Arc::ptr_eq(&last.served, &sample.served) || last.time >= now) {
            samples.clear();
        }
        samples.push_back(sample);
        while samples.len() > SECONDS.saturating_add(1) {
            samples.pop_front();
        }
    }

    /// The rates of these rules by their ids; empty in the first second after a reload.
    pub(super) fn of(&self, served: &Arc<Served>) -> Vec<PerSecond> {
        let samples = lock(&self.0);
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return Vec::new() };
        let micros = last.time.micros().saturating_sub(first.time.micros());
        if micros == 0 || !Arc::ptr_eq(&last.served, served) {
            return Vec::new();
        }
        last.hits.iter().zip(&first.hits).map(|(after, before)| after.per_second(*before, micros)).collect()
    }
}
