//! The set-ups themselves do what the other tests rely on: they fail over, and slots move.

use std::time::Duration;

use crate::support::redis::{Cluster, Redis, Reply, Sentinels, slot};

#[test]
fn a_server_stops_and_comes_back_on_its_port() {
    let mut redis = Redis::single();
    redis.ask(&["SET", "k", "1"]);
    assert_eq!(redis.counter("k"), 1);
    redis.kill();
    assert!(redis.try_ask(&["PING"]).is_err());
    redis.start();
    assert_eq!(redis.keys(), [""; 0], "nothing was written to disk");

    redis.freeze();
    assert!(redis.try_ask(&["PING"]).is_err());
    redis.thaw();
    redis.ask(&["PING"]);
}

#[test]
fn sentinels_replace_a_master() {
    let mut sentinels = Sentinels::with(&[], Some("hush"));
    let before = sentinels.master().port;
    let t = sentinels.fail_over();
    println!("sentinel {t:?}");
    assert_ne!(sentinels.master().port, before);
    assert_eq!(sentinels.master().ask(&["INCR", "k"]), Reply::Integer(1));
}

#[test]
fn a_cluster_replaces_a_master_and_moves_slots() {
    let s = std::time::Instant::now();
    let mut cluster = Cluster::start(Duration::from_millis(500));
    println!("cluster start {:?}", s.elapsed());
    let slot = slot("k");
    let before = cluster.owner(slot).port;
    let to = cluster.servers[..3].iter().find(|server| server.port != before).unwrap();
    cluster.owner(slot).ask(&["SET", "k", "5"]);
    cluster.move_slot(slot, to);
    assert_eq!(cluster.owner(slot).port, to.port);
    assert_eq!(cluster.counter("k"), 5);

    let before = cluster.owner(slot).port;
    let t = cluster.fail_over(slot);
    println!("cluster {t:?}");
    assert_ne!(cluster.owner(slot).port, before);
}
