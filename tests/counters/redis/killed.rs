//! Connections that are killed again and again cost no more than the requests on them, and the log stays short. Why the
//! servers are not found is in the status.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    eventually, holds, http,
    memcached::Memcached,
    ports::free_port,
    redis::{Env, Redis},
    server::Setup,
};

use super::{RULES, one};

#[test]
fn a_connection_that_is_killed_is_reopened_at_once_and_logged_once() {
    let redis = Redis::single();
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
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
    println!("{failed} of {asked} requests failed");
    assert!(asked > 100 && failed * 4 < asked, "{failed} of {asked} failed: {}", server.process.log());
    drop(client);
    let log = server.final_log();
    assert!(log.lines().count() < 40, "{log}");
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
