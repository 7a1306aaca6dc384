//! The report of a replay for a terminal, and the sections that it shares with the page.

use std::fmt::Write as _;

use crate::{
    format::{duration, share},
    table::Table,
    terminal::{self, BOLD, DIM, ERROR, WARNING, count, paint, wrapped},
};
use ::replay::{Fraction, KeyReport, Report, SampledBy, Slot, Unlogged, UseReport, WINDOW};
use clock::Rfc3339;
use text::thousands;

/// Where the report is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// Without the columns for which it has no room.
    Terminal,
    Page,
}

/// A number of the chart over time.
pub(super) type Series = (&'static str, fn(&Slot) -> u64);

/// Rows of each table; the JSON has more.
const MAX_ROWS: usize = 20;

/// A part of the report for a terminal and for the page.
pub(super) struct Section {
    /// Shown on the page.
    pub(super) title: &'static str,
    pub(super) table: Table,
    /// What the columns mean; empty if their names say it.
    pub(super) note: String,
}

/// The tables of the report that have rows, in their order.
pub(super) fn sections(report: &Report, medium: Medium) -> Vec<Section> {
    let refused = if report.compares { "#newly refused" } else { "#refused" };
    let title = if report.compares { "Newly refused keys" } else { "Refused keys" };
    let sections = [
        rules(report, medium),
        uses(report),
        keys(title, refused, &report.newly_refused_keys),
        keys("Newly allowed keys", "#newly allowed", &report.newly_allowed_keys),
    ];
    sections.into_iter().filter(|section| !section.table.is_empty()).collect()
}

pub(super) fn report(report: &Report, is_above: Option<Fraction>) -> String {
    let mut out = head(report) + &over_time(report);
    for Section { table, note, .. } in sections(report, Medium::Terminal) {
        let _ = write!(out, "\n{}", table.print_first(MAX_ROWS));
        if !note.is_empty() {
            out += &wrapped(&format!("{}\n", paint(DIM, &note)), 0);
        }
    }
    if !report.unmet.is_empty() {
        let shown = report.unmet.iter().take(MAX_ROWS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = report.unmet.len().saturating_sub(MAX_ROWS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let line = format!("\nno request met {}: {shown}{more}\n", count(report.unmet.len(), "rule"));
        out += &wrapped(&line, 2);
    }
    if let Some(share) = is_above {
        let line = format!("more than {share} of the requests would be newly refused");
        let _ = writeln!(out, "\n{}", paint(ERROR, &line));
    }
    out
}

/// `10 requests, 4 refused (40 %), 2 newly refused (20 %), 1 newly allowed (10 %)`
pub(super) fn summary(report: &Report) -> String {
    let mut text = count(report.requests, "request");
    let mut add = |part: u64, what: &str| {
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, ", {} {what} ({})", thousands(part), share(part, report.requests));
    };
    add(report.refused, "refused");
    if report.compares {
        add(report.newly_refused, "newly refused");
        add(report.newly_allowed, "newly allowed");
    }
    text
}

fn head(report: &Report) -> String {
    let mut out = wrapped(&format!("{}\n", paint(BOLD, &summary(report))), 2);
    if let Some(range) = range(report) {
        out += &wrapped(&format!("{}\n", paint(DIM, &range)), 2);
    }
    for warning in warnings(report) {
        out += &wrapped(&format!("{}: {warning}\n", paint(WARNING, "warning")), 2);
    }
    out
}

/// The times of the first and the last request, and the time between them.
pub(super) fn range(report: &Report) -> Option<String> {
    let from = report.from?;
    let to = report.to?;
    let length = duration(to.seconds().saturating_sub(from.seconds()));
    Some(format!("{} to {}, {length}", Rfc3339(from), Rfc3339(to)))
}

/// What makes the numbers less than the whole truth.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let logs = &report.logs;
    let mut warnings = Vec::new();
    if report.requests == 0 {
        warnings.push("the logs have no request in this time".to_owned());
    }
    if logs.late > 0 {
        warnings.push(format!(
            "{} more than {} s older than lines before and not decided, the first at {}: sort the log, or name the logs \
             of several replicas one by one",
            if logs.late == 1 { "1 line is".to_owned() } else { format!("{} lines are", thousands(logs.late)) },
            WINDOW / 1_000_000,
            logs.first_late.as_deref().unwrap_or_default(),
        ));
    }
    if logs.missing > 0 {
        let missing = count(logs.missing, "request");
        warnings.push(format!(
            "{missing} not recorded, because there were too many: keys look less used than they are"
        ));
    }
    if let Some(sample) = logs.sample {
        warnings.push(match sample.by {
            SampledBy::Key => format!("the logs have the requests of {} % of the keys; limits that several of them share look less used than they are", sample.rate * 100.0),
            SampledBy::Request => format!("the logs have {} % of the requests: keys look less used than they are", sample.rate * 100.0),
        });
    }
    for Unlogged { operator, dropped } in &logs.unlogged {
        let descriptors = count(*dropped, "descriptor");
        warnings.push(format!("{descriptors} dropped, since the log does not have {operator}"));
    }
    if logs.without_descriptors > 0 {
        warnings.push(format!(
            "{} without a descriptor, for which Envoy sends no request",
            count(logs.without_descriptors, "line")
        ));
    }
    warnings
}

/// Requests and refusals over time, a character for each slot or for a few.
fn over_time(report: &Report) -> String {
    let slots = &report.over_time.slots;
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return String::new() };
    if slots.len() < 2 {
        return String::new();
    }
    let seconds = report.over_time.seconds;
    let total = (last.time.seconds() - first.time.seconds()) / seconds + 1;
    let columns = terminal::width().saturating_sub(36).clamp(10, 60) as u64;
    let per_column = total.div_ceil(columns);
    let mut out =
        format!("\n{}\n", paint(BOLD, &format!("EVERY {}", duration(per_column * seconds).to_uppercase())));
    let rows: [Series; 4] = [
        ("requests", |slot| slot.requests),
        ("refused", |slot| slot.refused),
        ("newly refused", |slot| slot.newly_refused),
        ("newly allowed", |slot| slot.newly_allowed),
    ];
    for (name, number) in rows.into_iter().take(if report.compares { 4 } else { 2 }) {
        let mut sums = vec![0_u64; usize::try_from(total.div_ceil(per_column)).unwrap_or_default()];
        for slot in slots {
            let column = (slot.time.seconds() - first.time.seconds()) / seconds / per_column;
            if let Some(sum) = sums.get_mut(usize::try_from(column).unwrap_or_default()) {
                *sum += number(slot);
            }
        }
        let most = sums.iter().copied().max().unwrap_or_default();
        let bars: String = sums.iter().map(|sum| bar(*sum, most)).collect();
        let _ = writeln!(out, "{name:14}{bars}  at most {}", thousands(most));
    }
    out
}

