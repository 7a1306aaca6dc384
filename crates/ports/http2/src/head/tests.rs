//! Valid and malformed heads.

use super::{super::connection::Connection, *};

/// Keeps the names of fields.
struct Names;

impl Service for Names {
    type Fields = Vec<String>;
    type Head = Vec<String>;
    type Call = ();

    fn field(&self, names: &mut Vec<String>, name: &[u8], _: &[u8]) {
        names.push(String::from_utf8(name.to_vec()).unwrap());
    }

    fn head(&self, names: Vec<String>) -> Vec<String> {
        names
    }

    fn open(&mut self, _: &mut Connection<Self>, _: u32, _: &Vec<String>) {}

    fn data(&mut self, _: &mut Connection<Self>, _: u32, _: &[u8], _: bool) {}

    fn closed(&mut self, (): ()) {}
}

const GOOD: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/m"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];

fn read(fields: &[(&str, &[u8])]) -> Result<Request<Vec<String>>, BadHead> {
    let mut reader = Reader::new(&Names);
    for (name, value) in fields {
        reader.field(Field::new(name.as_bytes(), value));
    }
    reader.finish()
}

fn text(fields: &[(&str, &str)]) -> Result<Request<Vec<String>>, BadHead> {
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
        assert!(read(&fields).is_ok(), "{authority:?}");
    }
    let names = text(&GOOD).unwrap().head;
    assert_eq!(names, GOOD.map(|(name, _)| name), "none at all");
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
        text(&fields).map(|request| request.content_length)
    };
    assert_eq!((lengths("5"), lengths("6")), (Ok(Some(5)), Err(BadHead::Malformed)));
}

#[test]
fn long_values_are_read_in_part() {
    let with = |at: usize, value: &str| {
        let mut fields = GOOD.to_vec();
        fields[at].1 = value;
        text(&fields)
    };
    assert!(with(2, &"/".repeat(4000)).is_ok());
    let method = "G".repeat(MAX_METHOD);
    assert!(with(0, &(method.clone() + "\"")).is_ok());
    assert_eq!(with(0, &(method[1..].to_owned() + "\"")).err(), Some(BadHead::Malformed));
    let mut fields = GOOD.to_vec();
    let zeros = "0".repeat(MAX_DIGITS + 1);
    fields.push(("content-length", &zeros[1..]));
    assert_eq!(text(&fields).unwrap().content_length, Some(0));
    fields.push(("content-length", &zeros));
    assert_eq!(text(&fields).err(), Some(BadHead::Malformed));
}
