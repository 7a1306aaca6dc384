//! The report of a replay as a page: one file without outside parts and without scripts.

use std::fmt::Write as _;

use super::text::{Series, share, summary, warnings};
use ::replay::{KeyReport, Report};
use clock::{Rfc3339, Time};
use text::{duration, printable, thousands};

/// The size of the chart.
const WIDTH: u64 = 960;
const HEIGHT: u64 = 160;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--line:#d5dbe3;--back:#fff;--requests:#9db4d3;--refused:#c2410c;\
--new:#7e22ce}\
@media(prefers-color-scheme:dark){:root{--ink:#e5e9f0;--dim:#9aa5b5;--line:#3a4350;--back:#161b22;--requests:#4a6386;\
--refused:#fb923c;--new:#c084fc}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .4rem}p{color:var(--dim);margin:.2rem 0}\
.numbers{display:flex;flex-wrap:wrap;gap:2rem;margin:1.2rem 0}.numbers b{display:block;font-size:1.6rem}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}th{text-align:left;font-weight:600;color:var(--dim);font-size:.85rem}\
th,td{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);white-space:nowrap}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:9rem}\
.chart{display:grid;grid-template-columns:auto 1fr;gap:.2rem .5rem;font-size:.8rem;color:var(--dim)}\
.y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;line-height:1}\
.x{grid-column:2;display:flex;justify-content:space-between;line-height:1.3}.x :nth-child(2){text-align:center}\
.x :last-child{text-align:right}.y,.x{font-variant-numeric:tabular-nums}.title{grid-column:2;text-align:center}\
svg{width:100%;height:10rem;border-bottom:1px solid var(--dim);border-left:1px solid var(--dim)}.warning{color:var(--refused)}\
p span{white-space:nowrap}i{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 1rem;border-radius:2px}";

pub(super) fn of(report: &Report) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Replay</title><style>{STYLE}</style></head><body>\n<h1>Replay</h1>\n"
    );
    if let (Some(from), Some(to)) = (report.from, report.to) {
        let length = duration::short(to.seconds().saturating_sub(from.seconds()));
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "<p>{} to {}, {length}</p>", Rfc3339(from), Rfc3339(to));
    }
    for warning in warnings(report) {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escaped(&warning));
    }
    out += &numbers(report);
    out += &over_time(report);
    out += &rules(report);
    out += &uses(report);
    let refused = if report.compares { "Newly refused keys" } else { "Refused keys" };
    out += &keys(refused, &report.newly_refused_keys);
    out += &keys("Newly allowed keys", &report.newly_allowed_keys);
    if !report.unmet.is_empty() {
        let rows = report.unmet.iter().map(|rule| vec![rule.clone()]);
        out += &table("Rules that no request met", "", &["rule"], rows);
    }
    out + "</body></html>\n"
}

fn numbers(report: &Report) -> String {
    let number = |number: u64, what: &str| {
        format!("<div><b>{}</b>{what}, {}</div>", thousands(number), share(number, report.requests))
    };
    let mut out = format!("<div class=\"numbers\"><div><b>{}</b>requests</div>", thousands(report.requests));
    out += &number(report.admitted, "admitted");
    out += &number(report.refused, "refused");
    if report.compares {
        out += &number(report.newly_refused, "newly refused");
        out += &number(report.newly_allowed, "newly allowed");
    }
    out + "</div>\n"
}

