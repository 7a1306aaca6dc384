//! Limits and costs that Envoy reads from the metadata of each request, as Envoy Gateway configures it for
//! `limit.fromMetadata` and `cost.request`.

use serde_json::{Value, json};

use support::{
    bootstrap::{Wanted, by_header},
    envoy::Envoy,
    server::Server,
};

const THREE_AN_HOUR: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
";

/// Sets the metadata that an authentication filter would: the limit and the cost of the caller.
const TENANT: &str = "
function envoy_on_request(request)
  local headers = request:headers()
  local metadata = request:streamInfo():dynamicMetadata()
  if headers:get('x-unit') then
    local limit = {requests_per_unit = tonumber(headers:get('x-limit')), unit = headers:get('x-unit')}
    metadata:set('tenant', 'limit', limit)
  end
  metadata:set('tenant', 'cost', tonumber(headers:get('x-cost') or 1))
end
";

fn envoy(server: &Server) -> Envoy {
    let tenant = json!({
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": TENANT},
        },
    });
    let mut limit = by_header("user", "x-user");
    let path: Value = json!([{"key": "limit"}]);
    limit["limit"] = json!({"dynamic_metadata": {"metadata_key": {"key": "tenant", "path": path}}});
    limit["hits_addend"] = json!({"format": "%DYNAMIC_METADATA(tenant:cost)%"});
    Envoy::start(&Wanted { filters_before: vec![tenant], ..Wanted::of(server, json!([limit])) })
}

#[test]
fn the_limit_of_a_request_is_that_of_its_metadata() {
    let server = Server::start(THREE_AN_HOUR);
    let envoy = envoy(&server);
    let statuses = |user: &str, limit: &str, unit: &str| {
        envoy.statuses(3, &[("x-user", user), ("x-limit", limit), ("x-unit", unit)])
    };
    assert_eq!(statuses("ann", "2", "HOUR"), [200, 200, 429]);
    assert_eq!(statuses("bob", "1", "DAY"), [200, 429, 429]);
    assert_eq!(statuses("none", "0", "HOUR"), [429, 429, 429]);
    // Envoy 1.40 has no WEEK and sends no limit: that of the rule counts, as without metadata.
    assert_eq!(statuses("weekly", "0", "WEEK"), [200, 200, 200]);
    assert_eq!(envoy.statuses(4, &[("x-user", "eve")]), [200, 200, 200, 429]);
}

#[test]
fn the_cost_of_a_request_is_that_of_its_metadata() {
    let server = Server::start(THREE_AN_HOUR);
    let envoy = envoy(&server);
    let asked = |cost: &str| {
        envoy.get(&[("x-user", "ann"), ("x-limit", "10"), ("x-unit", "HOUR"), ("x-cost", cost)]).status
    };
    assert_eq!(["7", "0", "3", "0", "1"].map(asked), [200, 200, 200, 200, 429]);
}
