//! Overrides through the real binary: the commands, the admin API, a real Redis, and two replicas that share it.

mod counters;
mod domains;
mod entries;
mod in_force;
mod large;
mod lists;
mod lost;
mod meant;
mod million;
mod moves;
mod named;
mod replicas;
mod unwritable;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::{Value, json};

use support::{
    at_best_within,
    client::request,
    clock::Clock,
    eventually, holds, http,
    ports::free_port,
    process::printed,
    redis::{Env, Redis},
    server::{BINARY, Server, Setup},
    time_of,
};

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: user, value: vip, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: path, value: '/a/*', share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: client, rate_limit: {unit: year, requests_per_unit: 1000000}}
- {key: customer, overrides_only: true}
- {key: log, rate_limit: {unit: year, requests_per_unit: 3, algorithm: sliding_log}}
- {key: bucket, rate_limit: {unit: year, requests_per_unit: 3, algorithm: token_bucket}}
- {key: window, rate_limit: {unit: year, requests_per_unit: 3, algorithm: sliding_window}}
- {key: two, rate_limit: [{unit: year, requests_per_unit: 5}, {unit: day, requests_per_unit: 3}]}
";

/// A service with an admin API.
struct Replica {
    server: Server,
    admin: u16,
}

impl Replica {
    fn start(setup: Setup) -> Self {
        Self::with_program(setup.program(&binary(), &[]))
    }

    fn with_program(setup: Setup) -> Self {
        let admin = free_port();
        let setup = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).env("LOG_LEVEL", "info");
        let setup =
            setup.env("RESPONSE_DYNAMIC_METADATA", "true").env("RESPONSE_DYNAMIC_METADATA_LIMITS", "true");
        let server = setup.start();
        eventually("the admin port is open", || {
            http::send(admin, "GET", "/api/v1/status", &[], b"").map(drop).map_err(|error| error.to_string())
        });
        Self { server, admin }
    }

    fn in_memory() -> Self {
        Self::start(Setup::new().rules("shop.yaml", RULES))
    }

    fn on(redis: &Redis) -> Self {
        Self::counting_in(&redis.env())
    }

    fn counting_in(env: &Env) -> Self {
        let setup = Setup::new().rules("shop.yaml", RULES).redis(env);
        let replica = Self::start(setup.env("REPLICA_SYNC", "true").env("STORE_FAILURE_POLICY", "allow"));
        replica.server.wait_until_healthy();
        replica
    }

    /// Runs `tollgate …` with this service's admin API.
    fn run(&self, args: &[&str]) -> Output {
        let admin = format!("http://127.0.0.1:{}", self.admin);
        let mut command = Command::new(binary());
        command.args(args).args(["--admin", &admin]).stdin(Stdio::null()).env("USER", "ann");
        // The command computes the times of an import.
        Clock::current().apply(&mut command);
        command.output().unwrap()
    }

    /// As [`run`](Self::run), and returns the output of a successful command.
    #[track_caller]
    fn tollgate(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}\n{}", printed(&output), self.server.process.log());
        printed(&output)
    }

    /// As [`run`](Self::run), and returns the output.
    fn tollgate_any(&self, args: &[&str]) -> String {
        printed(&self.run(args))
    }

    /// The overall code of a request, and the remaining requests.
    fn ask(&self, key: &str, value: &str) -> (Code, u32) {
        let answer = self.server.ask(request("shop", &[&[(key, value)]])).unwrap();
        (Code::try_from(answer.overall_code).unwrap(), answer.statuses[0].limit_remaining)
    }

    /// True if an override blocks a client; the limit of its rule is never reached.
    fn is_blocked(&self, value: &str) -> bool {
        self.ask("client", value).0 == Code::OverLimit
    }

    fn get(&self, path: &str) -> Value {
        http::get(self.admin, path).json()
    }
}

/// The tested binary, or a release build for measurements.
fn binary() -> PathBuf {
    std::env::var_os("TOLLGATE_TEST_BINARY").map_or_else(|| BINARY.into(), PathBuf::from)
}

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

