//! Envoy Gateway's rate limit service as a pod, with its dependencies: a control plane over mTLS that starts later,
//! rotated certificates, an Envoy with a client certificate, and Redis.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use support::{
    control_plane::{SCRIPT, python},
    envoy::binary,
};

use super::{
    documents, object, output,
    pods::{Pod, run},
    read, root, tool,
};

/// The objects that Envoy Gateway deploys.
const MADE: &str = "tests/deploy/envoy-gateway.yaml";
/// A configuration of Envoy Gateway with settings of its user.
const CONFIGURED: &str = "tests/deploy/envoy-gateway-config.yaml";

#[test]
fn envoy_gateways_pod_serves_tls_with_rules_of_its_control_plane_while_certificates_rotate() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("envoy.json"), envoy().to_string()).unwrap();
    let mut objects = documents(&read(MADE));
    for (version, requests) in [("first", 3), ("second", 2)] {
        let own = dir.path().join(version);
        fs::create_dir(&own).unwrap();
        output(Command::new(root().join("tests/deploy/certificates.sh")).arg(&own));
        fs::write(own.join("published"), format!("{}\n", published(version, requests))).unwrap();
    }
    objects.push(secret(&dir.path().join("first")));

    let around = [dir.path(), &python(), Path::new(SCRIPT), &binary()].map(|path| path.display().to_string());
    let seen = run(&Pod::of(&objects, &format!(". tests/deploy/gateway.sh {}", around.join(" "))));
    for part in [
        // Healthy without a control plane, then with its rules.
        "no rate limit configuration loaded",
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"client_id\"} ",
        // The file of PROMETHEUS_MAPPER_YAML does not exist, which is accepted.
        "/etc/statsd-exporter/conf.yaml",
        // Each was over its limit: of the first rules, of the next ones on an old connection, and on a new one.
        "shop_client_id_alice_",
        "shop_client_id_bob_",
        "shop_client_id_carol_",
    ] {
        assert!(seen.contains(part), "{part:?} in {seen}");
    }
}

#[test]
fn the_envoy_gateway_patch_changes_only_the_image() {
    let mut patch = tool("kubectl");
    patch.args(["patch", "--local", "--type=merge", "-o", "json", "-f", CONFIGURED]);
    let patched = output(patch.args(["--patch-file", "deploy/envoy-gateway/patch.yaml"]));
    let mut patched = documents(&patched).remove(0);
    let made = documents(&read(MADE));
    let container = &object(&made, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let configured = documents(&read(CONFIGURED)).remove(0);
    let redis = json!({"name": "REDIS_URL", "value": configured["rateLimit"]["backend"]["redis"]["url"]});
    assert!(container["env"].as_array().unwrap().contains(&redis), "{redis} is not in {container}");
    let place = "/provider/kubernetes/rateLimitDeployment/container";
    let image = patched.pointer_mut(place).unwrap().as_object_mut().unwrap().remove("image");
    assert_eq!(image.as_ref(), Some(&container["image"]));
    assert_eq!(patched, configured);

    let values = documents(&read("deploy/envoy-gateway/values.yaml")).remove(0);
    let image = values["global"]["images"]["ratelimit"]["image"].as_str().unwrap();
    assert_eq!(values, json!({"global": {"images": {"ratelimit": {"image": image}}}}));
}

/// The Envoy of `deploy/envoy.yaml` with the TLS of Envoy Gateway: it trusts the authority with any name, and has a client
/// certificate.
fn envoy() -> Value {
    // A busy test machine may miss the 20 ms.
    let text = read("deploy/envoy.yaml").replace("timeout: 0.02s", "timeout: 5s");
    let mut config = documents(&text.replace("address: tollgate,", "address: 127.0.0.1,")).remove(0);
    let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
    let service = clusters.iter_mut().find(|cluster| cluster["name"] == "tollgate").unwrap();
    service["transport_socket"] = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "tls_certificates": [{
                    "certificate_chain": {"filename": "envoy.crt"},
                    "private_key": {"filename": "envoy.key"},
                }],
                "validation_context": {"trusted_ca": {"filename": "ca.crt"}},
            },
        },
    });
    config
}

/// The published rules: this many requests for every client.
fn published(version: &str, requests: u32) -> Value {
    // A window of a year rarely ends during a test.
    let rate_limit = json!({"unit": "YEAR", "requests_per_unit": requests});
    let descriptors = json!([{"key": "client_id", "rate_limit": rate_limit}]);
    let config = json!({"name": "shop", "domain": "shop", "descriptors": descriptors});
    json!({"set": {"version": version, "resources": [{"config": config}]}})
}

/// The Secret that is mounted at `/certs`.
fn secret(directory: &Path) -> Value {
    let files = ["ca.crt", "tls.crt", "tls.key"]
        .map(|name| (name.to_owned(), json!(fs::read_to_string(directory.join(name)).unwrap())));
    let data: serde_json::Map<_, _> = files.into_iter().collect();
    json!({"kind": "Secret", "metadata": {"name": "envoy-rate-limit"}, "stringData": data})
}