/// Bars of requests, with the refused and the newly refused in front of them.
fn over_time(report: &Report) -> String {
    let (slots, seconds) = (&report.over_time.slots, report.over_time.seconds);
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return String::new() };
    let columns = (last.time.seconds() - first.time.seconds()) / seconds + 1;
    let most = slots.iter().map(|slot| slot.requests).max().unwrap_or(1);
    let mut bars = String::new();
    let kinds: [Series; 3] = [
        ("requests", |slot| slot.requests),
        ("refused", |slot| slot.refused),
        ("new", |slot| slot.newly_refused),
    ];
    let shown = if report.compares { 3 } else { 2 };
    for slot in slots {
        let column = (slot.time.seconds() - first.time.seconds()) / seconds;
        let (left, right) = (column * WIDTH / columns, (column + 1) * WIDTH / columns);
        for (kind, of) in kinds.iter().take(shown) {
            let height = u128::from(of(slot)) * u128::from(HEIGHT) / u128::from(most);
            let top = u128::from(HEIGHT) - height;
            let title = format!("{}: {} {kind}", Rfc3339(slot.time), thousands(of(slot)));
            let _ = write!(
                bars,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{height}\" fill=\"var(--{kind})\"><title>{title}</title></rect>",
                (right - left).max(1),
            );
        }
    }
    let legend = |&(kind, _): &Series| {
        let name = if kind == "new" { "newly refused" } else { kind };
        format!(" <span><i style=\"background:var(--{kind})\"></i>{name}</span>")
    };
    let legend: String = kinds.iter().take(shown).map(legend).collect();
    format!(
        "<h2>Over time</h2><p>Requests in {}{legend}</p>\n\
         <div class=\"chart\"><div class=\"y\"><span>{}</span><span>{}</span><span>0</span></div>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{bars}</svg>\
         <div class=\"x\">{}</div><div class=\"title\">time (UTC)</div></div>\n",
        duration::short(seconds),
        thousands(most),
        if most > 1 { thousands(most / 2) } else { String::new() },
        escaped(&summary(report)),
        times(first.time, seconds * columns),
    )
}

/// The labels of the time axis: its begin, its middle and its end, each with its day below.
fn times(first: Time, length: u64) -> String {
    let label = |seconds: u64| {
        let text = Rfc3339(Time::from_seconds(first.seconds() + seconds)).to_string();
        let (day, time) = text.split_once('T').unwrap_or_default();
        format!("<span>{}<br>{day}</span>", time.split('.').next().unwrap_or_default())
    };
    [0, length / 2, length].map(label).concat()
}

fn rules(report: &Report) -> String {
    let met = report.rules.iter().filter(|rule| rule.requests > 0 || rule.removed);
    let rows = met.map(|rule| {
        let place = rule.file.as_ref().zip(rule.line).map(|(file, line)| format!("{file}:{line}"));
        let numbers = [rule.requests, rule.refused, rule.newly_refused, rule.newly_allowed].map(thousands);
        [vec![rule.rule.clone(), place.unwrap_or_default()], numbers.to_vec()].concat()
    });
    table("Rules", "", &["rule", "place", "#requests", "#refused", "#newly refused", "#newly allowed"], rows)
}

fn uses(report: &Report) -> String {
    let limits = report.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
    let rows = limits.filter(|(_, limit)| limit.used.keys > 0).map(|(rule, limit)| {
        let used = &limit.used;
        let numbers = [used.keys as u64, used.keys_over as u64, used.p50, used.p99, used.p99_9, used.most];
        let suggested = limit.suggested.map(thousands).unwrap_or_default();
        [vec![rule.rule.clone(), limit.limit.to_string()], numbers.map(thousands).to_vec(), vec![suggested]]
            .concat()
    });
    let what = "Keys, those over their limit, and the most hits of a key in one window. A suggested limit fits these logs, \
                not the traffic to come.";
    let columns = ["rule", "limit", "#keys", "#over", "#p50", "#p99", "#p99.9", "#most", "#suggested"];
    table("Use of the limits", what, &columns, rows)
}

fn keys(title: &str, keys: &[KeyReport]) -> String {
    let rows = keys.iter().map(|key| {
        let times = [key.first, key.last].map(|time| Rfc3339(time).to_string());
        [vec![key.descriptor.clone(), key.rule.clone(), thousands(key.requests)], times.to_vec()].concat()
    });
    table(title, "", &["key", "rule", "#requests", "first", "last"], rows)
}

/// A table; columns of numbers have a `#` before their name.
fn table(title: &str, what: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |name: &str| if name.starts_with('#') { " class=\"n\"" } else { "" };
    let mut body = String::new();
    for row in rows {
        body += "<tr>";
        for (cell, name) in row.iter().zip(columns) {
            let _ = write!(body, "<td{}>{}</td>", class(name), escaped(cell));
        }
        body += "</tr>\n";
    }
    if body.is_empty() {
        return String::new();
    }
    let mut head = String::new();
    for name in columns {
        let _ = write!(head, "<th{}>{}</th>", class(name), name.trim_start_matches('#'));
    }
    format!("<h2>{title}</h2><p>{what}</p><div class=\"wide\"><table><tr>{head}</tr>\n{body}</table></div>\n")
}

/// A text of a caller in HTML.
fn escaped(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}
