//! Reads resources: from the bytes of a response to messages, or to an error.
//!
//! Both protocol variants call it. The meaning of the messages is left to the compiler.

use prost::Message as _;
use prost_types::Any;

use crate::{
    proto::ratelimit::config::ratelimit::v3::RateLimitConfig,
    rules::{Diagnostic, Severity},
};

/// The type that is subscribed to.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The error about the type of a response, if it is of another type.
pub(super) fn check_response(type_url: &str) -> Option<Diagnostic> {
    // Some control planes leave it out.
    let is_ours = type_url.is_empty() || same_message(type_url);
    (!is_ours).then(|| wrong_type("the response".to_owned(), type_url))
}

/// The error about more messages than the limit.
pub(super) fn too_much(what: &str, max: usize) -> Diagnostic {
    let message = format!(
        "holds more than {max} messages (resources, descriptors, limits, values of metadata); nothing was read"
    );
    diagnostic(what.to_owned(), message, "send fewer rules, or raise RULES_MAX_VALUES".to_owned())
}

/// Reads a resource that diagnostics call `name`.
pub(super) fn read(name: impl FnOnce() -> String, resource: &Any) -> Result<RateLimitConfig, Diagnostic> {
    if !same_message(&resource.type_url) {
        return Err(wrong_type(name(), &resource.type_url));
    }
    RateLimitConfig::decode(&*resource.value).map_err(|error| {
        let message = format!("its {} bytes are not a valid message: {error}", resource.value.len());
        diagnostic(name(), message, format!("accepted: the message {TYPE_URL}, encoded"))
    })
}

/// Compares the names after the last slash, as protobuf's libraries do.
fn same_message(type_url: &str) -> bool {
    let message = |url: &str| url.rsplit('/').next().unwrap_or_default().to_owned();
    message(type_url) == message(TYPE_URL)
}

fn wrong_type(name: String, seen: &str) -> Diagnostic {
    // A control plane may send anything, so the text is kept short and on one line.
    let seen: String = seen.escape_debug().take(200).collect();
    diagnostic(name, format!("is of the type `{seen}`"), format!("accepted: {TYPE_URL}"))
}

fn diagnostic(file: String, message: String, help: String) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        file,
        place: None,
        path: String::new(),
        message,
        help: Some(help),
    }
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
    fn a_resource_is_read_whatever_stands_before_its_type() {
        let config = RateLimitConfig { domain: "d".to_owned(), ..RateLimitConfig::default() };
        for type_url in [TYPE_URL, "x/ratelimit.config.ratelimit.v3.RateLimitConfig"] {
            assert_eq!(read(name, &any(type_url, config.encode_to_vec())), Ok(config.clone()));
        }
    }

    #[test]
    fn another_message_is_an_error() {
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        for (resource, expected) in [
            (any(cluster, Vec::new()), format!("is of the type `{cluster}`; accepted: {TYPE_URL}")),
            (
                any(TYPE_URL, vec![0x0a, 0xff]),
                "its 2 bytes are not a valid message: failed to decode Protobuf message: ".to_owned(),
            ),
            (any("", Vec::new()), "is of the type ``".to_owned()),
        ] {
            let error = read(name, &resource).unwrap_err().to_string();
            assert!(error.starts_with(&format!("resource a: error: {expected}")), "{error}");
        }
    }

    #[test]
    fn a_response_of_another_type_is_an_error() {
        assert_eq!(check_response(""), None);
        assert_eq!(check_response(TYPE_URL), None);
        assert!(check_response("type.googleapis.com/x.Y").is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_an_error(bytes: Vec<u8>) {
            let _ = read(name, &any(TYPE_URL, bytes));
        }
    }
}
