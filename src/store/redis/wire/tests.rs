//! Greetings that succeed and fail, against servers that say what a test wants.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use super::*;
use crate::{
    settings::{
        HostPort,
        redis::{Credentials, RedisTls, Secret},
    },
    store::failure::Kind,
    tls::tests::Authority,
};

const BOUND: Duration = Duration::from_secs(5);
const PING: &[u8] = b"PING\r\n";
const ROLE: &[u8] = b"ROLE\r\n";
const SECRET: &str = "hunter2";

fn pool() -> RedisPool {
    let nowhere = HostPort { host: "127.0.0.1".to_owned(), port: 1 };
    RedisPool {
        servers: RedisServers::Single(RedisAddress::Tcp(nowhere)),
        credentials: None,
        database: 0,
        tls: None,
        connections: 1,
        timeout: BOUND,
        connect_timeout: BOUND,
        pipeline_window: Duration::ZERO,
        max_queued: 1,
    }
}

fn with_password(user: Option<&str>) -> RedisPool {
    let password = Secret(SECRET.to_owned());
    RedisPool { credentials: Some(Credentials { user: user.map(str::to_owned), password }), ..pool() }
}

fn with_tls(tls: RedisTls) -> RedisPool {
    RedisPool { tls: Some(tls), ..pool() }
}

/// A server for one connection.
struct Server {
    address: RedisAddress,
    /// Ends with what was heard.
    heard: JoinHandle<Vec<u8>>,
}

/// Hears until something ends with `until`, says `say`, and closes unless it `stays`.
async fn talk(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    until: &[u8],
    say: &[u8],
    stays: bool,
) -> Vec<u8> {
    let mut heard = Vec::new();
    while let Ok(1..) = socket.read_buf(&mut heard).await {
        if heard.ends_with(until) {
            let _ = socket.write_all(say).await;
            if stays {
                let _ = socket.read_to_end(&mut heard).await;
            }
            break;
        }
    }
    let _ = socket.shutdown().await;
    heard
}

async fn server(
    until: &'static [u8],
    say: &'static [u8],
    stays: bool,
    tls: Option<Arc<ServerConfig>>,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        match tls {
            None => talk(socket, until, say, stays).await,
            Some(config) => match TlsAcceptor::from(config).accept(socket).await {
                Ok(socket) => talk(socket, until, say, stays).await,
                Err(_) => Vec::new(),
            },
        }
    });
    Server { address: RedisAddress::Tcp(HostPort { host: "127.0.0.1".to_owned(), port }), heard }
}

fn dialer(pool: &RedisPool) -> Dialer {
    Dialer::new(pool).map_err(|errors| errors.join("\n")).unwrap()
}

async fn failure(pool: &RedisPool, to: &RedisAddress, must_be_master: bool) -> Failure {
    let failure = dialer(pool).dial(to, must_be_master).await.err().unwrap();
    assert!(failure.message.starts_with(&format!("redis {to}: ")), "{failure}");
    assert!(!failure.message.contains(SECRET), "{failure}");
    failure
}

#[tokio::test]
async fn all_is_said_in_one_piece_and_then_the_socket_is_ours() {
    let pool = RedisPool { database: 7, ..with_password(Some("me")) };
    let said = b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$7\r\nhunter2\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n\
        *3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\ntollgate\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nROLE\r\n";
    let answers = b"+OK\r\n+OK\r\n-ERR unknown command\r\n+PONG\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    let server = server(ROLE, answers, true, None).await;
    let mut wire = dialer(&pool).dial(&server.address, true).await.unwrap();
    wire.shutdown().await.unwrap();
    assert_eq!(server.heard.await.unwrap(), said);
}

#[tokio::test]
async fn what_is_not_needed_is_not_said() {
    let said = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\ntollgate\r\n*1\r\n$4\r\nPING\r\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let heard = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        talk(socket, PING, b"+OK\r\n+PONG\r\n", true).await
    });
    drop(dialer(&pool()).dial(&RedisAddress::Unix(path), false).await.unwrap());
    assert_eq!(heard.await.unwrap(), said);
}

