//! Overrides by entry: every descriptor that has the entry, at any place, with and without rules, stores and replicas.

use super::*;

const RULES: &str = "
domain: shop
descriptors:
- {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000}}
- key: path
  descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: total, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: bucket, rate_limit: {unit: year, requests_per_unit: 3, algorithm: token_bucket}}
- {key: header, value: '/a/*', share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
";

const OTHER: &str = "
domain: other
descriptors:
- {key: ip, rate_limit: {unit: year, requests_per_unit: 1000}}
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).rules("other.yaml", OTHER)
}

fn on(redis: &Redis, policy: &str) -> Replica {
    let setup = setup().redis(&redis.env()).env("REPLICA_SYNC", "true").env("STORE_FAILURE_POLICY", policy);
    let replica = Replica::start(setup);
    replica.server.wait_until_healthy();
    replica
}

impl Replica {
    /// The overall code of a request with one descriptor.
    fn code(&self, domain: &str, entries: &[(&str, &str)]) -> Code {
        self.codes(domain, &[entries])
    }

    fn codes(&self, domain: &str, descriptors: &[&[(&str, &str)]]) -> Code {
        Code::try_from(self.server.ask(request(domain, descriptors)).unwrap().overall_code).unwrap()
    }

    /// Sets an override by entry.
    fn set(&self, domain: &str, entry: &str, action: &[&str]) -> String {
        self.tollgate(&[&["override", "set", domain, "--entry", entry], action].concat())
    }
}

const LOGIN: (&str, &str) = ("path", "/login");

#[test]
fn a_block_by_entry_meets_every_descriptor_that_has_it() {
    let replica = Replica::start(setup());
    let text = replica.set("shop", "remote_address=9.9.9.9", &["--block", "--for", "2d"]);
    assert!(text.starts_with("shop --entry remote_address=9.9.9.9: blocked until "), "{text}");
    assert!(text.contains("left)"), "{text}");
    let address = |value| ("remote_address", value);
    for (entries, expected) in [
        (&[address("9.9.9.9")][..], OVER),
        (&[LOGIN, address("9.9.9.9")], OVER),
        (&[address("9.9.9.9"), ("no", "rule"), ("has", "these")], OVER),
        (&[address("::ffff:9.9.9.9")], OVER),
        (&[address("9.9.9.9:4711")], OVER),
        (&[address("9.9.9.8")], OK),
        (&[("remote", "9.9.9.9")], OK),
        (&[LOGIN], OK),
    ] {
        assert_eq!(replica.code("shop", entries), expected, "{entries:?}");
    }
    assert_eq!(replica.code("other", &[address("9.9.9.9")]), OK, "another domain");
    let removed = replica.tollgate(&["override", "remove", "shop", "--entry", "remote_address=9.9.9.9"]);
    assert_eq!(removed, "removed shop --entry remote_address=9.9.9.9: block\n");
    assert_eq!(replica.code("shop", &[LOGIN, address("9.9.9.9")]), OK);
    let missing = replica.run(&["override", "remove", "shop", "--entry", "remote_address=9.9.9.9"]);
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(printed(&missing), "no override for shop --entry remote_address=9.9.9.9\n");
}

#[test]
fn a_network_or_a_prefix_meets_its_values_in_all_domains() {
    let replica = Replica::start(setup());
    replica.set("*", "remote_address=10.1.2.3/8", &["--block"]);
    replica.set("*", "remote_address=2001:db8:*", &["--block"]);
    replica.set("*", "remote_address=2001:db9::/32", &["--block"]);
    let list = replica.tollgate(&["override", "list"]);
    assert!(list.contains("--entry remote_address=10.0.0.0/8"), "{list}");
    for domain in ["shop", "other"] {
        for (value, expected) in [
            ("10.255.255.255", OVER),
            ("10.0.0.0", OVER),
            ("11.0.0.0", OK),
            ("2001:db8:1::1", OVER),
            ("2001:0db8:1::1", OK),
            ("2001:0DB9::1", OVER),
            ("[2001:db9::1]:443", OVER),
            // What looks like a network is no address.
            ("10.0.0.0/8", OK),
            ("010.0.0.1", OK),
            ("10.0.0.1, 11.0.0.1", OK),
            ("2001:db8:*", OVER),
            ("*", OK),
            ("", OK),
            ("\u{ff11}0.0.0.1", OK),
            (&"1".repeat(10_000), OK),
        ] {
            assert_eq!(replica.code(domain, &[("remote_address", value)]), expected, "{domain} {value}");
        }
    }
    assert_eq!(replica.code("none", &[("remote_address", "10.0.0.1")]), OK, "a domain without rules");
}

