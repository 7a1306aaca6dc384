//! Rules with limits that memcached cannot count are rejected at load, whatever the failure policy, so that no limit is
//! silently ignored.

use support::{eventually, holds, http};

use super::{Code, Memcached, RULES, by_policy, code, one, request, with_rules};

/// A limit that memcached cannot count.
const BUCKET: &str = "\
domain: e
descriptors:
  - key: bucket
    rate_limit:
      unit: hour
      algorithm: token_bucket
      requests_per_unit: 1
";

/// The reported error, with its location.
const REPORTED: &[&str] = &[
    "bucket.yaml:6:18",
    "descriptors[0].rate_limit.algorithm",
    "`token_bucket` cannot be counted: memcached counts only fixed windows",
    "use `fixed_window`",
    "set BACKEND_TYPE to redis or memory",
];

#[test]
fn no_request_passes_after_a_start_with_such_a_limit() {
    let memcached = Memcached::single();
    let setup = memcached.setup().env("STORE_FAILURE_POLICY", "allow");
    let server = setup.rules("bucket.yaml", BUCKET).start_healthy();
    server.wait_for_log(REPORTED);
    for _ in 0..3 {
        let status = server.ask(request("e", &[&[("bucket", "v")]])).unwrap_err();
        assert_eq!(status.message(), "no rate limit configuration loaded");
    }
    assert!(by_policy(&server) < 0.5, "the policy decided nothing");

    server.write("bucket.yaml", &BUCKET.replace("token_bucket", "fixed_window"));
    server.wait_for_rule("e.bucket: unit=HOUR requests_per_unit=1");
}

#[test]
fn a_reload_with_such_a_limit_keeps_the_previous_rules() {
    let memcached = Memcached::single();
    let server = with_rules(memcached.setup().env("STORE_FAILURE_POLICY", "allow")).start_healthy();
    let client = server.client();
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 1));

    server.write("bucket.yaml", BUCKET);
    server.wait_for_log(REPORTED);
    eventually("the page shows the error", || {
        let page = http::get(server.ports.debug, "/rlconfig").text();
        holds(REPORTED.iter().all(|reported| page.contains(reported)), || page)
    });
    assert_eq!(code(&client, "two", "v"), (Code::Ok, 0));
    assert_eq!(code(&client, "two", "v").0, Code::OverLimit, "counters continue");
    assert!(by_policy(&server) < 0.5, "the policy decided nothing");

    server.write("bucket.yaml", &RULES.replace("domain: d", "domain: e"));
    server.wait_for_rule("e.two: ");
    assert!(client.ask(one("two", "v")).is_ok());
}
