//! What responses contain: the variables of the group `Responses`.

use super::{names, parse::InvalidValue, reader::Reader, vars, vars::Answers};
use crate::limiter::template::Template;

pub(super) fn read(reader: &mut Reader<'_>) -> Answers {
    let answers = Answers::read(reader);
    // Names that are not used may be anything, as in the Go service.
    if answers.headers {
        for (setting, name) in [
            (&vars::LIMIT_LIMIT_HEADER, &answers.limit_header),
            (&vars::LIMIT_REMAINING_HEADER, &answers.remaining_header),
            (&vars::LIMIT_RESET_HEADER, &answers.reset_header),
        ] {
            if let Err(invalid) = names::header_name(name) {
                reader.refuse(setting, Some(name.clone()), invalid);
            }
        }
    }
    answers
}

/// A template, or nothing.
pub(super) fn body(text: &str) -> Result<Option<Template>, InvalidValue> {
    let template = Template::parse(text).map_err(|fault| {
        let accepted = format!("a text or JSON, with places to be filled in: {}", fault.help);
        InvalidValue::new(accepted).with_hint(fault.message)
    })?;
    Ok(Some(template).filter(|template| !template.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::settings::Settings;

    fn answers(variables: &[(&str, &str)]) -> Result<Answers, Vec<String>> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let env = |name: &str| variables.get(name).map(ToString::to_string);
        let read = Settings::read(&env, &|_| false, 1);
        read.map(|(settings, _)| settings.answers)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nothing_is_said_beyond_the_decision_unless_asked() {
        for variables in [
            &[][..],
            &[("LIMIT_RETRY_AFTER_HEADER", ""), ("OVER_LIMIT_BODY", ""), ("LIMIT_POLICY_HEADERS", "false")],
        ] {
            let answers = answers(variables).unwrap();
            assert_eq!((answers.retry_after_header, answers.over_limit_body), (None, None));
            assert!(!answers.headers && !answers.policy_headers);
            assert!(!answers.dynamic_metadata && !answers.dynamic_metadata_limits);
        }
    }

    #[test]
    fn what_is_asked_for_is_said() {
        let answers = answers(&[
            ("LIMIT_RETRY_AFTER_HEADER", "Retry-After"),
            ("LIMIT_POLICY_HEADERS", "true"),
            ("OVER_LIMIT_BODY", "wait {retry_after}s"),
        ])
        .unwrap();
        assert_eq!(answers.retry_after_header.as_deref(), Some("Retry-After"));
        assert!(answers.policy_headers);
        assert_eq!(answers.over_limit_body, Template::parse("wait {retry_after}s").ok());
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        for (name, value, expected) in [
            (
                "LIMIT_RETRY_AFTER_HEADER",
                "Retry After",
                "LIMIT_RETRY_AFTER_HEADER=\"Retry After\": accepted is a header",
            ),
            ("OVER_LIMIT_BODY", "{seconds}", "; unknown placeholder `{seconds}`"),
            ("OVER_LIMIT_BODY", "[wait]", "; body begins like JSON but is not valid: "),
        ] {
            let problems = answers(&[(name, value)]).unwrap_err();
            assert!(
                problems.len() == 1 && problems[0].contains(expected),
                "{problems:?} has no {expected:?}"
            );
        }
    }
}
