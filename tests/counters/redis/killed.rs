//! Connections that are killed again and again cost no more than the requests on them, and the log stays short. Why the
//! servers are not found is in the status.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use support::{
    eventually, holds, http,
    memcached::Memcached,
    ports::free_port,
    redis::{Env, Redis},
    server::{Server, Setup},
};

use super::{RULES, one};

/// The requests that fail, and all, while connections are killed for three seconds.
fn failed_while_killing(redis: &Redis, server: &Server) -> (usize, usize) {
    let (client, is_over) = (server.client(), AtomicBool::new(false));
    let (mut asked, mut failed) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut killer = redis.connect();
            while !is_over.load(Ordering::Relaxed) {
                let _ = killer.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
                thread::sleep(Duration::from_millis(14));
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            asked += 1;
            failed += usize::from(client.ask(one("many", "v")).is_err());
            thread::sleep(Duration::from_millis(2));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    (failed, asked)
}

#[test]
fn a_connection_that_is_killed_is_reopened_at_once_and_logged_once() {
    let redis = Redis::single();
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
    // Two thirds failed when a loss opened the breaker. A busy machine delays what is reopened, but not each time.
    let mut all = Vec::new();
    let is_reopened = (0..5).any(|_| {
        let (failed, asked) = failed_while_killing(&redis, &server);
        all.push((failed, asked));
        failed * 2 < asked
    });
    assert!(is_reopened, "failed and asked: {all:?}: {}", server.process.log());
    let log = server.final_log();
    assert!(log.lines().count() < 40 * all.len(), "{log}");
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
