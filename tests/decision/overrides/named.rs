//! Overrides of one limit of a rule, and of a part of all: what the commands say, and what counts on.

use super::{replicas::soon, *};

const LISTS: &str = "
domain: shop
descriptors:
- key: user
  rate_limit:
  - {name: burst, unit: second, requests_per_unit: 1000}
  - {name: quota, unit: year, requests_per_unit: 8}
- {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
";

fn in_redis(redis: &Redis) -> Replica {
    let setup = Setup::new().rules("shop.yaml", LISTS).redis(&redis.env()).env("REPLICA_SYNC", "true");
    let replica = Replica::start(setup);
    replica.server.wait_until_healthy();
    replica
}

#[test]
fn an_override_of_one_limit_leaves_the_others_and_their_counters_everywhere() {
    let redis = Redis::single();
    let [one, other] = [in_redis(&redis), in_redis(&redis)];
    assert_eq!([(); 6].map(|()| one.ask("user", "ann").0), [OK; 6]);
    let set = ["override", "set", "shop", "user=ann", "--name", "burst", "--limit", "500/second"];
    assert_eq!(
        one.tollgate(&set),
        "shop user=ann (rule shop.user): limit \"burst\": 500 per second\n  \
         before  1,000 per second (burst), 8 per year (quota)\n  \
         after   500 per second (burst), 8 per year (quota)\n"
    );
    let numbers = |replica: &Replica| {
        let counters = replica.get("/api/v1/counters?domain=shop&descriptor=user=ann");
        let limits = counters["limits"].as_array().unwrap().clone();
        limits.iter().map(|one| one["requests_per_unit"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    soon("set", &other, |replica| numbers(replica) == [500, 8]);
    assert_eq!([(); 3].map(|()| other.ask("user", "ann").0), [OK, OK, OVER], "eight in a year in all");
    let list = one.tollgate(&["override", "list"]);
    assert!(list.contains("limit \"burst\": 500 per second"), "{list}");
    assert_eq!(one.get("/api/v1/overrides")["overrides"][0]["name"], "burst");

    let set = ["override", "set", "shop", "user=ann", "--scale", "200%", "--for", "1h"];
    let text = one.tollgate(&set);
    assert!(text.contains("scale to 200% until "), "{text}");
    assert!(text.contains("\n  before  500 per second (burst), 8 per year (quota)\n"), "{text}");
    assert!(text.ends_with("\n  after   2,000 per second (burst), 16 per year (quota)\n"), "{text}");
    soon("scaled", &other, |replica| numbers(replica) == [2000, 16]);
    assert_eq!(other.ask("user", "ann"), (OK, 7), "the counter continues");
    let csv = one.tollgate(&["override", "list", "--csv"]);
    assert!(csv.contains(",scale,"), "{csv}");
    let explained = one.tollgate(&["explain", "shop", "user=ann"]);
    for expected in
        ["override scale to 200% until ", "limit \"burst\": 2,000 per second", "limit \"quota\": 16 per year"]
    {
        assert!(explained.contains(expected), "{expected}: {explained}");
    }
    one.tollgate(&["override", "remove", "shop", "user=ann"]);
    soon("removed", &other, |replica| numbers(replica) == [1000, 8]);
    assert_eq!(other.ask("user", "ann").0, OVER, "nine of eight are counted");
}

#[test]
fn a_change_says_what_limited_before_and_a_preview_changes_nothing() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", LISTS));
    let set = |args: &[&str]| replica.tollgate(&[&["override", "set", "shop"], args].concat());
    let text = set(&["user=ann", "--limit", "10/second"]);
    assert!(text.contains("  before  1,000 per second (burst), 8 per year (quota)\n"), "{text}");
    assert!(
        text.ends_with("  after   10 per second (burst)\n"),
        "all others are gone, and it says so: {text}"
    );
    assert!(set(&["user=ann", "--block"]).ends_with("  before  10 per second (burst)\n  after   block\n"));
    assert!(set(&["user=ann", "--allow"]).ends_with("  before  block\n  after   allow\n"));
    set(&["user", "--name", "quota", "--scale", "50%"]);
    let text = set(&["user=bob", "--name", "burst", "--scale", "1%"]);
    let expected = "  before  1,000 per second (burst), 4 per year (quota)\n  after   10 per second (burst), 8 per year (quota)\n";
    assert!(text.ends_with(expected), "the override of all values was in force: {text}");

    let body = json!({"domain": "shop", "descriptor": "user=eve", "action": "scale", "scale": "50%", "name": "quota"});
    let headers = [("content-type", "application/json")];
    let path = "/api/v1/override-preview";
    let reply = http::send(replica.admin, "POST", path, &headers, body.to_string().as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let quota = |when: &str| reply.json()[when]["limits"][1]["requests_per_unit"].as_u64();
    assert_eq!([quota("before"), quota("after")], [Some(4), Some(4)]);
    assert_eq!(reply.json()["after"]["limits"][0]["name"], "burst");
    assert!(!replica.tollgate(&["override", "list"]).contains("user=eve"));
    let changes = replica.get("/api/v1/changes")["changes"].as_array().unwrap().clone();
    assert_eq!(changes.iter().filter(|one| one["action"] == "override_set").count(), 5, "{changes:?}");
}

#[test]
fn a_limit_that_a_rule_does_not_have_and_too_large_a_scale_are_refused() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", LISTS));
    for (args, code, expected) in [
        (&["user=ann", "--name", "brust", "--scale", "50%"][..], 1, "did you mean \"burst\"?; --force"),
        (&["plain=x", "--name", "burst", "--limit", "5/day"], 1, "none has a `name` in the rules"),
        (&["user=ann", "--scale", "0.5"], 2, "such as 50%"),
        (&["user=ann", "--name", "burst", "--block"], 2, "cannot be used with"),
        (&["user=ann", "--scale", "50%", "--limit", "5/day"], 2, "cannot be used with"),
    ] {
        let output = replica.run(&[&["override", "set", "shop"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", printed(&output));
        assert!(printed(&output).contains(expected), "{args:?}: {}", printed(&output));
    }
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
}

#[test]
fn the_metric_of_a_limit_follows_a_scale_of_the_whole_rule() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", LISTS));
    replica.tollgate(&["override", "set", "shop", "user", "--name", "quota", "--scale", "25%"]);
    let metrics = replica.server.metrics();
    let limit =
        |unit| metrics.get(&format!("tollgate_rule_limit{{domain=\"shop\",rule=\"user\",unit=\"{unit}\"}}"));
    assert_eq!([limit("second"), limit("year")], [Some(&1000.0), Some(&2.0)]);
    assert_eq!(metrics.get("tollgate_overrides{action=\"scale\"}"), Some(&1.0));
}

#[test]
fn a_service_is_explained_without_local_files() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", LISTS));
    replica.tollgate(&["override", "set", "shop", "user=ann", "--scale", "50%"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let explain = |replica: &Replica| {
        let admin = format!("http://127.0.0.1:{}", replica.admin);
        let mut command = Command::new(binary());
        command
            .args(["explain", "shop", "user=ann", "--admin", &admin])
            .env("RUNTIME_ROOT", elsewhere.path());
        printed(&command.output().unwrap())
    };
    let explains = || {
        let text = explain(&replica);
        for expected in
            ["matches rule shop.user", "shop.yaml:4", "override scale to 50%", "limit \"quota\": 4 per year"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    };
    explains();
    // The rules in force, and not those that were rejected.
    replica.server.write("shop.yaml", "domain: [");
    replica.server.wait_for_log(&["rules rejected"]);
    explains();
}
