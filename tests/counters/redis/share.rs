//! The policy `share`: three replicas divide the limits while Redis is lost.

use std::thread;

use support::{
    clock::Clock,
    eventually, holds,
    redis::Redis,
    server::{Server, Setup},
};

use super::{Code, one};

const RULES: &str = "
domain: d
descriptors:
  - {key: exact, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: few, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: leased, rate_limit: {unit: hour, requests_per_unit: 2000, counting: leased}}
";

fn replica(redis: &Redis) -> Server {
    let setup =
        Setup::new().redis(&redis.env()).env("STORE_FAILURE_POLICY", "share").env("REPLICA_SYNC", "true");
    setup.env("GRPC_WORKERS", "1").rules("d.yaml", RULES).start_healthy()
}

fn wait_until_all_know(replicas: &[Server]) {
    for replica in replicas {
        eventually("the replica knows all", || {
            let known = replica.metrics().get("tollgate_share_replicas").copied();
            holds(known == Some(3.0), || format!("{known:?}"))
        });
    }
}

/// Sends this many requests to each replica at the same time. Returns how many were admitted.
fn admitted(replicas: &[Server], key: &str, times: usize) -> usize {
    let ask = |replica: &Server| {
        let client = replica.client();
        let answers = (0..times).map(|_| client.ask(one(key, "v")).expect("share answers").overall_code());
        answers.filter(|code| *code == Code::Ok).count()
    };
    thread::scope(|scope| {
        let asking: Vec<_> = replicas.iter().map(|replica| scope.spawn(move || ask(replica))).collect();
        asking.into_iter().map(|one| one.join().expect("every request is answered")).sum()
    })
}

#[test]
fn three_replicas_admit_the_limit_together_while_redis_is_killed_under_load() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let mut redis = Redis::single();
    let replicas = [(); 3].map(|()| replica(&redis));
    wait_until_all_know(&replicas);

    let first = admitted(&replicas, "leased", 200);
    assert_eq!(first, 600, "the limit is not reached");
    let in_the_middle = thread::scope(|scope| {
        let load = scope.spawn(|| admitted(&replicas, "leased", 1500));
        eventually("a part of the load was counted", || {
            let counted = redis.keys().iter().filter(|key| key.starts_with("d_leased")).count();
            holds(counted > 0, || "nothing is counted")
        });
        redis.kill();
        load.join().expect("every request is answered")
    });
    // What Redis had counted comes on top, as far as a replica did not know it.
    let all = first + in_the_middle;
    assert!(all <= 2000 + first, "{all} of 2000 in the window in which Redis was lost");

    clock.step(3600.0);
    assert_eq!(admitted(&replicas, "exact", 60), 100);
    assert_eq!(admitted(&replicas, "few", 10), 3, "a hit each");
    assert_eq!(admitted(&replicas, "leased", 1000), 2000);
    let shared = |replica: &Server| {
        let metrics = replica.metrics();
        let of = |name: &&String| {
            name.starts_with("tollgate_store_failure_decisions_total{") && name.contains("policy=\"share\"")
        };
        metrics.keys().filter(of).map(|name| metrics[name]).sum::<f64>()
    };
    assert!(replicas.iter().all(|replica| shared(replica) >= 1000.0));

    redis.start();
    eventually("the counters are in Redis again", || {
        admitted(&replicas, "exact", 1);
        holds(redis.keys().iter().any(|key| key.starts_with("d_exact")), || "no counter")
    });
    wait_until_all_know(&replicas);
}
