//! A counter is named by its own limit: it goes on when another limit is added beside it, and when an override replaces
//! the list that it belongs to.

use super::*;
use support::{memcached::Memcached, redis::Cluster};

const ALONE: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: fifteen, rate_limit: {unit: month, unit_multiplier: 15, requests_per_unit: 9}}
";

const BESIDE: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: [{unit: month, requests_per_unit: 1000}, {unit: year, requests_per_unit: 9}]
- key: fifteen
  rate_limit: [{unit: month, unit_multiplier: 15, requests_per_unit: 9}, {unit: year, requests_per_unit: 1000}]
";

const LIST: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: [{unit: month, requests_per_unit: 6}, {unit: year, requests_per_unit: 10}]
";

fn start(setup: Setup, rules: &str) -> Replica {
    let replica = Replica::start(setup.rules("shop.yaml", rules));
    replica.server.wait_until_healthy();
    replica
}

fn admitted(replica: &Replica, key: &str, asked: usize) -> usize {
    (0..asked).filter(|_| replica.ask(key, "v").0 == OK).count()
}

fn goes_on_beside_another_limit(setup: Setup) {
    let replica = start(setup, ALONE);
    for key in ["user", "fifteen"] {
        assert_eq!(admitted(&replica, key, 7), 7);
    }
    replica.server.write("shop.yaml", BESIDE);
    replica.server.wait_for_rule("requests_per_unit=1000");
    for key in ["user", "fifteen"] {
        assert_eq!(admitted(&replica, key, 5), 2, "{key}: 7 of 9 were used before");
    }
    replica.server.write("shop.yaml", ALONE);
    eventually("there is one limit", || {
        let shown = replica.server.rules_shown();
        holds(!shown.iter().any(|rule| rule.contains("1000")), || format!("{shown:?}"))
    });
    for key in ["user", "fifteen"] {
        assert_eq!(admitted(&replica, key, 5), 0, "{key}");
    }
}

#[test]
fn a_counter_in_memory_goes_on_when_a_limit_is_added_beside_it() {
    goes_on_beside_another_limit(Setup::new());
}

#[test]
fn a_counter_in_redis_goes_on_when_a_limit_is_added_beside_it() {
    for format in ["compatible", "unambiguous"] {
        for mode in ["exact", "leased"] {
            let redis = Redis::single();
            let setup = Setup::new().redis(&redis.env()).env("COUNTER_KEY_FORMAT", format);
            goes_on_beside_another_limit(setup.env("COUNTING", mode));
        }
    }
}

#[test]
fn a_counter_in_memcached_goes_on_when_a_limit_is_added_beside_it() {
    let memcached = Memcached::single();
    goes_on_beside_another_limit(memcached.setup());
}

fn goes_on_under_an_override(setup: Setup) {
    let replica = start(setup, LIST);
    assert_eq!(admitted(&replica, "user", 8), 6);
    let set = |limit: &str| replica.tollgate(&["override", "set", "shop", "user=v", "--limit", limit]);
    set("8/month");
    assert_eq!(admitted(&replica, "user", 5), 2, "6 of 8 in the month were used before");
    set("9/year");
    assert_eq!(admitted(&replica, "user", 5), 3, "6 of 9 in the year were used before");
    replica.tollgate(&["override", "remove", "shop", "user=v"]);
    assert_eq!(admitted(&replica, "user", 5), 0, "8 of 6 in the month were used");
}

#[test]
fn an_override_of_a_list_goes_on_with_the_counter_of_the_same_window() {
    goes_on_under_an_override(Setup::new());
    let redis = Redis::single();
    goes_on_under_an_override(Setup::new().redis(&redis.env()));
    let cluster = Cluster::start(Duration::from_secs(15));
    goes_on_under_an_override(Setup::new().redis(&cluster.env()).env("REDIS_TIMEOUT", "5s"));
    let memcached = Memcached::single();
    goes_on_under_an_override(memcached.setup());
}

#[test]
fn open_holds_reserve_when_a_limit_is_added_beside_theirs() {
    let hold = "hold: {amount: 40, ttl: 10m}";
    let alone = format!("{{unit: year, requests_per_unit: 100, {hold}}}");
    let rules = |limits: &str| format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {limits}}}]\n");
    let beside = rules(&format!("[{{unit: month, requests_per_unit: 1000, {hold}}}, {alone}]"));
    let redis = Redis::single();
    for setup in [Setup::new(), Setup::new().redis(&redis.env())] {
        let replica = start(setup, &rules(&alone));
        assert_eq!(admitted(&replica, "user", 3), 2);
        replica.server.write("shop.yaml", &beside);
        replica.server.wait_for_rule("requests_per_unit=1000");
        assert_eq!(admitted(&replica, "user", 2), 0, "80 of 100 are held");
    }
}

#[test]
fn what_begins_at_0_is_said_by_check_and_by_the_reload() {
    let replica = start(Setup::new(), ALONE);
    let dir = replica.server.dir();
    for (name, rules) in [("alone.yaml", ALONE), ("beside.yaml", BESIDE), ("list.yaml", LIST)] {
        std::fs::write(dir.join(name), rules).unwrap();
    }
    let check = |before: &str, after: &str, redis_type: &str| {
        let mut command = Command::new(binary());
        let url = if redis_type == "cluster" { "127.0.0.1:6379,127.0.0.1:6380" } else { "127.0.0.1:6379" };
        command.current_dir(dir).args(["check", "--before", before, after]);
        command.env("REDIS_TYPE", redis_type).env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", url);
        printed(&command.output().unwrap())
    };
    let note = |rule: &str, limit: &str| format!("the counters of {limit} begin at 0\n  --> shop.{rule}");
    let single = check("alone.yaml", "beside.yaml", "SINGLE");
    assert!(single.contains("OK, hash ") && !single.contains("begin at 0"), "{single}");
    let in_cluster = check("alone.yaml", "beside.yaml", "cluster");
    for expected in [note("user", "9 per year"), note("fifteen", "9 per 15 months")] {
        assert!(in_cluster.contains(&expected), "{in_cluster}");
    }
    // A month alone, then a year beside it.
    std::fs::write(dir.join("month.yaml"), ALONE.replace("unit: year", "unit: month")).unwrap();
    let text = check("month.yaml", "list.yaml", "SINGLE");
    assert!(text.contains(&note("user", "6 per month")), "{text}");
    let bad = check("none.yaml", "list.yaml", "SINGLE");
    assert!(bad.contains("--before none.yaml: ") && bad.contains("No such file"), "{bad}");

    let wait_for_change = |expected: &str| {
        eventually("the reload is a change", || {
            let changes = replica.get("/api/v1/changes").to_string();
            holds(changes.contains(expected), || changes.clone())
        });
    };
    replica.server.write("shop.yaml", &ALONE.replace("unit: year", "unit: month"));
    wait_for_change("9 per month");
    replica.server.write("shop.yaml", LIST);
    wait_for_change("6 per month, 10 per year; 6 per month begins at 0");
}
