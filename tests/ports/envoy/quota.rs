//! The filter `envoy.filters.http.rate_limit_quota`, with the configuration of docs/reference/quota.md.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use support::{
    bootstrap::Wanted,
    client::request,
    envoy::Envoy,
    eventually, holds, http,
    ports::free_port,
    server::{Server, Setup},
};

const ANN: &[(&str, &str)] = &[("x-user", "ann")];

fn rules(limit: &str) -> String {
    format!("domain: edge\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n")
}

/// The filter of the page.
pub(crate) fn filter() -> Value {
    let page = fs::read_to_string("docs/reference/quota.md").unwrap();
    let mut blocks = page.split("```yaml filter\n").skip(1).filter_map(|rest| rest.split("```").next());
    let filter = blocks.find(|block| block.starts_with("name: envoy.filters.http.rate_limit_quota"));
    serde_yaml::from_str(filter.expect("the page has the filter")).unwrap()
}

fn start(server: &Server) -> Envoy {
    Envoy::start(&Wanted { filters_before: vec![filter()], ..Wanted::of(server, json!([])) })
}

/// How many of these requests pass.
fn passing(envoy: &Envoy, count: usize) -> usize {
    envoy.statuses(count, ANN).into_iter().filter(|status| *status == 200).count()
}

/// Sends requests until one passes, and returns how many were denied before.
fn wait_for_quota(envoy: &Envoy) {
    eventually("a request passes", || {
        sleep(Duration::from_millis(20));
        holds(passing(envoy, 1) == 1, || "every request is denied")
    });
}

#[test]
fn envoy_admits_what_it_is_assigned_without_a_call_for_each_request() {
    let server = Server::start(&rules("{unit: hour, requests_per_unit: 200}"));
    let envoy = start(&server);
    assert_eq!(passing(&envoy, 1), 0, "the first request has no assignment");
    let mut passed = 0;
    // What a late Envoy has not used of an assignment is lost to it, so it may never use all. The simulator bounds how much.
    eventually("more than half of the limit is used", || {
        passed += passing(&envoy, 20);
        sleep(Duration::from_millis(100));
        holds(passed > 100, || format!("{passed} requests passed"))
    });
    assert!(passed <= 200, "{passed}");
    assert_eq!(envoy.upstream.seen().len(), passed);
    let answer = server.ask(request("edge", &[&[("user", "ann")]])).unwrap();
    let remaining = usize::try_from(answer.statuses[0].limit_remaining).unwrap();
    assert!(remaining + passed < 200, "callers and Envoys share a counter: {answer:?}");
    let calls = server.count("tollgate_quota_reports_total");
    assert!(calls < passed / 5, "{calls} reports for {passed} requests");
}

#[test]
fn every_user_has_a_bucket() {
    let server = Server::start(&rules("{unit: hour, requests_per_unit: 1000}"));
    let envoy = start(&server);
    for user in ["ann", "bob"] {
        eventually("a request passes", || holds(envoy.statuses(1, &[("x-user", user)]) == [200], || user));
    }
    assert_eq!(envoy.statuses(1, &[]), [200], "a request without the header has no bucket");
    assert_eq!(server.count("tollgate_quota_buckets"), 2);
    assert_eq!(server.count("tollgate_quota_streams_open"), 1);
}

#[test]
fn a_block_denies_and_a_lower_limit_holds() {
    let admin = free_port();
    let server = Setup::new()
        .rules("edge.yaml", &rules("{unit: hour, requests_per_unit: 100000}"))
        .env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"))
        .start();
    let envoy = start(&server);
    wait_for_quota(&envoy);
    let body = r#"{"domain":"edge","descriptor":"user=ann","action":"block"}"#;
    let answer = http::post(admin, "/api/v1/overrides", body);
    assert!(answer.status < 300, "{}", answer.text());
    eventually("the block is in force", || {
        let passed = passing(&envoy, 10);
        holds(passed == 0, || format!("{passed} of 10 requests pass"))
    });
}

/// Envoy opens its next stream when it reports next. One that ends as soon as its connection is old leaves it without new
/// quota for four of five seconds.
#[test]
fn envoy_has_quota_while_its_connections_age() {
    // An assignment is for a second.
    let setup = Setup::new().rules("edge.yaml", &rules("{unit: second, requests_per_unit: 70}"));
    let server = setup.env("GRPC_MAX_CONNECTION_AGE", "1s").start();
    let envoy = start(&server);
    wait_for_quota(&envoy);
    let (begin, mut all, mut passed) = (Instant::now(), 0, 0);
    while begin.elapsed() < Duration::from_secs(16) {
        sleep(Duration::from_millis(15));
        all += 1;
        passed += passing(&envoy, 1);
    }
    let streams = envoy.stat("cluster.rate_limit.upstream_rq_total");
    assert!(streams > 2, "{streams} streams");
    assert!(passed > all * 3 / 4, "{passed} of {all} requests passed, in {streams} streams");
}

#[test]
fn envoy_finds_a_new_service_and_denies_meanwhile() {
    let mut server = Server::start(&rules("{unit: hour, requests_per_unit: 100000}"));
    let envoy = start(&server);
    wait_for_quota(&envoy);
    let ports = server.ports;
    server.process.stop();
    let server = Setup::new().rules("edge.yaml", &rules("{unit: hour, requests_per_unit: 0}")).ports(ports);
    let server = server.start();
    eventually("the new service denies", || {
        let passed = passing(&envoy, 10);
        let streams = server.count("tollgate_quota_streams_open");
        holds(passed == 0 && streams == 1, || format!("{passed} of 10 requests pass, {streams} streams"))
    });
}
