//! Values of replies as text: numbers, limits, durations, tables.

use crate::terminal::{self, BOLD, columns, cut, paint};
use api::{Calendar, Entry, Limit};
use limit::{Unit, calendar::CalendarFields, in_words};
pub(super) use text::duration::short as duration;
use text::{entries, printable, thousands};

/// The text, or a dash.
pub(super) fn word(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

/// A descriptor in the notation of arguments.
pub(super) fn descriptor(entries: &[Entry]) -> String {
    entries::write(entries.iter().map(|entry| (entry.key.as_str(), Some(entry.value.as_str()))))
}

/// `1,000 per 15 minutes`, or with a unit alone `5 per hour`.
pub(super) fn limit(limit: &Limit) -> String {
    let unit = Unit::from_name(&limit.unit).unwrap_or(Unit::Unknown);
    let calendar = limit.calendar.as_ref().map(|calendar| {
        let Calendar { time_zone, week_start, anchor_day } = calendar;
        let fields = CalendarFields { time_zone, week_start: week_start.as_deref(), anchor_day: *anchor_day };
        fields.to_string()
    });
    let notes = calendar.into_iter().chain(limit.schedule.clone());
    in_words(limit.requests_per_unit, unit, limit.unit_multiplier, notes)
}

/// A rate, with a fraction if it is below 10.
pub(super) fn rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 {
        return format!("{rate:.1}");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
    thousands(rate.round() as u64)
}

/// A latency in milliseconds, or in microseconds below 0.1 ms.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 0.000_1 { format!("{:.0} µs", seconds * 1e6) } else { format!("{:.1} ms", seconds * 1e3) }
}

/// Bytes in units of a thousand.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A table: numbers are aligned to the right, and the widest column of text is cut to the width of the terminal.
pub(crate) struct Table {
    header: Vec<&'static str>,
    /// True for columns of numbers.
    numbers: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// The minimum width of a column of text that is cut.
const MIN_WIDTH: usize = 8;

impl Table {
    /// A table with these columns; `#` before a name marks a column of numbers and is not shown.
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self {
            header: columns.iter().map(|name| name.strip_prefix('#').unwrap_or(name)).collect(),
            numbers: columns.iter().map(|name| name.starts_with('#')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Control characters are escaped.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into().iter().map(|cell| printable(cell).into_owned()).collect());
    }

    /// The table for standard output: at most as wide as the terminal, or `COLUMNS`.
    pub(crate) fn print(&self) -> String {
        self.fit(terminal::width())
    }

    fn fit(&self, width: usize) -> String {
        let widths = self.widths(width);
        let header: Vec<String> = self.header.iter().map(|name| name.to_uppercase()).collect();
        // Columns of numbers are never cut, so a very narrow line ends early.
        let line = |cells: &[String]| cut(&self.line(cells, &widths), width);
        let mut text = format!("{}\n", paint(BOLD, &line(&header)));
        for row in &self.rows {
            text.push_str(&line(row));
            text.push('\n');
        }
        text
    }

    fn widths(&self, most: usize) -> Vec<usize> {
        let header = self.header.iter().enumerate();
        let mut widths: Vec<usize> = header
            .map(|(column, name)| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell));
                cells.chain([name.len()]).max().unwrap_or_default()
            })
            .collect();
        loop {
            let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            let texts = widths.iter_mut().zip(&self.numbers).filter(|(_, is_number)| !**is_number);
            match texts.map(|(width, _)| width).max() {
                Some(width) if total > most && *width > MIN_WIDTH => *width -= 1,
                _ => return widths,
            }
        }
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let cells = cells.iter().zip(widths).zip(&self.numbers).map(|((cell, width), is_number)| {
            let width = *width;
            let cell = cut(cell, width);
            let padding = " ".repeat(width.saturating_sub(columns(&cell)));
            if *is_number { padding + &cell } else { cell + &padding }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

    #[test]
    fn formats_numbers_durations_and_sizes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 59, 60, 3600, 3661, 90_000].map(duration),
            ["0s", "59s", "1m", "1h", "1h 1m", "1d 1h"]
        );
        assert_eq!([0.000_02, 0.001, 1.5].map(seconds), ["20 µs", "1.0 ms", "1500.0 ms"]);
        assert_eq!([999, 1_500_000, 2_000_000_000].map(bytes), ["1.0 kB", "1.5 MB", "2.0 GB"]);
        assert_eq!([0.0, 0.25, 9.96, 1234.5].map(rate), ["0", "0.2", "10", "1,235"]);
    }

    #[test]
    fn a_narrow_table_cuts_its_widest_text() {
        let mut table = Table::new(&["rule", "descriptor", "#refused"]);
        table.row(["shop.user".into(), "user=somebody@example.com".into(), "12".into()]);
        table.row(["shop.user".into(), "user=é".into(), "1,200".into()]);
        let expected = "RULE       DESCRIPTOR                 REFUSED\n\
            shop.user  user=somebody@example.com       12\n\
            shop.user  user=é                       1,200\n";
        assert_eq!(plain(&table.fit(200)), expected);
        for width in 0..60 {
            let text = plain(&table.fit(width));
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width, "{width}: {text}");
        }
        assert!(plain(&table.fit(36)).contains("user=somebody@e…"), "{}", plain(&table.fit(36)));
    }
}
