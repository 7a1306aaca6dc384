//! The report of a replay for a terminal.

use std::fmt::Write as _;

use crate::{
    admin::format::Table,
    terminal::{self, BOLD, DIM, ERROR, WARNING, count, paint, wrap},
};
use ::replay::{KeyReport, Report, RuleReport, SampledBy, Share, Slot, Unlogged, WINDOW};
use clock::{Rfc3339, Time};
use text::{duration, thousands};

/// A number of the chart over time.
pub(super) type Series = (&'static str, fn(&Slot) -> u64);

/// Rows of each table; the JSON has more.
const MAX_ROWS: usize = 20;

pub(super) fn of(report: &Report, is_above: Option<Share>) -> String {
    let mut out = head(report) + &over_time(report) + &rules(report) + &uses(report);
    out += &keys("#newly refused", &report.newly_refused_keys, report.compares);
    out += &keys("#newly allowed", &report.newly_allowed_keys, report.compares);
    if !report.unmet.is_empty() {
        let shown = report.unmet.iter().take(MAX_ROWS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = report.unmet.len().saturating_sub(MAX_ROWS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let line = format!("\nno request met {}: {shown}{more}\n", count(report.unmet.len(), "rule"));
        out += &wrap(&line, terminal::width(), 2);
    }
    if let Some(share) = is_above {
        let line = format!("more than {share} of the requests would be newly refused");
        let _ = writeln!(out, "\n{}", paint(ERROR, &line));
    }
    out
}

/// `10 requests, 4 refused (40 %), 2 newly refused (20 %), 1 newly allowed (10 %)`
pub(super) fn summary(report: &Report) -> String {
    let of = |part: u64, what: &str| format!("{} {what} ({})", thousands(part), share(part, report.requests));
    let mut text = format!("{}, {}", count(report.requests, "request"), of(report.refused, "refused"));
    if report.compares {
        let (refused, allowed) = (report.newly_refused, report.newly_allowed);
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, ", {}, {}", of(refused, "newly refused"), of(allowed, "newly allowed"));
    }
    text
}

/// A share in percent with two significant digits.
pub(super) fn share(part: u64, whole: u64) -> String {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        0.1.. => format!("{percent:.2} %"),
        0.01.. => format!("{percent:.3} %"),
        _ => "below 0.01 %".to_owned(),
    }
}

fn head(report: &Report) -> String {
    let width = terminal::width();
    let mut out = wrap(&format!("{}\n", paint(BOLD, &summary(report))), width, 2);
    if let (Some(from), Some(to)) = (report.from, report.to) {
        let length = duration::short(to.seconds().saturating_sub(from.seconds()));
        let line = format!("{} to {}, {length}\n", Rfc3339(from), Rfc3339(to));
        out += &wrap(&paint(DIM, &line), width, 2);
    }
    for warning in warnings(report) {
        out += &wrap(&format!("{}: {warning}\n", paint(WARNING, "warning")), width, 2);
    }
    out
}

/// What makes the numbers less than the whole truth.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let (logs, mut warnings) = (&report.logs, Vec::new());
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
    let mut out = format!(
        "\n{}\n",
        paint(BOLD, &format!("EVERY {}", duration::short(per_column * seconds).to_uppercase()))
    );
    let rows: [Series; 4] = [
        ("requests", |slot| slot.requests),
        ("refused", |slot| slot.refused),
        ("newly refused", |slot| slot.newly_refused),
        ("newly allowed", |slot| slot.newly_allowed),
    ];
    for (name, of) in rows.into_iter().take(if report.compares { 4 } else { 2 }) {
        let mut sums = vec![0_u64; usize::try_from(total.div_ceil(per_column)).unwrap_or_default()];
        for slot in slots {
            let column = (slot.time.seconds() - first.time.seconds()) / seconds / per_column;
            if let Some(sum) = sums.get_mut(usize::try_from(column).unwrap_or_default()) {
                *sum += of(slot);
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

fn rules(report: &Report) -> String {
    let met = |rule: &&RuleReport| rule.requests > 0 || rule.removed;
    let rules: Vec<&RuleReport> = report.rules.iter().filter(met).collect();
    if rules.is_empty() {
        return String::new();
    }
    let mut table = if report.compares {
        Table::new(&["rule", "#requests", "#refused", "#newly refused", "#newly allowed"])
    } else {
        Table::new(&["rule", "#requests", "#refused"])
    };
    for rule in rules.iter().take(MAX_ROWS) {
        let name = if rule.removed { format!("{} (removed)", rule.rule) } else { rule.rule.clone() };
        let mut cells = vec![name, thousands(rule.requests), thousands(rule.refused)];
        if report.compares {
            cells.extend([thousands(rule.newly_refused), thousands(rule.newly_allowed)]);
        }
        table.row(cells);
    }
    format!("\n{}{}", table.print(), more(rules.len()))
}

/// The use of each limit by key.
fn uses(report: &Report) -> String {
    let suggests = report.rules.iter().flat_map(|rule| &rule.limits).any(|limit| limit.suggested.is_some());
    let columns = ["rule", "limit", "#keys", "#over", "#p50", "#p99", "#p99.9", "#most", "#suggested"];
    let mut table = Table::new(columns.get(..if suggests { 9 } else { 8 }).unwrap_or_default());
    let limits = report.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
    let limits: Vec<_> = limits.filter(|(_, limit)| limit.used.keys > 0).collect();
    if limits.is_empty() {
        return String::new();
    }
    for (rule, limit) in limits.iter().take(MAX_ROWS) {
        let used = &limit.used;
        let mut cells = vec![rule.rule.clone(), limit.limit.to_string()];
        cells.extend(
            [used.keys as u64, used.keys_over as u64, used.p50, used.p99, used.p99_9, used.most]
                .map(thousands),
        );
        cells.extend(limit.suggested.map(thousands));
        table.row(cells);
    }
    let mut foot = "keys, those over their limit, and the most hits of a key in one window".to_owned();
    if suggests {
        foot += "; a suggested limit fits these logs, not the traffic to come";
    }
    let foot = wrap(&format!("{}\n", paint(DIM, &foot)), terminal::width(), 0);
    format!("\n{}{}{foot}", table.print(), more(limits.len()))
}

fn keys(what: &'static str, keys: &[KeyReport], compares: bool) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["rule", "key", if compares { what } else { "#refused" }, "first", "last"]);
    for key in keys.iter().take(MAX_ROWS) {
        let when = |time: Time| Rfc3339(time).to_string();
        table.row([
            key.rule.clone(),
            key.descriptor.clone(),
            thousands(key.requests),
            when(key.first),
            when(key.last),
        ]);
    }
    format!("\n{}{}", table.print(), more(keys.len()))
}

fn more(rows: usize) -> String {
    match rows.checked_sub(MAX_ROWS) {
        None | Some(0) => String::new(),
        Some(more) => format!("{}\n", paint(DIM, &format!("and {more} more, see --json"))),
    }
}
