//! Connections that open and fail, against scripted servers.

mod refusals;
mod server;
mod tls;

use std::time::{Duration, Instant};

use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::settings::Credentials;
use net::{Secret, authority::Authority, tls::ClientTls};
use server::{server, talk};

const BOUND: Duration = Duration::from_secs(5);
const PING: &[u8] = b"PING\r\n";
const ROLE: &[u8] = b"ROLE\r\n";
const SECRET: &str = "hunter2";

fn pool() -> RedisPool {
    let nowhere = HostPort { host: "127.0.0.1".to_owned(), port: 1 };
    RedisPool {
        servers: RedisServers::Single(ServerAddress::Tcp(nowhere)),
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
    let credentials = Credentials { user: user.map(str::to_owned), password };
    RedisPool { credentials: Some(CredentialSource::Fixed(credentials)), ..pool() }
}

fn with_tls(tls: ClientTls) -> RedisPool {
    RedisPool { tls: Some(tls), ..pool() }
}

fn dialer(pool: &RedisPool) -> Dialer {
    Dialer::new(pool, &Edges::system()).map_err(|errors| errors.join("\n")).unwrap()
}

async fn failure(pool: &RedisPool, to: &ServerAddress, must_be_master: bool) -> Failure {
    let failure = dialer(pool).dial(to, must_be_master).await.err().unwrap();
    assert!(failure.message.starts_with(&format!("redis {to}: ")), "{failure}");
    assert!(!failure.message.contains(SECRET), "{failure}");
    failure
}

#[tokio::test]
async fn sends_all_commands_in_one_write() {
    let pool = RedisPool { database: 7, ..with_password(Some("me")) };
    let sent = b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$7\r\nhunter2\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n\
        *3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\ntollgate\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nROLE\r\n";
    let replies = b"+OK\r\n+OK\r\n-ERR unknown command\r\n+PONG\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    let server = server(ROLE, replies, true, None).await;
    drop(dialer(&pool).dial(&server.address, true).await.unwrap());
    assert_eq!(server.received.await.unwrap(), sent);
}

#[tokio::test]
async fn sends_only_the_commands_it_needs() {
    let sent = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\ntollgate\r\n*1\r\n$4\r\nPING\r\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let received = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        talk(socket, PING, b"+OK\r\n+PONG\r\n", true).await
    });
    drop(dialer(&pool()).dial(&ServerAddress::Unix(path), false).await.unwrap());
    assert_eq!(received.await.unwrap(), sent);
}

#[tokio::test]
async fn unreachable_servers_are_named() {
    let address = |host: &str, port| ServerAddress::Tcp(HostPort { host: host.to_owned(), port });
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let refused = failure(&pool(), &address("127.0.0.1", free), false).await;
    assert_eq!(refused.kind, FailureKind::Connect);
    assert!(refused.message.contains("connection refused") && refused.message.contains("REDIS_URL"));

    // A label has at most 63 characters, so no name server is queried.
    let unknown = failure(&pool(), &address(&"x".repeat(64), 6379), false).await;
    assert_eq!(unknown.kind, FailureKind::Resolve);
    assert!(unknown.message.contains("cannot resolve"), "{unknown}");

    let socket = failure(&pool(), &ServerAddress::Unix("/nowhere/redis.sock".into()), false).await;
    assert_eq!(socket.kind, FailureKind::Connect);
    assert!(socket.message.contains("no such socket"), "{socket}");
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let bound = Duration::from_millis(100);
    let authority = Authority::new("ours");
    let tls = ClientTls { ca: Some(authority.ca()), ..ClientTls::default() };
    for (pool, say, step, advice) in [
        (with_password(None), &b""[..], "AUTH", "REDIS_TLS=true"),
        (pool(), b"+OK\r\n", "PING", "REDIS_TLS=true"),
        (with_tls(tls), b"", "TLS handshake", "unset REDIS_TLS"),
    ] {
        let server = server(b"", say, true, None).await;
        let begun = Instant::now();
        let failure = failure(&RedisPool { connect_timeout: bound, ..pool }, &server.address, false).await;
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
        assert!(failure.message.contains(step) && failure.message.contains(advice), "{failure}");
        assert!(begun.elapsed() >= bound && begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    }
}
