//! Measures replicas in three regions, each behind a proxy that delays what it sends to Redis and receives; docs/guide/regions.md
//! has the table.
//!
//! ```sh
//! TOLLGATE_LEASE_BINARY=target/release/tollgate cargo test --test all lease::regions -- --ignored --nocapture
//! ```

use std::{thread, time::Duration};

use crate::support::{
    clock::Clock,
    eventually, holds,
    noise::Noise,
    proxy::{Proxy, Way},
    raw::framed,
    redis::{Redis, tcp},
    server::Server,
};

use super::{
    leased,
    measure::{Arrival, ask, float, now, ports, replica},
    request,
};

/// The round trips of the regions to Redis in milliseconds, and their parts of the demand.
const REGIONS: [(u64, f64); 3] = [(0, 0.5), (80, 0.3), (180, 0.2)];
const LIMIT: u64 = 6_000;
/// 1.2 times the limit.
const REQUESTS: usize = 7_200;
const SECONDS: f64 = 20.0;
/// When the farthest region is cut off, if it is.
const CUT_AT: f64 = 6.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Exact,
    Leased,
    /// A Redis for each region, and a third of the limit.
    ByHand,
    /// Leased, and the farthest region is cut off.
    CutOff(&'static str),
}

#[test]
#[ignore = "takes two minutes: it measures"]
fn table() {
    let _clock = Clock::machine().enter();
    println!("| | p50 ms by region | p99 ms by region | admitted of {LIMIT} | unused |");
    println!("|---|---|---|---|---|");
    let choices = [
        ("exact", Choice::Exact),
        ("leased", Choice::Leased),
        ("a Redis for each region, a third of the limit each", Choice::ByHand),
        ("leased, the farthest region cut off, `share`", Choice::CutOff("share")),
        ("the same, `local`", Choice::CutOff("local")),
    ];
    for (name, choice) in choices {
        measure(name, choice);
    }
}

fn measure(name: &str, choice: Choice) {
    let own = if choice == Choice::ByHand { REGIONS.len() } else { 1 };
    let servers: Vec<Redis> = (0..own).map(|_| Redis::single()).collect();
    let proxies: Vec<Proxy> = (0..REGIONS.len()).map(|at| Proxy::to(servers[at % own].port)).collect();
    let limit = LIMIT / own as u64;
    let rules = format!(
        "domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
    );
    let policy = if let Choice::CutOff(policy) = choice { policy } else { "error" };
    let mode = if matches!(choice, Choice::Exact) { "exact" } else { "leased" };
    let start = |proxy: &Proxy| {
        let setup = leased(&tcp(&proxy.address()), &rules)
            .env("COUNTING", mode)
            .env("REDIS_TIMEOUT", "1s")
            .env("REPLICA_SYNC", "true");
        replica(&setup.env("STORE_FAILURE_POLICY", policy))
    };
    let replicas: Vec<Server> = proxies.iter().map(start).collect();
    if policy == "share" {
        for replica in &replicas {
            eventually("the replica knows all", || {
                let known = replica.metrics().get("tollgate_share_replicas").copied();
                holds(known == Some(3.0), || format!("{known:?}"))
            });
        }
    }
    if choice != Choice::ByHand {
        for (proxy, (round_trip, _)) in proxies.iter().zip(REGIONS) {
            proxy.set(Way::Open(Duration::from_millis(round_trip / 2)));
        }
    }
    let schedule = schedule();
    let begin = now() + 0.5;
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs_f64((begin + CUT_AT - now()).max(0.0)));
            if let Choice::CutOff(_) = choice {
                proxies[2].set(Way::Cut);
            }
        });
        ask(&ports(&replicas), &[framed(&request("d", &[&[("k", "v")]]))], &schedule, begin)
    });
    let times = |region: usize, percent: usize| {
        let of_region = schedule.iter().zip(&answers).filter(|(one, _)| one.replica == region);
        let mut times: Vec<f64> = of_region.map(|(_, (sent, answered, _))| (answered - sent) * 1e3).collect();
        times.sort_by(f64::total_cmp);
        format!("{:.1}", times[(times.len() - 1) * percent / 100])
    };
    let by_region = |percent| [0, 1, 2].map(|region| times(region, percent)).join(", ");
    let admitted = answers.iter().filter(|one| one.2).count() as u64;
    println!(
        "| {name} | {} | {} | {admitted} | {:.1} % |",
        by_region(50),
        by_region(99),
        100.0 * float(LIMIT.saturating_sub(admitted)) / float(LIMIT)
    );
    if policy != "local" {
        assert!(admitted <= LIMIT + LIMIT / 3, "{admitted} of {LIMIT}");
    }
}

/// Requests at even intervals, each to a region by its part of the demand.
fn schedule() -> Vec<Arrival> {
    let mut noise = Noise::new(11);
    let arrival = |number: usize| {
        let drawn = float(noise.below(1000) as u64) / 1000.0;
        let replica = usize::from(drawn >= REGIONS[0].1) + usize::from(drawn >= REGIONS[0].1 + REGIONS[1].1);
        Arrival { at: float(number as u64) * SECONDS / float(REQUESTS as u64), replica, key: 0 }
    };
    (0..REQUESTS).map(arrival).collect()
}