#[test]
fn a_limit_by_entry_has_one_counter_for_each_descriptor_that_nothing_else_uses() {
    for redis in [None, Some(Redis::single())] {
        let replica = match &redis {
            None => Replica::start(setup()),
            Some(redis) => on(redis, "error"),
        };
        // The rules' counters of the same descriptors and windows.
        replica.code("shop", &[("total", "x")]);
        replica.code("shop", &[("header", "/a/1")]);
        replica.set("shop", "total=*", &["--limit", "2/year"]);
        replica.set("shop", "header=/a/*", &["--limit", "2/year"]);
        replica.set("shop", "agent=bad*", &["--limit", "2/year", "--force"]);
        for entries in [
            &[("total", "x")][..],
            &[("total", "y")],
            &[("header", "/a/1")],
            &[("header", "/a/2")],
            &[("agent", "bad"), ("a", "b_c")],
            &[("agent", "bad_a"), ("b", "c")],
            &[("agent", "bad_a_b"), ("c", "")],
            &[("agent", "bad")],
        ] {
            assert_eq!([(); 3].map(|()| replica.code("shop", entries)), [OK, OK, OVER], "{entries:?}");
        }
        replica.tollgate(&["counter", "reset", "shop", "agent=bad"]);
        assert_eq!(replica.code("shop", &[("agent", "bad")]), OK);
        if let Some(redis) = &redis {
            let keys = redis.keys();
            let apart = keys.iter().filter(|key| key.contains("*/31536000#"));
            assert_eq!(apart.count(), 8, "{keys:?}");
        }
        replica.tollgate(&["override", "remove", "shop", "--entry", "total=*"]);
        assert_eq!([(); 5].map(|()| replica.code("shop", &[("total", "x")])), [OK, OK, OK, OK, OVER]);
    }
}

#[test]
fn a_limit_by_entry_uses_the_rules_algorithm_and_shadow_refuses_nobody() {
    let replica = Replica::start(setup());
    replica.set("shop", "bucket=x", &["--limit", "1/year"]);
    let text = replica.tollgate(&["counter", "get", "shop", "bucket=x"]);
    assert!(text.contains("token_bucket") && text.contains("override: limit 1 per year"), "{text}");
    replica.set("shop", "total=*", &["--shadow"]);
    assert_eq!([(); 7].map(|()| replica.code("shop", &[("total", "x")])), [OK; 7]);
    replica.set("shop", "total=*", &["--allow"]);
    let answer = replica.server.ask(request("shop", &[&[("total", "y")]])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, u32::MAX);
}

#[test]
fn a_blocked_request_neither_counts_nor_needs_the_store() {
    let mut redis = Redis::single();
    let replica = on(&redis, "error");
    replica.set("shop", "remote_address=9.9.9.9", &["--block"]);
    let blocked: &[&[(&str, &str)]] = &[&[("remote_address", "9.9.9.9")], &[("total", "all")]];
    assert_eq!([(); 20].map(|()| replica.codes("shop", blocked)), [OVER; 20]);
    let counters: Vec<_> = redis.keys().into_iter().filter(|key| key.starts_with("shop")).collect();
    assert!(counters.is_empty(), "{counters:?}");
    assert_eq!(replica.code("shop", &[("total", "all")]), OK, "others have the whole limit");
    redis.kill();
    assert_eq!([(); 20].map(|()| replica.codes("shop", blocked)), [OVER; 20]);
    eventually("other requests fail", || {
        let answer = replica.server.ask(request("shop", &[&[("total", "x")]]));
        holds(answer.is_err(), || format!("{answer:?}"))
    });
    let set = replica.run(&["override", "set", "shop", "--entry", "total=1", "--block"]);
    assert!(set.status.success() && printed(&set).contains("redis is away"), "{}", printed(&set));
    assert_eq!(replica.code("shop", &[("total", "1")]), OVER, "in force at once");
}

