//! Overrides, resets and refunds while another server becomes the one that owns their keys and their channel.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;
use support::{
    proxy::Proxy,
    redis::{Cluster, slot},
};

const TAG: &str = "{tollgate}";

/// Two replicas with over-limit caches.
fn two(env: &Env) -> [Replica; 2] {
    [(); 2].map(|()| {
        let setup = Setup::new().rules("shop.yaml", RULES).redis(env).env("REPLICA_SYNC", "true");
        let replica = Replica::start(setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000"));
        replica.server.wait_until_healthy();
        replica
    })
}

/// Resets of one replica reach the other one.
fn resets_arrive([one, other]: &[Replica; 2]) {
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..3 {
        let value = format!("v{}", ROUNDS.fetch_add(1, Relaxed));
        assert_eq!([(); 4].map(|()| ask(other, &value)), [OK, OK, OK, OVER]);
        eventually("the reset is done", || {
            let reply = reset(one, &value);
            holds(reply["error"] == Value::Null && reply["warning"] == Value::Null, || reply.to_string())
        });
        eventually("the other replica forgets that it was over its limit", || {
            holds(ask(other, &value) == OK, || other.server.process.log())
        });
    }
}

/// The answer of a connection that has found the master.
fn ask(replica: &Replica, value: &str) -> Code {
    let asked = || replica.server.ask(request("shop", &[&[("user", value)]]));
    eventually("the counters answer", || {
        asked().map(|answer| answer.overall_code()).map_err(|error| error.to_string())
    })
}

fn reset(replica: &Replica, value: &str) -> Value {
    let body = json!({"domain": "shop", "descriptor": format!("user={value}")}).to_string();
    let headers = [("content-type", "application/json")];
    http::send(replica.admin, "POST", "/api/v1/counters/reset", &headers, body.as_bytes()).unwrap().json()
}

fn set(replica: &Replica, value: &str) -> (u16, String) {
    let body = json!({"domain": "shop", "descriptor": format!("client={value}"), "action": "block"});
    let headers = [("content-type", "application/json")];
    let body = body.to_string();
    let reply = http::send(replica.admin, "POST", "/api/v1/overrides", &headers, body.as_bytes()).unwrap();
    (reply.status, reply.text())
}

/// The subscribers of the channel at a server become this many.
fn subscribers(redis: &Redis, number: &str) {
    eventually("the replicas follow the channel at this server", || {
        let seen = redis.ask(&["PUBSUB", "NUMSUB", "{tollgate}:changes"]).words();
        holds(seen.get(1).is_some_and(|seen| seen == number), || format!("{seen:?}"))
    });
}

#[test]
fn resets_arrive_after_the_node_that_had_the_channel_has_left_its_cluster() {
    let cluster = Cluster::start(Duration::from_secs(15));
    let replicas = two(&cluster.env());
    let old = cluster.owner(slot(TAG));
    let port = old.port;
    subscribers(old, "2");
    let index =
        cluster.servers.iter().position(|server| server.port == port).expect("it is one of the masters");
    let to = &cluster.servers[(index + 1) % 3];
    // All of its slots become those of another node, and the others forget the node.
    let [first, last] = [index, index + 1].map(|part| part * 16_384 / 3);
    let (first, last) = (first.to_string(), (last - 1).to_string());
    for server in &cluster.servers {
        server.ask(&["CLUSTER", "DELSLOTSRANGE", &first, &last]);
    }
    to.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    to.ask(&["CLUSTER", "BUMPEPOCH"]);
    for server in &cluster.servers[..3] {
        eventually("the cluster is whole again", || {
            let info = server.ask(&["CLUSTER", "INFO"]).to_string();
            let is_whole = info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384");
            holds(is_whole, || info.clone())
        });
    }
    let id = old.ask(&["CLUSTER", "MYID"]).to_string();
    for server in cluster.servers.iter().filter(|server| server.port != port) {
        server.ask(&["CLUSTER", "FORGET", &id]);
    }
    subscribers(to, "2");
    subscribers(old, "0");
    resets_arrive(&replicas);
}

#[test]
fn a_reset_that_reaches_no_replica_or_not_all_says_so() {
    let redis = Redis::single();
    let replicas = two(&redis.env());
    eventually("both are listed", || {
        let listed = replicas[0].get("/api/v1/replicas");
        holds(listed["replicas"].as_array().map_or(0, Vec::len) == 2, || listed.to_string())
    });
    resets_arrive(&replicas);
    // The subscriptions do not come back.
    redis.ask(&["ACL", "SETUSER", "default", "-subscribe"]);
    redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    subscribers(&redis, "0");
    let warning = reset(&replicas[0], "x")["warning"].to_string();
    assert!(warning.contains("other replicas were not notified"), "{warning}");
    // One that follows the channel is not both.
    redis.ask(&["ACL", "SETUSER", "default", "+subscribe"]);
    subscribers(&redis, "2");
    resets_arrive(&replicas);
    replicas[1].server.process.signal("STOP");
    redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    subscribers(&redis, "1");
    let warning = reset(&replicas[0], "y")["warning"].to_string();
    replicas[1].server.process.signal("CONT");
    assert!(warning.contains("1 of 2 replicas"), "{warning}");
}

#[test]
fn overrides_change_after_another_server_has_taken_over_behind_one_address() {
    let servers = [Redis::single(), Redis::single()];
    let proxy = Proxy::to(servers[0].port);
    let replicas = two(&support::redis::tcp(&proxy.address()));
    assert_eq!(set(&replicas[0], "before").0, 200);
    subscribers(&servers[0], "2");
    servers[1].ask(&["REPLICAOF", "127.0.0.1", &servers[0].port.to_string()]);
    eventually("the replica has the overrides", || {
        let fields = servers[1].ask(&["HLEN", "{tollgate}:overrides"]).to_string();
        holds(fields == "2", || fields.clone())
    });
    // Open connections stay on the server that was the master.
    proxy.turn_to(servers[1].port);
    servers[1].ask(&["REPLICAOF", "NO", "ONE"]);
    servers[0].ask(&["REPLICAOF", "127.0.0.1", "1"]);
    for (round, replica) in replicas.iter().cycle().take(4).enumerate() {
        let (status, text) = set(replica, &format!("after{round}"));
        assert_eq!(status, 200, "{text}");
    }
    subscribers(&servers[1], "2");
    resets_arrive(&replicas);
    let fields = servers[1].ask(&["HLEN", "{tollgate}:overrides"]).to_string();
    assert_eq!(fields, "6", "the changes and the version");
}
