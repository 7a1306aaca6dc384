//! Requests by code and latencies in each second of the last five minutes, for rates and plots.
//!
//! `app` calls [`History::sample`] once a second. All values are differences of two samples of monotonic counters.

use std::{collections::VecDeque, sync::Mutex};

use serde::Serialize;

use ::counters::Store;
use api::{Answers, ByCode, Latency};
use clock::Time;
use faults::{OnStoreFailure, mutex::lock};
use fleet::{Buckets, Steps};
use metrics::{Distribution, Method, ResponseCode, Stats};

/// The number of points of the plots, in seconds.
const SECONDS: usize = 300;

/// The window of quantiles: those of a second would jump with few requests.
const LATENCY_SECONDS: usize = 60;

#[derive(Default)]
pub(super) struct History(Mutex<Series>);

#[derive(Default)]
struct Series {
    /// The newest last, one more than [`LATENCY_SECONDS`].
    samples: VecDeque<Sample>,
    /// The newest last.
    points: VecDeque<Point>,
}

#[derive(Clone, Debug, Default)]
struct Sample {
    time: Time,
    requests: [u64; ResponseCode::ALL.len()],
    /// Requests that each policy decided because the store failed.
    without_store: [u64; OnStoreFailure::ALL.len()],
    answers: Answers,
    response_time: Vec<Distribution>,
    /// Of each pool.
    store_time: Vec<Distribution>,
}

/// One second of the plots.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// Seconds since 1970 at its end.
    pub(super) time: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
    #[serde(flatten)]
    pub(super) latency: Latency,
}

/// Requests per second.
type Rates = ByCode<f64>;

impl History {
    /// Reads the counters, about once a second.
    pub(super) fn sample(&self, stats: &Stats, store: &dyn Store, now: Time) {
        let service = stats.service();
        lock(&self.0).add(Sample {
            time: now,
            requests: stats.requests_by_code(),
            without_store: OnStoreFailure::ALL.map(|policy| service.decided_by(policy)),
            answers: Answers { abandoned: service.abandoned(), late: service.late_responses.get() },
            response_time: vec![service.response_time(Method::ShouldRateLimit).distribution()],
            store_time: store.pools().into_iter().map(|pool| pool.operation_time).collect(),
        });
    }

    /// The rates of the last second.
    pub(super) fn rates(&self) -> Rates {
        lock(&self.0).points.back().map(|point| point.rates).unwrap_or_default()
    }

    /// The requests per second that each policy decided because the store failed, in the last second.
    pub(super) fn without_store(&self) -> [f64; OnStoreFailure::ALL.len()] {
        let state = lock(&self.0);
        let mut newest = state.samples.iter().rev();
        let (Some(last), Some(before)) = (newest.next(), newest.next()) else { return Default::default() };
        let micros = last.time.micros().saturating_sub(before.time.micros()).max(1);
        rates_of(before.without_store, last.without_store, micros)
    }

    /// Answers of the last minute that came too late for their callers.
    pub(super) fn answers(&self) -> Answers {
        let state = lock(&self.0);
        let (Some(first), Some(last)) = (state.samples.front(), state.samples.back()) else {
            return Answers::default();
        };
        Answers {
            abandoned: last.answers.abandoned - first.answers.abandoned,
            late: last.answers.late - first.answers.late,
        }
    }

    /// Response times of the last minute.
    pub(super) fn latency(&self) -> Buckets {
        lock(&self.0).latency(|sample| &sample.response_time)
    }

    /// Times of the store's operations of the last minute.
    pub(super) fn store_latency(&self) -> Buckets {
        lock(&self.0).latency(|sample| &sample.store_time)
    }

    /// The requests per second of the last five minutes, in steps.
    pub(super) fn steps(&self) -> Steps {
        let rates = |Rates { ok, over_limit, error }| [ok, over_limit, error];
        Steps::of(lock(&self.0).points.iter().map(|point| (point.time, rates(point.rates))))
    }

    /// The points of the plots, the oldest first.
    pub(super) fn points(&self) -> Vec<Point> {
        lock(&self.0).points.iter().copied().collect()
    }
}

