//! Overrides that no request can meet are refused, unless they are forced or an export wrote them.

use super::*;

const RULES: &str = "
domain: shop
descriptors:
- key: path
  descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}
";

fn start() -> Replica {
    Replica::start(Setup::new().rules("shop.yaml", RULES))
}

#[test]
fn what_no_request_can_meet_is_refused_with_what_was_meant() {
    let replica = start();
    for (words, expected) in [
        (
            &["shop", "remote_address=9.9.9.9"][..],
            "rules with the key remote_address: shop.path.remote_address; `tollgate override set shop --entry=remote_address=9.9.9.9`",
        ),
        (&["shop", "user=10.0.0.0/8"], "`tollgate override set shop --entry=user=10.0.0.0/8`"),
        (&["shop", "usr=ann"], "did you mean \"user\"?"),
        (&["shpo", "user=ann"], "did you mean \"shop\"?"),
        (&["shop", "path=/login"], "has no limit, but descriptors below it: remote_address"),
        (&["shop", "--entry", "remote_adress=9.9.9.9"], "did you mean \"remote_address\"?"),
    ] {
        let output = replica.run(&[&["override", "set"], words, &["--block"]].concat());
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.starts_with("error: ") && text.contains(expected), "{words:?}: {text}");
        assert!(text.contains("--force"), "{words:?}: {text}");
    }
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
    let forced =
        replica.tollgate(&["override", "set", "shop", "remote_address=9.9.9.9", "--block", "--force"]);
    assert!(forced.contains("warning: no rule matches remote_address=9.9.9.9"), "{forced}");
    assert_eq!(replica.ask("remote_address", "9.9.9.9").0, OVER, "a descriptor with this entry alone");
    assert_eq!(replica.get("/api/v1/overrides")["total"], 1);
}

#[test]
fn an_entry_of_a_recent_request_is_accepted() {
    let replica = start();
    let set = ["override", "set", "shop", "--entry", "agent=bad", "--block"];
    assert_eq!(replica.run(&set).status.code(), Some(1));
    eventually("the request is known", || {
        replica.ask("agent", "good");
        let output = replica.run(&set);
        holds(output.status.success(), || printed(&output))
    });
    assert_eq!((replica.ask("agent", "bad").0, replica.ask("agent", "good").0), (OVER, OK));
}

#[test]
fn the_api_and_imports_answer_400_unless_forced() {
    let replica = start();
    let line = |force: &str| format!(r#"{{"domain":"shop","descriptor":"usr=ann","action":"block"{force}}}"#);
    let answer = http::post(replica.admin, "/api/v1/overrides", &line(""));
    assert_eq!((answer.status, &answer.json()["needs_force"]), (400, &true.into()), "{}", answer.text());
    let begun = http::post(replica.admin, "/api/v1/imports", "").json();
    let import = format!("/api/v1/imports/{}", begun["import"].as_str().unwrap());
    let good = r#"{"domain":"shop","descriptor":"user=ann","action":"block"}"#;
    let answer = http::post(replica.admin, &import, &format!("{good}\n{}\n", line("")));
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("line 2: no rule matches usr=ann; did you mean \"user\"?"), "{error}");
    let answer = http::post(replica.admin, &import, &format!("{good}\n{}\n", line(r#","force":true"#)));
    assert_eq!((answer.status, &answer.json()["overrides"]), (200, &2.into()), "{}", answer.text());
    let answer = http::post(replica.admin, "/api/v1/overrides", &line(r#","force":true"#));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(
        answer.json()["warning"].as_str().unwrap().contains("no rule matches usr=ann"),
        "{}",
        answer.text()
    );
    let wrong = http::post(replica.admin, "/api/v1/overrides", &line(r#","force":1"#));
    assert!(wrong.text().contains("force: expected true or false, got 1"), "{}", wrong.text());
    for limit in ["null", "\"\"", "\"5\""] {
        let body = format!(
            r#"{{"domain":"shop","descriptor":"user=a","action":"limit","requests_per_unit":{limit},"unit":"day"}}"#
        );
        let answer = http::post(replica.admin, "/api/v1/overrides", &body);
        assert!(answer.status == 400 && answer.text().contains("requests_per_unit"), "{}", answer.text());
    }
}

#[test]
fn an_export_imports_without_force_and_a_file_of_other_origin_needs_it() {
    let replica = start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // As the version before entries wrote it: columns without entry, and an override that needs no rule.
    replica.tollgate(&["override", "set", "shop", "customer=acme", "--block", "--force"]);
    let id = replica.get("/api/v1/overrides")["overrides"][0]["id"].as_str().unwrap().to_owned();
    replica.tollgate(&["override", "remove", &id]);
    let header = "id,domain,descriptor,action,requests_per_unit,unit,expires_at,reason,by\n";
    let old = path("old.csv");
    std::fs::write(&old, format!("{header}{id},shop,customer=acme,block,,,,plans,ann\n")).unwrap();
    replica.tollgate(&["override", "import", &old]);
    assert_eq!(replica.ask("customer", "acme").0, OVER);
    let new = path("new.csv");
    std::fs::write(&new, replica.tollgate(&["override", "list", "--csv"])).unwrap();
    replica.tollgate(&["override", "remove", &id]);
    replica.tollgate(&["override", "import", &new]);
    assert_eq!(replica.ask("customer", "acme").0, OVER);
    replica.tollgate(&["override", "remove", &id]);
    let typed = path("typed.csv");
    for text in [
        "domain,descriptor,action\nshop,customer=acme,block\n".to_owned(),
        format!("id,domain,descriptor,action\n{id},shop,customer=other,block\n"),
    ] {
        std::fs::write(&typed, text).unwrap();
        let refused = replica.run(&["override", "import", &typed]);
        assert_eq!(refused.status.code(), Some(1), "{}", printed(&refused));
        assert!(printed(&refused).contains("line 1: no rule matches customer="), "{}", printed(&refused));
        assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
    }
    replica.tollgate(&["override", "import", &typed, "--force"]);
    std::fs::write(
        &typed,
        "domain,entry,action,force\nshop,agent=x*,block,true\nshop,user=10.0.0.0/8,block,\n",
    )
    .unwrap();
    replica.tollgate(&["override", "import", &typed]);
    let list = replica.tollgate(&["override", "list"]);
    let order: Vec<&str> = list.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(order, ["--entry", "--entry", "customer=other"], "{list}");
}

#[test]
fn an_override_that_meets_a_part_of_the_requests_with_its_entry_warns() {
    let rules =
        format!("{RULES}- {{key: remote_address, rate_limit: {{unit: year, requests_per_unit: 9}}}}\n");
    let replica = Replica::start(Setup::new().rules("shop.yaml", &rules));
    let text = replica.tollgate(&["override", "set", "shop", "remote_address=9.9.9.9", "--block"]);
    assert!(
        text.contains(
            "warning: descriptors with more entries are not met, as those of shop.path.remote_address"
        ),
        "{text}"
    );
    assert!(text.contains("`tollgate override set shop --entry=remote_address=9.9.9.9`"), "{text}");
}

#[test]
fn counters_get_and_reset_agree() {
    let replica = start();
    for (descriptor, expected, code) in
        [("none=1", "shop none=1: no rule matches, no limit applies\n", 1), ("user=ann", "user=ann", 0)]
    {
        let [get, reset] = ["get", "reset"].map(|word| replica.run(&["counter", word, "shop", descriptor]));
        for output in [&get, &reset] {
            assert_eq!(output.status.code(), Some(code), "{descriptor}: {}", printed(output));
            assert!(printed(output).contains(expected), "{descriptor}: {}", printed(output));
        }
    }
}
