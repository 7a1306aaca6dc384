//! Several replicas seen from one of them.

use std::{io::Read as _, thread, time::Duration};

use super::*;

/// The numbers of users in a list of a reply.
fn counts(list: &Value, name: &str) -> Vec<(String, u64)> {
    let rows = list.as_array().unwrap().iter();
    let user = |row: &Value| row["descriptor"][0]["value"].as_str().unwrap().to_owned();
    rows.map(|row| (user(row), row[name].as_u64().unwrap())).collect()
}

fn id(admin: &Admin) -> String {
    admin.get("/api/v1/status")["replica"].as_str().unwrap().to_owned()
}

/// Waits until a replica shows this many replicas with their numbers.
#[track_caller]
fn wait_for_replicas(admin: &Admin, n: usize) -> Value {
    eventually(&format!("{n} replicas are shown"), || {
        let status = admin.get("/api/v1/status");
        let published =
            |replicas: &Vec<Value>| replicas.iter().filter(|one| one["summary"] == "published").count();
        let shown = status["replicas"].as_array().map(|all| (all.len(), published(all)));
        holds(shown == Some((n, n)), || status.to_string()).map(|()| status)
    })
}

#[test]
fn every_view_shows_all_replicas_and_one_if_it_is_named() {
    let redis = Redis::single();
    let admins = [(); 3].map(|()| replica(&redis, &[]));
    // The limit is 2 an hour for all replicas.
    for (admin, loud) in admins.iter().zip([11, 21, 31]) {
        admin.ask("loud", loud);
        admin.server.ask(request("shpo", &[&[("user", "ann")]])).unwrap();
    }
    let last = &admins[2];
    wait_for_replicas(last, 3);
    let top = eventually("the numbers of all replicas add up", || {
        let top = last.get("/api/v1/top");
        holds(counts(&top["keys"], "refused") == [("loud".to_owned(), 61)], || top.to_string()).map(|()| top)
    });
    assert_eq!((&top["scope"], &top["replicas"]["answered"]), (&"all".into(), &3.into()));
    assert_eq!((&top["keys"][0]["allowed"], &top["keys"][0]["error"]), (&2.into(), &0.into()));
    let refusals = last.get("/api/v1/refusals");
    assert_eq!(counts(&refusals["refusals"], "count"), [("loud".to_owned(), 61)], "one line for one client");
    let example = &refusals["refusals"][0]["example"];
    assert_eq!((&example["domain"], &example["rule"]), (&"shop".into(), &"shop.user".into()), "{example}");
    assert_eq!(last.get("/api/v1/top?unmatched=true")["unmatched"][0]["count"], 3);
    let status = last.get("/api/v1/status");
    assert_eq!(status["requests"]["total"], serde_json::json!({"ok": 5, "over_limit": 61, "error": 0}));
    // One replica.
    let first = id(&admins[0]);
    for (name, refused) in [("this", 31), (&*first, 9), (&id(last), 31)] {
        let top = last.get(&format!("/api/v1/top?replica={name}"));
        assert_eq!(counts(&top["keys"], "refused")[0].1, refused, "{name}: {top}");
        let refusals = last.get(&format!("/api/v1/refusals?replica={name}"));
        assert_eq!(counts(&refusals["refusals"], "count")[0].1, refused, "{name}: {refusals}");
        let total = last.get(&format!("/api/v1/status?replica={name}"))["requests"]["total"].clone();
        assert_eq!(total["over_limit"], refused, "{name}: {total}");
    }
    let status = last.get(&format!("/api/v1/status?replica={first}"));
    assert_eq!((&status["replica"], &status["scope"]), (&first.as_str().into(), &first.as_str().into()));
    assert_exit(&last.run(&["top"]), 0, &["user=loud", "3 of 3 replicas answered"]);
    assert_exit(&last.run(&["top", "--replica", &first]), 0, &[&format!("replica {first}")]);
    assert_exit(&last.run(&["refusals", "--replica", "this"]), 0, &["31 refusals", "this replica\n"]);
    assert_exit(&last.run(&["status"]), 0, &["3 of 3 replicas answered", "3 replicas with the same rules"]);
    assert_exit(&last.run(&["status", "--replica", &first]), 0, &[&first]);
    let nobody = last.run(&["top", "--replica", "nobody"]);
    assert_exit(&nobody, 2, &["404", "replica=\"nobody\"", "expected one of this, ", &first]);
    let message = String::from_utf8_lossy(&nobody.stderr);
    assert_eq!(message.matches(&id(last)).count(), 1, "each name once: {message}");
}

