//! A Redis that lost its last changes: a restart from a snapshot, which is to the replicas what a failover is to a master
//! without the last writes.

use super::*;

const HASH: &str = "{tollgate}:overrides";
/// Two replicas that both know this override of each client.
fn two_with(redis: &Redis, clients: &[&str]) -> [Replica; 2] {
    let replicas = [(); 2].map(|()| Replica::on(redis));
    eventually("both follow redis", || {
        let channels = redis.ask(&["PUBSUB", "NUMSUB", "{tollgate}:changes"]).to_string();
        holds(channels.contains('2'), || channels.clone())
    });
    for client in clients {
        block(&replicas[0], client);
    }
    agree(&replicas, clients, &[]);
    replicas
}

fn block(replica: &Replica, client: &str) {
    replica.tollgate(&["override", "set", "shop", &format!("client={client}"), "--block"]);
}

fn remove(replica: &Replica, client: &str) {
    replica.tollgate(&["override", "remove", "shop", &format!("client={client}")]);
}

/// Waits until all replicas block these clients and not the others.
#[track_caller]
fn agree(replicas: &[Replica], blocked: &[&str], free: &[&str]) {
    eventually("all replicas agree", || {
        for (number, replica) in replicas.iter().enumerate() {
            let states =
                |clients: &[&str]| clients.iter().map(|one| replica.is_blocked(one)).collect::<Vec<_>>();
            let (blocked, free) = (states(blocked), states(free));
            holds(blocked.iter().all(|is| *is) && free.iter().all(|is| !*is), || {
                format!("replica {number}: {blocked:?} {free:?}\n{}", replica.server.process.log())
            })?;
        }
        Ok(())
    });
}

/// Waits until Redis has this many overrides.
fn wait_for_overrides(redis: &Redis, replicas: &[Replica], count: i64) {
    eventually("redis has the overrides", || {
        let fields = redis.ask(&["HLEN", HASH]).number();
        // One field is the version.
        holds(fields == count + 1, || {
            let logs: String = replicas.iter().map(|one| one.server.process.log().to_string()).collect();
            format!("{fields} fields\n{logs}")
        })
    });
}

/// How often these replicas have written lost changes back.
fn written_back(replicas: &[Replica]) -> usize {
    let count = |one: &Replica| one.server.process.log().to_string().matches("wrote them back").count();
    replicas.iter().map(count).sum()
}

#[test]
fn changes_that_redis_lost_are_written_back_once() {
    let mut redis = Redis::single();
    let replicas = two_with(&redis, &["kept", "removed"]);
    redis.ask(&["SAVE"]);
    block(&replicas[0], "new");
    remove(&replicas[1], "removed");
    replicas[0].tollgate(&["override", "set", "shop", "client=kept", "--allow"]);
    agree(&replicas, &["new"], &["kept", "removed"]);
    redis.kill();
    redis.start();
    assert_eq!(redis.ask(&["HLEN", HASH]).number(), 3, "both are back, and blocked");
    wait_for_overrides(&redis, &replicas, 2);
    // Two comparisons of versions.
    std::thread::sleep(Duration::from_secs(5));
    agree(&replicas, &["new"], &["kept", "removed"]);
    assert_eq!(written_back(&replicas), 1);
    let fresh = Replica::on(&redis);
    agree(&[fresh], &["new"], &["kept", "removed"]);
    // Changes are published and applied as before.
    block(&replicas[1], "later");
    agree(&replicas, &["new", "later"], &["kept", "removed"]);
}

#[test]
fn an_import_of_which_redis_lost_a_part_is_aborted() {
    let mut redis = Redis::single();
    let replicas = two_with(&redis, &["one"]);
    let call = |method: &str, path: &str, body: &str| {
        let headers = [("content-type", "application/x-ndjson")];
        let reply = http::send(replicas[0].admin, method, path, &headers, body.as_bytes()).unwrap();
        (reply.status, reply.json())
    };
    let line = |n| format!("{{\"domain\":\"shop\",\"descriptor\":\"client=i{n}\",\"action\":\"block\"}}\n");
    let lines = |range: std::ops::Range<u32>| range.map(line).collect::<Vec<_>>().concat();
    for method in ["POST", "PUT"] {
        let begun = call("POST", "/api/v1/imports", "").1;
        let import = format!("/api/v1/imports/{}", begun["import"].as_str().unwrap());
        assert_eq!(call("POST", &format!("{import}?overrides=0"), &lines(0..700)).1["overrides"], 700);
        redis.ask(&["SAVE"]);
        assert_eq!(
            call("POST", &format!("{import}?overrides=700"), &lines(700..1_400)).1["overrides"],
            1_400
        );
        redis.kill();
        redis.start();
        let body = if method == "POST" { lines(1_400..1_500) } else { String::new() };
        let (status, reply) = eventually("redis is reachable", || {
            let (status, reply) = call(method, &format!("{import}?overrides=1400"), &body);
            holds(status != 503, || reply.to_string()).map(|()| (status, reply.clone()))
        });
        assert_eq!(status, 409, "{reply}");
        assert!(reply["error"].as_str().unwrap().contains("700 of the import's 1400"), "{reply}");
        assert!(redis.keys().iter().all(|key| !key.contains("import")), "{:?}", redis.keys());
    }
    assert!(!replicas[1].is_blocked("i7"));
}

#[test]
fn overrides_that_expire_while_redis_is_unreachable_are_removed_from_it_later() {
    let redis = Redis::single();
    let one = Replica::on(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block", "--for", "2s"]);
    one.tollgate(&["override", "set", "shop", "client=bob", "--block", "--for", "1h"]);
    redis.freeze();
    one.server.wait_for_log(&["override expired"]);
    redis.thaw();
    eventually("redis has one override, and the version", || {
        let fields = redis.ask(&["HLEN", "{tollgate}:overrides"]).number();
        holds(fields == 2, || format!("{fields}: {}", one.server.process.log()))
    });
    assert!(one.is_blocked("bob"));
}

#[test]
fn a_switch_of_one_replica_is_not_written_to_an_empty_redis() {
    let redis = Redis::single();
    let one = Replica::on(&redis);
    one.tollgate(&[
        "domain",
        "set",
        "shop",
        "--on-store-failure",
        "allow",
        "--this-replica",
        "--reason",
        "x",
    ]);
    let compared = redis.calls("hget");
    eventually("it has compared its overrides with those of redis", || {
        let more = redis.calls("hget") - compared;
        holds(more >= 3, || more.to_string())
    });
    assert!(!redis.keys().iter().any(|key| key.contains("overrides")), "{:?}", redis.keys());
    assert!(!one.server.final_log().contains("lost"));
}
