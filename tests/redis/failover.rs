//! Failovers and moving slots under load: every request is answered in time, if necessary by policy, and soon by the
//! counters again.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    eventually, holds,
    redis::{Cluster, Env, Sentinels, slot},
    server::{Server, Setup},
    steady::{Steady, Verdict},
};

use super::{ENVOYS_PATIENCE, RULES, assert_in_time, by_policy, counter, of_kind, one, turn};

/// The time until counters decide again after a failover.
const SECONDS: Duration = Duration::from_secs(3);

/// A service with default timeouts that allows requests without counters.
fn start(env: &Env) -> Server {
    let setup = Setup::new().redis(env).unset("REDIS_TIMEOUT").unset("REDIS_CONNECT_TIMEOUT");
    setup.env("STORE_FAILURE_POLICY", "allow").rules("d.yaml", RULES).start_healthy()
}

#[test]
fn a_replica_takes_over_under_sentinels() {
    let _turn = turn();
    let mut sentinels = Sentinels::start();
    let server = start(&sentinels.env());
    let load = steady(&server);
    sentinels.fail_over();
    counts_again(&server, &|| sentinels.master().counter(&counter("many", "v")));
    assert_served(load);
}

#[test]
fn a_replica_takes_over_in_a_cluster() {
    let _turn = turn();
    let mut cluster = Cluster::start(Duration::from_millis(500));
    let server = start(&cluster.env());
    let load = steady(&server);
    cluster.fail_over(slot(&counter("many", "v")));
    counts_again(&server, &|| cluster.counter(&counter("many", "v")));
    assert_served(load);
}

/// A hundred requests a second.
fn steady(server: &Server) -> Steady {
    let (requests, control) = ([one("many", "v")], one("control", "v"));
    let load = Steady::start(server.ports.grpc, 100, ENVOYS_PATIENCE, &requests, &control);
    thread::sleep(Duration::from_millis(500));
    load
}

fn counts_again(server: &Server, counter: &dyn Fn() -> i64) {
    let start = Instant::now();
    let counted = counter();
    eventually("the new master counts", || {
        let now = counter();
        holds(now > counted, || format!("{now}\n{}", server.process.log()))
    });
    // With other tests running, many replies take longer than the timeout of 10 ms.
    eventually("counters make most decisions", || {
        let before = by_policy(server);
        thread::sleep(Duration::from_millis(300));
        let more = by_policy(server) - before;
        holds(more < 10.0, || format!("{more} of 30 are made without"))
    });
    assert!(start.elapsed() < SECONDS, "counters decided again after {:?}", start.elapsed());
    assert!(by_policy(server) > 0.0, "without a master the policy decides");
}

fn assert_served(load: Steady) {
    let outcome = load.stop();
    assert_in_time(&outcome, ENVOYS_PATIENCE);
    let failed =
        outcome.asked.iter().filter(|one| !matches!(one.verdict, Verdict::Ok | Verdict::Error(4, _)));
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{} were not let pass, the first: {:?}", failed.len(), failed[0]);
}

#[test]
fn moving_slots_fail_no_request_and_lose_no_hit() {
    const USERS: usize = 12;
    // Long enough that neither a failover nor a timeout occurs.
    let patience = Duration::from_secs(15);
    let cluster = Cluster::start(patience);
    let server = Setup::new().redis(&cluster.env()).rules("d.yaml", RULES).start_healthy();
    let users: Vec<_> = (0..USERS).map(|user| user.to_string()).collect();
    let requests: Vec<_> = users.iter().map(|user| one("many", user)).collect();
    let load = Steady::start(server.ports.grpc, 400, patience, &requests, &one("control", "v"));
    thread::sleep(Duration::from_millis(300));

    for user in &users {
        let slot = slot(&counter("many", user));
        let from = cluster.owner(slot).port;
        let masters = &cluster.servers[..3];
        let at = masters.iter().position(|master| master.port == from).expect("it is one of the first three");
        cluster.move_slot(slot, &masters[(at + 1) % 3]);
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_millis(300));

    let outcome = load.stop();
    let failed: Vec<_> = outcome.asked.iter().filter(|one| one.verdict != Verdict::Ok).collect();
    let all = outcome.asked.len();
    assert!(failed.is_empty(), "{} of {all} failed, the first: {:?}", failed.len(), failed[0]);
    for (user, name) in users.iter().enumerate() {
        let count = i64::try_from(of_kind(&outcome, user).count()).expect("it is small");
        assert_eq!(cluster.counter(&counter("many", name)), count, "hits of {name}");
    }
}