#[test]
fn every_replica_says_which_one_rejected_its_rules() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[]));
    wait_for_replicas(&one, 2);
    other.server.write("shop.yaml", "domain: shop\ndescriptors:\n  - {key: user, rate_limi: 1}\n");
    let expected = format!("1 of 2 replicas rejected newer rules: {}, ", id(&other));
    let text = eventually("the rejection is published", || {
        let text = printed(&one.run(&["status"]));
        holds(text.contains(&expected), || text.clone()).map(|()| text)
    });
    assert!(text.contains("shop.yaml:3:") && text.contains("rate_limi"), "{text}");
    assert!(text.contains("2 replicas with the same rules"), "the previous rules are in force: {text}");
    assert_exit(&one.run(&["status"]), 1, &[]);
    assert_exit(&other.run(&["status"]), 1, &["newer rules rejected at ", &expected]);
    let replicas = one.get("/api/v1/status")["replicas"].take();
    let rejected = replicas.as_array().unwrap().iter().map(|one| (&one["id"], one["rejected"].as_str()));
    let by_other = rejected.filter(|(_, why)| why.is_some()).map(|(id, _)| id.as_str().unwrap().to_owned());
    assert_eq!(by_other.collect::<Vec<_>>(), [id(&other)]);
    other.server.write("shop.yaml", crate::admin::RULES);
    eventually("the rules are in service again", || {
        let output = one.run(&["status"]);
        holds(output.status.success(), || printed(&output))
    });
}

