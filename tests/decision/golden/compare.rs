//! Compares two answers, and shows their differences.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The length at which a report truncates texts.
const SHOWN: usize = 1500;

/// Equal as JSON, where 1 and 1.0 are the same number.
pub(crate) fn same(want: &Value, have: &Value) -> bool {
    match (want, have) {
        (Value::Number(want), Value::Number(have)) => want.as_f64() == have.as_f64(),
        (Value::Array(want), Value::Array(have)) => {
            want.len() == have.len() && want.iter().zip(have).all(|(want, have)| same(want, have))
        }
        (Value::Object(want), Value::Object(have)) => {
            want.len() == have.len()
                && want.iter().all(|(key, want)| have.get(key).is_some_and(|have| same(want, have)))
        }
        _ => want == have,
    }
}

/// The different fields of two maps, or both values.
pub(crate) fn difference(want: &Value, have: &Value) -> String {
    let (want, have) = match (want, have) {
        (Value::Object(want), Value::Object(have)) => {
            let keys: BTreeSet<_> = want.keys().chain(have.keys()).collect();
            let differs = |key: &&String| !same(&part(want, key), &part(have, key));
            let keys: Vec<_> = keys.into_iter().filter(differs).collect();
            let parts =
                |of: &Map<String, Value>| keys.iter().map(|key| ((*key).clone(), part(of, key))).collect();
            (Value::Object(parts(want)), Value::Object(parts(have)))
        }
        _ => (want.clone(), have.clone()),
    };
    format!("    Go    {}\n    here  {}", short(&want), short(&have))
}

fn part(of: &Map<String, Value>, key: &str) -> Value {
    of.get(key).cloned().unwrap_or(Value::Null)
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{difference, same};

    #[test]
    fn numbers_are_compared_by_value() {
        assert!(same(&json!({"a": [1.0, {"b": 2}]}), &json!({"a": [1, {"b": 2.0}]})));
        assert!(!same(&json!(1), &json!(1.5)));
        assert!(!same(&json!(1), &json!("1")));
    }

    #[test]
    fn a_missing_or_additional_field_is_a_difference() {
        assert!(!same(&json!({"a": 1}), &json!({})));
        assert!(!same(&json!({}), &json!({"a": 1})));
        assert!(!same(&json!([1]), &json!([1, 1])));
    }

    #[test]
    fn only_the_parts_that_differ_are_shown() {
        let shown = difference(&json!({"a": 1, "b": 2}), &json!({"a": 1, "c": 3}));
        assert_eq!(shown, "    Go    {\"b\":2,\"c\":null}\n    here  {\"b\":null,\"c\":3}");
    }
}
