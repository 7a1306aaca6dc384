//! The parent span in a call's headers: W3C (`traceparent`) or B3 (one header or several).
//!
//! B3 takes precedence, as in the Go service. Invalid headers are ignored.

use http::{HeaderMap, HeaderValue};

/// The id of a trace, never 0.
pub(super) type TraceId = u128;

/// The id of a span, never 0.
pub(super) type SpanId = u64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Parent {
    Unknown,
    /// The call must be sampled, in a new trace.
    Sampled,
    Unsampled,
    Span {
        trace: TraceId,
        span: SpanId,
        /// The sampling decision; `None` defers it to this service.
        sampled: Option<bool>,
        /// `tracestate`, unchanged.
        state: String,
    },
}

/// The longest `tracestate` that is kept: the minimum that W3C requires.
const LONGEST_STATE: usize = 512;

impl Parent {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match b3_single(headers).unwrap_or_else(|| b3_multi(headers)) {
            Self::Unknown => w3c(headers).unwrap_or(Self::Unknown),
            // B3 has the decision and W3C the parent.
            Self::Sampled => match w3c(headers) {
                Some(Self::Span { trace, span, state, .. }) => {
                    Self::Span { trace, span, sampled: Some(true), state }
                }
                _ => Self::Sampled,
            },
            found => found,
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Option<&'h str> {
    headers.get(name).map(HeaderValue::to_str)?.ok()
}

/// `version-trace-span-flags`. Later versions may append fields.
fn w3c(headers: &HeaderMap) -> Option<Parent> {
    let text = text(headers, "traceparent")?.trim();
    let mut parts = text.split('-');
    let version = parts.next().filter(|version| version.len() == 2 && is_lower_hex(version))?;
    let trace = parts.next().filter(|trace| trace.len() == 32 && is_lower_hex(trace)).and_then(trace_id)?;
    let span = parts.next().filter(|span| is_lower_hex(span)).and_then(span_id)?;
    let flags = parts.next().filter(|flags| flags.len() == 2 && is_lower_hex(flags))?;
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some(Parent::Span { trace, span, sampled: Some(flags & 1 == 1), state: state(headers) })
}

fn state(headers: &HeaderMap) -> String {
    let members = headers.get_all("tracestate").iter().map(HeaderValue::to_str);
    let members: Vec<&str> = members.filter_map(Result::ok).collect();
    Some(members.join(",")).filter(|state| state.len() <= LONGEST_STATE).unwrap_or_default()
}

/// `trace-span`, `trace-span-sampled`, `trace-span-sampled-parent`, or `sampled` alone.
fn b3_single(headers: &HeaderMap) -> Option<Parent> {
    let text = text(headers, "b3")?.trim();
    let parts: Vec<&str> = text.split('-').collect();
    match parts[..] {
        [decision] => {
            sampled(decision).map(|sampled| if sampled { Parent::Sampled } else { Parent::Unsampled })
        }
        [trace, span, ref rest @ ..] if rest.len() <= 2 => {
            let trace = trace_id(trace)?;
            let span = span_id(span)?;
            let sampled = match rest.first() {
                Some(decision) => Some(sampled(decision)?),
                None => None,
            };
            Some(Parent::Span { trace, span, sampled, state: String::new() })
        }
        _ => None,
    }
}

fn b3_multi(headers: &HeaderMap) -> Parent {
    let debug = text(headers, "x-b3-flags") == Some("1");
    let sampled = if debug { Some(true) } else { text(headers, "x-b3-sampled").and_then(sampled) };
    let trace = text(headers, "x-b3-traceid").and_then(trace_id);
    let span = text(headers, "x-b3-spanid").and_then(span_id);
    match (trace, span, sampled) {
        (Some(trace), Some(span), sampled) => Parent::Span { trace, span, sampled, state: String::new() },
        (_, _, Some(true)) => Parent::Sampled,
        (_, _, Some(false)) => Parent::Unsampled,
        _ => Parent::Unknown,
    }
}

/// The sampling decision of B3; old senders use words.
fn sampled(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// 128 bits, or 64 as in B3.
fn trace_id(text: &str) -> Option<TraceId> {
    let fits = matches!(text.len(), 16 | 32) && is_hex(text);
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)
}

fn span_id(text: &str) -> Option<SpanId> {
    let fits = text.len() == 16 && is_hex(text);
    fits.then(|| u64::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// W3C does not allow upper case.
fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses lines of `name: value` as headers.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| http::HeaderName::from_bytes(name).ok());
        let value =
            parts.next().map(<[u8]>::trim_ascii).and_then(|value| HeaderValue::from_bytes(value).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    if let Parent::Span { trace, span, state, .. } = Parent::of(&headers) {
        assert!(trace != 0 && span != 0 && state.len() <= LONGEST_STATE);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parent(headers: &[(&'static str, &str)]) -> Parent {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        Parent::of(&headers.iter().map(header).collect())
    }

    fn joined(sampled: Option<bool>, state: &str) -> Parent {
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        Parent::Span { trace, span: 0x00f0_67aa_0ba9_02b7, sampled, state: state.to_owned() }
    }

    #[test]
    fn parses_w3c() {
        for (end, sampled) in [("01", true), ("00", false), ("03", true), ("02", false)] {
            let text = format!("00-{TRACE}-{SPAN}-{end}");
            assert_eq!(parent(&[("traceparent", &text)]), joined(Some(sampled), ""), "{text}");
        }
        let text = format!("cc-{TRACE}-{SPAN}-01-what-comes-later");
        assert_eq!(parent(&[("traceparent", &text)]), joined(Some(true), ""), "a later version");
    }

    #[test]
    fn keeps_tracestate() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let mut headers =
            vec![("traceparent", text.as_str()), ("tracestate", "a=1,b=2"), ("tracestate", "c=3")];
        // Collecting a header map would let the last of one name win.
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        assert_eq!(Parent::of(&map), joined(Some(true), "a=1,b=2,c=3"));
        let long = "a=".to_owned() + &"x".repeat(600);
        headers.truncate(1);
        headers.push(("tracestate", &long));
        assert_eq!(parent(&headers), joined(Some(true), ""), "a value that is too long is dropped");
        assert_eq!(parent(&[("tracestate", "a=1")]), Parent::Unknown, "it is ignored without traceparent");
    }

    #[test]
    fn ignores_an_invalid_traceparent() {
        for text in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[..16]),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}é-01"),
        ] {
            assert_eq!(parent(&[("traceparent", &text)]), Parent::Unknown, "{text}");
        }
    }

    #[test]
    fn parses_b3_from_one_header() {
        for (end, sampled) in [
            ("", None),
            ("-1", Some(true)),
            ("-d", Some(true)),
            ("-0", Some(false)),
            ("-1-05e3ac9a4f6e3b90", Some(true)),
        ] {
            let text = format!("{TRACE}-{SPAN}{end}");
            assert_eq!(parent(&[("b3", &text)]), joined(sampled, ""), "{text}");
        }
        assert_eq!(parent(&[("b3", "0")]), Parent::Unsampled);
        assert_eq!(parent(&[("b3", "d")]), Parent::Sampled);
        for text in ["", "x", "1-2-3-4-5", "-", &format!("{TRACE}-{SPAN}-9")] {
            assert_eq!(parent(&[("b3", text)]), Parent::Unknown, "{text}");
        }
    }

    #[test]
    fn parses_b3_from_several_headers() {
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        for (more, sampled) in [
            (&[][..], None),
            (&[("x-b3-sampled", "1")], Some(true)),
            (&[("x-b3-sampled", "true")], Some(true)),
            (&[("x-b3-sampled", "0")], Some(false)),
            (&[("x-b3-flags", "1"), ("x-b3-sampled", "0")], Some(true)),
            (&[("x-b3-parentspanid", "05e3ac9a4f6e3b90")], None),
        ] {
            assert_eq!(parent(&[&ids[..], more].concat()), joined(sampled, ""), "{more:?}");
        }
        assert_eq!(parent(&[("x-b3-sampled", "0")]), Parent::Unsampled);
        assert_eq!(parent(&[("x-b3-sampled", "1")]), Parent::Sampled);
        assert_eq!(parent(&[("x-b3-traceid", TRACE)]), Parent::Unknown, "half of it is nothing");
        let short = parent(&[("x-b3-traceid", "a3ce929d0e0e4736"), ("x-b3-spanid", SPAN)]);
        assert!(matches!(short, Parent::Span { trace: 0xa3ce_929d_0e0e_4736, .. }), "{short:?}");
    }

    #[test]
    fn b3_takes_precedence_over_w3c_and_one_header_over_several() {
        let w3c = format!("00-{TRACE}-{SPAN}-01");
        let other = ("x-b3-traceid", "00000000000000000000000000000001");
        let b3 = [("traceparent", w3c.as_str()), other, ("x-b3-spanid", SPAN), ("x-b3-sampled", "0")];
        assert!(matches!(parent(&b3), Parent::Span { trace: 1, sampled: Some(false), .. }));
        let single = format!("{TRACE}-{SPAN}-1");
        assert_eq!(parent(&[&b3[..], &[("b3", &single)]].concat()), joined(Some(true), ""));
        let unsampled = format!("00-{TRACE}-{SPAN}-00");
        let both = [("traceparent", unsampled.as_str()), ("x-b3-flags", "1")];
        assert_eq!(parent(&both), joined(Some(true), ""), "B3 without ids has the decision");
    }

    proptest! {
        #[test]
        fn no_headers_panic(texts in prop::collection::vec("[0-9a-fA-FdxX é-]{0,80}", 4)) {
            let names = ["traceparent", "b3", "x-b3-traceid", "x-b3-spanid"];
            let headers: Vec<_> = names.into_iter().zip(texts.iter().map(String::as_str)).collect();
            parent(&headers);
        }
    }
}
