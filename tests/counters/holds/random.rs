//! Twelve callers hold, settle, end and forget at random, through two replicas on one Redis.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;

use super::Holder;
use crate::support::{
    redis::Redis,
    server::{Server, Setup},
};

/// A hold costs at most what it holds, so that the limit is the bound.
const RULES: &str = "
domain: d
descriptors:
  - key: budget
    rate_limit: {unit: year, requests_per_unit: 20000, hold: {amount: 40, ttl: 2s, unknown: held}}
";

const LIMIT: u64 = 20_000;

fn caller(servers: &[Server; 2], seed: u64, most: &AtomicU64, until: Instant) {
    let mut rng = Rng::with_seed(seed);
    let holders = servers.each_ref().map(Holder::of);
    while Instant::now() < until {
        let amount = rng.u64(1..80);
        let Some(id) = holders[rng.usize(..2)].hold_hits("budget", "team", amount) else {
            let (spent, held) = holders[0].seen("budget", "team");
            most.fetch_max(spent + held, Relaxed);
            if held == 0 && spent > LIMIT * 99 / 100 {
                return;
            }
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let holder = &holders[rng.usize(..2)];
        match rng.u8(..10) {
            0 => holder.end(&id),
            // The client vanished: the hold expires.
            1 => {}
            _ => holder.settle(&id, rng.u64(..=amount)),
        }
        let (spent, held) = holder.seen("budget", "team");
        most.fetch_max(spent + held, Relaxed);
    }
}

#[test]
fn random_holds_of_twelve_callers_use_the_limit_and_never_exceed_it() {
    let redis = Redis::single();
    let setup = Setup::new()
        .redis(&redis.env())
        .env("RESPONSE_DYNAMIC_METADATA", "true")
        .env("RESPONSE_DYNAMIC_METADATA_LIMITS", "true")
        .rules("d.yaml", RULES);
    let servers = [setup.clone().start_healthy(), setup.start_healthy()];
    let (most, until) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(60));
    thread::scope(|threads| {
        for seed in 0..12 {
            let (servers, most) = (&servers, &most);
            threads.spawn(move || caller(servers, seed, most, until));
        }
    });
    let (spent, _) = Holder::of(&servers[0]).seen("budget", "team");
    assert!(most.load(Relaxed) <= LIMIT, "{most:?}");
    assert!(spent <= LIMIT && spent > LIMIT * 99 / 100, "{spent}");
    assert_eq!(servers[0].count("tollgate_holds_overspent_hits_total"), 0);
}
