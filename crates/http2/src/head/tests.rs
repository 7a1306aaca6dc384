//! Valid and malformed heads, and the fields that are kept.

use super::*;

const UNARY: &str = "/s/m";

const GOOD: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", UNARY),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];

fn read(fields: &[(&str, &[u8])]) -> Result<Head, BadHead> {
    let mut reader = Reader::new(UNARY, false);
    for (name, value) in fields {
        reader.field(Field::new(name.as_bytes(), value));
    }
    reader.finish()
}

fn text(fields: &[(&str, &str)]) -> Result<Head, BadHead> {
    read(&fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect::<Vec<_>>())
}

#[test]
fn any_authority_is_accepted() {
    let long = "a".repeat(300);
    for authority in [
        &b"outbound|8081||ratelimit.default.svc.cluster.local"[..],
        b"%2Ftmp%2Ftollgate.sock",
        b"/tmp/tollgate.sock",
        b"",
        b"a b",
        b"\xff\xfe",
        b"a\0b\r\n",
        "bücher.example".as_bytes(),
        long.as_bytes(),
    ] {
        let mut fields: Vec<(&str, &[u8])> = vec![(":authority", authority)];
        fields.extend(GOOD.map(|(name, value)| (name, value.as_bytes())));
        assert_eq!(read(&fields).map(|head| head.route), Ok(Route::Unary), "{authority:?}");
    }
    assert_eq!(text(&GOOD).map(|head| head.route), Ok(Route::Unary), "none at all");
}

#[test]
fn distinguishes_calls_by_path_method_and_content_type() {
    let with = |at: usize, value| {
        let mut fields = GOOD;
        fields[at].1 = value;
        text(&fields).map(|head| head.route)
    };
    assert_eq!(with(2, "/s/other"), Ok(Route::Other));
    assert_eq!(with(0, "GET"), Ok(Route::NotPost));
    for (content, route) in [
        ("application/grpc+proto", Route::Unary),
        ("application/grpc; charset=utf-8", Route::Unary),
        ("application/json", Route::NotGrpc),
    ] {
        assert_eq!(with(3, content), Ok(route), "{content}");
    }
    assert_eq!(text(&GOOD[..3]).map(|head| head.route), Ok(Route::NotGrpc));
    let other = [GOOD[0], GOOD[1], (":path", "/s/other")];
    assert_eq!(text(&other).map(|head| head.route), Ok(Route::NotGrpc), "whatever its path");
}

#[test]
fn malformed_heads_are_rejected() {
    let extra = |name: &'static str, value: &'static str| {
        let mut fields = GOOD.to_vec();
        fields.push((name, value));
        text(&fields).err()
    };
    for (name, value) in [
        ("Upper", "x"),
        ("", "x"),
        ("with space", "x"),
        ("a:b", "x"),
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "1"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        (":authority", "late"),
        (":status", "200"),
        ("content-length", "x"),
        ("content-length", "-1"),
        ("content-length", "+1"),
        ("x", "a\nb"),
        ("x", "a\0b"),
    ] {
        assert_eq!(extra(name, value), Some(BadHead::Malformed), "{name}: {value:?}");
    }
    for (name, value) in [("x", ""), ("x", "ü"), ("te", "Trailers"), ("content-length", "5")] {
        assert_eq!(extra(name, value), None, "{name}: {value:?}");
    }
    for (missing, field) in GOOD.into_iter().enumerate().take(3) {
        let mut fields = GOOD.to_vec();
        fields.remove(missing);
        assert_eq!(text(&fields).err(), Some(BadHead::Malformed), "without {}", field.0);
        let twice: Vec<_> = std::iter::once(field).chain(GOOD).collect();
        assert_eq!(text(&twice).err(), Some(BadHead::Malformed), "{} twice", field.0);
    }
    assert_eq!(text(&[(":unknown", ""), GOOD[0], GOOD[1], GOOD[2]]).err(), Some(BadHead::Malformed));
    assert_eq!(text(&[GOOD[0], GOOD[1], (":path", "")]).err(), Some(BadHead::Malformed));
}

#[test]
fn differing_content_lengths_are_malformed() {
    let lengths = |other| {
        let mut fields = GOOD.to_vec();
        fields.extend([("content-length", "5"), ("content-length", other)]);
        text(&fields).map(|head| head.content_length)
    };
    assert_eq!((lengths("5"), lengths("6")), (Ok(Some(5)), Err(BadHead::Malformed)));
}

#[test]
fn parses_grpc_timeouts() {
    for (text, expected) in [
        ("20m", Some(Duration::from_millis(20))),
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("0u", Some(Duration::ZERO)),
        ("", None),
        ("m", None),
        ("-1m", None),
        ("1x", None),
        ("100000000S", None),
    ] {
        assert_eq!(grpc_timeout(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn fields_that_are_read_are_kept_up_to_a_limit() {
    let request = |path, keep, state: &str| {
        let mut reader = Reader::new(UNARY, keep);
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            GOOD[3],
            ("authorization", &"x".repeat(5000)),
            ("tracestate", state),
            ("tracestate", "b=2"),
        ] {
            reader.field(Field::new(name.as_bytes(), value.as_bytes()));
        }
        reader.finish().unwrap().request
    };
    assert!(request(UNARY, false, "a=1").is_none());
    assert_eq!(request("/other", false, "").unwrap().uri(), "/other");
    let long = "x".repeat(MAX_KEPT - "content-typeapplication/grpctracestatetracestateb=2".len());
    let too_long = long.clone() + "x";
    for (path, keep) in [("/other", false), (UNARY, true)] {
        for (state, kept) in
            [("a=1", &["a=1", "b=2"][..]), (&long, &[&long, "b=2"]), (&too_long, &[&too_long])]
        {
            let request = request(path, keep, state).unwrap();
            assert_eq!(request.headers().get_all("tracestate").iter().collect::<Vec<_>>(), kept);
            assert_eq!(request.headers().get("authorization"), None);
        }
    }
}

#[test]
fn long_values_are_not_copied() {
    let with = |at: usize, value: &str| {
        let mut fields = GOOD.to_vec();
        fields[at].1 = value;
        text(&fields)
    };
    let long = "/".repeat(4000);
    assert_eq!(with(2, &long).unwrap().request.unwrap().uri(), "/");
    assert_eq!(with(0, &"G".repeat(4000)).unwrap().route, Route::NotPost);
    let mut fields = GOOD.to_vec();
    let zeros = "0".repeat(MAX_DIGITS + 1);
    fields.push(("content-length", &zeros[1..]));
    assert_eq!(text(&fields).unwrap().content_length, Some(0));
    fields.push(("content-length", &zeros));
    assert_eq!(text(&fields).err(), Some(BadHead::Malformed));
}