/// A column of a chart.
fn bar(number: u64, most: u64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if number == 0 {
        return ' ';
    }
    let index = (u128::from(number) * 8).div_ceil(u128::from(most)).saturating_sub(1);
    usize::try_from(index).ok().and_then(|index| BARS.get(index)).copied().unwrap_or('█')
}

/// The rules that requests met, and those that were removed.
fn rules(report: &Report, medium: Medium) -> Section {
    let mut columns = vec!["rule", "#requests", "#refused"];
    if report.compares {
        columns.extend(["#newly refused", "#newly allowed"]);
    }
    if medium == Medium::Page {
        columns.push("place");
    }
    let mut table = Table::new(&columns);
    for rule in report.rules.iter().filter(|rule| rule.requests > 0 || rule.removed) {
        let name = if rule.removed { format!("{} (removed)", rule.rule) } else { rule.rule.clone() };
        let mut cells = vec![name, thousands(rule.requests), thousands(rule.refused)];
        if report.compares {
            cells.extend([thousands(rule.newly_refused), thousands(rule.newly_allowed)]);
        }
        if medium == Medium::Page {
            let place = rule.file.as_ref().zip(rule.line).map(|(file, line)| format!("{file}:{line}"));
            cells.push(place.unwrap_or_default());
        }
        table.row(cells);
    }
    Section { title: "Rules", table, note: String::new() }
}

/// The use of each limit by key.
fn uses(report: &Report) -> Section {
    let limits = || report.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
    let suggests = limits().any(|(_, limit)| limit.suggested.is_some());
    let mut columns = vec!["rule", "limit", "#keys", "#over", "#p50", "#p99", "#p99.9", "#most"];
    columns.extend(suggests.then_some("#suggested"));
    let mut table = Table::new(&columns);
    for (rule, limit) in limits().filter(|(_, limit)| limit.used.keys > 0) {
        let UseReport { keys, keys_over, p50, p99, p99_9, most } = limit.used;
        let mut cells = vec![rule.rule.clone(), limit.limit.to_string()];
        cells.extend([keys as u64, keys_over as u64, p50, p99, p99_9, most].map(thousands));
        cells.extend(suggests.then(|| limit.suggested.map(thousands).unwrap_or_default()));
        table.row(cells);
    }
    let mut note = "keys, those over their limit, and the most hits of a key in one window".to_owned();
    if suggests {
        note += "; a suggested limit fits these logs, not the traffic to come";
    }
    Section { title: "Use of the limits", table, note }
}

fn keys(title: &'static str, requests: &'static str, keys: &[KeyReport]) -> Section {
    let mut table = Table::new(&["rule", "key", requests, "first", "last"]);
    for KeyReport { rule, descriptor, requests, first, last } in keys {
        let first = Rfc3339(*first).to_string();
        let last = Rfc3339(*last).to_string();
        table.row([rule.clone(), descriptor.clone(), thousands(*requests), first, last]);
    }
    Section { title, table, note: String::new() }
}
