//! Many overrides in a file: JSON lines, or CSV with a header.
//!
//! The command line reads files with it before it sends anything, and the server reads what was sent.

use serde_json::{Map, Value as Json};

use super::model::{FIELDS, Override};
use crate::{clock::Time, rules::nearest, text};

/// The columns that a CSV file may have.
const COLUMNS: [&str; 10] = {
    let [id, domain, descriptor, action, requests_per_unit, unit, expires_at, reason, by] = FIELDS;
    [id, domain, descriptor, action, requests_per_unit, unit, expires_at, reason, by, "for"]
};

/// The override of one line in JSON.
///
/// # Errors
/// What is wrong with it, without the line's number.
pub fn of_json_line(line: &str, now: Time) -> Result<Override, String> {
    let json: Json = serde_json::from_str(line).map_err(|error| format!("this is not JSON: {error}"))?;
    Override::from_json(&json, now)
}

/// The columns of a CSV file, by its header.
pub struct Columns(Vec<&'static str>);

impl Columns {
    /// # Errors
    /// When a name is unknown or given twice, or a necessary one is missing.
    pub fn read<'f>(header: impl Iterator<Item = &'f str>) -> Result<Self, String> {
        let mut columns = Vec::new();
        for name in header {
            // Spreadsheets begin a file with a mark of its encoding.
            let name = name.trim_start_matches('\u{feff}').trim();
            let Some(known) = COLUMNS.into_iter().find(|known| *known == name) else {
                let hint = match nearest(name, COLUMNS) {
                    Some(meant) => format!("did you mean {meant:?}?"),
                    None => format!("the first line names the columns: {}", COLUMNS.join(", ")),
                };
                return Err(format!("unknown column {:?}; {hint}", text::cut(name)));
            };
            if columns.contains(&known) {
                return Err(format!("the column {known:?} is there twice"));
            }
            columns.push(known);
        }
        for needed in ["domain", "descriptor", "action"] {
            if !columns.contains(&needed) {
                return Err(format!("the column {needed:?} is missing; the first line names the columns"));
            }
        }
        Ok(Self(columns))
    }

    /// The override of one row. Empty cells are absent, so that `KEY=` and not an empty cell is an empty value.
    ///
    /// # Errors
    /// What is wrong with it, without the line's number.
    pub fn row(&self, cells: &[&str], now: Time) -> Result<Override, String> {
        if cells.len() != self.0.len() {
            let hint = "a cell with a comma stands in double quotes";
            return Err(format!("expected {} cells, got {}; {hint}", self.0.len(), cells.len()));
        }
        let mut fields = Map::new();
        for (column, cell) in self.0.iter().zip(cells.iter().copied()).filter(|(_, cell)| !cell.is_empty()) {
            let value = match *column {
                "requests_per_unit" => match cell.trim().parse::<u64>() {
                    Ok(number) => number.into(),
                    Err(_) => cell.into(),
                },
                "descriptor" => cell.into(),
                _ => cell.trim().into(),
            };
            fields.insert((*column).to_owned(), value);
        }
        Override::from_json(&Json::Object(fields), now)
    }
}

