//! Refusals by key, and traffic that meets no rule.

use super::*;

fn user(row: &Value) -> &str {
    row["descriptor"][0]["value"].as_str().unwrap()
}

#[test]
fn a_loud_client_takes_one_line_of_the_refusals() {
    let admin = Admin::start();
    admin.ask("quiet", 3);
    // All within the number of refusals that a worker records exactly in a second.
    admin.ask("loud", 302);
    let reply = admin.get("/api/v1/refusals");
    let refusals = reply["refusals"].as_array().unwrap();
    let counts: Vec<_> = refusals.iter().map(|row| (user(row), row["count"].as_u64().unwrap())).collect();
    assert_eq!(counts, [("loud", 300), ("quiet", 1)], "the one refused last comes first");
    let loud = &refusals[0];
    assert!(loud["first"].as_str() < loud["last"].as_str(), "{loud}");
    assert_eq!(
        (&loud["reason"], &loud["example"]["decided_by"]),
        (&"over 2 per hour".into(), &"counter".into())
    );
    assert_exit(
        &admin.run(&["refusals"]),
        0,
        &["shop user=loud 300 refusals\n  over 2 per hour, retry after "],
    );
    // A flood of invented keys, each refused once, loses neither: `quiet` has a rule of its own.
    let limit_zero = crate::admin::RULES.replace("requests_per_unit: 100}", "requests_per_unit: 0}");
    admin.server.write("shop.yaml", &limit_zero.replace("    value: /cart\n", ""));
    admin.server.wait_for_rule("shop.path: unit=MINUTE requests_per_unit=0");
    let client = admin.server.client();
    for n in 0..600 {
        client.ask(request("shop", &[&[("path", &format!("/invented/{n}"))]])).unwrap();
    }
    let reply = admin.get("/api/v1/refusals?n=1000");
    let all = reply["refusals"].as_array().unwrap();
    assert!(all.iter().any(|row| user(row) == "quiet") && all.iter().any(|row| user(row) == "loud"));
    let sum: u64 = all.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(sum + reply["others"].as_u64().unwrap(), 901, "every refusal is counted");
    assert!(reply["others"].as_u64() > Some(0), "{}", reply["others"]);
    assert_exit(&admin.run(&["refusals"]), 0, &[" of other keys in the last ten minutes"]);
}

#[test]
fn traffic_that_meets_no_rule_is_shown_with_counts() {
    let (setup, port) = setup();
    // A value without a limit is exempt, which is no mistake.
    let exempt = "  - {key: user, value: partner}\n  - {key: path, value: /health}\n";
    let rules = format!("{}{exempt}", crate::admin::RULES);
    let admin = Admin { server: setup.rules("shop.yaml", &rules).start(), port };
    for entry in [("user", "partner"), ("path", "/health")] {
        (0..50).for_each(|_| drop(admin.server.ask(request("shop", &[&[entry]])).unwrap()));
    }
    assert_exit(&admin.run(&["top", "--unmatched"]), 1, &["every descriptor of the last "]);
    let ask = |domain: &str, entries: &[(&str, &str)]| {
        admin.server.ask(request(domain, &[entries])).unwrap();
    };
    for n in 0..5 {
        ask("shpo", &[("user", "ann")]);
        ask("shop", &[("usr", &format!("u{n}")), ("path", "/cart")]);
        ask("shop", &[("user", &format!("u{n}"))]);
        ask("shop", &[("free", "x")]);
    }
    let reply = admin.get("/api/v1/top?unmatched=true");
    let rows: Vec<_> = reply["unmatched"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let of = |name: &str| row[name].as_str().unwrap().to_owned();
            (
                of("reason"),
                of("domain"),
                row["count"].as_u64().unwrap(),
                row["descriptor"].as_array().unwrap().len(),
            )
        })
        .collect();
    let row = |reason: &str, domain: &str, keys| (reason.to_owned(), domain.to_owned(), 5, keys);
    assert_eq!(rows, [row("no_rule", "shop", 2), row("unknown_domain", "shpo", 1)]);
    assert!(reply["unmatched"][0]["descriptor"][0]["value"].as_str().unwrap().starts_with('u'), "an example");
    let output = admin.run(&["top", "--unmatched"]);
    assert_exit(&output, 0, &["unknown domain  shpo    user=ann", "no rule         shop    usr=u"]);
    let line = "unmatched 5 descriptors of unknown domains, 5 descriptors without a rule: tollgate top";
    assert_exit(&admin.run(&["status"]), 0, &[line]);
    let metrics = admin.server.metrics();
    let metric =
        |domain: &str| metrics[&format!("tollgate_unmatched_descriptors_total{{domain=\"{domain}\"}}")];
    assert_eq!((metric("__unknown__"), metric("shop")), (5.0, 5.0));
    // Invented domains are bounded, and do not hide the one that is asked for all the time.
    let client = admin.server.client();
    for n in 0..2000 {
        client.ask(request(&format!("invented{n}"), &[&[("user", "ann")]])).unwrap();
        if n % 10 == 0 {
            ask("shpo", &[("user", "ann")]);
        }
    }
    let reply = admin.get("/api/v1/top?unmatched=true&n=1000");
    let rows = reply["unmatched"].as_array().unwrap();
    // Each worker has 64 of them.
    assert!(rows.len() <= 64 * 4, "{}", rows.len());
    let known = rows.iter().find(|row| row["domain"] == "shpo").expect("it stays");
    let (count, error) = (known["count"].as_u64().unwrap(), known["error"].as_u64().unwrap());
    assert!(count.abs_diff(205) <= error, "{known}");
}

