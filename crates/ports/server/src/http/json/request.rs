//! Converts a request from protobuf's JSON mapping to the bytes of its message, which `wire` reads as it reads those of
//! gRPC. Its texts are escaped before, in the body.
//!
//! `prost-reflect` accepts both forms of a field's name, and numbers as strings; unknown fields are rejected. It builds a
//! map for each object, and 1,000,000 `{}` took 196 MB, so the objects of a body are counted before it is read.

use std::borrow::Cow;

use prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage};
use text::cut_display;

use limiter::Bounds;

pub(super) fn to_message(body: &[u8], bounds: Bounds) -> Result<Vec<u8>, String> {
    check_size(body, bounds)?;
    let body = &*escaped(body);
    let descriptor = proto::descriptor("envoy.service.ratelimit.v3.RateLimitRequest")?;
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = DynamicMessage::deserialize_with_options(descriptor, &mut json, &options);
    let message = read.and_then(|message| json.end().map(|()| message)).map_err(cut_display)?;
    // The copy of a text with escapes.
    drop(json);
    Ok(message.encode_to_vec())
}

/// The body with its [texts escaped](text::bytes), also a U+FFFD that is written as `\ufffd`. Outside of texts neither is
/// JSON, before and after.
fn escaped(body: &[u8]) -> Cow<'_, [u8]> {
    let is_replacement =
        |escape: &[u8]| escape.starts_with(b"\\u") && escape.eq_ignore_ascii_case(br"\ufffd");
    if std::str::from_utf8(body).is_ok_and(text::bytes::is_verbatim) && !body.windows(6).any(is_replacement) {
        return body.into();
    }
    let mut escaped = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some((before, escape)) =
        rest.iter().position(|byte| *byte == b'\\').and_then(|at| rest.split_at_checked(at))
    {
        text::bytes::escape_into(before, &mut escaped);
        let is_replacement = escape.get(..6).is_some_and(is_replacement);
        let length = if is_replacement { 6 } else { escape.len().min(2) };
        let (escape, after) = escape.split_at(length);
        text::bytes::escape_into(if is_replacement { "\u{fffd}".as_bytes() } else { escape }, &mut escaped);
        rest = after;
    }
    text::bytes::escape_into(rest, &mut escaped);
    escaped.into()
}

/// The maximum length of a field's name: 17 letters, each of which may be an escape of six.
const LONGEST_NAME: usize = 17 * 6;

/// Rejects a body that would take more memory than its size allows: one with more objects than a request within the
/// bounds has, with a name that is longer than any field's, or with a long text in place of another value. `serde_json`
/// copies a name with escapes, and repeats a text of the wrong type in its error.
fn check_size(body: &[u8], bounds: Bounds) -> Result<(), String> {
    // A descriptor has its entries, a limit and `hits_addend`, which is a message in protobuf.
    let most = bounds.descriptors.saturating_mul(bounds.entries.saturating_add(3)).saturating_add(1);
    let mut objects = 0..most;
    let mut rest = body;
    let mut name = &b""[..];
    let begins = |byte: &u8| matches!(byte, b'{' | b'"');
    while let Some(at) = rest.iter().position(begins)
        && let [opening, after @ ..] = rest.split_at(at).1
    {
        rest = after;
        let mut is_object = *opening == b'{';
        if !is_object {
            let Some((text, after)) = split_text(rest) else { return Ok(()) };
            rest = after;
            let shown = || String::from_utf8_lossy(text.get(..LONGEST_NAME).unwrap_or(text));
            if rest.trim_ascii_start().first() == Some(&b':') {
                if text.len() > LONGEST_NAME {
                    return Err(cut_display(format_args!("unrecognized field name '{}'", shown())));
                }
                // A name with an escape may be any.
                is_object = text.ends_with(b"ddend") || text.contains(&b'\\');
                name = text;
            } else if text.len() > LONGEST_NAME
                && !matches!(name, b"domain" | b"key" | b"value")
                && !name.contains(&b'\\')
            {
                return Err(cut_display(format_args!("invalid type: string {:?}", shown())));
            }
        }
        if is_object && objects.next().is_none() {
            return Err(format!(
                "more than {most} objects (MAX_DESCRIPTORS_PER_REQUEST, MAX_ENTRIES_PER_DESCRIPTOR)"
            ));
        }
    }
    Ok(())
}

/// The text up to its closing quote, and what follows; `None` if it has no end.
fn split_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    let mut parts = bytes.splitn(2, |byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    Some((parts.next()?, parts.next()?))
}

/// What is accepted is valid for every decoder, and is the same when it is written as JSON and read again.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::expect_used, reason = "a fuzz target")]
pub(super) fn fuzz(body: &[u8]) {
    use proto::envoy::service::ratelimit::v3::RateLimitRequest;

    use crate::wire;

    let bounds = Bounds { descriptors: 128, entries: 64 };
    match to_message(body, bounds) {
        Ok(message) => {
            wire::fuzz(&message);
            let none = Bounds { descriptors: usize::MAX, entries: usize::MAX };
            let by_prost = RateLimitRequest::decode(&*message).expect("the encoder writes valid messages");
            let reflected = proto::reflected("envoy.service.ratelimit.v3.RateLimitRequest", &by_prost);
            let json = serde_json::to_vec(&reflected.expect("the pool has the type of the message"))
                .expect("a message has a JSON form");
            // Escaping what is escaped is not the same.
            if std::str::from_utf8(&json).is_ok_and(text::bytes::is_verbatim) {
                assert_eq!(to_message(&json, none).as_deref(), Ok(&*message));
            }
        }
        Err(error) => assert!(error.len() <= text::LONGEST, "{} bytes", error.len()),
    }
}
