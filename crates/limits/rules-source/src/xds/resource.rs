//! Decodes the resources of a response for `stream`. The compiler interprets the messages.

use prost::Message as _;
use prost_types::Any;

use crate::diagnostics::diagnostic;
use proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use text::diagnostics::{Diagnostic, Severity};

pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The errors of a response as a whole: its type, and its size.
pub(super) fn check_response(type_url: &str, is_too_large: bool, max: usize) -> Vec<Diagnostic> {
    // Some control planes omit the type.
    let is_wrong_type = !type_url.is_empty() && !is_same_message(type_url);
    let wrong_type = is_wrong_type.then(|| wrong_type("the response".to_owned(), type_url));
    wrong_type.into_iter().chain(is_too_large.then(|| too_large(max))).collect()
}

/// The error about more messages than the limit.
fn too_large(max: usize) -> Diagnostic {
    let message = format!("more than {max} messages (resources, descriptors, limits, values of metadata)");
    let help = "send fewer rules, or raise MEMORY_LIMIT or RULES_MAX_VALUES";
    diagnostic(Severity::Error, "the response".to_owned(), message, help)
}

/// Decodes a resource, which diagnostics call `name`.
pub(super) fn decode(name: impl FnOnce() -> String, resource: &Any) -> Result<RateLimitConfig, Diagnostic> {
    if !is_same_message(&resource.type_url) {
        return Err(wrong_type(name(), &resource.type_url));
    }
    RateLimitConfig::decode(&*resource.value).map_err(|error| {
        let message = format!("invalid message of {} bytes: {error}", resource.value.len());
        diagnostic(Severity::Error, name(), message, format!("expected an encoded {TYPE_URL}"))
    })
}

/// Compares the names after the last slash, as protobuf libraries do.
fn is_same_message(type_url: &str) -> bool {
    type_url.rsplit('/').next() == TYPE_URL.rsplit('/').next()
}

fn wrong_type(name: String, seen: &str) -> Diagnostic {
    // A control plane may send anything, so the text is kept short and on one line.
    let seen: String = seen.escape_debug().take(200).collect();
    diagnostic(Severity::Error, name, format!("unexpected type `{seen}`"), format!("expected {TYPE_URL}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any(type_url: &str, value: Vec<u8>) -> Any {
        Any { type_url: type_url.to_owned(), value }
    }

    fn name() -> String {
        "resource a".to_owned()
    }

    #[test]
    fn ignores_the_prefix_of_a_resource_type() {
        let config = RateLimitConfig { domain: "d".to_owned(), ..RateLimitConfig::default() };
        for type_url in [TYPE_URL, "x/ratelimit.config.ratelimit.v3.RateLimitConfig"] {
            assert_eq!(decode(name, &any(type_url, config.encode_to_vec())), Ok(config.clone()));
        }
    }

    #[test]
    fn rejects_other_messages() {
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        for (resource, expected) in [
            (any(cluster, Vec::new()), format!("unexpected type `{cluster}`; expected {TYPE_URL}")),
            (
                any(TYPE_URL, vec![0x0a, 0xff]),
                "invalid message of 2 bytes: failed to decode Protobuf message: ".to_owned(),
            ),
            (any("", Vec::new()), "unexpected type ``".to_owned()),
        ] {
            let error = decode(name, &resource).unwrap_err().to_string();
            assert!(error.starts_with(&format!("resource a: error: {expected}")), "{error}");
        }
    }

    #[test]
    fn rejects_responses_of_other_types_and_too_large_ones() {
        let errors = |type_url, is_too_large| check_response(type_url, is_too_large, 10).len();
        assert_eq!((errors("", false), errors(TYPE_URL, false)), (0, 0));
        assert_eq!(
            (errors("type.googleapis.com/x.Y", false), errors("type.googleapis.com/x.Y", true)),
            (1, 2)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_an_error(bytes: Vec<u8>) {
            let _ = decode(name, &any(TYPE_URL, bytes));
        }
    }
}