#[test]
fn every_action_takes_effect_immediately_and_ends_with_its_removal() {
    let replica = Replica::in_memory();
    let text = replica
        .tollgate(&["override", "set", "shop", "user=ann", "--limit", "5/year", "--reason", "ticket 1"]);
    assert_eq!(
        text,
        "shop user=ann (rule shop.user): limit 5 per year\n  before  3 per year\n  after   5 per year\n"
    );
    assert_eq!(
        [(); 6].map(|()| replica.ask("user", "ann")),
        [(OK, 4), (OK, 3), (OK, 2), (OK, 1), (OK, 0), (OVER, 0)]
    );
    assert_eq!(replica.ask("user", "bob"), (OK, 2), "other values have the limit of the rule");
    replica.tollgate(&["override", "set", "shop", "user=ann", "--block"]);
    assert_eq!(replica.ask("user", "ann"), (OVER, 0));
    replica.tollgate(&["override", "set", "shop", "user=ann", "--allow"]);
    assert_eq!(replica.ask("user", "ann"), (OK, u32::MAX));
    replica.tollgate(&["override", "set", "shop", "user=ann", "--shadow"]);
    assert_eq!(replica.ask("user", "ann"), (OK, 0), "counted, and never over");
    assert_eq!(replica.ask("user", "eve"), (OK, 2));
    replica.tollgate(&["override", "set", "shop", "user=eve", "--block"]);
    assert_eq!([(); 3].map(|()| replica.ask("user", "eve").0), [OVER; 3]);
    let removed = replica.tollgate(&["override", "remove", "shop", "user=eve"]);
    assert_eq!(removed, "removed shop user=eve: block\n");
    assert_eq!(replica.ask("user", "eve"), (OK, 1), "a block counts nothing");
    let missing = replica.run(&["override", "remove", "shop", "user=eve"]);
    assert_eq!(missing.status.code(), Some(1), "{}", printed(&missing));
    let list = replica.get("/api/v1/overrides");
    assert_eq!((&list["total"], &list["kept_in"]), (&1.into(), &"memory".into()));
    let id = list["overrides"][0]["id"].as_str().unwrap();
    replica.tollgate(&["override", "remove", id, "--reason", "done"]);
    assert_eq!(replica.ask("user", "ann").0, OVER);
    replica.server.wait_for_log(&[
        "override_set",
        "shop user=ann, limit 5 per year",
        "ticket 1",
        "override_remove",
        "done",
    ]);
}

