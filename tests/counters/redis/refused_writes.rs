//! Servers that accept connections but no writes: with `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION` the service is unhealthy
//! while there is one, without waiting for a request, and the check leaves no key.

use std::time::Duration;

use support::{
    eventually, holds, http,
    redis::{Cluster, Redis, Sentinels},
    server::{Server, Setup},
};

use super::{RULES, one};

fn setup(redis: &Redis) -> Setup {
    Setup::new().redis(&redis.env()).rules("d.yaml", RULES)
}

fn wait_until_unhealthy(server: &Server) {
    eventually("it is unhealthy", || {
        let health = http::get(server.ports.http, "/healthcheck");
        holds(health.status == 500 && health.text().contains("refuses writes"), || health.text())
    });
}

/// From healthy to unhealthy, with `word` in the log, and back to healthy.
fn follows(server: &Server, word: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    server.wait_until_healthy();
    begin();
    wait_until_unhealthy(server);
    server.wait_for_log(&[word]);
    end();
    server.wait_until_healthy();
}

/// Health needs one connection; that of the client's worker may open later.
fn counts(server: &Server) {
    let client = server.client();
    eventually("it counts", || client.ask(one("five", "v")).map(drop).map_err(|status| status.to_string()));
}

#[test]
fn a_replica_is_unhealthy_from_the_start() {
    let master = Redis::single();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let server = setup(&replica).start();
    server.wait_for_log(&[&replica.address(), "READONLY"]);
    assert!(!server.is_healthy());
    // The connection was closed: a new one is for a master only.
    server.wait_for_log(&["it is a replica of 127.0.0.1"]);
    assert!(!server.is_healthy());
    replica.ask(&["REPLICAOF", "NO", "ONE"]);
    server.wait_until_healthy();
    assert!(replica.keys().is_empty(), "the check leaves no key");
    counts(&server);
}

#[test]
fn without_the_variable_a_replica_is_healthy() {
    let master = Redis::single();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let server = setup(&replica).env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false").start();
    server.ask(one("five", "v")).expect_err("it is a replica");
    server.wait_for_log(&["READONLY"]);
    assert!(server.is_healthy());
}

#[test]
fn a_server_that_refuses_writes_later_is_unhealthy_until_it_accepts_them() {
    let ann = ["--user", "ann", "on", ">hush", "~*", "+@all", "--enable-protected-configs", "yes"];
    let redis = Redis::with(&ann);
    let server = setup(&redis).env("REDIS_AUTH", "ann:hush").start();
    let set = |name: &str, value: &str| drop(redis.ask(&["CONFIG", "SET", name, value]));
    follows(
        &server,
        "READONLY",
        || drop(redis.ask(&["REPLICAOF", "127.0.0.1", "1"])),
        || drop(redis.ask(&["REPLICAOF", "NO", "ONE"])),
    );
    set("maxmemory-policy", "noeviction");
    follows(&server, "OOM", || set("maxmemory", "1"), || set("maxmemory", "0"));
    let replicas = |count| set("min-replicas-to-write", count);
    follows(&server, "NOREPLICAS", || replicas("1"), || replicas("0"));
    let permit = |rule: &str| drop(redis.ask(&["ACL", "SETUSER", "ann", rule]));
    follows(&server, "NOPERM", || permit("-incrby"), || permit("+incrby"));
    let fail_to_save = || {
        redis.ask(&["CONFIG", "SET", "dir", "/proc", "save", "3600 1000000"]);
        redis.ask(&["BGSAVE"]);
    };
    follows(&server, "MISCONF", fail_to_save, || set("stop-writes-on-bgsave-error", "no"));
    assert!(redis.keys().is_empty(), "the check leaves no key");
    counts(&server);
}

#[test]
fn a_server_with_a_policy_that_evicts_is_healthy_at_its_maximum() {
    let redis = Redis::with(&["--maxmemory", "1", "--maxmemory-policy", "allkeys-lru"]);
    let server = setup(&redis).start();
    // Redis with nothing left to evict is out of memory too.
    server.wait_for_log(&["OOM"]);
    assert!(!server.is_healthy());
    redis.ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.wait_until_healthy();
}

#[test]
fn a_frozen_server_is_unhealthy_until_it_answers() {
    let redis = Redis::single();
    let server = setup(&redis).env("REDIS_TIMEOUT", "500ms").start();
    follows(&server, "no reply within 500ms", || redis.freeze(), || redis.thaw());
}

#[test]
fn each_master_of_a_cluster_is_probed() {
    let cluster = Cluster::start(Duration::from_secs(15));
    let server = Setup::new().redis(&cluster.env()).rules("d.yaml", RULES).start();
    for master in &cluster.servers[..3] {
        let replicas = |count| drop(master.ask(&["CONFIG", "SET", "min-replicas-to-write", count]));
        follows(
            &server,
            &format!("{}: error reply \"NOREPLICAS", master.address()),
            || replicas("2"),
            || {
                replicas("0");
            },
        );
    }
    assert!(cluster.keys().is_empty(), "the check leaves no key");
}

#[test]
fn a_master_of_sentinels_is_probed() {
    let sentinels = Sentinels::start();
    let server = Setup::new().redis(&sentinels.env()).rules("d.yaml", RULES).start();
    let replicas = |count| drop(sentinels.master().ask(&["CONFIG", "SET", "min-replicas-to-write", count]));
    follows(&server, "NOREPLICAS", || replicas("2"), || replicas("0"));
}

#[test]
fn the_redis_of_limits_per_second_is_probed() {
    let [main, second] = [Redis::single(), Redis::single()];
    let server = setup(&main)
        .env("REDIS_PERSECOND", "true")
        .env("REDIS_PERSECOND_URL", &second.address())
        .env("REDIS_PERSECOND_SOCKET_TYPE", "tcp")
        .start();
    let replicas = |count| drop(second.ask(&["CONFIG", "SET", "min-replicas-to-write", count]));
    follows(&server, "NOREPLICAS", || replicas("1"), || replicas("0"));
    assert!(main.keys().is_empty() && second.keys().is_empty(), "the check leaves no key");
}

#[test]
fn a_user_without_the_keys_of_the_check_is_healthy() {
    let redis = Redis::with(&["--user", "ann", "on", ">hush", "~pre:d_*", "+@all"]);
    let server = setup(&redis).env("REDIS_AUTH", "ann:hush").env("CACHE_KEY_PREFIX", "pre:").start();
    server.wait_until_healthy();
    counts(&server);
}
