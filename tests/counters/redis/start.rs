//! The service starts before its Redis: it logs that, decides by policy, and counts as soon as Redis is up.

use std::time::Duration;

use support::{
    at_best_within, eventually, holds,
    redis::Redis,
    server::{Server, Setup},
    steady::{Steady, Verdict},
    time_of,
};

use super::{Code, RULES, assert_in_time, code, counter, one, turn};

fn setup(redis: &Redis, policy: &str) -> Setup {
    let setup = Setup::new().redis(&redis.env()).unset("REDIS_TIMEOUT").unset("REDIS_CONNECT_TIMEOUT");
    setup.env("STORE_FAILURE_POLICY", policy).rules("d.yaml", RULES)
}

#[test]
fn without_redis_it_starts_and_is_not_ready_if_configured() {
    let redis = Redis::prepared(&[]);
    let server = setup(&redis, "deny").start();
    assert!(!server.is_healthy());
    server.wait_for_log(&[&redis.address()]);
    assert_eq!(code(&server.client(), "many", "v"), (Code::OverLimit, 0));

    let server = setup(&redis, "error").env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false").start();
    assert!(server.is_healthy());
    let error = server.ask(one("many", "v")).expect_err("the policy is to fail");
    assert_eq!(error.code(), tonic::Code::Unknown);
    assert!(!error.message().is_empty());
}

#[test]
fn a_redis_that_comes_late_is_used_within_a_second() {
    let _turn = turn();
    let mut redis = Redis::prepared(&[]);
    let server = setup(&redis, "allow").start();
    let client = server.client();
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 2));
    // Long enough for the backoff to reach its maximum.
    std::thread::sleep(Duration::from_secs(2));

    at_best_within("it counts", Duration::from_secs(1), 5, || {
        // Stopped again if the machine was too busy.
        if redis.try_ask(&["PING"]).is_ok() {
            redis.kill();
            std::thread::sleep(Duration::from_secs(2));
        }
        redis.start();
        let counts = || {
            code(&client, "many", "v");
            let count = redis.counter(&counter("many", "v"));
            holds(count > 0, || server.process.log())
        };
        time_of(|| eventually("it counts", counts))
    });
    server.wait_until_healthy();
    assert!(redis.counter(&counter("two", "v")) == 0, "hits without counters are not counted later");
}

#[test]
fn the_policy_decides_within_a_callers_short_deadline() {
    let _turn = turn();
    let hurry = Duration::from_millis(5);
    let redis = Redis::single();
    let server = setup(&redis, "allow").env("REDIS_TIMEOUT", "1s").start_healthy();
    redis.freeze();
    let load = Steady::start(server.ports.grpc, 100, hurry, &[one("many", "v")], &one("control", "v"));
    std::thread::sleep(Duration::from_secs(1));
    let outcome = load.stop();
    redis.thaw();
    assert_in_time(&outcome, hurry);
    let passed = outcome.asked.iter().filter(|one| one.verdict == Verdict::Ok).count();
    assert!(passed * 2 > outcome.asked.len(), "{passed} of {} passed", outcome.asked.len());
}

#[test]
fn a_domain_has_a_policy_of_its_own() {
    let redis = Redis::prepared(&[]);
    let domain = |name: &str, policy: &str| {
        let rules = RULES.replace("domain: d\n", &format!("domain: {name}\n{policy}"));
        (format!("{name}.yaml"), rules)
    };
    let files = [
        domain("usual", ""),
        domain("open", "on_store_failure: allow\n"),
        domain("closed", "on_store_failure: deny\n"),
        domain("alone", "on_store_failure: local\n"),
        domain("apart", "on_store_failure: share\n"),
    ];
    let setup = files.iter().fold(setup(&redis, "error"), |setup, (name, text)| setup.rules(name, text));
    let server: Server = setup.env("RESPONSE_DYNAMIC_METADATA", "true").start();
    let ask = |domain: &str| {
        let mut two = one("two", "v");
        domain.clone_into(&mut two.domain);
        server.ask(two)
    };
    assert!(ask("usual").is_err());
    let codes = |domain: &str| [(); 3].map(|()| ask(domain).unwrap().overall_code());
    assert_eq!(codes("open"), [Code::Ok; 3]);
    assert_eq!(codes("closed"), [Code::OverLimit; 3]);
    assert_eq!(codes("alone"), [Code::Ok, Code::Ok, Code::OverLimit], "the process counts by itself");
    assert_eq!(codes("apart"), [Code::Ok, Code::Ok, Code::OverLimit], "it knows no other replica");
    server.wait_for_log(&["the policy share decides as local"]);

    let metadata = |domain: &str| format!("{:?}", ask(domain).unwrap().dynamic_metadata);
    assert!(
        metadata("open").contains("storeFailure") && metadata("open").contains("allow"),
        "{}",
        metadata("open")
    );

    let metrics = server.metrics();
    for policy in ["error", "allow", "deny", "local"] {
        let of = |name: &str| {
            name.starts_with("tollgate_store_failure_decisions_total{")
                && name.contains(&format!("policy=\"{policy}\""))
        };
        let sum: f64 = metrics.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum();
        assert!(sum >= 1.0, "{policy}: {metrics:?}");
    }
}
