//! "Quota-mode descriptors are grouped by their enforcement scope (the model, identified by the `backend_name` +
//! `model_name_override` descriptor entries). A group is over the limit if ANY of its descriptors is over. The overall request
//! is `OVER_LIMIT` only when EVERY quota group is over […]. `passedBackends`: the unique pairs that still have quota."
//! And: "Each descriptor now includes code (OK or `OVER_LIMIT`) [and] limitName (matched limit name, if configured)."

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
};
use serde_json::{Value, json};

use support::{
    client::request,
    http,
    server::{Server, Setup},
};

const RULES: &str = "
domain: ai
descriptors:
  - key: backend_name
    quota_mode: true
    metadata: {catch: all}
    rate_limit: {unit: year, requests_per_unit: 3, name: backend}
    descriptors:
      - key: model_name_override
        quota_mode: true
        metadata: {model: default}
        rate_limit: {unit: year, requests_per_unit: 2, name: per-model}
        descriptors:
          - key: tenant
            quota_mode: true
            metadata: {tenant: bucket}
            rate_limit: {unit: year, requests_per_unit: 1}
  - key: service
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: ordinary
    rate_limit: {unit: year, requests_per_unit: 1}
";

fn setup() -> Setup {
    let setup = Setup::new().rules("ai.yaml", RULES).env("RESPONSE_DYNAMIC_METADATA", "true");
    setup.env("QUOTA_GROUPS_ENABLED", "true")
}

const TENANT: &[(&str, &str)] = &[("backend_name", "b"), ("model_name_override", "gpt-5"), ("tenant", "t")];
const GPT5: &[(&str, &str)] = &[("backend_name", "b"), ("model_name_override", "gpt-5")];
const GPT4: &[(&str, &str)] = &[("backend_name", "b"), ("model_name_override", "gpt-4")];
const ANY_MODEL: &[(&str, &str)] = &[("backend_name", "other")];
const SERVICE: &[(&str, &str)] = &[("service", "s")];
const ORDINARY: &[(&str, &str)] = &[("ordinary", "o")];

fn ask(server: &Server, descriptors: &[&[(&str, &str)]]) -> (Code, Vec<Code>) {
    let asked: RateLimitRequest = request("ai", descriptors);
    let answer: RateLimitResponse = server.ask(asked).unwrap();
    (answer.overall_code(), answer.statuses.iter().map(DescriptorStatus::code).collect())
}

/// The dynamic metadata of a request, as JSON.
fn metadata(server: &Server, descriptors: &[&[(&str, &str)]]) -> Value {
    let one = |entries: &&[(&str, &str)]| {
        let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        json!({"entries": entries.iter().map(entry).collect::<Vec<_>>(), "hits_addend": "0"})
    };
    let body = json!({"domain": "ai", "descriptors": descriptors.iter().map(one).collect::<Vec<_>>()});
    http::post(server.ports.http, "/json", &body.to_string()).json()["dynamicMetadata"].clone()
}

#[test]
fn a_request_is_rejected_when_every_group_has_a_quota_that_is_over() {
    use Code::{Ok, OverLimit};
    let server = setup().start();
    assert_eq!(ask(&server, &[TENANT, GPT5, GPT4]), (Ok, vec![Ok, Ok, Ok]));
    // The tenant's bucket is over, so the group of gpt-5 is, although its default bucket is not; gpt-4 has quota left.
    assert_eq!(ask(&server, &[TENANT, GPT5, GPT4]), (Ok, vec![OverLimit, Ok, Ok]));
    assert_eq!(ask(&server, &[TENANT, GPT5]), (OverLimit, vec![OverLimit, OverLimit]));
    assert_eq!(ask(&server, &[TENANT, GPT4]), (OverLimit, vec![OverLimit, OverLimit]));
    // Without one of the two entries the other names the group; without both, all entries do.
    assert_eq!(ask(&server, &[TENANT, ANY_MODEL]), (Ok, vec![OverLimit, Ok]));
    assert_eq!(ask(&server, &[TENANT, SERVICE]), (Ok, vec![OverLimit, Ok]));
    assert_eq!(ask(&server, &[TENANT, SERVICE]), (OverLimit, vec![OverLimit, OverLimit]));
    // A descriptor without quota decides alone.
    assert_eq!(ask(&server, &[ANY_MODEL, ORDINARY]), (Ok, vec![Ok, Ok]));
    assert_eq!(ask(&server, &[ANY_MODEL, ORDINARY]), (OverLimit, vec![Ok, OverLimit]));
}

#[test]
fn without_the_variable_any_quota_that_is_left_admits_the_request() {
    use Code::{Ok, OverLimit};
    let server = setup().env("QUOTA_GROUPS_ENABLED", "false").start();
    assert_eq!(ask(&server, &[TENANT, GPT5]), (Ok, vec![Ok, Ok]));
    assert_eq!(ask(&server, &[TENANT, GPT5]), (Ok, vec![OverLimit, Ok]));
    assert_eq!(metadata(&server, &[TENANT, GPT5]).get("passedBackends"), None);
}

#[test]
fn metadata_leaves_exhausted_groups_out_and_lists_the_backends_with_quota() {
    let server = setup().start();
    let pair = |backend: &str, model: &str| json!({"backend_name": backend, "model_name_override": model});
    let all = &[TENANT, GPT5, GPT4, ANY_MODEL, SERVICE, ORDINARY];
    let fresh = metadata(&server, all);
    assert_eq!(fresh["passedBackends"], json!([pair("b", "gpt-5"), pair("b", "gpt-4"), pair("other", "")]));
    assert_eq!(fresh["metadata"], json!({"tenant": "bucket", "model": "default", "catch": "all"}));
    for _ in 0..2 {
        ask(&server, &[TENANT]);
    }
    let exhausted = metadata(&server, all);
    assert_eq!(exhausted["passedBackends"], json!([pair("b", "gpt-4"), pair("other", "")]));
    // The default bucket of gpt-5 has passed, but not its group.
    assert_eq!(exhausted["metadata"], json!({"model": "default", "catch": "all"}));
    assert_eq!(metadata(&server, &[TENANT, GPT5]).get("metadata"), None);
    assert_eq!(metadata(&server, &[ORDINARY]).get("passedBackends"), None, "no quota");
}

#[test]
fn metadata_names_the_code_and_the_limit_if_wanted() {
    let server = setup().env("RESPONSE_DYNAMIC_METADATA_CODES", "true").start();
    for _ in 0..3 {
        ask(&server, &[GPT5]);
    }
    let named = metadata(&server, &[GPT5, SERVICE, &[("unknown", "v")]]);
    let seen = named["descriptors"].as_array().unwrap().iter().map(|one| (&one["code"], &one["limitName"]));
    let expected = [("OVER_LIMIT", json!("per-model")), ("OK", Value::Null), ("OK", Value::Null)];
    let seen: Vec<_> = seen.map(|(code, name)| (code.as_str().unwrap(), name.clone())).collect();
    assert_eq!(seen, expected);
    let server = setup().start();
    assert_eq!(metadata(&server, &[GPT5])["descriptors"][0].get("code"), None);
}
