//! The days and times of a schedule as users write them, and the mistakes in them.

use limit::calendar::{
    Weekday,
    schedule::{Days, TimeOfDay},
};
use text::{diagnostics::quoted, spelling::nearest};

/// A message, and its help.
type Mistake = (String, String);

const DAYS: &str = "accepted: days and ranges of days, such as `mon-fri` or `mon,wed,fri-sun`";

/// Reads `mon`, `sat-mon` or `mon,wed,fri-sun`, in short and long English names.
pub(super) fn days(text: &str) -> Result<Days, Mistake> {
    let mut all: Option<Days> = None;
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let days = Days::range(weekday(first.trim())?, weekday(last.trim())?);
        all = Some(all.map_or(days, |known| known.and(days)));
    }
    all.ok_or_else(|| ("expected days".to_owned(), DAYS.to_owned()))
}

fn weekday(name: &str) -> Result<Weekday, Mistake> {
    let lower = name.to_ascii_lowercase();
    // `mon`, `tues` and `thurs`, too.
    let is_its = |day: &Weekday| lower.len() >= 3 && day.name().starts_with(&lower);
    Weekday::ALL.into_iter().find(is_its).ok_or_else(|| {
        let meant = nearest(name, Weekday::ALL.map(Weekday::name));
        let help = meant.map_or_else(|| DAYS.to_owned(), |meant| format!("did you mean `{meant}`? {DAYS}"));
        (format!("unknown weekday {}", quoted(name)), help)
    })
}

/// Reads `08:00`. Only an end may be `24:00`.
pub(super) fn time(text: &str, is_end: bool) -> Result<TimeOfDay, Mistake> {
    text.trim().parse().ok().filter(|time| is_end || *time != TimeOfDay::END).ok_or_else(|| {
        let last = if is_end { "24:00" } else { "23:59" };
        (format!("expected a time of day, got {}", quoted(text)), format!("accepted: 00:00 to {last}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_and_shown() {
        for (text, expected) in [
            ("mon", "mon"),
            ("Mon-Fri", "mon-fri"),
            ("sat-mon", "sat-mon"),
            ("mon, wed ,fri-sun", "wed,fri-mon"),
            ("Monday,TUES-thursday", "mon-thu"),
            ("sun-mon,sun", "sun-mon"),
            ("tue,tue", "tue"),
        ] {
            assert_eq!(days(text).map(|days| days.to_string()).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(days("mon-sun"), Ok(Days::ALL));
        assert_eq!(days("tue-mon"), Ok(Days::ALL));
        for (text, message) in [
            ("", "unknown weekday ``"),
            ("mo", "unknown weekday `mo`"),
            ("mon-", "unknown weekday ``"),
            ("mon,", "unknown weekday ``"),
            ("mon-tue-wed", "unknown weekday `tue-wed`"),
            ("mondy", "unknown weekday `mondy`"),
            ("mondays", "unknown weekday `mondays`"),
        ] {
            assert_eq!(days(text).unwrap_err().0, message, "{text}");
        }
        assert!(days("tusday").unwrap_err().1.starts_with("did you mean `tuesday`?"));
    }

    #[test]
    fn times_are_read() {
        for (text, expected) in
            [("08:00", "08:00"), ("8:05", "08:05"), ("00:00", "00:00"), ("23:59", "23:59")]
        {
            assert_eq!(time(text, false).map(|time| time.to_string()).as_deref(), Ok(expected));
        }
        assert_eq!(time("24:00", true), Ok(TimeOfDay::END));
        for text in
            ["24:00", "", "8", "08:0", "08:60", "25:00", "-1:00", "+8:00", "08:00:00", "8 am", "008:00"]
        {
            assert!(time(text, false).is_err(), "{text}");
        }
        assert!(time("24:01", true).is_err());
    }
}
