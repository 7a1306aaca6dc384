//! The figures as tables in Markdown, a row for each kind of connection.

use std::time::Duration;

use super::{Round, connections::Opened};

pub(crate) fn head_of_decisions() {
    println!(
        "| load | connections | decisions/s | CPU µs | ratio | lowest to highest ratio | p50 µs | p99 µs |"
    );
    println!("|---|---|---|---|---|---|---|---|");
}

/// One row; the ratios are relative to the rounds of plaintext connections.
pub(crate) fn row_of_decisions(load: &str, kind: &str, rounds: &[Round], plain: &[Round]) {
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let ratios: Vec<_> = rounds.iter().zip(plain).map(|(round, plain)| round.cpu / plain.cpu).collect();
    println!(
        "| {load} | {kind} | {:.0} | {:.2} | {:.2} | {} | {:.0} | {:.0} |",
        of(|round| round.per_second),
        of(|round| round.cpu),
        median(ratios.clone()),
        range(&ratios),
        of(|round| round.p50),
        of(|round| round.p99),
    );
}

pub(crate) fn head_of_connections() {
    println!(
        "| connections | CPU µs to open one | of which TLS | lowest to highest | first answer after µs | resumed \
         | resident KiB of an idle one | lowest to highest |"
    );
    println!("|---|---|---|---|---|---|---|---|");
}

/// One row with the cost of opening connections, and their memory in KiB.
pub(crate) fn row_of_connections(kind: &str, rounds: &[(Opened, f64)], plain: &[(Opened, f64)]) {
    let of = |figure: fn(&(Opened, f64)) -> f64| median(rounds.iter().map(figure).collect());
    let more: Vec<_> = rounds.iter().zip(plain).map(|(round, plain)| round.0.cpu - plain.0.cpu).collect();
    let (resumed, all) = rounds
        .iter()
        .fold((0, 0), |(resumed, all), (opened, _)| (resumed + opened.resumed.0, all + opened.resumed.1));
    let kib: Vec<_> = rounds.iter().map(|(_, kib)| *kib).collect();
    println!(
        "| {kind} | {:.0} | {:.0} | {:.0} to {:.0} | {:.0} | {resumed} of {all} | {:.1} | {:.1} to {:.1} |",
        of(|(opened, _)| opened.cpu),
        median(more.clone()),
        lowest(&more),
        highest(&more),
        of(|(opened, _)| opened.first_answer),
        of(|(_, kib)| *kib),
        lowest(&kib),
        highest(&kib),
    );
}

/// This percentile of the times, in microseconds; zero where there are none.
pub(crate) fn quantile(times: &mut [Duration], of_hundred: usize) -> f64 {
    times.sort_unstable();
    let place = (times.len() * of_hundred).div_ceil(100).saturating_sub(1);
    times.get(place).copied().unwrap_or_default().as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn range(values: &[f64]) -> String {
    format!("{:.2} to {:.2}", lowest(values), highest(values))
}

fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn highest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
