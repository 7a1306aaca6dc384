//! The settings of a control plane, and the problems and warnings of its variables.

use std::path::Path;

use super::{
    super::values::{backoff_factor, xds_server},
    *,
};
use net::Secret;
use rules_source::xds::settings::Xds;
use rules_source::xds::settings::XdsTls;

type Read = (Option<Box<Xds>>, Vec<String>, Vec<String>);

/// The settings, problems and warnings of these variables where only the file `/there` exists.
fn read_all(set: &[(&str, &str)]) -> Read {
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    let exists = |path: &Path| path == Path::new("/there");
    let mut reader = Reader::new(&env, &exists);
    let source = reader.read(&vars::CONFIG_TYPE);
    let xds = read(&mut reader, source, 16_000_000);
    let problems = reader.problems.iter().map(ToString::to_string).collect();
    (xds, problems, reader.warnings.iter().map(ToString::to_string).collect())
}

fn good(set: &[(&str, &str)]) -> Xds {
    let (xds, problems, warnings) = read_all(&[set, &[("CONFIG_TYPE", "GRPC_XDS_SOTW")]].concat());
    assert_eq!((problems, warnings), (vec![], vec![]));
    *xds.unwrap()
}

#[test]
fn rules_come_from_files_by_default() {
    assert!(read_all(&[]).0.is_none());
    assert!(read_all(&[("CONFIG_TYPE", "FILE")]).0.is_none());
    assert!(read_all(&[("CONFIG_TYPE", "GRPC_XDS_SOTW")]).0.is_some());
    let problems = read_all(&[("CONFIG_TYPE", "grpc_xds_sotw")]).1;
    assert_eq!(
        problems,
        ["CONFIG_TYPE=\"grpc_xds_sotw\": expected FILE or GRPC_XDS_SOTW; write GRPC_XDS_SOTW"]
    );
}

#[test]
fn targets_are_parsed_as_in_grpc_for_go() {
    for (text, shown) in [
        ("localhost:18000", "localhost:18000"),
        ("envoy-gateway:18001", "envoy-gateway:18001"),
        ("dns:///a.b:1", "a.b:1"),
        ("dns:a.b:1", "a.b:1"),
        ("passthrough:///[::1]:2", "[::1]:2"),
        (":18000", "localhost:18000"),
        ("unix:///run/xds.sock", "/run/xds.sock"),
        ("unix:xds.sock", "xds.sock"),
    ] {
        assert_eq!(xds_server(text).unwrap().to_string(), shown, "{text}");
    }
    for text in ["", "unix:", "host", "host:0", "http://host:1", "xds:///a:1", "host:http", "a b:1"] {
        assert!(xds_server(text).is_err(), "{text}");
    }
    assert_eq!(xds_server("https://a:1").unwrap_err().hint.as_deref(), Some("remove the scheme"));
}

#[test]
fn metadata_and_headers_are_lists_of_pairs() {
    let xds = good(&[
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=1,b=x=y"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "X-Team:red, authorization: Bearer a:b"),
    ]);
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    assert_eq!(xds.node_metadata, [pair("a", "1"), pair("b", "x=y")]);
    let header = |name: &str, value: &str| (name.to_owned(), Secret(value.to_owned()));
    assert_eq!(xds.headers, [header("x-team", "red"), header("authorization", "Bearer a:b")]);
    assert!(!format!("{xds:?}").contains("Bearer"));

    let (_, problems, warnings) = read_all(&[
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=1,b"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b,secret,x y:secret,c:secret\u{1}"),
    ]);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems.iter().all(|problem| !problem.contains("secret")), "{problems:?}");
    assert!(problems[0].contains("in entry 2"), "{problems:?}");
    assert!(warnings[0].contains("\"b\" has no `=`"), "{warnings:?}");
}

const TLS: [(&str, &str); 2] = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")];

#[test]
fn rejects_missing_files_of_tls() {
    let (_, problems, _) = read_all(
        &[
            &TLS[..],
            &[("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/there"), ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/gone")],
        ]
        .concat(),
    );
    assert_eq!(
        problems,
        [
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=\"/gone\": expected the path of a PEM file; the file does not exist; is it mounted?"
        ]
    );
    let files = [("CONFIG_TYPE", "FILE"), TLS[1], ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/gone")];
    assert!(read_all(&files).1.is_empty(), "rules come from files");
}

#[test]
fn warns_about_half_a_client_certificate() {
    let set = |name| [("CONFIG_TYPE", "GRPC_XDS_SOTW"), (name, "/there")];
    let (xds, _, warnings) = read_all(&set("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"));
    assert_eq!(xds.unwrap().tls, None);
    assert!(warnings[0].contains("CONFIG_GRPC_XDS_SERVER_USE_TLS=true"), "{warnings:?}");
    let (xds, _, warnings) = read_all(&[&TLS[1..], &set("CONFIG_GRPC_XDS_CLIENT_TLS_KEY")].concat());
    assert_eq!(xds.unwrap().tls, Some(XdsTls::default()));
    assert!(warnings[0].contains("without CONFIG_GRPC_XDS_CLIENT_TLS_CERT"), "{warnings:?}");
}

#[test]
fn numbers_are_as_in_the_go_service() {
    let defaults = good(&[]);
    assert_eq!(defaults.max_message_bytes, 16_000_000);
    assert_eq!(defaults.backoff.initial, Duration::from_secs(10));
    for (text, read) in [("0.5", 0.5), ("3", 3.0), ("0", 2.0), ("-1", 2.0)] {
        assert!((backoff_factor(text).unwrap() - read).abs() < f64::EPSILON, "{text}");
    }
    assert!(backoff_factor("NaN").is_err() && backoff_factor("x").is_err());
    assert_eq!(good(&[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0")]).max_message_bytes, 16_000_000);
    assert_eq!(good(&[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "100")]).max_message_bytes, 100);
}

#[test]
fn delays_are_never_zero() {
    let xds = good(&[
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "0"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "0s"),
    ]);
    let delays = [xds.connect_retry_interval, xds.backoff.initial, xds.backoff.max];
    assert_eq!(delays, [SHORTEST_DELAY; 3]);
}
