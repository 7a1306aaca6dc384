//! Logins with an AWS identity, to a server that checks each signature as ElastiCache does and passes other commands to a
//! real Redis.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ring::{digest, hmac};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use support::{
    certificates::Certificates,
    clock::{Clock, timestamp},
    eventually, holds,
    redis::{Env, Redis, Reply, read},
    server::Setup,
    steady::{Steady, Verdict},
};

use super::{RULES, one};

const SECRET: &str = "hush-hush";

const HOUR: f64 = 3600.0;

/// A cache, by name `my-cache`, with the user `app`.
struct Cache {
    port: u16,
    certificates: Certificates,
    logins: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Cache {
    /// In front of this Redis. The time is that of `clock`.
    fn start(redis: &Redis, clock: &Clock) -> Self {
        let certificates = Certificates::for_host("127.0.0.1");
        let chain = CertificateDer::from_pem_file(certificates.path("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![chain], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (logins, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (counted, opened, clock, upstream) =
            (logins.clone(), connections.clone(), clock.clone(), redis.port);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                opened.fetch_add(1, Relaxed);
                let (config, counted, clock) = (config.clone(), counted.clone(), clock.clone());
                thread::spawn(move || {
                    let tls = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
                    serve(BufReader::new(tls), upstream, &clock, &counted);
                });
            }
        });
        Self { port, certificates, logins, connections }
    }

    fn env(&self, agent: &Agent) -> Env {
        let set = [
            ("REDIS_URL", format!("rediss://127.0.0.1:{}", self.port)),
            ("REDIS_TLS_CACERT", self.certificates.path("ca.pem").display().to_string()),
            ("REDIS_AWS_IAM_AUTH", "true".to_owned()),
            ("REDIS_AWS_IAM_CACHE_NAME", "My-Cache".to_owned()),
            ("REDIS_AWS_IAM_USER_ID", "app".to_owned()),
            ("AWS_REGION", "eu-west-1".to_owned()),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://127.0.0.1:{}/v1/credentials", agent.port)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", SECRET.to_owned()),
        ];
        set.to_vec()
    }
}

/// Replies to the commands of a connection until 12 hours after its last login.
fn serve(
    mut client: BufReader<StreamOwned<ServerConnection, TcpStream>>,
    upstream: u16,
    clock: &Clock,
    logins: &AtomicUsize,
) {
    let mut redis = BufReader::new(TcpStream::connect(("127.0.0.1", upstream)).unwrap());
    let mut logged_in = None;
    while let Ok(command) = read(&mut client) {
        let words = command.words();
        let reply = match &words[..] {
            [auth, user, token] if auth == "AUTH" => match refusal(user, token, clock.now()) {
                None => {
                    logins.fetch_add(1, Relaxed);
                    logged_in = Some(clock.now());
                    b"+OK\r\n".to_vec()
                }
                Some(why) => {
                    eprintln!("refused: {why}");
                    b"-WRONGPASS invalid username-password pair or user is disabled.\r\n".to_vec()
                }
            },
            _ if logged_in.is_none_or(|at| clock.now() > at + 12.0 * HOUR) => return,
            words => {
                let mut sent = format!("*{}\r\n", words.len()).into_bytes();
                for word in words {
                    write!(sent, "${}\r\n{word}\r\n", word.len()).unwrap();
                }
                redis.get_mut().write_all(&sent).unwrap();
                encoded(&read(&mut redis).unwrap())
            }
        };
        if client.get_mut().write_all(&reply).is_err() {
            return;
        }
    }
}

fn encoded(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Integer(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Text(text) => format!("${}\r\n{text}\r\n", text.len()).into_bytes(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Error(error) => format!("-{error}\r\n").into_bytes(),
        Reply::List(list) => {
            let mut all = format!("*{}\r\n", list.len()).into_bytes();
            for one in list {
                all.extend(encoded(one));
            }
            all
        }
    }
}

/// Why AWS would refuse a login: the signature is computed again from the secret of the access key.
fn refusal(user: &str, token: &str, now: f64) -> Option<String> {
    let (unsigned, signature) = token.split_once("&X-Amz-Signature=")?;
    let (host, query) = unsigned.split_once("/?")?;
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map_or("", |(_, value)| value)
    };
    let time = value("X-Amz-Date");
    let at = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &time[..4],
        &time[4..6],
        &time[6..8],
        &time[9..11],
        &time[11..13],
        &time[13..15]
    );
    let age = now - Clock::at(&at).now();
    let scope = format!("{}/eu-west-1/elasticache/aws4_request", &time[..8]);
    let hex = |bytes: &[u8]| {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from_digit(digit.into(), 16).unwrap()).collect::<String>()
    };
    let hash = |text: &str| hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    let canonical = format!("GET\n/\n{query}\nhost:{host}\n\nhost\n{}", hash(""));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hash(&canonical));
    let mac = |key: &[u8], text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
    };
    let key = format!("AWS4{SECRET}").into_bytes();
    let key = scope.split('/').fold(key, |key, part| mac(&key, part));
    let checks = [
        (signature == hex(&mac(&key, &text)), "the signature"),
        (value("X-Amz-Credential") == format!("ASIA1/{scope}").replace('/', "%2F"), "the access key"),
        (value("X-Amz-Security-Token") == "session", "the session"),
        (value("Action") == "connect" && value("User") == user && user == "app", "the user"),
        (host == "my-cache", "the cache"),
        (value("X-Amz-Expires") == "900" && (-300.0..900.0).contains(&age), "the time"),
    ];
    checks
        .into_iter()
        .find(|(holds, _)| !holds)
        .map(|(_, what)| format!("{what} of {token} for {user}, {age} s old"))
}

