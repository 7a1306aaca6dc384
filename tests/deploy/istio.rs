//! The `EnvoyFilter`s of `deploy/istio`, as Istio merges them, in a real Envoy with the rules of Istio's guide.

use std::collections::BTreeSet;

use serde_json::json;

use support::{envoy::Envoy, http, server::Server};

use super::{ISTIO, documents, object, read};

const FILTERS: [(&str, &str); 2] =
    [("deploy/istio/envoyfilter.yaml", "GATEWAY"), ("deploy/istio/sidecar.yaml", "SIDECAR_INBOUND")];

#[test]
fn a_path_has_one_counter_with_any_query() {
    let rules =
        object(&documents(&read(ISTIO)), "ConfigMap")["data"]["config.yaml"].as_str().unwrap().to_owned();
    for (file, _) in FILTERS {
        let server = Server::start(&rules);
        let mut port = 0;
        let _envoy = Envoy::with(|[admin, listener], upstream, _| {
            port = listener;
            configuration(file, [admin, listener, upstream.port, server.ports.grpc])
        });
        // The limit is one a minute: if a minute ends between, the next path meets it.
        let codes = |path: &str| ["", "?x=1", "?x=2"].map(|query| ask(port, &format!("{path}{query}")));
        assert_eq!(codes("/productpage"), [200, 429, 429], "{file}");
        assert_eq!(codes("/elsewhere"), [200, 200, 200], "{file}");
    }
}

fn ask(port: u16, path: &str) -> u16 {
    http::get(port, path).status
}

#[test]
fn both_filters_of_a_file_have_one_place() {
    for (file, context) in FILTERS {
        let filters = documents(&read(file));
        let places: BTreeSet<_> = filters
            .iter()
            .map(|filter| {
                let patches = filter["spec"]["configPatches"].as_array().unwrap();
                assert!(patches.iter().all(|patch| patch["match"]["context"] == context), "{file}");
                format!("{} {}", filter["metadata"]["namespace"], filter["spec"]["workloadSelector"])
            })
            .collect();
        assert_eq!((filters.len(), places.len()), (2, 1), "{file}: {places:?}");
    }
}

/// Istio gives a sidecar the cluster of a headless Service as `ORIGINAL_DST`.
#[test]
fn the_service_of_the_guide_is_not_headless() {
    let objects = documents(&read(ISTIO));
    assert!(object(&objects, "Service")["spec"]["clusterIP"].is_null());
}

/// The configuration of `deploy/envoy.yaml` with the values of a file: the filter stands before the router, and the second
/// value is merged into the virtual host.
fn configuration(file: &str, [admin, listener, upstream, service]: [u16; 4]) -> String {
    let filters = documents(&read(file));
    let value = |index: usize| filters[index].pointer("/spec/configPatches/0/patch/value").unwrap().clone();
    let mut config = documents(&read("deploy/envoy.yaml")).remove(0);
    config["static_resources"]["listeners"].as_array_mut().unwrap().truncate(1);
    config["admin"] = json!({"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}});
    // Istio names clusters by its services.
    let called =
        value(0).pointer("/typed_config/rate_limit_service/grpc_service/envoy_grpc/cluster_name").cloned();
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        let (port, name) = match cluster["name"].as_str().unwrap() {
            "tollgate" => (service, called.clone().unwrap()),
            name => (upstream, json!(name)),
        };
        cluster["name"] = name;
        let address = json!({"address": "127.0.0.1", "port_value": port});
        *cluster
            .pointer_mut("/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address")
            .unwrap() = address;
    }
    let bound =
        config.pointer_mut("/static_resources/listeners/0/address/socket_address/port_value").unwrap();
    *bound = json!(listener);
    let manager =
        config.pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config").unwrap();
    manager["http_filters"][0] = value(0);
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    host["rate_limits"] = value(1)["rate_limits"].clone();
    host["routes"][0]["route"].as_object_mut().unwrap().remove("rate_limits").unwrap();
    // A busy test machine may miss the 20 ms.
    config.to_string().replace("\"0.02s\"", "\"5s\"")
}
