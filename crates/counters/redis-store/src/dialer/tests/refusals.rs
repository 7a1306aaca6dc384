//! Servers that reject the first commands, or are not Redis.

use super::*;

/// Asserts the kind of the failure after this reply, and words of its message.
async fn is_rejected(pool: &RedisPool, reply: &'static [u8], kind: FailureKind, words: &[&str]) {
    let server = server(PING, reply, false, None).await;
    let failure = failure(pool, &server.address, false).await;
    assert_eq!(failure.kind, kind, "{failure}");
    assert!(words.iter().all(|word| failure.message.contains(word)), "{failure}");
}

#[tokio::test]
async fn a_rejected_login_is_reported_with_advice() {
    let wanted = b"+OK\r\n-NOAUTH Authentication required.\r\n";
    is_rejected(&pool(), wanted, FailureKind::Auth, &["PING", "requires a password", "set REDIS_AUTH"]).await;
    let cases: [(&'static [u8], &[&str]); 5] = [
        (
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            &["WRONGPASS", "see REDIS_AUTH"],
        ),
        (b"-ERR invalid password\r\n", &["invalid password", "see REDIS_AUTH"]),
        (b"-ERR Client sent AUTH, but no password is set\r\n", &["no password is set"]),
        (
            b"-ERR unknown command 'AUTH', with args beginning with: 'hunter2' \r\n",
            &["unknown command 'AUTH'"],
        ),
        (b"-ERR what is hunter2?\r\n", &["not shown"]),
    ];
    for (reply, words) in cases {
        is_rejected(&with_password(None), reply, FailureKind::Auth, words).await;
    }
    let denied = b"+OK\r\n+OK\r\n-NOPERM this user has no permissions to run the 'ping' command\r\n";
    is_rejected(&with_password(None), denied, FailureKind::Denied, &["NOPERM", "ACL SETUSER"]).await;
}

#[tokio::test]
async fn a_server_that_rejects_us_is_reported_with_advice() {
    let full = b"-ERR max number of clients reached\r\n";
    is_rejected(&with_password(None), full, FailureKind::Other, &["maxclients", "REDIS_POOL_SIZE"]).await;
    let database = RedisPool { database: 99, ..pool() };
    let out_of_range = b"-ERR DB index is out of range\r\n";
    is_rejected(&database, out_of_range, FailureKind::Other, &["SELECT", "out of range", "REDIS_URL"]).await;
    let cases: [(&'static [u8], FailureKind, &[&str]); 5] = [
        (
            b"+OK\r\n-LOADING Redis is loading the dataset in memory\r\n",
            FailureKind::Loading,
            &["LOADING", "until it is ready"],
        ),
        (
            b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n-DENIED x\r\n",
            FailureKind::Other,
            &["DENIED"],
        ),
        (b"", FailureKind::Lost, &["closed", "REDIS_TLS=true"]),
        (b"+OK\r\n", FailureKind::Lost, &["closed", "PING"]),
        (b"+OK\r\n*2\r\n:1\r\n", FailureKind::Lost, &["closed"]),
    ];
    for (reply, kind, words) in cases {
        is_rejected(&pool(), reply, kind, words).await;
    }
}

#[tokio::test]
async fn servers_of_other_protocols_are_reported_with_what_they_sent() {
    let auth = with_password(None);
    is_rejected(
        &auth,
        b"*2\r\n$4\r\nAUTH\r\n$7\r\nhunter2\r\n",
        FailureKind::ProtocolError,
        &["unexpected reply"],
    )
    .await;
    is_rejected(&auth, b"you said AUTH hunter2\r\n", FailureKind::ProtocolError, &["echo of our commands"])
        .await;
    let cases: [(&'static [u8], &[&str]); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", &["HTTP/1.1 400 Bad Request", "REDIS_URL"]),
        (b"ERROR\r\n", &["\"ERROR\\r\\n\""]),
        (b"\x15\x03\x03\0\x02\x02\x46", &["TLS", "REDIS_TLS=true"]),
        (b"+OK\r\n:1\r\n", &["unexpected reply", "PING"]),
    ];
    for (reply, words) in cases {
        is_rejected(&pool(), reply, FailureKind::ProtocolError, words).await;
    }
}

#[tokio::test]
async fn rejects_more_replies_than_commands() {
    let echo = b"+OK\r\n+PONG\r\n*2\r\n$4\r\nAUTH\r\n$7\r\nhunter2\r\n";
    is_rejected(&pool(), echo, FailureKind::ProtocolError, &["more replies than commands"]).await;
}

#[tokio::test]
async fn a_sentinel_may_deny_ping() {
    let reply = b"+OK\r\n-NOPERM this user has no permissions to run the 'ping' command\r\n";
    let server = server(PING, reply, true, None).await;
    let dialer = Dialer::of_sentinels(&pool(), None, &Edges::system()).unwrap();
    dialer.dial(&server.address, false).await.map(drop).unwrap();
}

#[tokio::test]
async fn accepts_only_a_master_when_one_is_required() {
    for (reply, kind, word) in [
        (
            &b"+OK\r\n+PONG\r\n*5\r\n$5\r\nslave\r\n$8\r\n10.0.0.2\r\n:6379\r\n$9\r\nconnected\r\n:7\r\n"[..],
            Some(FailureKind::ReadOnly),
            "replica of 10.0.0.2:6379",
        ),
        (
            b"+OK\r\n+PONG\r\n*2\r\n$8\r\nsentinel\r\n*0\r\n",
            Some(FailureKind::ProtocolError),
            "REDIS_TYPE=SENTINEL",
        ),
        (b"+OK\r\n+PONG\r\n*0\r\n", Some(FailureKind::ProtocolError), "ROLE"),
        (b"+OK\r\n+PONG\r\n-LOADING x\r\n", Some(FailureKind::Loading), "ROLE"),
        (b"+OK\r\n+PONG\r\n-NOPERM no permissions to run 'role'\r\n", None, ""),
        (b"+OK\r\n+PONG\r\n-ERR unknown command 'ROLE'\r\n", None, ""),
    ] {
        let server = server(ROLE, reply, true, None).await;
        let dialled = dialer(&pool()).dial(&server.address, true).await;
        assert_eq!(dialled.as_ref().err().map(|failure| failure.kind), kind);
        assert!(dialled.err().is_none_or(|failure| failure.message.contains(word)));
    }
}
