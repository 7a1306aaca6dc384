//! Every way to reach a Redis: sockets, URLs, sentinels, clusters, passwords and certificates.

use std::time::Duration;

use support::{
    certificates::Certificates,
    client::request,
    redis::{Cluster, Env, Redis, Sentinels, tcp},
    server::Setup,
};

use super::{Code, RULES, code, counter};

/// Long enough that a busy machine causes no failover of a cluster.
const STEADY: Duration = Duration::from_secs(15);

/// Starts a service with these settings, and counts hits.
fn counts(env: &[Env]) {
    let setup = Setup::new().rules("d.yaml", RULES);
    let server = setup.redis(&env.concat()).start_healthy();
    let client = server.client();
    let decisions: Vec<_> = (0..3).map(|_| code(&client, "two", "v")).collect();
    assert_eq!(decisions, [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)], "{}", server.process.log());
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("hush"), "a secret is in the log:\n{log}");
}

fn set(name: &'static str, value: &str) -> Env {
    vec![(name, value.to_owned())]
}

#[test]
fn an_address_or_a_socket() {
    let redis = Redis::single();
    counts(&[redis.env()]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);

    redis.ask(&["FLUSHALL"]);
    let socket = redis.socket();
    counts(&[set("REDIS_SOCKET_TYPE", "unix"), set("REDIS_URL", socket.to_str().unwrap())]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);
}

#[test]
fn a_url_with_a_password_and_a_database() {
    let redis = Redis::with(&["--requirepass", "hush"]);
    counts(&[tcp(&format!("redis://:hush@{}/3", redis.address()))]);
    let mut connection = redis.connect();
    connection.ask(&["SELECT", "3"]).unwrap();
    assert_eq!(connection.ask(&["GET", &counter("two", "v")]).unwrap().number(), 3);
    assert_eq!(redis.counter(&counter("two", "v")), 0, "database 0 is empty");
}

#[test]
fn a_password_of_the_default_user_or_of_another() {
    let ann = ["--user", "ann", "on", ">hush-hush", "~d_*", "&*", "+@all"];
    let redis = Redis::with(&[&["--requirepass", "hush"], &ann[..]].concat());
    counts(&[redis.env(), set("REDIS_AUTH", "hush")]);
    redis.ask(&["FLUSHALL"]);
    counts(&[redis.env(), set("REDIS_AUTH", "ann:hush-hush")]);
    redis.ask(&["FLUSHALL"]);
    counts(&[tcp(&format!("redis://ann:hush-hush@{}", redis.address()))]);
}

#[test]
fn tls_by_the_urls_scheme_or_by_the_variable() {
    let certificates = Certificates::for_host("localhost");
    let (port, args) = certificates.redis_args(false);
    let redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    counts(&[tcp(&format!("rediss://localhost:{port}/1")), certificates.trusted()]);
    counts(&[tcp(&format!("localhost:{port}")), set("REDIS_TLS", "true"), certificates.trusted()]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);
}

#[test]
fn tls_with_a_client_certificate_to_an_ip_address() {
    let certificates = Certificates::for_host("127.0.0.1");
    let (port, args) = certificates.redis_args(true);
    let redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let url = tcp(&format!("127.0.0.1:{port}"));
    counts(&[url, set("REDIS_TLS", "true"), certificates.trusted(), certificates.shown()]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);
}

#[test]
fn system_cas_are_trusted_without_a_ca_file_or_if_both_are_configured() {
    let certificates = Certificates::for_host("127.0.0.1");
    let others = Certificates::for_host("127.0.0.1");
    let (port, args) = certificates.redis_args(false);
    let redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let url = || tcp(&format!("rediss://127.0.0.1:{port}"));
    let system = || set("SSL_CERT_FILE", certificates.path("ca.pem").to_str().unwrap());
    counts(&[url(), system()]);
    redis.ask(&["FLUSHALL"]);
    counts(&[url(), system(), others.trusted(), set("TLS_TRUST_SYSTEM_CAS", "true")]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);
}

#[test]
fn a_certificate_of_another_host_is_accepted_when_configured() {
    let certificates = Certificates::for_host("elsewhere.test");
    let (port, args) = certificates.redis_args(false);
    let redis = Redis::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let skip = set("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
    counts(&[tcp(&format!("rediss://127.0.0.1:{port}")), certificates.trusted(), skip]);
    assert_eq!(redis.counter(&counter("two", "v")), 3);
}

#[test]
fn a_master_with_sentinels() {
    let sentinels = Sentinels::start();
    counts(&[sentinels.env()]);
    assert_eq!(sentinels.master().counter(&counter("two", "v")), 3);
}

#[test]
fn sentinels_and_servers_with_different_passwords() {
    let sentinels = Sentinels::with(&["--requirepass", "hush"], Some("hush-hush"));
    let auth = [set("REDIS_AUTH", "hush"), set("REDIS_SENTINEL_AUTH", "hush-hush")];
    counts(&[&[sentinels.env()], &auth[..]].concat());
}

#[test]
fn a_cluster_with_a_password_whose_masters_share_the_keys() {
    let cluster = Cluster::with(STEADY, &["--requirepass", "hush"]);
    let env = [cluster.env(), set("REDIS_AUTH", "hush")];
    counts(&env);

    let server = Setup::new().rules("d.yaml", RULES).redis(&env.concat()).start_healthy();
    // Names that differ only in their last digits are in few slots.
    let users: Vec<_> = (0..60).map(|user| (user * 7919).to_string()).collect();
    let descriptors: Vec<_> = users.iter().map(|user| vec![("many", user.as_str())]).collect();
    let descriptors: Vec<_> = descriptors.iter().map(Vec::as_slice).collect();
    let client = server.client();
    for turn in 1..=3 {
        let answer = client.ask(request("d", &descriptors)).unwrap();
        let left = 4_000_000_000 - turn;
        assert!(answer.statuses.iter().all(|status| status.limit_remaining == left), "{answer:?}");
    }
    for user in &users {
        assert_eq!(cluster.counter(&counter("many", user)), 3);
    }
    let masters = cluster.servers[..3].iter().filter(|server| !server.keys().is_empty());
    assert_eq!(masters.count(), 3, "each master has some keys");
}

#[test]
fn the_second_redis_may_be_of_another_kind() {
    let (sentinels, cluster) = (Sentinels::start(), Cluster::start(STEADY));
    let renamed = cluster.env().into_iter().map(|(name, value)| {
        let name = match name {
            "REDIS_SOCKET_TYPE" => "REDIS_PERSECOND_SOCKET_TYPE",
            "REDIS_TYPE" => "REDIS_PERSECOND_TYPE",
            _ => "REDIS_PERSECOND_URL",
        };
        (name, value)
    });
    let per_second: Env = renamed.chain(set("REDIS_PERSECOND", "true")).collect();
    counts(&[sentinels.env(), per_second]);
    assert_eq!(sentinels.master().counter(&counter("two", "v")), 3);
    assert_eq!(cluster.keys(), [""; 0]);
}