/// A CSV row of an override, in the order of [`csv_header`].
#[must_use]
pub fn csv_row(one: &Override) -> Vec<String> {
    let json = one.to_json();
    let cell = |name: &str| match json.get(name) {
        _ if name == "descriptor" => one.target.descriptor(),
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    csv_header().iter().map(|name| cell(name)).collect()
}

/// The columns of [`csv_row`].
#[must_use]
pub fn csv_header() -> &'static [&'static str] {
    &FIELDS
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::overrides::model::Action;

    const NOW: Time = Time::from_seconds(1_800_000_000);

    fn read(json: &Json) -> Result<Override, String> {
        Override::from_json(json, NOW)
    }

    /// Each of these is an error that contains this text.
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
    fn a_mistake_in_domain_or_descriptor_says_where_it_is_and_what_is_expected() {
        check(&[
            (json!([]), "expected an object, got []"),
            (json!({}), "domain is missing"),
            (with("domian", json!("x")), "unknown field \"domian\"; did you mean \"domain\"?"),
            (with("domain", json!("")), "domain is empty"),
            (with("domain", json!(7)), "domain: expected text, got 7"),
            (with("descriptor", json!(null)), "descriptor is missing; expected [{\"key\""),
            (with("descriptor", json!([])), "descriptor has no entry"),
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
    fn a_mistake_in_what_an_override_does_says_where_it_is_and_what_is_expected() {
        check(&[
            (with("action", json!(null)), "action is missing; expected limit, block, allow, shadow"),
            (with("action", json!("blok")), "action: unknown action \"blok\"; did you mean \"block\"?"),
            (with("action", json!("limit")), "requests_per_unit is missing; expected a number of requests"),
            (with("requests_per_unit", json!(5)), "requests_per_unit: the action block has no limit"),
            (
                with("requests_per_unit", json!(-5)),
                "requests_per_unit: expected an integer between 0 and 4294967295, got -5",
            ),
            (
                with("requests_per_unit", json!("5")),
                "requests_per_unit: expected an integer between 0 and 4294967295, got \"5\"",
            ),
            (with("unit", json!("day")), "unit: the action block has no limit"),
            (
                with("expires_at", json!("tomorrow")),
                "expires_at: expected a moment such as 2026-11-23T00:00:00Z, got \"tomorrow\"",
            ),
            (
                with("expires_at", json!("2020-01-01T00:00:00Z")),
                "is in the past; it is 2027-01-15T08:00:00Z now",
            ),
            (with("expires_at", json!("2027-01-15T08:00:00Z")), "is in the past"),
            (with("expires_at", json!("2100-01-01T00:00:00Z")), "ends after 2099"),
            (with("for", json!("2 hours")), "for: expected a duration such as 10s, 150us, 1h30m"),
            (with("for", json!("0")), "for: expected at least 1s, got \"0\""),
            (with("for", json!("1000000h")), "ends after 2099"),
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
    fn json_reads_as_it_is_written() {
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
        assert!(Override::from_json(&written, Time::from_seconds(1_900_000_000)).is_err(), "it has ended");
        assert!(Override::from_json(&written, Time::default()).is_ok(), "as storage is read");
    }

    #[test]
    fn identifiers_differ_with_every_part() {
        let id = |descriptor: &str| read(&with("descriptor", json!(descriptor))).unwrap().target.id();
        let all = ["k=v", "k=", "k", "k=-", "k=v,k=v", "kv=", "k=\\,v", "k=v,k"].map(id);
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_table_is_read_by_its_header() {
        let columns = Columns::read(
            ["\u{feff}descriptor", " domain", "action", "requests_per_unit", "unit", "for", "reason"]
                .into_iter(),
        )
        .unwrap();
        let one = columns.row(&["k=a,l=b", "d", "limit", "100", "minute", "", "x"], NOW).unwrap();
        assert_eq!(
            one.to_json()["descriptor"],
            json!([{"key": "k", "value": "a"}, {"key": "l", "value": "b"}])
        );
        assert_eq!((one.expires, &*one.reason), (None, "x"));
        assert!(matches!(one.action, Action::Limit { requests_per_unit: 100, .. }));
        for (cells, expected) in [
            (&["k=a", "d", "block"][..], "expected 7 cells, got 3; a cell with a comma"),
            (&["k=a", "", "block", "", "", "", ""], "domain is missing"),
            (
                &["k=a", "d", "limit", "many", "day", "", ""],
                "expected an integer between 0 and 4294967295, got \"many\"",
            ),
        ] {
            let error = columns.row(cells, NOW).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let row = csv_row(&one);
        let same = Columns::read(csv_header().iter().copied()).unwrap();
        assert_eq!(same.row(&row.iter().map(String::as_str).collect::<Vec<_>>(), NOW).unwrap(), one);
        for (header, expected) in [
            (&["domain", "descriptor", "actoin"][..], "unknown column \"actoin\"; did you mean \"action\"?"),
            (&["domain", "descriptor"], "the column \"action\" is missing"),
            (&["domain", "domain", "action"], "\"domain\" is there twice"),
            (&["shop", "k=a", "block"], "the first line names the columns"),
        ] {
            let error = Columns::read(header.iter().copied()).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }
}
