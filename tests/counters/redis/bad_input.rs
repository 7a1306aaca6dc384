//! Servers that are not Redis, and values that are not counters: each is logged with its address and without secrets, and
//! the service continues.

use support::{
    certificates::Certificates,
    client::Client,
    fake::Fake,
    redis::{Env, Redis, tcp},
    server::{Server, Setup},
};

use super::{Code, RULES, code, counter, one};

// Clusters that redirect in circles.
mod storms;

/// A service that cannot count with these settings.
struct Lost {
    server: Server,
    client: Client,
}

impl Lost {
    fn start(env: &[Env]) -> Self {
        let setup = Setup::new().redis(&env.concat()).rules("d.yaml", RULES);
        let setup = setup.env("REDIS_CONNECT_TIMEOUT", "300ms").env("REDIS_TIMEOUT", "300ms");
        let server = setup.env("LOG_LEVEL", "info").start();
        let client = server.client();
        Self { server, client }
    }

    /// It is unhealthy and logs this without a request, and [`logs_on_request`](Self::logs_on_request).
    fn logs(self, texts: &[&str]) {
        self.server.wait_for_log(texts);
        assert!(!self.server.is_healthy(), "{}", self.server.process.log());
        self.logs_on_request(texts);
    }

    /// A request returns an error without secrets, and the log contains all of `texts`.
    fn logs_on_request(self, texts: &[&str]) {
        let Self { mut server, client } = self;
        for _ in 0..3 {
            let error = client.ask(one("two", "v")).expect_err("nothing can be counted");
            assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
            assert!(!error.message().contains("hush"), "{error:?}");
        }
        server.wait_for_log(texts);
        let unlimited = client.ask(one("control", "v")).unwrap();
        assert_eq!(unlimited.overall_code(), Code::Ok, "what needs no counter is answered");
        assert!(server.process.exited().is_none(), "{}", server.process.log());
        // The drain would wait for an open connection.
        drop(client);
        let log = server.final_log();
        assert!(!log.contains("hush"), "a secret is in the log:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
        assert!(log.lines().count() < 100, "the log is flooded:\n{log}");
    }
}

fn set(name: &'static str, value: &str) -> Env {
    vec![(name, value.to_owned())]
}

#[test]
fn a_name_that_does_not_resolve() {
    Lost::start(&[tcp("redis.invalid:6379")]).logs(&["redis.invalid:6379"]);
}

#[test]
fn a_port_that_refuses_connections() {
    let redis = Redis::prepared(&[]);
    Lost::start(&[redis.env()]).logs(&[&redis.address()]);
}

#[test]
fn a_missing_socket() {
    let path = "/nowhere/redis.sock";
    Lost::start(&[set("REDIS_SOCKET_TYPE", "unix"), set("REDIS_URL", path)]).logs(&[path]);
}

#[test]
fn an_http_server() {
    let fake = Fake::saying(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
    Lost::start(&[tcp(&fake.address())]).logs(&[&fake.address(), "HTTP/1.1 400"]);
}

#[test]
fn a_server_that_sends_garbage_or_too_long_replies() {
    for bytes in [
        &b"\x00\xff\xfe\r\n\r\n"[..],
        b"$9223372036854775807\r\n",
        b"*2147483647\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        b":12345678901234567890123\r\n",
        b"+PONG\r\n+PONG\r\n+PONG\r\n+PONG\r\n:1\r\n:1\r\n:1\r\n",
    ] {
        let fake = Fake::saying(bytes);
        Lost::start(&[tcp(&fake.address())]).logs(&[&fake.address()]);
    }
}

#[test]
fn a_silent_server() {
    let fake = Fake::answering(|_, _| String::new());
    Lost::start(&[tcp(&fake.address())]).logs(&[&fake.address()]);
}

#[test]
fn a_wrong_or_missing_password() {
    let redis = Redis::with(&["--requirepass", "right"]);
    let address = redis.address();
    Lost::start(&[redis.env(), set("REDIS_AUTH", "hush")]).logs(&[&address, "WRONGPASS"]);
    Lost::start(&[redis.env()]).logs(&[&address, "NOAUTH"]);
    Lost::start(&[tcp(&format!("redis://ann:hush@{address}"))]).logs(&[&address, "WRONGPASS"]);
}

#[test]
fn a_user_without_permissions() {
    let ann = ["--user", "ann", "on", ">hush", "~*", "&*", "+@connection"];
    let redis = Redis::with(&ann);
    Lost::start(&[redis.env(), set("REDIS_AUTH", "ann:hush")]).logs(&[&redis.address(), "NOPERM"]);
}

#[test]
fn a_database_out_of_range() {
    let redis = Redis::single();
    Lost::start(&[tcp(&format!("redis://{}/9999", redis.address()))]).logs(&[&redis.address(), "SELECT"]);
}

#[test]
fn tls_to_a_plain_text_port_and_plain_text_to_tls() {
    let certificates = Certificates::for_host("127.0.0.1");
    let (port, args) = certificates.redis_args(false);
    let redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let clear = redis.address();
    Lost::start(&[tcp(&format!("rediss://:hush@{clear}")), certificates.trusted()]).logs(&[&clear, "TLS"]);
    let tls = format!("127.0.0.1:{port}");
    Lost::start(&[tcp(&tls)]).logs(&[&tls, "TLS"]);
}

#[test]
fn untrusted_certificates() {
    let certificates = Certificates::for_host("127.0.0.1");
    let others = Certificates::for_host("127.0.0.1");
    let (port, args) = certificates.redis_args(true);
    let _redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let address = format!("127.0.0.1:{port}");
    let url = || tcp(&format!("rediss://{address}"));
    // An unknown CA; a client certificate that the server does not trust; and no client certificate.
    Lost::start(&[url(), others.trusted(), certificates.shown()]).logs(&[&address, "REDIS_TLS_CACERT"]);
    Lost::start(&[url(), certificates.trusted(), others.shown()]).logs(&[&address]);
    Lost::start(&[url(), certificates.trusted()]).logs(&[&address]);
    // A CA of the system, while a file has others.
    let system = vec![("SSL_CERT_FILE", certificates.path("ca.pem").display().to_string())];
    Lost::start(&[url(), others.trusted(), certificates.shown(), system])
        .logs(&[&address, "REDIS_TLS_CACERT"]);
}

#[test]
fn a_certificate_for_another_host() {
    let certificates = Certificates::for_host("elsewhere.test");
    let (port, args) = certificates.redis_args(false);
    let _redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let address = format!("127.0.0.1:{port}");
    let hint = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION";
    Lost::start(&[tcp(&format!("rediss://{address}")), certificates.trusted()]).logs(&[&address, hint]);
}

#[test]
fn a_server_that_is_loading() {
    let fake = Fake::answering(|_, _| "-LOADING Redis is loading the dataset in memory\r\n".to_owned());
    Lost::start(&[tcp(&fake.address())]).logs(&[&fake.address(), "LOADING"]);
}

#[test]
fn a_replica() {
    let master = Redis::single();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    Lost::start(&[replica.env()]).logs(&[&replica.address(), "READONLY"]);
}

#[test]
fn a_value_that_is_not_a_number_fails_only_its_counter() {
    let redis = Redis::single();
    let server = healthy(&redis);
    let client = server.client();
    redis.ask(&["SET", &counter("many", "text"), "no number"]);
    redis.ask(&["RPUSH", &counter("many", "list"), "1"]);
    for value in ["text", "list"] {
        let error = client.ask(one("many", value)).expect_err("it is no counter");
        assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
    }
    server.wait_for_log(&[&redis.address()]);
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 4), "others are counted");
    assert_eq!(redis.ask(&["GET", &counter("many", "text")]).to_string(), "no number", "it is left alone");
    assert!(server.is_healthy(), "one bad counter is no loss of Redis");
}

