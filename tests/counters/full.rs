//! Full tables: counters in memory, the over-limit cache, and the local fallback while Redis is lost. Each is filled
//! beyond its bound, expires, and is filled again, while one caller is counted exactly.

use std::{ops::Range, thread, time::Duration};

use http::HeaderMap;
use tokio::runtime::Builder;

use support::{
    client::{Client, request},
    eventually,
    ports::free_port,
    raw::{Exchange, RawClient, framed},
    redis::tcp,
    server::{Server, Setup},
};

/// Windows that end while the table fills, longer ones, a limit that rejects all, and logs.
const RULES: &str = "
domain: d
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: never, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: log, rate_limit: {unit: second, requests_per_unit: 9, algorithm: sliding_log}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 1000}}
";

/// The maximum of one request.
const AT_ONCE: u32 = 125;

/// One hit of each of these values of a key.
async fn fill(client: &mut RawClient, key: &str, values: Range<u32>) {
    for first in values.clone().step_by(AT_ONCE as usize) {
        let values: Vec<_> = (first..values.end.min(first + AT_ONCE)).map(|n| n.to_string()).collect();
        let descriptors: Vec<_> = values.iter().map(|value| [(key, value.as_str())]).collect();
        let descriptors: Vec<_> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
        match client.exchange(framed(&request("d", &descriptors)), &HeaderMap::new()).await {
            Exchange::Answered(status) if status.code == 0 => {}
            other => panic!("{key} {first}: {other:?}"),
        }
    }
}

/// Fills the table with this many values of each key, waits until the windows of a second have ended, and fills it
/// again.
fn fill_and_refill(server: &Server, keys: &[&str], values: u32) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        for round in 0..3 {
            for key in keys {
                fill(&mut client, key, values * round..values * (round + 1)).await;
            }
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
    });
}

/// Runs a test with each of these bounds, at the same time, since each waits for windows to end.
fn with_each<const N: usize>(bounds: [u32; N], test: impl Fn(u32) + Sync) {
    thread::scope(|scope| {
        for bound in bounds {
            let test = &test;
            scope.spawn(move || test(bound));
        }
    });
}

fn remaining(client: &Client, key: &str, value: &str) -> u32 {
    client.ask(request("d", &[&[(key, value)]])).unwrap().statuses[0].limit_remaining
}

/// A caller is counted exactly.
fn counts_on(server: &Server) {
    let client = server.client();
    let left: Vec<_> = (0..50).map(|_| remaining(&client, "year", "steady")).collect();
    let first = left[0];
    assert_eq!(left, (0..50).map(|n| first - n).collect::<Vec<_>>());
}

#[test]
fn counters_in_memory_stay_within_their_bound_and_keep_counting() {
    with_each([1, 63, 64, 5000], |max| {
        let setup = Setup::new().rules("d.yaml", RULES).env("MEMORY_MAX_KEYS", &max.to_string());
        let server = setup.start();
        // Twice the bound, and enough for the shards of all workers.
        let values = (max * 2).max(2000);
        fill_and_refill(&server, &["second", "log", "hour"], values);
        // Logs have as much memory in addition.
        let keys = server.metric("tollgate_store_keys");
        let logs = f64::from(max * 48 / 100 + 256);
        assert!(keys <= f64::from(max) + logs, "{max}: {keys}");
        assert!(server.metric("tollgate_store_evictions_total{counter=\"within_limit\"}") > 0.0, "{max}");
        counts_on(&server);
    });
}

#[test]
fn the_cache_of_keys_over_their_limit_stays_within_its_bytes_and_keeps_working() {
    with_each([1, 44, 1000, 65_536], |bytes| {
        let setup = Setup::new().rules("d.yaml", RULES).env("LOCAL_CACHE_SIZE_IN_BYTES", &bytes.to_string());
        let server = setup.start();
        fill_and_refill(&server, &["never"], 4000);
        let keys = server.metric("ratelimit_localcache_entryCount");
        assert!(keys <= f64::from((bytes / 44).max(1)), "{bytes}: {keys}");
        counts_on(&server);
    });
}

#[test]
fn counters_in_place_of_a_lost_redis_stay_within_their_bound_and_keep_counting() {
    with_each([1, 5000], |max| {
        let unreachable = format!("127.0.0.1:{}", free_port());
        let setup = Setup::new().redis(&tcp(&unreachable)).rules("d.yaml", RULES);
        let setup = setup.env("STORE_FAILURE_POLICY", "local").env("MEMORY_MAX_KEYS", &max.to_string());
        let server = setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "65536").start();
        eventually("requests are decided", || {
            server.ask(request("d", &[&[("hour", "first")]])).map(drop).map_err(|status| status.to_string())
        });
        fill_and_refill(&server, &["second", "hour", "never"], (max * 2).max(2000));
        let keys = server.metric("tollgate_store_keys");
        assert!(keys <= f64::from(max), "{max}: {keys}");
        counts_on(&server);
    });
}
