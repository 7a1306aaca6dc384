//! Values as text: numbers, rates, sizes, limits and descriptors.

use api::{Calendar, Entry, Limit};
use limit::{Unit, calendar::CalendarFields};
pub(super) use text::duration::short as duration;
use text::{entries, thousands};

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
    limit::in_words(limit.requests_per_unit, unit, limit.unit_multiplier, notes)
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
