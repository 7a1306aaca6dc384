//! Reads resources: from the bytes of a response to messages, or to what is wrong with them.
//!
//! Called by the two dialects. What the messages mean is left to the compiler.

use prost::Message as _;
use prost_types::Any;

use crate::{
    proto::ratelimit::config::ratelimit::v3::RateLimitConfig,
    rules::{Diagnostic, Severity},
};

/// The type that is subscribed to.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Says what is wrong with the type of a whole response, if it is one.
pub(super) fn check_response(type_url: &str) -> Option<Diagnostic> {
    // Some control planes leave it out.
    let is_ours = type_url.is_empty() || same_message(type_url);
    (!is_ours).then(|| wrong_type("the response".to_owned(), type_url))
}

/// Says that there is more than is taken.
pub(super) fn too_much(what: &str, most: usize) -> Diagnostic {
    let message = format!(
        "holds more than {most} messages (resources, descriptors, limits, values of metadata), and none of it is read"
    );
    diagnostic(what.to_owned(), message, "send fewer rules, or raise RULES_MAX_VALUES".to_owned())
}

/// Reads a resource that diagnostics call `name`.
pub(super) fn read(name: impl FnOnce() -> String, resource: &Any) -> Result<RateLimitConfig, Diagnostic> {
    if !same_message(&resource.type_url) {
        return Err(wrong_type(name(), &resource.type_url));
    }
    RateLimitConfig::decode(&*resource.value).map_err(|error| {
        let message = format!("its {} bytes are not such a message: {error}", resource.value.len());
        diagnostic(name(), message, format!("accepted: the message {TYPE_URL}, encoded"))
    })
}

/// Types are told apart by what stands behind the last slash, as protobuf's libraries do.
fn same_message(type_url: &str) -> bool {
    let message = |url: &str| url.rsplit('/').next().unwrap_or_default().to_owned();
    message(type_url) == message(TYPE_URL)
}

fn wrong_type(name: String, seen: &str) -> Diagnostic {
    // A control plane may send anything: what is shown of it is short and on one line.
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
    fn what_is_none_is_told() {
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        for (resource, told) in [
            (any(cluster, Vec::new()), format!("is of the type `{cluster}`; accepted: {TYPE_URL}")),
            (
                any(TYPE_URL, vec![0x0a, 0xff]),
                "its 2 bytes are not such a message: failed to decode Protobuf message: ".to_owned(),
            ),
            (any("", Vec::new()), "is of the type ``".to_owned()),
        ] {
            let told_here = read(name, &resource).unwrap_err().to_string();
            assert!(told_here.starts_with(&format!("resource a: error: {told}")), "{told_here}");
        }
    }

    #[test]
    fn a_response_of_another_type_is_told() {
        assert_eq!(check_response(""), None);
        assert_eq!(check_response(TYPE_URL), None);
        assert!(check_response("type.googleapis.com/x.Y").is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_told(bytes: Vec<u8>) {
            let _ = read(name, &any(TYPE_URL, bytes));
        }
    }
}
