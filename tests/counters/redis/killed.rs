//! Connections that are killed again and again cost no more than the requests on them, and the log stays short. Why the
//! servers are not found is in the status.

use support::{
    eventually, holds, http,
    memcached::Memcached,
    ports::free_port,
    redis::{Env, Redis},
    server::Setup,
};

use super::{RULES, one};

const KILLS: usize = 100;

#[test]
fn a_connection_that_is_killed_is_reopened_at_once_and_logged_once() {
    let redis = Redis::single();
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
    let client = server.client();
    let mut killer = redis.connect();
    let mut failed = 0;
    for _ in 0..KILLS {
        killer.ask(&["CLIENT", "KILL", "TYPE", "normal"]).expect("the connection of the killer stays");
        eventually("a request is answered", || {
            client.ask(one("many", "v")).map(drop).map_err(|status| {
                failed += 1;
                status.to_string()
            })
        });
    }
    // Dozens of requests after each kill failed when a loss opened the breaker.
    assert!(failed <= 2 * KILLS, "{failed} failed: {}", server.process.log());
    let log = server.final_log();
    assert!(log.lines().count() < KILLS, "{log}");
}

#[test]
fn the_status_has_the_reason_why_no_server_is_found() {
    let (redis, memcached) = (Redis::single(), Memcached::single());
    let of_redis = |kind: &str, url: &str| -> Env {
        vec![("REDIS_SOCKET_TYPE", "tcp".into()), ("REDIS_TYPE", kind.into()), ("REDIS_URL", url.into())]
    };
    let sentinel = Setup::new().redis(&of_redis("SENTINEL", &format!("other,{}", redis.address())));
    let cluster = Setup::new().redis(&of_redis("CLUSTER", &redis.address()));
    let srv =
        memcached.setup().unset("MEMCACHE_HOST_PORT").env("MEMCACHE_SRV", "_memcache._tcp.nowhere.invalid");
    for (setup, reason) in [
        (sentinel, "not a sentinel; REDIS_URL expects"),
        (cluster, "did you mean REDIS_TYPE=SINGLE"),
        (srv, "cannot resolve MEMCACHE_SRV=_memcache._tcp.nowhere.invalid"),
    ] {
        let port = free_port();
        let server = setup.rules("d.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{port}")).start();
        eventually("the status has the reason", || {
            let status = http::get(port, "/api/v1/status").text();
            holds(status.contains(reason), || format!("{status}\n{}", server.process.log()))
        });
    }
}