#[test]
fn two_replicas_apply_list_and_expire_it() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| on(&redis, "allow"));
    one.set("shop", "remote_address=10.0.0.0/8", &["--block", "--for", "1h", "--reason", "abuse"]);
    let is_blocked =
        |replica: &Replica| replica.code("shop", &[LOGIN, ("remote_address", "10.0.0.1")]) == OVER;
    assert!(is_blocked(&one));
    eventually("it is followed", || holds(is_blocked(&other), || other.server.process.log()));
    let listed = &other.get("/api/v1/overrides")["overrides"][0];
    assert_eq!(listed["entry"], json!({"key": "remote_address", "value": "10.0.0.0/8"}), "{listed}");
    assert_eq!((&listed["domain"], &listed["reason"]), (&"shop".into(), &"abuse".into()));
    clock.step(3601.0);
    for replica in [&one, &other] {
        eventually("it has ended", || holds(!is_blocked(replica), || replica.server.process.log()));
    }
    eventually("it is removed", || {
        let fields = redis.ask(&["HLEN", "{tollgate}:overrides"]).to_string();
        holds(fields.contains('1'), || fields.clone())
    });
}

#[test]
fn an_export_with_entries_imports_and_explains() {
    let replica = Replica::start(setup());
    replica.set("*", "remote_address=10.0.0.0/8", &["--block", "--until", "2099-01-01T00:00:00Z"]);
    replica.set("shop", "path=/a\\,b*", &["--limit", "7/day"]);
    replica.tollgate(&["domain", "set", "shop", "--shadow", "--reason", "test"]);
    let csv = replica.tollgate(&["override", "list", "--csv"]);
    let header = csv.lines().next().unwrap();
    assert_eq!(
        header,
        "id,domain,descriptor,entry,action,requests_per_unit,unit,calendar,name,scale,expires_at,reason,by"
    );
    assert_eq!(csv.lines().count(), 3, "switches are not exported: {csv}");
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), &csv).unwrap();
    let second = Replica::start(setup());
    second.tollgate(&["override", "import", file.path().to_str().unwrap()]);
    assert_eq!(second.tollgate(&["override", "list", "--csv"]), csv);
    assert_eq!(second.code("other", &[("remote_address", "10.0.0.1")]), OVER);
    let rules = second.server.rules_dir();
    let explain = |words: &[&str]| {
        let words = [&["explain", "--rules", rules.to_str().unwrap(), "shop"], words].concat();
        printed(&replica.run(&words))
    };
    let text = explain(&["path=/login,remote_address=10.0.0.1", "total=1"]);
    assert!(
        text.contains(
            "override block until 2099-01-01T00:00:00Z by * --entry remote_address=10.0.0.0/8: every"
        ),
        "{text}"
    );
    assert!(text.contains("switch shadow by domain shop: requests are counted and allowed"), "{text}");
    let text = explain(&["path=/a\\,bc"]);
    assert!(text.contains("override limit 7 per day by shop --entry path=/a\\,b*"), "{text}");
    let text = explain(&["--json", "x=1,remote_address=10.0.0.1"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let shown = &json["descriptors"][0]["override"];
    assert_eq!((&shown["domain"], &shown["entry"]["value"]), (&"*".into(), &"10.0.0.0/8".into()), "{text}");
}

#[test]
fn it_is_shown_with_the_decision_and_on_the_debug_port() {
    let replica = Replica::start(setup());
    replica.set("shop", "remote_address=9.9.9.9", &["--block"]);
    let answer = replica.server.ask(request("shop", &[&[LOGIN, ("remote_address", "9.9.9.9")]])).unwrap();
    let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
    assert!(metadata.contains("remote_address=9.9.9.9") && metadata.contains("blocked"), "{metadata}");
    let shown = replica.server.rules_shown().join("\n");
    assert!(shown.contains("# override shop --entry remote_address=9.9.9.9: block"), "{shown}");
    replica.tollgate(&["override", "set", "shop", "total=1", "--block"]);
    replica.code("shop", &[("total", "1")]);
    let shown = |key: &str| {
        let reply = replica.get(&format!("/api/v1/refusals?domain=shop&descriptor={key}"));
        reply["refusals"][0]["example"]["override"].clone()
    };
    let by_entry = shown("path=/login");
    assert_eq!(by_entry["entry"], json!({"key": "remote_address", "value": "9.9.9.9"}), "{by_entry}");
    let of_descriptor = shown("total=1");
    assert_eq!(of_descriptor["descriptor"], json!([{"key": "total", "value": "1"}]), "{of_descriptor}");
    let listed = replica.get("/api/v1/overrides?domain=shop&descriptor=total%3D1");
    assert_eq!(of_descriptor["id"], listed["overrides"][0]["id"]);
    let text = replica.tollgate(&["refusals"]);
    assert!(text.contains("of shop --entry remote_address=9.9.9.9)"), "{text}");
    let get = replica.tollgate_any(&["counter", "get", "shop", "path=/login,remote_address=9.9.9.9"]);
    assert!(get.contains("override: blocked until the override is removed"), "{get}");
    let metrics = replica.server.metrics();
    assert_eq!(metrics.get(r#"tollgate_overrides{action="block"}"#), Some(&2.0));
}

#[test]
fn an_entry_that_cannot_be_meant_is_refused() {
    let replica = Replica::start(setup());
    for (entry, expected) in [
        ("remote_address=10.0.0.0/33", "not a network; expected an address and the length of its prefix"),
        ("remote_address=10.0/8", "not a network"),
        ("remote_address=a*b", "a * is possible at the end only"),
        ("remote_address", "remote_address has no value; expected remote_address=VALUE"),
        ("remote_address=1,path=2", "expected one KEY=VALUE, got 2 entries"),
        ("=1", "has no key"),
        (&format!("remote_address={}", "x".repeat(5000)), "value has 5000 bytes; the maximum is 4096"),
    ] {
        let output = replica.run(&["override", "set", "shop", "--entry", entry, "--block", "--force"]);
        assert_eq!(output.status.code(), Some(2), "{entry}");
        assert!(printed(&output).contains(expected), "{entry}: {}", printed(&output));
    }
    let both = replica.run(&["override", "set", "shop", "total=1", "--entry", "total=1", "--block"]);
    assert!(printed(&both).contains("cannot be used with"), "{}", printed(&both));
    let neither = replica.run(&["override", "set", "shop", "--block"]);
    assert_eq!(neither.status.code(), Some(2));
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
}

#[test]
fn keys_and_values_of_any_characters_are_kept() {
    let replica = Replica::start(setup());
    for (key, value) in [("ключ", "знач*"), ("k,e=y", "a\"b\\c\nd"), ("\u{1b}[31m", "\u{202e}x"), ("k", "")]
    {
        let body = json!({"domain": "shop", "entry": {"key": key, "value": value}, "action": "block", "force": true});
        let answer = http::post(replica.admin, "/api/v1/overrides", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["entry"], body["entry"]);
        assert_eq!(
            replica.code("shop", &[("x", "y"), (key, value.trim_end_matches('*'))]),
            OVER,
            "{key} {value}"
        );
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let list = replica.tollgate(&["override", "list"]);
        assert!(list.contains(&id) && !list.contains('\u{1b}') && !list.contains('\u{202e}'), "{list}");
        replica.tollgate(&["override", "remove", &id]);
    }
}
