//! The memory of a million live counters.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio::runtime::Builder;

use crate::support::{
    client::request,
    clock::Clock,
    raw::{Exchange, RawClient, framed},
    server::{Server, Setup},
};

/// Each value has its own counter, and all share one series of the metrics.
const RULES: &str = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]\n";

const KEYS: u32 = 1_000_000;

/// The maximum of one request.
const AT_ONCE: u32 = 125;

/// 48 bytes per key: the key's hash, its count and its window, in a table that is never full.
const MOST_KIB: u64 = 48 * 1000 * 1000 / 1024;

#[test]
fn a_million_live_keys_take_48_mb_at_most() {
    // On a busy machine it takes minutes, and no day may end in them.
    let _clock = Clock::ordinary().enter();
    let server = Server::start(RULES);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        // Buffers and pools are allocated before the first key is counted.
        ask(&mut client, 0..AT_ONCE, "warm").await;
        let before = server.process.resident_kib();
        for first in (0..KEYS).step_by(AT_ONCE as usize) {
            ask(&mut client, first..first + AT_ONCE, "user").await;
        }
        // The memory of smaller tables is released within seconds.
        let grown = || server.process.resident_kib().saturating_sub(before);
        let deadline = Instant::now() + Duration::from_secs(10);
        while grown() > MOST_KIB && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let grown = grown();
        println!("{KEYS} keys take {grown} KiB");
        assert!(grown <= MOST_KIB, "{grown} KiB, {MOST_KIB} at most");
    });
    let answer = server.ask(request("d", &[&[("user", "user-0")], &[("user", "user-999999")]])).unwrap();
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