impl Point {
    /// Points of the steps of all replicas, whose response times are unknown.
    pub(super) fn of(steps: &Steps) -> Vec<Self> {
        let point =
            |(time, rates): (u64, [f64; 3])| Self { time, rates: rates.into(), latency: Latency::default() };
        steps.points().map(point).collect()
    }
}

pub(super) fn latency(times: &Buckets) -> Latency {
    // Whole microseconds, so that JSON shows no rounding errors.
    let quantile = |part| times.quantile(part).map(|seconds| (seconds * 1e6).round() / 1e6);
    Latency { p50_seconds: quantile(0.5), p99_seconds: quantile(0.99) }
}

impl Series {
    fn add(&mut self, sample: Sample) {
        if let Some(last) = self.samples.back() {
            let micros = sample.time.micros().saturating_sub(last.time.micros());
            if micros == 0 {
                // The clock stopped or was set back: this second has no rate.
                self.samples.clear();
            } else {
                let rates = rates(last.requests, sample.requests, micros);
                self.samples.push_back(sample.clone());
                let latency = latency(&self.latency(|sample| &sample.response_time));
                self.points.push_back(Point { time: sample.time.seconds(), rates, latency });
                keep(&mut self.points, SECONDS);
                return keep(&mut self.samples, LATENCY_SECONDS + 1);
            }
        }
        self.samples.push_back(sample);
    }

    fn latency(&self, distributions: impl Fn(&Sample) -> &Vec<Distribution>) -> Buckets {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return Buckets::default();
        };
        let mut all = Buckets::default();
        for (before, after) in distributions(first).iter().zip(distributions(last)) {
            all.add(&Buckets::between(before, after));
        }
        all
    }
}

fn keep<T>(values: &mut VecDeque<T>, most: usize) {
    while values.len() > most {
        values.pop_front();
    }
}

fn rates(before: [u64; 3], after: [u64; 3], micros: u64) -> Rates {
    // In the order of `ResponseCode::ALL`.
    rates_of(before, after, micros).into()
}

pub(super) fn rates_of<const N: usize>(before: [u64; N], after: [u64; N], micros: u64) -> [f64; N] {
    let mut rates = [0.0; N];
    for (rate, (before, after)) in rates.iter_mut().zip(before.into_iter().zip(after)) {
        *rate = after.saturating_sub(before) as f64 * 1e6 / micros as f64;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: u64, ok: u64, within: [u64; 3]) -> Sample {
        let buckets = [0.001, 0.01, 0.1].into_iter().zip(within).collect();
        let response_time = vec![Distribution { buckets, count: within[2], sum: 0.0 }];
        Sample { time: Time::from_seconds(seconds), requests: [ok, 0, 0], response_time, ..Sample::default() }
    }

    #[test]
    fn rates_and_quantiles_are_those_between_two_samples() {
        let mut state = Series::default();
        state.add(sample(100, 50, [0, 0, 0]));
        assert!(state.points.is_empty(), "one sample has no rate");
        state.add(sample(102, 70, [10, 20, 20]));
        let point = state.points[0];
        assert_eq!((point.time, point.rates.ok), (102, 10.0));
        assert_eq!(point.latency.p50_seconds, Some(0.001));
        assert!((point.latency.p99_seconds.unwrap() - 0.00982).abs() < 1e-9, "{point:?}");
        for second in 0..1000 {
            state.add(sample(103 + second, 70, [10, 20, 20]));
        }
        assert_eq!((state.points.len(), state.samples.len()), (300, 61));
        assert_eq!(
            state.latency(|sample| &sample.response_time).quantile(0.5),
            None,
            "no request for a minute"
        );
    }

    #[test]
    fn a_clock_that_was_set_back_gives_no_rate() {
        let mut state = Series::default();
        state.add(sample(100, 0, [0; 3]));
        state.add(sample(90, 100, [0; 3]));
        assert!(state.points.is_empty());
        state.add(sample(91, 101, [0; 3]));
        assert!((state.points[0].rates.ok - 1.0).abs() < 1e-9);
    }
}