#[test]
fn overrides_expire() {
    let clock = Clock::ordinary().steerable();
    let _clock = clock.enter();
    let replica = Replica::in_memory();
    replica.tollgate(&["override", "set", "shop", "client=ann", "--block", "--for", "1h"]);
    assert!(replica.is_blocked("ann"));
    clock.step(3600.0);
    eventually("the override ends", || holds(!replica.is_blocked("ann"), String::new));
    replica.server.wait_for_log(&["override expired", "shop client=ann"]);
    eventually("the override is swept", || {
        let metrics = replica.server.metrics();
        let left = metrics.get(r#"tollgate_overrides{action="block"}"#).copied();
        holds(left == Some(0.0), || format!("{left:?}"))
    });
}

#[test]
fn overrides_are_shown_in_every_view() {
    let replica = Replica::in_memory();
    replica.tollgate(&["override", "set", "shop", "user=ann", "--block", "--until", "2099-01-01T00:00:00Z"]);
    replica.tollgate(&["override", "set", "shop", "user=bob", "--limit", "7/day"]);
    let shown = replica.server.rules_shown().join("\n");
    assert!(shown.contains("# 2 overrides (tollgate override list):"), "{shown}");
    assert!(shown.contains("# override shop user=ann: block until 2099-01-01T00:00:00Z"), "{shown}");
    let metrics = replica.server.metrics();
    assert_eq!(metrics.get(r#"tollgate_overrides{action="block"}"#), Some(&1.0));
    assert_eq!(metrics.get(r#"tollgate_overrides{action="limit"}"#), Some(&1.0));
    assert!(metrics["tollgate_overrides_bytes"] > 0.0);
    let request = |value: &str| {
        let address = format!("127.0.0.1:{}", replica.server.ports.grpc);
        let user = format!("user={value}");
        let output = Command::new(BINARY)
            .args(["request", "--addr", &address, "--json", "shop", &user])
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["dynamicMetadata"]["descriptors"][0]["decision"].clone()
    };
    let blocked = request("ann");
    assert_eq!(blocked["why"], "blocked", "{blocked}");
    assert_eq!(blocked["override"], json!({"action": "block", "expiresAt": "2099-01-01T00:00:00Z"}));
    assert_eq!((&blocked["rule"], &blocked["governs"]), (&"shop.user".into(), &true.into()));
    let limited = request("bob");
    assert_eq!((&limited["why"], &limited["override"]["action"]), (&"within_limit".into(), &"limit".into()));
    assert_eq!(limited["limit"]["requestsPerUnit"], json!(7.0));
    let list = replica.tollgate(&["override", "list"]);
    assert!(list.contains("limit 7 per day") && list.contains("ann"), "{list}");
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), replica.tollgate(&["override", "list", "--csv"])).unwrap();
    let rules = replica.server.rules_dir();
    let explain = Command::new(BINARY)
        .args(["explain", "--rules", rules.to_str().unwrap(), "--overrides", file.path().to_str().unwrap()])
        .args(["shop", "user=ann"])
        .output()
        .unwrap();
    assert!(printed(&explain).contains("override block until 2099-01-01T00:00:00Z"), "{}", printed(&explain));
}

/// A replica whose admin API requires a token, and its token file.
fn with_tokens(dir: &Path) -> (Replica, String) {
    let tokens = dir.join("tokens");
    std::fs::write(&tokens, "ann 0123456789abcdef0123456789abcdef\n").unwrap();
    let tokens = tokens.to_str().unwrap();
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN_FILE", tokens);
    (Replica::start(setup), tokens.to_owned())
}

#[test]
fn explain_applies_the_overrides_of_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, tokens) = with_tokens(dir.path());
    let tokens = tokens.as_str();
    for (descriptor, action) in [
        ("user=ann", "--block"),
        ("user", "--shadow"),
        (r"user=a\,b\=c\\", "--allow"),
        ("path=/a/*", "--block"),
        ("path=/a/vip", "--allow"),
        ("client=x,user", "--block"),
    ] {
        let set =
            ["override", "set", "shop", descriptor, action, "--for", "2h", "--force", "--token-file", tokens];
        replica.tollgate(&set);
    }
    replica.tollgate(&["override", "set", "shop", "user=many", "--limit", "9/day", "--token-file", tokens]);
    let rules = replica.server.rules_dir();
    let explain = |words: &[&str]| {
        replica.run(&[&["explain", "--rules", rules.to_str().unwrap(), "shop"], words].concat())
    };
    for (descriptor, expected) in [
        ("user=ann", Some("block until ")),
        ("user=bob", Some("shadow until ")),
        ("user=vip", None),
        (r"user=a\,b\=c\\", Some("allow until ")),
        ("path=/a/x", Some("block until ")),
        ("path=/a/*", Some("block until ")),
        ("path=/a/vip", Some("allow until ")),
        ("path=/b", None),
        ("user=many", Some("limit 9 per day")),
        ("client=x", None),
    ] {
        let text = printed(&explain(&[descriptor, "--token-file", tokens]));
        let shown = text.lines().find_map(|line| line.trim().strip_prefix("override "));
        match expected {
            Some(expected) => assert!(shown.is_some_and(|shown| shown.starts_with(expected)), "{text}"),
            None => assert_eq!(shown, None, "{text}"),
        }
    }
    let both = explain(&["user=ann", "user=bob", "--json", "--token-file", tokens]);
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    let actions = [0, 1].map(|index| both["descriptors"][index]["override"]["action"].clone());
    assert_eq!(actions, ["block", "shadow"]);
}

#[test]
fn explain_fails_if_the_overrides_of_a_service_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, tokens) = with_tokens(dir.path());
    let rules = replica.server.rules_dir();
    for (words, expected) in [
        (&["user=ann"][..], "401 Unauthorized"),
        (&["user=ann", "--token-file", "/nowhere"], "token file /nowhere"),
        (&["user=ann", "--overrides", &tokens], "cannot be used with"),
    ] {
        let output = replica.run(&[&["explain", "--rules", rules.to_str().unwrap(), "shop"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(printed(&output).contains(expected), "{words:?}: {}", printed(&output));
    }
    let unreachable =
        ["explain", "--rules", rules.to_str().unwrap(), "--admin", "127.0.0.1:1", "shop", "user=ann"];
    let output = Command::new(BINARY).args(unreachable).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        printed(&output).contains("cannot reach the admin API at http://127.0.0.1:1"),
        "{}",
        printed(&output)
    );
}

#[test]
fn an_invalid_command_is_explained_and_changes_nothing() {
    let replica = Replica::in_memory();
    for (args, expected) in [
        (&["set", "shop", "user=a"][..], "<--limit <N/UNIT>|--scale <PERCENT>|--block|--allow|--shadow>"),
        (&["set", "shop", "user=a", "--limit", "5"], "expected a number and a unit, such as 100/minute"),
        (&["set", "shop", "user=a", "--limit", "5/fortnight"], "unknown unit \"fortnight\"; expected second"),
        (&["set", "shop", "user=a", "--limit", "-5/day"], "error"),
        (&["set", "shop", "user=a,", "--block"], "an entry is empty"),
        (&["set", "shop", "=a", "--block"], "has no key"),
        (&["set", "shop", "user=a", "--block", "--allow"], "cannot be used with"),
        (
            &["set", "shop", "user=a", "--block", "--for", "2 days"],
            "for '--for <DURATION>': expected a duration such as 30m",
        ),
        (
            &["set", "shop", "user=a", "--block", "--until", "monday"],
            "expected a timestamp such as 2026-11-23T00:00:00Z",
        ),
        (&["set", "shop", "user=a", "--block", "--until", "2020-01-01T00:00:00Z"], "is in the past"),
        (&["remove", "shop"], "no override"),
        (&["remove", "user=a"], "expected DOMAIN KEY=VALUE, DOMAIN --entry KEY=VALUE, or an identifier"),
        (&["list", "--action", "blok"], "[possible values: limit, block, allow, shadow, scale]"),
        (&["import", "/no/such/file"], "No such file"),
    ] {
        let output = replica.run(&[&["override"], args].concat());
        assert!(!output.status.success(), "{args:?}: {}", printed(&output));
        assert!(printed(&output).contains(expected), "{args:?}: {}", printed(&output));
    }
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
    let refused = replica.run(&["override", "set", "shop", "usr", "--block"]);
    assert_eq!(refused.status.code(), Some(1), "{}", printed(&refused));
    let refused = printed(&refused);
    assert!(refused.contains("error: no rule matches usr; did you mean \"user\"?; --force"), "{refused}");
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
    let forced = replica.tollgate(&["override", "set", "shop", "usr", "--block", "--force"]);
    assert!(forced.contains("warning: no rule matches usr"), "{forced}");
}

#[test]
fn an_import_is_atomic() {
    let replica = Replica::in_memory();
    replica.tollgate(&["override", "set", "shop", "client=old", "--block"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.csv");
    let header = "domain,descriptor,action,requests_per_unit,unit,for\n";
    std::fs::write(&file, format!("{header}shop,client=a,block,,,\nshop,client=b,limit,many,day,\n"))
        .unwrap();
    let output = replica.run(&["override", "import", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
    assert!(
        printed(&output).contains("o.csv: line 3: requests_per_unit: expected an integer"),
        "{}",
        printed(&output)
    );
    assert!(!replica.is_blocked("a"));
    std::fs::write(
        &file,
        format!(
            "{header}shop,client=a,block,,,\nshop,\"client=b\",limit,9,year,1h\nshop,client=old,allow,,,\n"
        ),
    )
    .unwrap();
    let checked = replica.tollgate(&["override", "import", "--check", file.to_str().unwrap()]);
    assert!(checked.contains("3 overrides: OK"), "{checked}");
    assert!(!replica.is_blocked("a"), "it was only checked");
    let text = replica.tollgate(&["override", "import", file.to_str().unwrap(), "--reason", "plans"]);
    assert!(text.contains("imported 3 overrides") && text.contains("3 in force"), "{text}");
    assert!(replica.is_blocked("a"));
    assert_eq!((replica.ask("client", "b"), replica.ask("client", "old")), ((OK, 8), (OK, u32::MAX)));
    let list = replica.get("/api/v1/overrides?action=limit");
    assert_eq!((&list["overrides"][0]["reason"], &list["matching"]), (&"plans".into(), &1.into()), "{list}");
}

#[test]
fn a_read_only_admin_api_rejects_changes() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", RULES).env("ADMIN_READ_ONLY", "true"));
    for (method, path, body) in [
        ("POST", "/api/v1/overrides", r#"{"domain":"shop","descriptor":"user=a","action":"block"}"#),
        ("DELETE", "/api/v1/overrides/0123", ""),
        ("POST", "/api/v1/imports", ""),
        ("POST", "/api/v1/imports/0123", "{}"),
        ("PUT", "/api/v1/imports/0123", ""),
        ("POST", "/api/v1/counters/reset", r#"{"domain":"shop","descriptor":"user=a"}"#),
    ] {
        let headers = [("content-type", "application/json")];
        let answer = http::send(replica.admin, method, path, &headers, body.as_bytes()).unwrap();
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
    }
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
}
