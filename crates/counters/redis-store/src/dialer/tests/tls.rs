//! TLS, and plain text to a server with TLS.

use super::*;

#[tokio::test]
async fn tls_verifies_certificates_as_configured() {
    let (ours, theirs, twin) = (Authority::new("ours"), Authority::new("theirs"), Authority::new("ours"));
    let plain = ClientTls { ca: Some(ours.ca()), ..ClientTls::default() };
    let any_host = ClientTls { skip_hostname: true, ..plain.clone() };
    let identified = ClientTls { identity: Some(ours.identity("client")), ..plain.clone() };
    let ip = "127.0.0.1";
    for (case, tls, config, word) in [
        ("an IP address as name", &plain, ours.server(ip, false), None),
        (
            "another host",
            &plain,
            ours.server("redis.example", false),
            Some("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
        ),
        ("another host, skipped", &any_host, ours.server("redis.example", false), None),
        ("another authority", &plain, theirs.server(ip, false), Some("REDIS_TLS_CACERT")),
        ("another authority of the same name", &plain, twin.server(ip, false), Some("REDIS_TLS_CACERT")),
        (
            "another authority and host, skipped",
            &any_host,
            theirs.server("x", false),
            Some("REDIS_TLS_CACERT"),
        ),
        ("our certificate", &identified, ours.server(ip, true), None),
        ("no certificate of ours", &plain, ours.server(ip, true), Some("REDIS_TLS_CLIENT_CERT")),
        (
            "a certificate that they do not trust",
            &identified,
            theirs.server(ip, true),
            Some("REDIS_TLS_CACERT"),
        ),
    ] {
        let server = server(PING, b"+OK\r\n+PONG\r\n", true, Some(config)).await;
        let dialled = dialer(&with_tls(tls.clone())).dial(&server.address, false).await;
        match (word, dialled.err()) {
            (None, failure) => assert_eq!(failure, None, "{case}"),
            (Some(word), Some(failure)) => {
                assert_eq!(failure.kind, FailureKind::Tls, "{case}: {failure}");
                assert!(failure.message.contains(word), "{case}: {failure}");
            }
            (Some(_), None) => panic!("{case}: was accepted"),
        }
    }
}

#[tokio::test]
async fn plain_text_and_tls_are_distinguished() {
    let authority = Authority::new("ours");
    let tls = with_tls(ClientTls { ca: Some(authority.ca()), ..ClientTls::default() });
    for reply in [&b"-ERR unknown command\r\n"[..], b""] {
        let server = server(b"", reply, false, None).await;
        let failure = failure(&tls, &server.address, false).await;
        assert_eq!(failure.kind, FailureKind::Tls, "{failure}");
        assert!(failure.message.contains("unset REDIS_TLS"), "{failure}");
    }
    let server = server(PING, b"", false, Some(authority.server("127.0.0.1", false))).await;
    let failure = failure(&pool(), &server.address, false).await;
    assert!(failure.message.contains("REDIS_TLS=true"), "{failure}");
}

#[test]
fn rejects_tls_on_a_unix_socket() {
    let servers = RedisServers::Single(ServerAddress::Unix("/run/redis.sock".into()));
    let problems = Dialer::new(&RedisPool { servers, ..with_tls(ClientTls::default()) }, &Edges::system())
        .err()
        .unwrap();
    assert!(problems[0].contains("/run/redis.sock") && problems[0].contains("REDIS_TLS"), "{problems:?}");
}