#[tokio::test]
async fn every_refusal_says_what_was_seen_and_what_to_do() {
    let database = || RedisPool { database: 99, ..pool() };
    let auth = || with_password(None);
    let cases: [(RedisPool, &'static [u8], Kind, &[&str]); 21] = [
        (
            pool(),
            b"+OK\r\n-NOAUTH Authentication required.\r\n",
            Kind::Auth,
            &["PING", "wants a password", "set REDIS_AUTH"],
        ),
        (
            auth(),
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            Kind::Auth,
            &["WRONGPASS", "see REDIS_AUTH"],
        ),
        (auth(), b"-ERR invalid password\r\n", Kind::Auth, &["invalid password", "see REDIS_AUTH"]),
        (auth(), b"-ERR Client sent AUTH, but no password is set\r\n", Kind::Auth, &["no password is set"]),
        (
            auth(),
            b"-ERR unknown command 'AUTH', with args beginning with: 'hunter2' \r\n",
            Kind::Auth,
            &["unknown command 'AUTH'"],
        ),
        (auth(), b"-ERR what is hunter2?\r\n", Kind::Auth, &["not shown"]),
        (auth(), b"-ERR max number of clients reached\r\n", Kind::Other, &["maxclients", "REDIS_POOL_SIZE"]),
        (auth(), b"*2\r\n$4\r\nAUTH\r\n$7\r\nhunter2\r\n", Kind::Garbage, &["something else"]),
        (auth(), b"you said AUTH hunter2\r\n", Kind::Garbage, &["what we said"]),
        (
            auth(),
            b"+OK\r\n+OK\r\n-NOPERM this user has no permissions to run the 'ping' command\r\n",
            Kind::Auth,
            &["NOPERM", "ACL SETUSER"],
        ),
        (
            database(),
            b"-ERR DB index is out of range\r\n",
            Kind::Other,
            &["SELECT", "out of range", "REDIS_URL"],
        ),
        (
            pool(),
            b"+OK\r\n-LOADING Redis is loading the dataset in memory\r\n",
            Kind::Loading,
            &["LOADING", "until it is ready"],
        ),
        (
            pool(),
            b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n-DENIED x\r\n",
            Kind::Other,
            &["DENIED"],
        ),
        (
            pool(),
            b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n",
            Kind::Garbage,
            &["HTTP/1.1 400 Bad Request", "REDIS_URL"],
        ),
        (pool(), b"ERROR\r\n", Kind::Garbage, &["\"ERROR\\r\\n\""]),
        (pool(), b"\x15\x03\x03\0\x02\x02\x46", Kind::Garbage, &["TLS", "REDIS_TLS=true"]),
        (pool(), b"", Kind::Lost, &["closed", "REDIS_TLS=true"]),
        (pool(), b"+OK\r\n", Kind::Lost, &["closed", "PING"]),
        (pool(), b"+OK\r\n*2\r\n:1\r\n", Kind::Lost, &["closed"]),
        (pool(), b"+OK\r\n:1\r\n", Kind::Garbage, &["something else", "PING"]),
        (pool(), b"+OK\r\n+PONG\r\n+PONG\r\n", Kind::Garbage, &["more than was asked"]),
    ];
    for (pool, say, kind, words) in cases {
        let server = server(PING, say, false, None).await;
        let failure = failure(&pool, &server.address, false).await;
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(words.iter().all(|word| failure.message.contains(word)), "{failure}");
    }
}

#[tokio::test]
async fn only_a_master_is_taken_where_one_is_needed() {
    for (say, kind, word) in [
        (
            &b"+OK\r\n+PONG\r\n*5\r\n$5\r\nslave\r\n$8\r\n10.0.0.2\r\n:6379\r\n$9\r\nconnected\r\n:7\r\n"[..],
            Some(Kind::ReadOnly),
            "replica of 10.0.0.2:6379",
        ),
        (b"+OK\r\n+PONG\r\n*2\r\n$8\r\nsentinel\r\n*0\r\n", Some(Kind::Garbage), "REDIS_TYPE=SENTINEL"),
        (b"+OK\r\n+PONG\r\n*0\r\n", Some(Kind::Garbage), "ROLE"),
        (b"+OK\r\n+PONG\r\n-LOADING x\r\n", Some(Kind::Loading), "ROLE"),
        (b"+OK\r\n+PONG\r\n-NOPERM no permissions to run 'role'\r\n", None, ""),
        (b"+OK\r\n+PONG\r\n-ERR unknown command 'ROLE'\r\n", None, ""),
    ] {
        let server = server(ROLE, say, true, None).await;
        let dialled = dialer(&pool()).dial(&server.address, true).await;
        assert_eq!(dialled.as_ref().err().map(|failure| failure.kind), kind);
        assert!(dialled.err().is_none_or(|failure| failure.message.contains(word)));
    }
}

#[tokio::test]
async fn whoever_cannot_be_reached_is_named() {
    let address = |host: &str, port| RedisAddress::Tcp(HostPort { host: host.to_owned(), port });
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let refused = failure(&pool(), &address("127.0.0.1", free), false).await;
    assert_eq!(refused.kind, Kind::Connect);
    assert!(refused.message.contains("nobody listens there") && refused.message.contains("REDIS_URL"));

    // A label has at most 63 characters, so that no name server is asked.
    let unknown = failure(&pool(), &address(&"x".repeat(64), 6379), false).await;
    assert_eq!(unknown.kind, Kind::Resolve);
    assert!(unknown.message.contains("has no address here"), "{unknown}");

    let socket = failure(&pool(), &RedisAddress::Unix("/nowhere/redis.sock".into()), false).await;
    assert_eq!(socket.kind, Kind::Connect);
    assert!(socket.message.contains("the socket is not there"), "{socket}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_in_time() {
    let bound = Duration::from_millis(100);
    let authority = Authority::new("ours");
    let tls = RedisTls { ca: Some(authority.ca()), ..RedisTls::default() };
    for (pool, say, step, advice) in [
        (with_password(None), &b""[..], "the log-in (AUTH)", "REDIS_TLS=true"),
        (pool(), b"+OK\r\n", "PING", "REDIS_TLS=true"),
        (with_tls(tls), b"", "the TLS handshake", "unset REDIS_TLS"),
    ] {
        let server = server(b"", say, true, None).await;
        let begun = Instant::now();
        let failure = failure(&RedisPool { connect_timeout: bound, ..pool }, &server.address, false).await;
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
        assert!(failure.message.contains(step) && failure.message.contains(advice), "{failure}");
        assert!(begun.elapsed() >= bound && begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn tls_trusts_whom_it_was_told_to_trust() {
    let (ours, theirs, twin) = (Authority::new("ours"), Authority::new("theirs"), Authority::new("ours"));
    let plain = RedisTls { ca: Some(ours.ca()), ..RedisTls::default() };
    let any_host = RedisTls { skip_hostname: true, ..plain.clone() };
    let identified = RedisTls { identity: Some(ours.identity("client")), ..plain.clone() };
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
                assert_eq!(failure.kind, Kind::Tls, "{case}: {failure}");
                assert!(failure.message.contains(word), "{case}: {failure}");
            }
            (Some(_), None) => panic!("{case}: was taken"),
        }
    }
}

#[tokio::test]
async fn plain_text_and_tls_are_told_apart() {
    let authority = Authority::new("ours");
    let tls = with_tls(RedisTls { ca: Some(authority.ca()), ..RedisTls::default() });
    for say in [&b"-ERR unknown command\r\n"[..], b""] {
        let server = server(b"", say, false, None).await;
        let failure = failure(&tls, &server.address, false).await;
        assert_eq!(failure.kind, Kind::Tls, "{failure}");
        assert!(failure.message.contains("unset REDIS_TLS"), "{failure}");
    }
    let server = server(PING, b"", false, Some(authority.server("127.0.0.1", false))).await;
    let failure = failure(&pool(), &server.address, false).await;
    assert!(failure.message.contains("REDIS_TLS=true"), "{failure}");
}

#[test]
fn a_unix_socket_speaks_no_tls() {
    let servers = RedisServers::Single(RedisAddress::Unix("/run/redis.sock".into()));
    let told = Dialer::new(&RedisPool { servers, ..with_tls(RedisTls::default()) }).err().unwrap();
    assert!(told[0].contains("/run/redis.sock") && told[0].contains("REDIS_TLS"), "{told:?}");
}
