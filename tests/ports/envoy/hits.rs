//! Requests with several hits: `hits_addend` before the request is forwarded, and after the response, when its cost is
//! known.

use serde_json::{Value, json};

use support::{
    bootstrap::{Wanted, by_header, tokens_to_metadata},
    envoy::Envoy,
    eventually, holds,
    server::Server,
    upstream::TOKENS_TO_ANSWER,
};

/// Ten tokens an hour for each user.
const TEN_TOKENS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10}
";

/// The tokens counted so far.
fn counted(server: &Server) -> f64 {
    let name = "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"user\"}";
    server.metric(name)
}

/// A user's descriptor with this `hits_addend`.
fn per_user(hits_addend: &Value) -> Value {
    let mut limit = by_header("user", "x-user");
    limit["hits_addend"] = hits_addend.clone();
    limit
}

#[test]
fn a_number_in_the_configuration_is_counted() {
    let server = Server::start(TEN_TOKENS);
    let envoy = Envoy::start(&Wanted::of(&server, json!([per_user(&json!({"number": 4}))])));

    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429], "4, 8 and 12 of 10");
}

#[test]
fn a_number_in_a_header_is_counted() {
    let server = Server::start(TEN_TOKENS);
    let hits = json!({"format": "%REQ(x-cost)%"});
    let envoy = Envoy::start(&Wanted::of(&server, json!([per_user(&hits)])));

    assert_eq!(envoy.get(&[("x-user", "ann"), ("x-cost", "9")]).status, 200);
    assert_eq!(envoy.get(&[("x-user", "ann"), ("x-cost", "0")]).status, 200, "0 looks without counting");
    assert_eq!(envoy.get(&[("x-user", "ann"), ("x-cost", "1")]).status, 200, "the tenth of 10");
    assert_eq!(envoy.get(&[("x-user", "ann"), ("x-cost", "1")]).status, 429);
}

#[test]
fn tokens_of_the_response_are_charged_when_the_stream_is_done() {
    let server = Server::start(TEN_TOKENS);
    // The request reads without counting; its response has the cost.
    let look = per_user(&json!({"number": 0}));
    let mut charge = per_user(&json!({"format": "%DYNAMIC_METADATA(tokens:used)%"}));
    charge["apply_on_stream_done"] = json!(true);
    let limits = json!([look, charge]);
    let envoy =
        Envoy::start(&Wanted { filters_before: vec![tokens_to_metadata()], ..Wanted::of(&server, limits) });
    let ask = |tokens: &str| envoy.get(&[("x-user", "ann"), (TOKENS_TO_ANSWER, tokens)]);

    for (tokens, sum) in [("4", 4.0), ("5", 9.0), ("3", 12.0)] {
        let answer = ask(tokens);
        assert_eq!((answer.status, answer.header("x-tokens")), (200, Some(tokens)));
        // Envoy does not wait for the charge, so the next request must.
        eventually("the answer's tokens are charged", || {
            let counted = counted(&server);
            holds((counted - sum).abs() < 0.5, || format!("{counted} of {sum} tokens"))
        });
    }
    assert_eq!(ask("1").status, 429, "12 of 10 tokens are spent");
}

#[test]
fn unused_tokens_are_refunded_when_the_stream_is_done() {
    let server = Server::start(TEN_TOKENS);
    // Each request reserves four tokens; its response refunds three.
    let reserve = per_user(&json!({"number": 4}));
    let mut refund = per_user(&json!({"number": 3, "is_negative_hits": true}));
    refund["apply_on_stream_done"] = json!(true);
    let envoy = Envoy::start(&Wanted::of(&server, json!([reserve, refund])));
    let asked = || envoy.stat("cluster.rate_limit.upstream_rq_completed");

    for request in 1..=7 {
        assert_eq!(envoy.get(&[("x-user", "ann")]).status, 200, "request {request}");
        eventually("the tokens are refunded", || holds(asked() == 2 * request, || asked().to_string()));
    }
    assert_eq!(envoy.get(&[("x-user", "ann")]).status, 429, "seven are used, and four more are too many");
}