#[test]
fn a_stopped_replica_leaves_at_once_and_a_killed_one_soon() {
    let redis = Redis::single();
    let [one, mut stopped, mut killed, witness] = [(); 4].map(|()| replica(&redis, &[]));
    wait_for_replicas(&one, 4);
    let name = id(&stopped);
    let killed_name = id(&killed);
    // What was read before the stop would still be fresh.
    wait_for_replicas(&one, 4);
    assert!(stopped.server.process.stop().success());
    let listed = |list: &Value| {
        let ids = list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let mut left = [id(&one), killed_name.clone(), id(&witness)];
    left.sort_unstable();
    assert_eq!(listed(&one.get("/api/v1/status")["replicas"]), left);
    assert_eq!(listed(&one.get("/api/v1/replicas")["replicas"]), left);
    assert_eq!(one.get("/api/v1/top")["replicas"], serde_json::json!({"known": 3, "answered": 3}));
    let status: Value = serde_json::from_slice(&one.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!(listed(&status["replicas"]), left);
    assert_exit(&one.run(&["status"]), 0, &["3 of 3 replicas answered"]);
    assert_exit(&one.run(&["top", "--replica", &name]), 2, &["404"]);
    let members = redis.ask(&["SMEMBERS", "{tollgate}:replicas"]).words();
    assert_eq!(members.len(), 3, "{members:?}");
    killed.server.process.kill();
    wait_for_replicas(&one, 2);
    eventually("its name is removed", || {
        let members = redis.ask(&["SMEMBERS", "{tollgate}:replicas"]).words();
        holds(members.len() == 2, || format!("{members:?}"))
    });
    let lost = |admin: &Admin| {
        let changes = admin.get("/api/v1/changes?n=100")["changes"].take();
        let lost = changes.as_array().unwrap().iter().filter(|one| one["action"] == "replica_lost");
        lost.map(|one| one["what"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let expected = [format!("{killed_name} is gone without a drain: killed, or cut off from Redis")];
    for admin in [&one, &witness] {
        eventually("one replica has written it", || {
            let lost = lost(admin);
            holds(lost == expected, || format!("{lost:?}"))
        });
    }
}

#[test]
fn a_replica_without_a_summary_is_named_and_its_numbers_are_not_guessed() {
    let redis = Redis::single();
    let one = replica(&redis, &[]);
    let _off = replica(&redis, &[("REPLICA_SUMMARIES", "false")]);
    // Its summary has expired.
    let late =
        r#"{"version":"0.0.9","rules_hash":"00","requests_per_second":7,"started":1,"summary":"published"}"#;
    redis.ask(&["SET", "{tollgate}:replica:late-1", late]);
    redis.ask(&["SADD", "{tollgate}:replicas", "late-1"]);
    let status = eventually("three are listed", || {
        let status = one.get("/api/v1/status");
        holds(status["replicas"].as_array().is_some_and(|all| all.len() == 3), || status.to_string())
            .map(|()| status)
    });
    let mut summaries: Vec<_> =
        status["replicas"].as_array().unwrap().iter().map(|one| one["summary"].as_str().unwrap()).collect();
    summaries.sort_unstable();
    assert_eq!(summaries, ["published", "turned off", "unreadable"]);
    assert_eq!(one.get("/api/v1/top")["replicas"], serde_json::json!({"known": 3, "answered": 1}));
    let output = one.run(&["status"]);
    let other_rules = "replicas serve 2 different sets of rules";
    assert_exit(
        &output,
        1,
        &["1 of 3 replicas answered", "without the numbers of ", " and 1 more", other_rules],
    );
    assert_exit(&one.run(&["top", "--replica", "late-1"]), 2, &["publishes no summary: unreadable"]);
    // Rubbish of an attacker who reaches Redis.
    for value in ["x", "[]", "{\"keys\":7}", "\u{1}", ""] {
        redis.ask(&["SET", "{tollgate}:summary:late-1", value]);
        thread::sleep(Duration::from_millis(2100));
        assert_eq!(one.get("/api/v1/top")["replicas"]["answered"], 1, "{value:?}");
    }
}

#[test]
fn while_redis_is_out_the_others_are_unknown_and_never_a_wrong_number() {
    let mut redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[("STORE_FAILURE_POLICY", "deny")]));
    other.ask("ann", 5);
    wait_for_replicas(&one, 2);
    redis.kill();
    eventually("they are unknown", || {
        let top = one.get("/api/v1/top");
        holds(top["replicas"] == "unknown" && top["scope"] == "this", || top.to_string())
    });
    assert_eq!(one.get("/api/v1/replicas")["replicas"], "unknown");
    let status: Value = serde_json::from_slice(&one.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!((&status["replicas"], &status["policy"]), (&"unknown".into(), &"deny".into()));
    eventually("the outage is noted", || {
        let output = one.run(&["status"]);
        holds(output.status.code() == Some(1), || printed(&output))
    });
    assert_exit(&one.run(&["status"]), 1, &["this replica alone", "replicas  unknown"]);
    assert_exit(&one.run(&["top", "--replica", &id(&other)]), 2, &["the replicas are unknown"]);
    one.ask("ann", 3);
    assert_exit(&one.run(&["top"]), 0, &["this replica alone: the others are unknown while Redis"]);
    redis.start();
    wait_for_replicas(&one, 2);
}

#[test]
fn without_a_shared_redis_the_numbers_are_labelled_as_this_replicas() {
    let admin = Admin::start();
    admin.ask("ann", 4);
    for command in ["top", "refusals", "status"] {
        assert_exit(&admin.run(&[command]), 0, &["this replica"]);
        assert_exit(&admin.run(&[command, "--replica", "this"]), 0, &["this replica"]);
        assert_exit(
            &admin.run(&[command, "--replica", "x"]),
            2,
            &["shares no Redis with others; expected this"],
        );
    }
}

#[test]
fn hidden_values_leave_no_replica() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[("KEY_VALUES", "hashed")]));
    one.ask("secret-of-ann", 5);
    one.server.ask(request("shop", &[&[("usr", "secret-of-ann")]])).unwrap();
    let summary = eventually("it is published", || {
        let text =
            redis.ask(&["GET", &format!("{{tollgate}}:summary:{}", id(&one))]).word().unwrap_or_default();
        holds(text.contains("no_rule") && text.contains("\"refused\":3"), || text.clone()).map(|()| text)
    });
    assert!(!summary.contains("secret") && summary.contains("sha256:"), "{summary}");
    eventually("the other replica shows it", || {
        let top = other.get("/api/v1/top");
        let value = top["keys"][0]["descriptor"][0]["value"].as_str().unwrap_or_default().to_owned();
        holds(value.starts_with("sha256:"), || top.to_string())
    });
}

#[test]
fn the_id_of_a_hidden_override_is_of_all_replicas_and_says_nothing_of_its_value() {
    let redis = Redis::single();
    let [plain, one] = ["plain", "hidden"].map(|values| replica(&redis, &[("KEY_VALUES", values)]));
    let set = plain.run(&["override", "set", "shop", "user=ann", "--block"]);
    assert_exit(&set, 0, &[]);
    let id = |admin: &Admin| {
        eventually("it is listed", || {
            let all = admin.get("/api/v1/overrides")["overrides"].clone();
            let id = all[0]["id"].as_str().map(str::to_owned);
            id.ok_or_else(|| all.to_string())
        })
    };
    let (computed, shown) = (id(&plain), id(&one));
    assert_ne!(shown, computed);
    let other = replica(&redis, &[("KEY_VALUES", "hidden")]);
    assert_eq!(id(&other), shown);
    one.ask("ann", 3);
    let deciding = |admin: &Admin| admin.get("/api/v1/top")["keys"][0]["override"]["id"].clone();
    assert_eq!(deciding(&one), *shown);
    for path in ["/api/v1/top", "/api/v1/refusals?after=0", "/api/v1/refusals", "/api/v1/changes"] {
        let text = one.get(path).to_string();
        assert!(!text.contains(&computed) && !text.contains("ann"), "{path}: {text}");
    }
    // A Redis that has lost the key gets another one, which all replicas take.
    redis.ask(&["DEL", "{tollgate}:overrides:id_key"]);
    let renewed = eventually("both have another key", || {
        let ids = [id(&one), id(&other)];
        holds(ids[0] == ids[1] && ids[0] != shown, || format!("{ids:?}")).map(|()| ids[0].clone())
    });
    assert_exit(&other.run(&["override", "remove", &renewed]), 0, &["removed shop user=***: block"]);
    assert_exit(&one.run(&["override", "remove", &renewed]), 1, &["no override"]);
    // Who knows the value names it.
    assert_exit(&one.run(&["override", "set", "shop", "user=ann", "--block"]), 0, &[]);
    assert_exit(&one.run(&["override", "remove", "shop", "user=ann"]), 0, &["removed shop user=***: block"]);
}

#[test]
fn the_hits_of_rules_are_those_of_all_replicas_and_of_one_if_it_is_named() {
    let redis = Redis::single();
    let admins = [(); 2].map(|()| replica(&redis, &[]));
    let [one, other] = &admins;
    one.ask("ann", 5);
    other.ask("bob", 7);
    wait_for_replicas(one, 2);
    let hits = |path: &str| {
        let reply = one.get(path);
        let rules = reply["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["rule"] == "shop.user").unwrap();
        assert!(rule.get("partial").is_none(), "{rule}");
        ["allowed", "refused"].map(|name| rule["hits"][name].as_u64().unwrap())
    };
    eventually("they add up", || {
        let all = hits("/api/v1/rules");
        holds(all == [4, 8], || format!("{all:?}"))
    });
    assert_eq!(hits("/api/v1/rules?replica=this"), [2, 3]);
    assert_eq!(hits(&format!("/api/v1/rules?replica={}", id(other))), [2, 5]);
    assert_eq!(one.get("/api/v1/rules")["replicas"], serde_json::json!({"known": 2, "answered": 2}));
    // A replica that could not publish all of its rules.
    let key = format!("{{tollgate}}:summary:{}", id(other));
    let mut summary: Value = serde_json::from_str(&redis.ask(&["GET", &key]).word().unwrap()).unwrap();
    (summary["rules"], summary["other_rules"]) = (serde_json::json!([]), 3.into());
    redis.ask(&["SET", "{tollgate}:replica:cut-1", r#"{"version":"0.1.0","summary":"published"}"#]);
    redis.ask(&["SET", "{tollgate}:summary:cut-1", &summary.to_string()]);
    redis.ask(&["SADD", "{tollgate}:replicas", "cut-1"]);
    eventually("its hits are unknown", || {
        let rules = one.get("/api/v1/rules")["rules"].clone();
        holds(rules.as_array().unwrap().iter().all(|rule| rule["partial"] == true), || rules.to_string())
    });
}

#[test]
fn a_replica_without_an_admin_port_publishes_its_numbers() {
    let redis = Redis::single();
    let (one, off) = (replica(&redis, &[]), replica(&redis, &[("ADMIN_ADDR", "off")]));
    assert!(std::net::TcpStream::connect(("127.0.0.1", off.port)).is_err());
    off.ask("ann", 5);
    wait_for_replicas(&one, 2);
    eventually("they are shown", || {
        let top = one.get("/api/v1/top");
        holds(counts(&top["keys"], "refused") == [("ann".to_owned(), 3)], || top.to_string())
    });
}

#[test]
fn refusals_of_all_replicas_are_followed() {
    let redis = Redis::single();
    let [one, mut other] = [(); 2].map(|()| replica(&redis, &[]));
    other.ask("ann", 5);
    wait_for_replicas(&one, 2);
    let mut command = Command::new(BINARY);
    command.args(["refusals", "--follow", "--json", "--admin", &format!("127.0.0.1:{}", one.port)]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut refusals = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut next = |user: &str, weight: u64| {
        let refusal = refusals.next().unwrap();
        assert_eq!(refusal["descriptor"][0]["value"], user, "{refusal}");
        assert_eq!(
            (&refusal["weight"], &refusal["code"]),
            (&weight.into(), &"over_limit".into()),
            "{refusal}"
        );
    };
    next("ann", 3);
    one.ask("bob", 3);
    next("bob", 1);
    other.ask("ann", 2);
    next("ann", 2);
    // The command says that it follows fewer replicas.
    assert!(other.server.process.stop().success());
    one.ask("bob", 1);
    next("bob", 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut notes = String::new();
    child.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
    let [first, last] = ["following: 2 of 2 replicas answered", "following: 1 of 1 replica answered"];
    let lines: Vec<&str> = notes.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains(first) && lines[1].contains(last), "{notes}");
}

/// A build with other zone data counts in other windows, from the same rules and overrides.
#[test]
fn replicas_with_other_zone_data_are_told_apart_once_something_depends_on_it() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[]));
    wait_for_replicas(&one, 2);
    let hashes = || {
        let replicas = one.get("/api/v1/replicas");
        let all = replicas["replicas"].as_array().unwrap().iter();
        let hashes: Vec<_> = all.map(|one| one["rules_hash"].as_str().unwrap().to_owned()).collect();
        (replicas["serve_same_rules"].clone(), hashes)
    };
    assert!(hashes().1.iter().all(|hash| !hash.contains('+')), "{:?}", hashes());
    let limit = ["--limit", "500/month", "--calendar", "Europe/Berlin,anchor_day=15"];
    assert_exit(&one.run(&[&["override", "set", "shop", "user=ann"][..], &limit].concat()), 0, &[]);
    let (_, hashes_with_data) = eventually("both announce their zone data", || {
        let (is_same, hashes) = hashes();
        let release = one.get("/api/v1/status")["zone_data"].as_str().unwrap().to_owned();
        let are_with = hashes.iter().all(|hash| hash.ends_with(&format!("+{release}")));
        holds(is_same == true && are_with, || format!("{is_same} {hashes:?}")).map(|()| (is_same, hashes))
    });
    let metric = format!("tollgate_rules_info{{hash=\"{}\"}}", hashes_with_data[0]);
    assert!(other.server.metrics().contains_key(&metric), "{metric}");
    // One of a build with an older release.
    let (hash, _) = hashes_with_data[0].split_once('+').unwrap();
    let older = serde_json::json!({"version": "0.1.0", "rules_hash": format!("{hash}+2020a"), "summary": "turned off"});
    redis.ask(&["SET", "{tollgate}:replica:older-1", &older.to_string()]);
    redis.ask(&["SADD", "{tollgate}:replicas", "older-1"]);
    eventually("they differ", || {
        let (is_same, hashes) = hashes();
        holds(is_same == false && hashes.len() == 3, || format!("{is_same} {hashes:?}"))
    });
    assert_exit(&one.run(&["status"]), 1, &["3 serve 2 sets of rules", &format!("rules {hash}+2020a")]);
}

#[test]
fn the_page_of_a_replica_begins_with_the_requests_of_the_others() {
    let redis = Redis::single();
    let [busy, idle] = [(); 2].map(|()| replica(&redis, &[]));
    wait_for_replicas(&idle, 2);
    eventually("the history has the requests of the other replica", || {
        busy.ask("ann", 5);
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", idle.port)).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream)).map(Result::unwrap);
        let history = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
        let points: Value = serde_json::from_str(&history).unwrap();
        let is_whole = |point: &Value| {
            let rates = ["ok", "over_limit"].map(|name| point[name].as_f64().unwrap_or_default());
            point["time"].as_u64().is_some_and(|time| time % 10 == 0) && rates.iter().sum::<f64>() > 0.0
        };
        holds(points.as_array().unwrap().iter().any(is_whole), || history)
    });
}
