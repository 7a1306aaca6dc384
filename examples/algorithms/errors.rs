//! The errors of each algorithm: decisions that differ from those of an exact log.

use std::{collections::VecDeque, fmt::Write as _};

use limit::{Unit, Window};

use crate::{
    arrivals,
    five::{self, Counter},
};

/// A limit of 100 a minute, and a million requests of each kind.
const LIMIT: u32 = 100;
const REQUESTS: u32 = 1_000_000;

/// Midnight of a day in 2026.
const BEGIN: u64 = 1_795_219_200_000_000;

/// The outcome of the requests.
#[derive(Default)]
struct Outcome {
    admitted: u32,
    /// Admitted, with a hundred in the minute before.
    wrongly_admitted: u32,
    /// Rejected, with fewer in the minute before.
    wrongly_rejected: u32,
    /// The maximum in any minute.
    busiest: usize,
}

/// The tables of `docs/dev/figures.md`.
pub(crate) fn tables() -> String {
    let window = Window::from(Unit::Minute);
    let outcomes: Vec<(&str, Vec<Outcome>)> = kinds()
        .into_iter()
        .map(|(kind, times)| {
            let counters = five::counters(LIMIT.into(), window).into_iter();
            (kind, counters.map(|counter| check(counter, &times, window.micros())).collect())
        })
        .collect();
    let titled = |title, cell| table(title, &outcomes, cell);
    [
        titled("wrongly allowed", |outcome| percent(outcome.wrongly_admitted)),
        titled("wrongly rejected", |outcome| percent(outcome.wrongly_rejected)),
        titled("allowed", |outcome| percent(outcome.admitted)),
        titled("busiest minute", |outcome| outcome.busiest.to_string()),
    ]
    .join("\n")
}

fn kinds() -> [(&'static str, Vec<u64>); 7] {
    let limit = f64::from(LIMIT) / 60.0;
    [
        ("smooth, at noon the limit", arrivals::smooth(limit, REQUESTS)),
        ("smooth, at noon twice", arrivals::smooth(limit * 2.0, REQUESTS)),
        ("steady, half of the limit", arrivals::steady(limit * 0.5, REQUESTS)),
        ("steady, nine tenths", arrivals::steady(limit * 0.9, REQUESTS)),
        ("steady, one and a half times", arrivals::steady(limit * 1.5, REQUESTS)),
        ("bursty, half of the limit", arrivals::bursty(limit * 0.5, REQUESTS)),
        ("day and night, at noon twice", arrivals::day_and_night(limit * 2.0, REQUESTS)),
    ]
}

/// Compares every decision with the hits that the counter admitted in the window before.
fn check(mut counter: Counter, times: &[u64], window: u64) -> Outcome {
    let mut outcome = Outcome::default();
    let mut recent: VecDeque<u64> = VecDeque::new();
    for now in times.iter().map(|time| BEGIN + time) {
        while recent.front().is_some_and(|hit| hit + window <= now) {
            recent.pop_front();
        }
        let has_room = recent.len() < LIMIT as usize;
        if counter.admits(now) {
            recent.push_back(now);
            outcome.admitted += 1;
            outcome.wrongly_admitted += u32::from(!has_room);
            outcome.busiest = outcome.busiest.max(recent.len());
        } else {
            outcome.wrongly_rejected += u32::from(has_room);
        }
    }
    outcome
}

fn table(title: &str, outcomes: &[(&str, Vec<Outcome>)], cell: fn(&Outcome) -> String) -> String {
    let names = five::NAMES.map(|name| format!(" `{name}` |")).concat();
    let mut table = format!("| {title} |{names}\n|---|{}\n", "---:|".repeat(five::NAMES.len()));
    for (kind, outcomes) in outcomes {
        let cells: Vec<String> = outcomes.iter().map(cell).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {kind} | {} |", cells.join(" | "));
    }
    table
}

/// The share of all requests.
fn percent(requests: u32) -> String {
    match requests {
        0 => "0".to_owned(),
        _ => format!("{:.3} %", f64::from(requests) * 100.0 / f64::from(REQUESTS)),
    }
}
