//! Files of overrides: JSON lines, or CSV with a header.
//!
//! The command line validates files with it before it sends anything, and the server reads the request bodies.

use serde_json::{Map, Value as Json};

use super::model::{Action, FIELDS, INPUT_FIELDS, Input, MAX_JSON, Override};
use clock::Time;
use rules::calendar_text;
use text::{self, spelling::nearest};

pub fn of_json_line(line: &str, now: Time) -> Result<Input, String> {
    if line.len() > MAX_JSON {
        return Err(format!("the line has {} bytes; the maximum is {MAX_JSON}", line.len()));
    }
    let json: Json = serde_json::from_str(line).map_err(|error| format!("invalid JSON: {error}"))?;
    Input::from_json(&json, now)
}

pub struct Columns(Vec<&'static str>);

impl Columns {
    pub fn read<'f>(header: impl Iterator<Item = &'f str>) -> Result<Self, String> {
        let mut columns = Vec::new();
        for name in header {
            // Spreadsheets begin a file with a byte order mark.
            let name = name.trim_start_matches('\u{feff}').trim();
            let Some(known) = INPUT_FIELDS.into_iter().find(|known| *known == name) else {
                let hint = match nearest(name, INPUT_FIELDS) {
                    Some(meant) => format!("did you mean {meant:?}?"),
                    None => format!("the first line names the columns: {}", INPUT_FIELDS.join(", ")),
                };
                return Err(format!("unknown column {:?}; {hint}", text::cut(name)));
            };
            if columns.contains(&known) {
                return Err(format!("duplicate column {known:?}"));
            }
            columns.push(known);
        }
        let has =
            |needed: &&str| columns.contains(needed) || *needed == "descriptor" && columns.contains(&"entry");
        match ["domain", "descriptor", "action"].into_iter().find(|needed| !has(needed)) {
            Some(needed) => Err(format!("column {needed:?} is missing; the first line names the columns")),
            None => Ok(Self(columns)),
        }
    }

    /// Reads the override of a row. An empty cell is absent; an empty value is `KEY=`.
    pub fn row(&self, cells: &[&str], now: Time) -> Result<Input, String> {
        if cells.len() != self.0.len() {
            let hint = "quote cells that contain a comma";
            return Err(format!("expected {} cells, got {}; {hint}", self.0.len(), cells.len()));
        }
        let mut fields = Map::new();
        for (column, cell) in self.0.iter().zip(cells.iter().copied()).filter(|(_, cell)| !cell.is_empty()) {
            let value = match *column {
                "requests_per_unit" => cell.trim().parse::<u64>().map_or_else(|_| cell.into(), Json::from),
                "descriptor" | "entry" => cell.into(),
                "force" => cell.trim().parse::<bool>().map_or_else(|_| cell.into(), Json::from),
                _ => cell.trim().into(),
            };
            fields.insert((*column).to_owned(), value);
        }
        Input::from_json(&Json::Object(fields), now)
    }
}

