//! What an override, or rules, would have made of the last requests that a service has recorded: before they are set.

use std::{path::PathBuf, time::Duration};

use super::{AdminArgs, Client, Reply};
use crate::{
    endpoint::Address,
    serve::Environment,
    terminal::{Failure, count},
};
use api::{Forecast, Trial, TryRules};
use serde_json::Value;
use text::thousands;

/// A trial of a full recording takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Of the rules of a file.
pub(crate) fn of_rules(
    admin: &Address,
    token_file: Option<PathBuf>,
    rules: &[u8],
    environment: &Environment,
) -> Result<String, Failure> {
    let admin =
        AdminArgs { admin: Some(admin.clone()), token_file, timeout: Some(TIMEOUT), ..AdminArgs::default() };
    let rules = String::from_utf8_lossy(rules).into_owned();
    let trial: Reply<Trial> = Client::new(&admin, environment)?.post("/api/v1/try", &TryRules { rules })?;
    let number = |name: &str| trial.report.get(name).and_then(Value::as_u64).unwrap_or_default();
    Ok(in_words(number("requests"), number("newly_refused"), number("newly_allowed")))
}

/// Of an override, on a line.
pub(super) fn of_override(forecast: &Forecast) -> String {
    in_words(forecast.requests, forecast.newly_refused, forecast.newly_allowed) + "\n"
}

/// `12 more and 3 fewer of 1,204 recorded requests would be refused`
fn in_words(requests: u64, more: u64, fewer: u64) -> String {
    if requests == 0 {
        return "no request was recorded, so what it would change is unknown".to_owned();
    }
    let recorded = count(requests, "recorded request");
    match (more, fewer) {
        (0, 0) => format!("none of {recorded} would be decided otherwise"),
        (more, 0) => format!("{} more of {recorded} would be refused", thousands(more)),
        (0, fewer) => format!("{} fewer of {recorded} would be refused", thousands(fewer)),
        _ => {
            format!("{} more and {} fewer of {recorded} would be refused", thousands(more), thousands(fewer))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn a_forecast_is_a_sentence() {
        assert_eq!(in_words(1204, 12, 3), "12 more and 3 fewer of 1,204 recorded requests would be refused");
        assert_eq!(in_words(1204, 0, 1000), "1,000 fewer of 1,204 recorded requests would be refused");
        assert_eq!(in_words(1, 1, 0), "1 more of 1 recorded request would be refused");
        assert_eq!(in_words(5, 0, 0), "none of 5 recorded requests would be decided otherwise");
        assert!(in_words(0, 0, 0).starts_with("no request was recorded"));
    }
}
