//! The report of a replay as a page: one file without outside parts and without scripts.

use std::fmt::Write as _;

use super::text::{Medium, Section, Series, range, sections, summary, warnings};
use crate::{
    format::{duration, share},
    table::{Table, html_escaped},
};
use ::replay::Report;
use clock::{Rfc3339, Time};
use text::thousands;

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
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td:nth-child(-n+2):not(.n){white-space:normal;overflow-wrap:anywhere;min-width:9rem}\
.chart{display:grid;grid-template-columns:auto 1fr;gap:.2rem .5rem;font-size:.8rem;color:var(--dim)}\
.y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;line-height:1}\
.x{grid-column:2;display:flex;justify-content:space-between;line-height:1.3}.x :nth-child(2){text-align:center}\
.x :last-child{text-align:right}.y,.x{font-variant-numeric:tabular-nums}.title{grid-column:2;text-align:center}\
svg{width:100%;height:10rem;border-bottom:1px solid var(--dim);border-left:1px solid var(--dim)}.warning{color:var(--refused)}\
p span{white-space:nowrap}i{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 1rem;border-radius:2px}";

pub(super) fn page(report: &Report) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Replay</title><style>{STYLE}</style></head><body>\n<h1>Replay</h1>\n"
    );
    if let Some(range) = range(report) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "<p>{range}</p>");
    }
    for warning in warnings(report) {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", html_escaped(&warning));
    }
    out += &numbers(report);
    out += &over_time(report);
    for section in sections(report, Medium::Page) {
        add_section(&mut out, &section);
    }
    if !report.unmet.is_empty() {
        let mut table = Table::new(&["rule"]);
        report.unmet.iter().for_each(|rule| table.row([rule.clone()]));
        add_section(&mut out, &Section { title: "Rules that no request met", table, note: String::new() });
    }
    out + "</body></html>\n"
}

fn add_section(out: &mut String, Section { title, table, note }: &Section) {
    let table = table.html();
    let _ = writeln!(out, "<h2>{title}</h2><p>{note}</p><div class=\"wide\">{table}</div>");
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
    let slots = &report.over_time.slots;
    let seconds = report.over_time.seconds;
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
        let left = column * WIDTH / columns;
        let right = (column + 1) * WIDTH / columns;
        for (kind, number) in kinds.iter().take(shown) {
            let height = u128::from(number(slot)) * u128::from(HEIGHT) / u128::from(most);
            let top = u128::from(HEIGHT) - height;
            let title = format!("{}: {} {kind}", Rfc3339(slot.time), thousands(number(slot)));
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
        duration(seconds),
        thousands(most),
        if most > 1 { thousands(most / 2) } else { String::new() },
        html_escaped(&summary(report)),
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