#[test]
fn a_value_that_is_too_long_fails_only_its_counter() {
    let redis = Redis::single();
    let server = healthy(&redis);
    let client = server.client();
    redis.ask(&["SET", &counter("many", "long"), &"7".repeat(1 << 20)]);
    let mut look = one("many", "long");
    look.descriptors[0].hits_addend = Some(0);
    for left in (0..5).rev() {
        let error = client.ask(look.clone()).expect_err("it is no counter");
        assert_eq!(error.code(), tonic::Code::Unknown, "{error:?}");
        assert_eq!(code(&client, "five", "v"), (Code::Ok, left), "others are counted");
    }
    server.wait_for_log(&[&redis.address(), "the value has 1048576 bytes"]);
    assert_eq!(server.count("tollgate_redis_reconnects_total{pool=\"main\"}"), 0, "the connection stays");
}

#[test]
fn a_counter_may_overflow_or_be_negative() {
    let redis = Redis::single();
    let server = healthy(&redis);
    let client = server.client();
    redis.ask(&["SET", &counter("five", "full"), &i64::MAX.to_string()]);
    redis.ask(&["SET", &counter("five", "below"), "-3"]);
    let _ = client.ask(one("five", "full"));
    let _ = client.ask(one("five", "below"));
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 4));
    drop(client);
    assert!(!server.final_log().contains("panicked"));
}

fn healthy(redis: &Redis) -> Server {
    Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy()
}
