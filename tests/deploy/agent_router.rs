//! Agent Router's second rate limit service, of its `QuotaPolicies`, as a pod: the rules and the filter, cluster and descriptors
//! that it makes of a policy, an Envoy, costs that are known after the response, and Redis.

use std::{fs, path::Path};

use serde_json::{Value, json};

use support::{
    control_plane::{SCRIPT, python},
    envoy::binary,
};

use super::{
    files::{scales_sensibly, validate},
    kustomized, object, output,
    pods::{Pod, run},
    read, tool,
};

const DIRECTORY: &str = "deploy/agent-router";
/// What Agent Router 1.1 makes of a policy, by its sources: the message of its xDS, its cluster, its filter, and a route for
/// each model.
const RECORDED: &str = "tests/deploy/agent-router.json";
/// Sets the metadata that the external processor sets once the response has its usage.
const PROCESSOR: &str = "
function envoy_on_request(request)
  for _, name in ipairs({'x-ai-eg-model', 'x-cost'}) do
    request:streamInfo():dynamicMetadata():set('request', name, request:headers():get(name))
  end
end
function envoy_on_response(response)
  if response:headers():get(':status') ~= '200' then return end
  local metadata = response:streamInfo():dynamicMetadata()
  local asked = metadata:get('request')
  metadata:set('io.envoy.ai_gateway', 'ai_service_backend_name', 'default/openai')
  metadata:set('io.envoy.ai_gateway', 'model_name_override', asked['x-ai-eg-model'])
  metadata:set('io.envoy.ai_gateway', 'quota_cost', tonumber(asked['x-cost']))
end
";

#[test]
fn quotas_of_agent_router_are_enforced_by_its_pod() {
    let recorded = recorded();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("envoy.json"), envoy(&recorded).to_string()).unwrap();
    let mut second = recorded["config"].clone();
    let small = second.pointer_mut("/descriptors/0/descriptors/0/rate_limit").unwrap();
    // Later than 1.1: a duration of `1mo`.
    *small = json!({"unit": "MONTH", "requests_per_unit": 100});
    for (version, config) in [("first", &recorded["config"]), ("second", &second)] {
        let set = json!({"set": {"version": version, "resources": [{"config": config}]}});
        fs::write(dir.path().join(version), format!("{set}\n")).unwrap();
    }
    let around = [dir.path(), &python(), Path::new(SCRIPT), &binary()].map(|path| path.display().to_string());
    let actions = format!(". tests/deploy/agent-router.sh {}", around.join(" "));
    let mut objects = kustomized(DIRECTORY);
    let deployment = objects.iter_mut().find(|object| object["kind"] == "Deployment").unwrap();
    let variables = deployment.pointer_mut("/spec/template/spec/containers/0/env").unwrap();
    let timeout =
        variables.as_array_mut().unwrap().iter_mut().find(|one| one["name"] == "REDIS_TIMEOUT").unwrap();
    // What a busy machine counts without Redis is in no counter.
    timeout["value"] = json!("4s");
    let seen = run(&Pod::of(&objects, &actions));
    for part in [
        "no rate limit configuration loaded",
        "total_hits{domain=\"ai-gateway-quota\",key1=\"backend_name_default/openai\",key2=\"model_name_override_small\"} ",
    ] {
        assert!(seen.contains(part), "{part:?} in {seen}");
    }
}

#[test]
fn the_service_is_the_one_that_envoys_of_agent_router_call() {
    let objects = kustomized(DIRECTORY);
    validate(&output(tool("kubectl").args(["kustomize", DIRECTORY])));
    let place = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    let recorded = recorded();
    let called = recorded["cluster"].pointer(place).unwrap();
    let service = object(&objects, "Service");
    let name = |field: &str| service["metadata"][field].as_str().unwrap();
    assert_eq!(called["address"], format!("{}.{}", name("name"), name("namespace")));
    assert_eq!(called["port_value"], service["spec"]["ports"][0]["port"]);
    // Only such a cluster calls every replica of a headless service.
    assert_eq!(
        (&recorded["cluster"]["type"], &service["spec"]["clusterIP"]),
        (&json!("STRICT_DNS"), &json!("None"))
    );
    scales_sensibly(&objects);
}

/// The same pod as that for Kubernetes, but for its rules and the store.
#[test]
fn the_pod_is_as_hardened_as_that_for_kubernetes() {
    let own = kustomized(DIRECTORY);
    let usual = kustomized("deploy/kubernetes");
    let name = "envoy-ai-gateway-ratelimit";
    for kind in ["Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"] {
        let [own, usual] = [&own, &usual].map(|objects| {
            let mut object = object(objects, kind).clone();
            object["metadata"]["namespace"] = json!("any");
            if kind == "Deployment" {
                let pod = &mut object["spec"]["template"]["spec"];
                pod.as_object_mut().unwrap().remove("volumes");
                let container = pod["containers"][0].as_object_mut().unwrap();
                container.remove("volumeMounts");
                container.remove("env");
                // The name of the container.
                container.remove("name");
            }
            object
        });
        let renamed = usual.to_string().replace("\"name\":\"tollgate\"", &format!("\"name\":\"{name}\""));
        let renamed = renamed.replace("/name\":\"tollgate\"", &format!("/name\":\"{name}\""));
        assert_eq!(own, serde_json::from_str::<Value>(&renamed).unwrap(), "{kind}");
    }
    let variables = |objects: &[Value]| {
        let container = &object(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        container["env"].as_array().unwrap().clone()
    };
    let own = variables(&own);
    let rules =
        ["REDIS_URL", "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"];
    for variable in variables(&usual) {
        assert!(own.contains(&variable) || rules.contains(&variable["name"].as_str().unwrap()), "{variable}");
    }
}

fn recorded() -> Value {
    serde_json::from_str(&read(RECORDED)).unwrap()
}

/// The Envoy of Agent Router, whose upstream is its own admin port.
fn envoy(recorded: &Value) -> Value {
    let mut cluster = recorded["cluster"].clone();
    let local = |port: u64| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let place = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
    *cluster.pointer_mut(place).unwrap() = local(8081);
    let upstream = json!({
        "name": "upstream",
        "load_assignment": {
            "cluster_name": "upstream",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": local(9901)}}]}],
        },
    });
    let routes: Vec<Value> = ["small", "large", "watched"]
        .iter()
        .map(|model| {
            let mut route = recorded[format!("route_{model}")].clone();
            let header = json!({"name": "x-ai-eg-model", "string_match": {"exact": model}});
            route["match"] = json!({"prefix": "/", "headers": [header]});
            route["route"] = json!({"cluster": "upstream"});
            route
        })
        .collect();
    let typed = |name: &str, kind: &str| json!({"name": name, "typed_config": {"@type": format!("type.googleapis.com/{kind}")}});
    let mut processor = typed("envoy.filters.http.lua", "envoy.extensions.filters.http.lua.v3.Lua");
    processor["typed_config"]["default_source_code"] = json!({"inline_string": PROCESSOR});
    let router = typed("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router");
    let mut manager = typed(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    );
    manager["typed_config"]["stat_prefix"] = json!("edge");
    manager["typed_config"]["http_filters"] = json!([processor, recorded["filter"], router]);
    manager["typed_config"]["route_config"] =
        json!({"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]});
    json!({
        "admin": {"address": local(9901)},
        "static_resources": {
            "listeners": [{
                "name": "edge",
                "address": local(10_000),
                "filter_chains": [{"filters": [manager]}],
            }],
            "clusters": [cluster, upstream],
        },
    })
}
