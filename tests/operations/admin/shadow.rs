//! Whom a limit in shadow mode would refuse: by key, one by one, by rule, and on all replicas.

use serde_json::{Value, json};

use support::{
    client::request,
    eventually, holds, http,
    process::{assert_exit, printed},
    redis::Redis,
    server::Setup,
};

use super::{Admin, RULES, setup};

/// The limit is 2 an hour.
fn shadow_rules() -> String {
    RULES.replace("  - key: user\n", "  - key: user\n    shadow_mode: true\n")
}

/// Allowed, refused and shadowed hits of a user.
fn hits(admin: &Admin, user: &str) -> Option<[u64; 3]> {
    let top = admin.get(&format!("/api/v1/top?domain=shop&descriptor=user%3D{user}"));
    let key = top["keys"].get(0)?;
    Some(["allowed", "refused", "shadowed"].map(|name| key[name].as_u64().unwrap()))
}

fn refused(admin: &Admin, query: &str) -> Vec<(String, u64)> {
    let reply = admin.get(&format!("/api/v1/refusals?{query}"));
    let user = |one: &Value| one["descriptor"][0]["value"].as_str().unwrap().to_owned();
    reply["refusals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (user(one), one["count"].as_u64().unwrap()))
        .collect()
}

fn rule_hits(admin: &Admin, outcome: &str) -> Option<f64> {
    let name = format!("tollgate_rule_hits_total{{domain=\"shop\",rule=\"user\",outcome=\"{outcome}\"}}");
    admin.server.metrics().get(&name).copied()
}

#[test]
fn shadow_mode_names_the_clients_that_it_would_refuse() {
    let (setup, port) = setup();
    let setup = setup.rules("shop.yaml", &shadow_rules()).env("METRICS_TOP_KEYS", "5");
    let admin = Admin { server: setup.start(), port };
    for (user, times) in [("ann", 7), ("bob", 2), ("carl", 1)] {
        assert_eq!(admin.ask(user, times), 0);
    }
    assert_eq!(["ann", "bob"].map(|user| hits(&admin, user)), [Some([2, 0, 5]), Some([2, 0, 0])]);
    let top = admin.run(&["top", "--rule", "shop.user"]);
    assert_exit(&top, 0, &["SHADOWED", "user=ann          0         5        2", "allowed by shadow mode"]);
    assert!(!printed(&top).contains("user=bob"), "{}", printed(&top));
    assert_exit(&admin.run(&["top", "--by", "shadowed"]), 0, &["user=ann"]);

    assert_exit(&admin.run(&["refusals"]), 1, &["no refusals"]);
    assert_exit(
        &admin.run(&["refusals", "--shadow"]),
        0,
        &["shop user=ann 5 requests\n  over 2 per hour, allowed by shadow mode"],
    );
    assert_eq!(refused(&admin, "shadowed=true"), [("ann".to_owned(), 5)]);
    let one_by_one = admin.get("/api/v1/refusals?shadowed=true&after=0&descriptor=user%3Dann");
    assert_eq!(one_by_one["refusals"].as_array().unwrap().len(), 5);
    let one = &one_by_one["refusals"][0];
    assert_eq!((&one["code"], &one["shadowed"], &one["count"]), (&json!("ok"), &json!(true), &json!(7)));

    let metrics = admin.server.metrics();
    let of_key = "tollgate_top_shadowed_hits{domain=\"shop\",rule=\"user\",descriptor=\"user=ann\"}";
    assert_eq!(metrics.get(of_key), Some(&5.0), "{:?}", metrics.keys());
    assert_eq!(
        ["shadow", "over_limit", "allowed"].map(|outcome| rule_hits(&admin, outcome)),
        [Some(5.0), Some(0.0), Some(5.0)]
    );

    // The mode ends.
    admin.server.write("shop.yaml", RULES);
    admin.server.wait_for_rule("shop.user: unit=HOUR requests_per_unit=2, shadow_mode: false");
    assert_eq!(admin.ask("ann", 3), 3);
    assert_eq!(hits(&admin, "ann"), Some([2, 3, 5]));
    assert_eq!(refused(&admin, ""), [("ann".to_owned(), 3)]);
    assert_eq!(refused(&admin, "shadowed=true"), [("ann".to_owned(), 5)]);
    assert_eq!(rule_hits(&admin, "over_limit"), Some(3.0));
}

#[test]
fn every_shadow_mode_counts_as_one() {
    let shadow_of = |prepare: &dyn Fn(Setup) -> Setup, change: Option<(&str, &str)>| {
        let (setup, port) = setup();
        let admin = Admin { server: prepare(setup).start(), port };
        if let Some((path, body)) = change {
            let set = http::post(port, path, body);
            assert_eq!(set.status, 200, "{}", set.text());
        }
        assert_eq!(admin.ask("ann", 6), 0);
        let listed = refused(&admin, "shadowed=true");
        assert_eq!((listed, refused(&admin, "")), (vec![("ann".to_owned(), 4)], vec![]));
        assert_eq!((rule_hits(&admin, "shadow"), rule_hits(&admin, "over_limit")), (Some(4.0), Some(0.0)));
        hits(&admin, "ann")
    };
    let same = |setup| setup;
    let global = |setup: Setup| setup.env("SHADOW_MODE", "true");
    let by_override = r#"{"domain": "shop", "descriptor": "user=ann", "action": "shadow"}"#;
    let switch = r#"{"domain": "shop", "action": "shadow", "reason": "trial"}"#;
    for (prepare, change) in [
        (&global as &dyn Fn(Setup) -> Setup, None),
        (&same, Some(("/api/v1/overrides", by_override))),
        (&same, Some(("/api/v1/domains", switch))),
    ] {
        assert_eq!(shadow_of(prepare, change), Some([2, 0, 4]), "{change:?}");
    }
}

#[test]
fn a_refused_request_shows_what_shadow_mode_prevented_beside_it() {
    let (setup, port) = setup();
    let rules = shadow_rules().replace("requests_per_unit: 100}", "requests_per_unit: 0}");
    let admin = Admin { server: setup.rules("shop.yaml", &rules).start(), port };
    let both: &[&[(&str, &str)]] = &[&[("user", "ann")], &[("path", "/cart")]];
    (0..3).for_each(|_| drop(admin.server.ask(request("shop", both)).unwrap()));
    assert_eq!(refused(&admin, ""), [("/cart".to_owned(), 3)]);
    assert_eq!(refused(&admin, "shadowed=true"), [("ann".to_owned(), 1)]);
}

#[test]
fn replicas_share_what_shadow_mode_prevented() {
    let redis = Redis::single();
    let admins = [(); 2].map(|()| {
        let (setup, port) = setup();
        let setup = setup.redis(&redis.env()).env("REPLICA_SYNC", "true").rules("shop.yaml", &shadow_rules());
        Admin { server: setup.start_healthy(), port }
    });
    let [one, other] = &admins;
    // Both count in one Redis: the first two hits are within the limit.
    assert_eq!((one.ask("ann", 5), other.ask("ann", 10)), (0, 0));
    eventually("both replicas' hits are summed", || {
        let (seen, listed) = (hits(one, "ann"), refused(one, "shadowed=true"));
        let is_all = seen == Some([2, 0, 13]) && listed == [("ann".to_owned(), 13)];
        holds(is_all, || format!("{seen:?} {listed:?}"))
    });
}

#[test]
fn refusals_by_a_block_are_listed_beside_those_by_the_limit() {
    let admin = Admin::start();
    assert_eq!(admin.ask("ann", 5), 3);
    assert_exit(&admin.run(&["override", "set", "shop", "user=ann", "--block", "--for", "1h"]), 0, &[]);
    assert_eq!(admin.ask("ann", 2), 2);
    let reply = admin.get("/api/v1/refusals");
    let rows: Vec<_> = reply["refusals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["count"].clone(), one["reason"].as_str().unwrap()))
        .collect();
    assert!(
        matches!(&rows[..], [(two, blocked), (three, "over 2 per hour")] if *two == 2 && *three == 3 && blocked.starts_with("blocked until ")),
        "{rows:?}"
    );
}