/// The CSV row of an override, with a cell for each of [`FIELDS`].
pub fn csv_row(one: &Override) -> Vec<String> {
    let json = one.to_json();
    let cell = |name| match json.get(name) {
        Some(_) if matches!(name, "descriptor" | "entry") => one.target.plain().descriptor(),
        Some(_) if name == "calendar" => match one.action {
            Action::Limit { calendar: Some(calendar), .. } => calendar_text(calendar),
            _ => String::new(),
        },
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    FIELDS.map(cell).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Time = Time::from_seconds(1_800_000_000);

    fn read(json: &Json) -> Result<Override, String> {
        Override::from_json(json, NOW)
    }

    /// Checks that each JSON is an error with this text.
    fn check(cases: &[(Json, &str)]) {
        for (json, expected) in cases {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    fn with(name: &str, value: Json) -> Json {
        let mut json = json!({"domain": "d", "descriptor": [{"key": "k", "value": "v"}], "action": "block"});
        json[name] = value;
        json
    }

    #[test]
    fn errors_in_domain_or_descriptor_name_the_place_and_the_expected_value() {
        check(&[
            (json!([]), "expected an object, got []"),
            (json!({}), "domain is missing"),
            (with("domian", json!("x")), "unknown field \"domian\"; did you mean \"domain\"?"),
            (with("domain", json!("")), "domain is empty"),
            (with("domain", json!(7)), "domain: expected text in quotes, got 7"),
            (with("descriptor", json!(null)), "descriptor is missing; expected [{\"key\""),
            (with("descriptor", json!([])), "descriptor has no entries"),
            (with("descriptor", json!({})), "descriptor: expected [{\"key\""),
            (with("descriptor", json!(["k=v"])), "descriptor[0]: expected an object with key and value"),
            (with("descriptor", json!([{"key": "k"}, {"value": "v"}])), "descriptor[1]: key is missing"),
            (with("descriptor", json!([{"key": "k", "val": "v"}])), "descriptor[0]: unknown field \"val\""),
            (
                with("descriptor", json!([{"key": "k", "value": 5}])),
                "descriptor[0].value: expected text in quotes, got 5",
            ),
            (
                with("descriptor", json!([{"key": "", "value": "v"}])),
                "an entry of the descriptor has an empty key",
            ),
            (with("descriptor", json!("k=v,")), "descriptor: an entry is empty; expected key=value"),
            (with("descriptor", json!("k=v".repeat(4000))), "value has 11998 bytes; the maximum is 4096"),
        ]);
    }

    #[test]
    fn errors_in_action_or_expiry_name_the_place_and_the_expected_value() {
        check(&[
            (with("action", json!(null)), "action is missing; expected limit, block, allow, shadow, scale"),
            (with("action", json!("blok")), "action: unknown action \"blok\"; did you mean \"block\"?"),
            (
                with("action", json!("limit")),
                "requests_per_unit is missing; the action limit expects a number of requests",
            ),
            (with("requests_per_unit", json!(5)), "requests_per_unit: the action block has no limit"),
            (
                with("requests_per_unit", json!(-5)),
                "requests_per_unit: expected an integer between 0 and 9007199254740991, got -5",
            ),
            (
                with("requests_per_unit", json!("5")),
                "requests_per_unit: expected an integer between 0 and 9007199254740991, got \"5\"",
            ),
            (with("unit", json!("day")), "unit: the action block has no limit"),
            (
                with("expires_at", json!("tomorrow")),
                "expires_at: expected a timestamp such as 2026-11-23T00:00:00Z, got \"tomorrow\"",
            ),
            (
                with("expires_at", json!("2020-01-01T00:00:00Z")),
                "is in the past; the current time is 2027-01-15T08:00:00Z",
            ),
            (with("expires_at", json!("2027-01-15T08:00:00Z")), "is in the past"),
            (with("expires_at", json!("2100-01-01T00:00:00Z")), "is after 2099"),
            (with("for", json!("2 hours")), "for: expected a duration such as 30m, 1h30m, 2d or 1w"),
            (with("for", json!("0")), "for: expected at least 1s, got \"0\""),
            (with("for", json!("1000000h")), "is after 2099"),
            (with("reason", json!("x".repeat(5000))), "reason has 5000 bytes; the maximum is 4096"),
        ]);
        let mut both = with("for", json!("1h"));
        both["expires_at"] = json!("2099-01-01T00:00:00Z");
        assert!(read(&both).unwrap_err().contains("exclude each other"));
        let mut limit = with("action", json!("limit"));
        limit["requests_per_unit"] = json!(5);
        assert!(read(&limit).unwrap_err().contains("unit is missing; expected second, minute"));
        limit["unit"] = json!("hrs");
        assert!(read(&limit).unwrap_err().contains("unknown unit \"hrs\"; did you mean hour?"));
    }

    #[test]
    fn lines_are_bounded() {
        let json = with("reason", json!("x")).to_string();
        let line = |size: usize| " ".repeat(size - json.len()) + &json;
        assert!(of_json_line(&line(MAX_JSON), NOW).is_ok());
        let error = of_json_line(&line(MAX_JSON + 1), NOW).unwrap_err();
        assert_eq!(error, "the line has 1048577 bytes; the maximum is 1048576");
    }

    #[test]
    fn written_json_reads_back() {
        let json = json!({
            "domain": "d", "descriptor": [{"key": "k", "value": "v"}, {"key": "l"}], "action": "limit",
            "requests_per_unit": 5, "unit": "Hour", "for": "90m", "reason": "ticket 7", "by": "ann",
        });
        let one = read(&json).unwrap();
        assert_eq!(one.expires, Some(1_800_005_400));
        let written = one.to_json();
        assert_eq!(written["expires_at"], "2027-01-15T09:30:00Z");
        assert_eq!(
            (written["unit"].as_str(), written["id"].as_str().map(str::len)),
            (Some("HOUR"), Some(20))
        );
        assert_eq!(read(&written).unwrap(), one);
        assert!(Override::from_json(&written, Time::from_seconds(1_900_000_000)).is_err(), "it has expired");
        assert!(
            Override::from_json(&written, Time::default()).is_ok(),
            "stored overrides are read at time 0"
        );
    }

    fn limit_per(unit: &str, calendar: Json) -> Json {
        let mut json = with("action", json!("limit"));
        (json["requests_per_unit"], json["unit"], json["calendar"]) = (json!(500), json!(unit), calendar);
        json
    }

    #[test]
    fn a_limit_may_have_a_calendar() {
        for calendar in
            [json!({"time_zone": "europe/berlin", "anchor_day": 15}), json!("Europe/Berlin,anchor_day=15")]
        {
            let one = read(&limit_per("month", calendar)).unwrap();
            assert_eq!(one.effect(), "limit 500 per month (Europe/Berlin, from the 15th)");
            let written = one.to_json();
            assert_eq!(written["calendar"], json!({"time_zone": "Europe/Berlin", "anchor_day": 15}));
            assert_eq!(read(&written).unwrap(), one);
            let row = csv_row(&one);
            assert!(row.contains(&"Europe/Berlin,anchor_day=15".to_owned()), "{row:?}");
            let columns = Columns::read(FIELDS.into_iter()).unwrap();
            assert_eq!(
                columns.row(&row.iter().map(String::as_str).collect::<Vec<_>>(), NOW).unwrap().one,
                one
            );
        }
        let utc = read(&limit_per("week", json!({}))).unwrap();
        assert_eq!(utc.effect(), "limit 500 per week (UTC, from Monday)");
        assert!(read(&limit_per("week", json!(null))).is_ok());
        check(&[
            (limit_per("hour", json!({})), "unit: the unit `hour` cannot follow a calendar; accepted with"),
            (
                limit_per("day", json!({"time_zone": "Europe/Berln"})),
                "calendar.time_zone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`",
            ),
            (limit_per("month", json!({"anchor_day": 0})), "calendar.anchor_day: no month has a day 0"),
            (
                limit_per("month", json!({"anchor_day": "1"})),
                "calendar.anchor_day: expected 1 to 31, got \"1\"",
            ),
            (
                limit_per("month", json!({"anchor": 1})),
                "calendar: unknown field \"anchor\"; expected time_zone, week_start, anchor_day",
            ),
            (limit_per("month", json!("UTC,day=1")), "calendar: unknown field `day`"),
            (limit_per("month", json!(15)), "calendar: expected {\"time_zone\": \"…\"} or"),
            (with("calendar", json!({})), "calendar: the action block has no limit"),
        ]);
    }

    #[test]
    fn a_limit_and_a_scale_may_name_the_limit_that_they_change() {
        let scale = |fields: Json| {
            let mut json = with("action", json!("scale"));
            json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json
        };
        let mut limit = limit_per("second", json!(null));
        limit["name"] = json!("burst");
        for (json, expected) in [
            (limit, "limit \"burst\": 500 per second"),
            (scale(json!({"scale": "50%"})), "scale to 50%"),
            (scale(json!({"scale": "10000%", "name": "burst"})), "scale \"burst\" to 10000%"),
        ] {
            let one = read(&json).unwrap();
            assert_eq!(one.effect(), expected);
            assert_eq!(read(&one.to_json()).unwrap(), one, "{json}");
            assert_eq!(read(&one.to_stored()).unwrap(), one, "{json}");
            let (columns, row) = (Columns::read(FIELDS.into_iter()).unwrap(), csv_row(&one));
            let read = columns.row(&row.iter().map(String::as_str).collect::<Vec<_>>(), NOW).unwrap().one;
            assert_eq!(read, one);
        }
        check(&[
            (scale(json!({})), "scale is missing; the action scale expects one, such as 50%"),
            (scale(json!({"scale": 0.5})), "scale: expected text in quotes, got 0.5"),
            (scale(json!({"scale": "50"})), "scale: expected a whole number of percent from 1% to 10000%"),
            (scale(json!({"scale": "0%"})), "such as 50%, got \"0%\""),
            (scale(json!({"scale": "10001%"})), "got \"10001%\""),
            (scale(json!({"scale": "50%", "unit": "day"})), "unit: the action scale has no limit; remove"),
            (with("scale", json!("50%")), "scale: expected the action scale, got block"),
            (with("name", json!("burst")), "name: the action block changes no limit; remove the field"),
        ]);
    }

    #[test]
    fn a_part_is_rounded_up() {
        let half = crate::Percent::parse("50%").unwrap();
        assert_eq!([0, 1, 5, 20, 1 << 53].map(|requests| half.of(requests)), [0, 1, 3, 10, 1 << 52]);
    }

    #[test]
    fn identifiers_depend_on_every_part() {
        let id = |descriptor: &str| read(&with("descriptor", json!(descriptor))).unwrap().target.id();
        let all = ["k=v", "k=", "k", "k=-", "k=v,k=v", "kv=", "k=\\,v", "k=v,k"].map(id);
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn rows_are_read_by_the_header() {
        let columns = Columns::read(
            ["\u{feff}descriptor", " domain", "action", "requests_per_unit", "unit", "for", "reason"]
                .into_iter(),
        )
        .unwrap();
        let one = columns.row(&["k=a,l=b", "d", "limit", "100", "minute", "", "x"], NOW).unwrap().one;
        assert_eq!(
            one.to_json()["descriptor"],
            json!([{"key": "k", "value": "a"}, {"key": "l", "value": "b"}])
        );
        assert_eq!((one.expires, &*one.reason), (None, "x"));
        assert!(matches!(one.action, Action::Limit { requests_per_unit: 100, .. }));
        for (cells, expected) in [
            (&["k=a", "d", "block"][..], "expected 7 cells, got 3; quote cells"),
            (&["k=a", "", "block", "", "", "", ""], "domain is missing"),
            (
                &["k=a", "d", "limit", "many", "day", "", ""],
                "expected an integer between 0 and 9007199254740991, got \"many\"",
            ),
        ] {
            let error = columns.row(cells, NOW).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let row = csv_row(&one);
        let same = Columns::read(FIELDS.into_iter()).unwrap();
        let same = same.row(&row.iter().map(String::as_str).collect::<Vec<_>>(), NOW).unwrap();
        assert_eq!(same, Input { one, force: false, is_exported: true });
        for (header, expected) in [
            (&["domain", "descriptor", "actoin"][..], "unknown column \"actoin\"; did you mean \"action\"?"),
            (&["domain", "descriptor"], "column \"action\" is missing"),
            (&["domain", "domain", "action"], "duplicate column \"domain\""),
            (&["shop", "k=a", "block"], "the first line names the columns"),
        ] {
            let error = Columns::read(header.iter().copied()).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }
}
