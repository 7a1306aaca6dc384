//! What answers say: the variables of the group `Answers`.

use super::{
    groups::{Answers, DynamicMetadata, HeaderNames},
    names, parse,
    reader::Reader,
    vars,
};
use crate::limiter::template::Template;

pub(super) fn read(reader: &mut Reader<'_>) -> Answers {
    Answers {
        shadow_mode: reader.flag(vars::SHADOW_MODE),
        quota_mode: reader.flag(vars::QUOTA_MODE),
        dynamic_metadata: dynamic_metadata(reader),
        headers: headers(reader),
        retry_after: retry_after(reader),
        policy_headers: reader.flag(vars::LIMIT_POLICY_HEADERS),
        over_limit_body: reader.parsed(vars::OVER_LIMIT_BODY, body),
    }
}

fn dynamic_metadata(reader: &mut Reader<'_>) -> DynamicMetadata {
    let asked = reader.flag(vars::RESPONSE_DYNAMIC_METADATA);
    match reader.flag(vars::RESPONSE_DYNAMIC_METADATA_LIMITS) {
        true => DynamicMetadata::WithLimits,
        false if asked => DynamicMetadata::Plain,
        false => DynamicMetadata::Off,
    }
}

fn headers(reader: &mut Reader<'_>) -> Option<HeaderNames> {
    let with_headers = reader.flag(vars::LIMIT_RESPONSE_HEADERS_ENABLED);
    let mut name = |var| {
        // Names that nobody will see may be anything, as in the Go service.
        if with_headers { reader.parsed_text(var, names::header_name) } else { reader.text(var) }
    };
    let headers = HeaderNames {
        limit: name(vars::LIMIT_LIMIT_HEADER),
        remaining: name(vars::LIMIT_REMAINING_HEADER),
        reset: name(vars::LIMIT_RESET_HEADER),
    };
    with_headers.then_some(headers)
}

fn retry_after(reader: &mut Reader<'_>) -> Option<String> {
    let is_named = reader.is_set(vars::LIMIT_RETRY_AFTER_HEADER);
    is_named.then(|| reader.parsed_text(vars::LIMIT_RETRY_AFTER_HEADER, names::header_name))
}

fn body(text: &str) -> Result<Option<Template>, parse::InvalidValue> {
    let template = Template::parse(text).map_err(|fault| {
        let accepted = format!("a text or JSON, with places to be filled in: {}", fault.help);
        parse::InvalidValue::new(accepted).with_hint(fault.message)
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
            assert_eq!((answers.headers, answers.retry_after, answers.over_limit_body), (None, None, None));
            assert!(!answers.policy_headers);
            assert_eq!(answers.dynamic_metadata, DynamicMetadata::Off);
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
        assert_eq!(answers.retry_after.as_deref(), Some("Retry-After"));
        assert!(answers.policy_headers);
        assert_eq!(answers.over_limit_body, Template::parse("wait {retry_after}s").ok());
    }

    #[test]
    fn limits_in_the_metadata_ask_for_metadata() {
        for (plain, limits, expected) in [
            ("false", "false", DynamicMetadata::Off),
            ("true", "false", DynamicMetadata::Plain),
            ("true", "true", DynamicMetadata::WithLimits),
            ("false", "true", DynamicMetadata::WithLimits),
        ] {
            let variables =
                [("RESPONSE_DYNAMIC_METADATA", plain), ("RESPONSE_DYNAMIC_METADATA_LIMITS", limits)];
            assert_eq!(answers(&variables).unwrap().dynamic_metadata, expected, "{plain} {limits}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        for (name, value, told) in [
            (
                "LIMIT_RETRY_AFTER_HEADER",
                "Retry After",
                "LIMIT_RETRY_AFTER_HEADER=\"Retry After\": accepted is a header",
            ),
            ("OVER_LIMIT_BODY", "{seconds}", "; unknown placeholder `{seconds}`"),
            ("OVER_LIMIT_BODY", "[wait]", "; body begins like JSON but is not valid: "),
        ] {
            let problems = answers(&[(name, value)]).unwrap_err();
            assert!(problems.len() == 1 && problems[0].contains(told), "{problems:?} has no {told:?}");
        }
    }
}