/// The agent of EKS Pod Identity.
struct Agent {
    port: u16,
    error: Arc<Mutex<Option<&'static str>>>,
    asked: Arc<AtomicUsize>,
}

impl Agent {
    /// Its credentials are valid for an hour.
    fn start(clock: &Clock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (error, asked) = (Arc::<Mutex<Option<&'static str>>>::default(), Arc::<AtomicUsize>::default());
        let (failing, counted, clock) = (error.clone(), asked.clone(), clock.clone());
        thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let mut lines = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
                let head: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                counted.fetch_add(1, Relaxed);
                let is_allowed = head.contains(&format!("authorization: {SECRET}"));
                let expires = timestamp(clock.now() + HOUR);
                let (status, body) = match *failing.lock().unwrap() {
                    Some(error) => ("400 Bad Request", error.to_owned()),
                    None if !is_allowed => ("401 Unauthorized", "no token".to_owned()),
                    None => (
                        "200 OK",
                        format!(
                            r#"{{"AccessKeyId":"ASIA1","SecretAccessKey":"{SECRET}","Token":"session","Expiration":"{expires}"}}"#
                        ),
                    ),
                };
                let _ = write!(socket, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            }
        });
        Self { port, error, asked }
    }
}

fn clock() -> Clock {
    Clock::at("2026-06-01T00:05:00Z").steerable()
}

#[test]
fn connections_log_in_again_before_aws_closes_them_and_no_request_fails() {
    let clock = clock();
    let _clock = clock.enter();
    let redis = Redis::single();
    let (cache, agent) = (Cache::start(&redis, &clock), Agent::start(&clock));
    let setup = Setup::new().env("LOG_LEVEL", "info").redis(&cache.env(&agent));
    let server = setup.rules("d.yaml", RULES).start_healthy();
    let load = Steady::start(
        server.ports.grpc,
        200,
        Duration::from_secs(10),
        &[one("many", "v")],
        &one("control", "v"),
    );
    thread::sleep(Duration::from_millis(300));
    let (logins, connections) = (cache.logins.load(Relaxed), cache.connections.load(Relaxed));
    // Longer than a connection may live in all.
    for round in 1..=2 {
        let asked = agent.asked.load(Relaxed);
        clock.step(11.7 * HOUR);
        eventually("the connections log in again", || {
            let lines = server.process.log().to_string().matches("use the new credentials").count();
            holds(lines >= round, || format!("{lines} lines:\n{}", server.process.log()))
        });
        assert!(agent.asked.load(Relaxed) > asked, "the credentials had expired");
        thread::sleep(Duration::from_millis(300));
    }
    let outcome = load.stop();
    let failed: Vec<_> = outcome.asked.iter().filter(|one| one.verdict != Verdict::Ok).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), outcome.asked.len(), failed[0]);
    assert!(cache.logins.load(Relaxed) >= logins + 2, "each connection logs in twice");
    assert_eq!(cache.connections.load(Relaxed), connections, "no connection was replaced");
    let log = server.final_log();
    assert!(!log.contains(SECRET) && !log.contains("X-Amz-Signature"), "a secret is in the log:\n{log}");
}

#[test]
fn a_refused_identity_is_reported_with_what_to_check() {
    let clock = clock();
    let _clock = clock.enter();
    let redis = Redis::single();
    let (cache, agent) = (Cache::start(&redis, &clock), Agent::start(&clock));
    let env = [cache.env(&agent), vec![("REDIS_AWS_IAM_USER_ID", "other".to_owned())]].concat();
    let server = Setup::new().redis(&env).rules("d.yaml", RULES).start();
    server.wait_for_log(&[
        "AUTH failed: WRONGPASS invalid username-password pair",
        "the policy of the AWS identity",
    ]);
    assert!(!server.is_healthy());
    let log = server.final_log();
    assert!(!log.contains(SECRET) && !log.contains("X-Amz-Signature"), "a secret is in the log:\n{log}");
}

#[test]
fn credentials_that_cannot_be_fetched_are_reported_in_the_agents_words() {
    let clock = clock();
    let _clock = clock.enter();
    let redis = Redis::single();
    let (cache, agent) = (Cache::start(&redis, &clock), Agent::start(&clock));
    *agent.error.lock().unwrap() = Some(r#"{"code":"AccessDenied","message":"no association for this pod"}"#);
    let server =
        Setup::new().env("LOG_LEVEL", "info").redis(&cache.env(&agent)).rules("d.yaml", RULES).start();
    server.wait_for_log(&[
        "AWS credentials from AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "400 Bad Request: AccessDenied: no association for this pod",
    ]);
    assert!(!server.is_healthy());
    *agent.error.lock().unwrap() = None;
    // The pause after a failure is measured by the wall clock.
    clock.step(11.0);
    server.wait_until_healthy();
    server.wait_for_log(&["valid again"]);
    let log = server.final_log();
    assert!(!log.contains(SECRET), "a secret is in the log:\n{log}");
}
