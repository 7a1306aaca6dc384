//! The memory of many live counters, in `tests/run deep` of a million.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio::runtime::Builder;

use support::{
    client::request,
    clock::Clock,
    or_deep,
    raw::{Exchange, RawClient, framed},
    server::Setup,
};

/// Each value has its own counter, and all share one series of the metrics.
const RULES: &str = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]\n";

/// The maximum of one request.
const AT_ONCE: u32 = 125;

/// For each key: its hash, its count and its window, in a table that is never full.
const MOST_BYTES: u64 = 48;

#[test]
fn live_keys_take_48_bytes_each_at_most() {
    let keys = or_deep(250_000, 1_000_000);
    let most_kib = MOST_BYTES * u64::from(keys) / 1024;
    // No day may end meanwhile.
    let _clock = Clock::ordinary().enter();
    // Without huge pages and what the allocator keeps for later, the growth differs by 2 %.
    let setup = Setup::new().env("MIMALLOC_ALLOW_THP", "0").env("MIMALLOC_PURGE_DELAY", "0");
    let server = setup.rules("d.yaml", RULES).start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        // Buffers and pools are allocated before the first key is counted.
        ask(&mut client, 0..AT_ONCE, "warm").await;
        let before = server.process.resident_kib();
        for first in (0..keys).step_by(AT_ONCE as usize) {
            ask(&mut client, first..first + AT_ONCE, "user").await;
        }
        // The memory of smaller tables is released within seconds.
        let grown = || server.process.resident_kib().saturating_sub(before);
        let deadline = Instant::now() + Duration::from_secs(10);
        while grown() > most_kib && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let grown = grown();
        println!("{keys} keys take {grown} KiB");
        assert!(grown <= most_kib, "{grown} KiB, {most_kib} at most");
    });
    let last = format!("user-{}", keys - 1);
    let answer = server.ask(request("d", &[&[("user", "user-0")], &[("user", &last)]])).unwrap();
    let remaining: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(remaining, [7, 7], "the first and the last are still counted");
}

/// One request of many descriptors with different keys.
async fn ask(client: &mut RawClient, numbers: std::ops::Range<u32>, name: &str) {
    let values: Vec<_> = numbers.map(|number| format!("{name}-{number}")).collect();
    let descriptors: Vec<_> = values.iter().map(|value| [("user", value.as_str())]).collect();
    let descriptors: Vec<_> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
    match client.exchange(framed(&request("d", &descriptors)), &HeaderMap::new()).await {
        Exchange::Answered(status) if status.code == 0 => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn huge_pages_are_used_from_the_first_connection_unless_the_environment_disables_them() {
    for (allowed, enabled) in [("1", "1"), ("0", "0")] {
        let server = Setup::new().rules("d.yaml", RULES).env("MIMALLOC_ALLOW_THP", allowed).start();
        server.ask(request("d", &[&[("user", "a")]])).unwrap();
        assert_eq!(server.process.status("THP_enabled:").as_deref(), Some(enabled), "with {allowed}");
    }
}