#[test]
fn hidden_values_are_in_no_view() {
    for setting in ["hashed", "hidden"] {
        let (setup, port) = setup();
        let admin = Admin { server: setup.env("KEY_VALUES", setting).start(), port };
        admin.ask("secret", 4);
        let set = admin.run(&["override", "set", "shop", "user=secret", "--block"]);
        assert_exit(&set, 0, &[]);
        assert_exit(&admin.run(&["counter", "reset", "shop", "user=secret2"]), 0, &[]);
        admin.server.ask(request("shop", &[&[("usr", "secret")]])).unwrap();
        for path in ["/api/v1/top", "/api/v1/refusals", "/api/v1/top?unmatched=true", "/api/v1/changes"] {
            let text = admin.get(path).to_string();
            assert!(!text.contains("secret"), "{setting} {path}: {text}");
        }
    }
}

#[test]
fn keys_that_an_override_meets_are_among_the_top_keys_with_it() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[]));
    let set = |args: &[&str]| {
        assert_exit(&one.run(&[&["override", "set", "shop"], args].concat()), 0, &[]);
    };
    set(&["user=vip", "--allow"]);
    set(&["user=scraper", "--block", "--for", "2h"]);
    set(&["--entry", "usr=bot", "--limit", "1/hour", "--force"]);
    eventually("the other replica has them", || {
        let all = other.get("/api/v1/overrides")["total"].clone();
        holds(all == 3, || all.to_string())
    });
    other.ask("vip", 5);
    other.ask("scraper", 4);
    other.ask("ann", 3);
    let ask = || other.server.ask(request("shop", &[&[("usr", "bot"), ("path", "/x")]])).unwrap();
    (0..3).for_each(|_| drop(ask()));
    let rows = |by: &str| {
        let top = one.get(&format!("/api/v1/top?by={by}"));
        let rows = top["keys"].as_array().unwrap().iter();
        let row = |row: &Value| {
            let by = row["override"]["action"].as_str().unwrap_or_default().to_owned();
            let [allowed, refused] = ["allowed", "refused"].map(|name| row[name].as_u64().unwrap());
            (user(row).to_owned(), row["rule"].as_str().map(str::to_owned), by, allowed, refused)
        };
        rows.map(row).collect::<Vec<_>>()
    };
    let row = |user: &str, rule: Option<&str>, by: &str, allowed, refused| {
        (user.to_owned(), rule.map(str::to_owned), by.to_owned(), allowed, refused)
    };
    let bot = row("bot", None, "limit", 1, 2);
    let ann = row("ann", Some("shop.user"), "", 2, 1);
    let scraper = row("scraper", Some("shop.user"), "block", 0, 4);
    let vip = row("vip", Some("shop.user"), "allow", 5, 0);
    eventually("the most refused", || {
        let all = rows("refused");
        holds(all == [scraper.clone(), bot.clone(), ann.clone()], || format!("{all:?}"))
    });
    assert_eq!(rows("allowed"), [vip, ann, bot]);
    let printed = ["shop (no rule)  usr=bot,path=/x", "limit 1 per hour", "blocked until 20", " left)"];
    assert_exit(&one.run(&["top"]), 0, &printed);
    // They are no traffic without a rule.
    assert_exit(&one.run(&["top", "--unmatched"]), 1, &[]);
    assert_exit(&one.run(&["refusals"]), 0, &["--entry usr=bot), retry after ", ", no rule, "]);
}

#[test]
fn an_entry_of_a_request_to_another_replica_needs_no_force() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[]));
    let set = || one.run(&["override", "set", "shop", "--entry", "tenant=acme", "--block"]);
    assert_exit(&set(), 1, &["no rule and no recent request has the key \"tenant\""]);
    other.server.ask(request("shop", &[&[("tenant", "acme")]])).unwrap();
    eventually("the request is known", || {
        let output = set();
        holds(output.status.code() == Some(0), || printed(&output))
    });
}
