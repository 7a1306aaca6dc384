//! Failovers and moving slots under load: every request is answered in time, if necessary by policy, and soon by the
//! counters again.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use support::{
    eventually, holds,
    ports::free_port,
    process::printed,
    redis::{Cluster, Env, Redis, Sentinels, slot},
    server::{Server, Setup},
    steady::{Steady, Verdict},
};

use super::{Code, ENVOYS_PATIENCE, RULES, assert_in_time, by_policy, counter, decision, one, turn};

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

/// The slots of the first master at the start.
const SLOTS_OF_FIRST: u16 = 5461;

/// A master without slots, which `CLUSTER SLOTS` does not list.
fn join(cluster: &Cluster) -> Redis {
    let bus = free_port();
    let new = Redis::with(&["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]);
    let [port, its_bus] = [cluster.servers[0].port, cluster.bus].map(|port| port.to_string());
    new.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &its_bus]);
    let id = new.ask(&["CLUSTER", "MYID"]).to_string();
    eventually("every node knows the new master", || {
        let knows = |server: &Redis| server.ask(&["CLUSTER", "NODES"]).to_string().contains(&id);
        holds(cluster.servers.iter().all(knows), || new.ask(&["CLUSTER", "NODES"]).to_string())
    });
    eventually("the new master knows the slots", || {
        let info = new.ask(&["CLUSTER", "INFO"]).to_string();
        holds(info.contains("cluster_slots_assigned:16384") && info.contains("cluster_state:ok"), || {
            info.clone()
        })
    });
    new
}

const MOVED: &str = "
domain: d
descriptors:
  - {key: many, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: several, rate_limit: [{unit: year, requests_per_unit: 1000}, {unit: day, requests_per_unit: 1000}]}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_log}}
";

#[test]
fn a_migration_to_a_master_without_slots_fails_no_request_however_long_it_takes() {
    let cluster = Cluster::start(Duration::from_secs(15));
    let server = Setup::new().redis(&cluster.env()).rules("d.yaml", MOVED).start_healthy();
    let client = server.client();
    let new = join(&cluster);
    let id = new.ask(&["CLUSTER", "MYID"]).to_string();
    // Every key of the first master is asked of the new one, which has no slot yet.
    let old_id = cluster.servers[0].ask(&["CLUSTER", "MYID"]).to_string();
    let [mut from, mut to] = [&cluster.servers[0], &new].map(Redis::connect);
    for slot in 0..SLOTS_OF_FIRST {
        let slot = slot.to_string();
        to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old_id]).unwrap();
        from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id]).unwrap();
    }
    for key in ["many", "several", "bucket", "log"] {
        for value in 0..20 {
            for hits in 1..=2 {
                let answer = client.ask(one(key, &value.to_string()));
                let answer = answer
                    .unwrap_or_else(|status| panic!("{key} {value}: {status}\n{}", server.process.log()));
                assert_eq!(decision(&answer), (Code::Ok, 1000 - hits), "{key} {value}");
            }
        }
    }
    let there = new.ask(&["DBSIZE"]).number();
    assert!(there > 10, "about a third of the keys is there: {there}");
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("redirect") && !log.contains("error reply"), "{log}");
}

#[test]
fn a_reshard_by_redis_cli_to_a_new_master_fails_no_request() {
    /// Of each master, the slots that surely move: the first third of 600, but for what the division rounds.
    const MOVING: u16 = 199;
    let patience = Duration::from_secs(15);
    let cluster = Cluster::start(patience);
    let server = Setup::new().redis(&cluster.env()).rules("d.yaml", RULES).start_healthy();
    let moves = |user: &String| slot(&counter("many", user)) % SLOTS_OF_FIRST < MOVING;
    let users =
        |moving| (0..).map(|user| user.to_string()).filter(move |user| moves(user) == moving).take(20);
    let requests: Vec<_> = users(true).chain(users(false)).map(|user| one("many", &user)).collect();
    let new = join(&cluster);
    let load = Steady::start(server.ports.grpc, 200, patience, &requests, &one("control", "v"));
    let id = |server: &Redis| server.ask(&["CLUSTER", "MYID"]).to_string();
    let from: Vec<_> = cluster.servers[..3].iter().map(id).collect();
    let reshard = Command::new("redis-cli")
        .args(["--user", "tester", "--pass", "tester", "--no-auth-warning", "--cluster", "reshard"])
        .args([&*cluster.servers[0].address(), "--cluster-from", &from.join(",")])
        .args(["--cluster-to", &id(&new), "--cluster-slots", "600", "--cluster-yes"])
        .output()
        .expect("redis-cli runs");
    assert!(reshard.status.success(), "{}", printed(&reshard));
    // Redirections tell of it as long as requests meet them: the first node that is asked may not know it yet.
    eventually("the new master is known", || {
        let log = server.process.log().to_string();
        holds(log.contains(&new.address()), || log.clone())
    });
    let outcome = load.stop();
    let failed: Vec<_> = outcome.asked.iter().filter(|one| one.verdict != Verdict::Ok).collect();
    let all = outcome.asked.len();
    assert!(failed.is_empty(), "{} of {all} failed, the first: {:?}", failed.len(), failed[0]);
    assert!(new.ask(&["CLUSTER", "INFO"]).to_string().contains("cluster_size:4"), "it has slots");
    let log = server.final_log();
    assert!(log.matches("slots move between").count() <= 10, "one line in ten seconds: {log}");
}
