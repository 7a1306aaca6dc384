//! The files of `deploy/`, checked by their tools and against each other.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::{Value, json};

use support::{
    markdown::blocks,
    {envoy::binary, server::BINARY},
};

use super::{ISTIO, documents, files_below, image, kustomized, object, output, read, root, tool};

/// The directories that `kubectl apply -k` accepts.
const APPLIED: [&str; 2] = ["deploy/kubernetes", "deploy/kubernetes/example"];

#[test]
fn hadolint_accepts_the_dockerfile() {
    output(tool("hadolint").arg("deploy/Dockerfile"));
}

#[test]
fn compose_accepts_its_file_and_its_mounts_exist() {
    let text =
        output(tool("docker-compose").args(["-f", "deploy/compose.yaml", "config", "--format", "json"]));
    let composed: Value = serde_json::from_str(&text).unwrap();
    for (name, service) in composed["services"].as_object().unwrap() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume["source"].as_str().unwrap();
            assert!(root().join(source).exists(), "{name} mounts {source}");
        }
    }
    // Compose writes every other kind into the container, which fails with `read_only`.
    for kind in ["configs", "secrets"] {
        for (name, from) in composed[kind].as_object().into_iter().flatten() {
            let file = from["file"].as_str().unwrap_or_else(|| panic!("{kind}: {name} is no file"));
            assert!(root().join(file).exists(), "{kind}: {name} is {file}");
        }
    }
}

#[test]
fn the_objects_are_valid_for_kubernetes() {
    for directory in APPLIED {
        validate(&output(tool("kubectl").args(["kustomize", directory])));
    }
}

/// Validates objects against the schemas of Kubernetes. Those of the Prometheus Operator are not among them.
pub(super) fn validate(objects: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), objects).unwrap();
    let report = output(tool("kubernetes-validate").args(["--strict", file.path().to_str().unwrap()]));
    for line in report.lines().filter(|line| line.starts_with("WARN")) {
        assert!(line.contains("monitoring.coreos.com/v1"), "{line}");
    }
}

/// An image that a page builds by another name is not the one that the manifests start.
#[test]
fn manifests_and_pages_name_the_image_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let mut files = [files_below("deploy", &["yaml", "md"]), files_below("docs", &["md"])].concat();
    files.extend(["README.md".to_owned(), "deploy/Dockerfile".to_owned()]);
    let mut found = 0;
    for path in files {
        for line in read(&path).lines() {
            let image = line.match_indices("tollgate:").map(|(at, name)| &line[at + name.len()..]);
            let tags = image.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let named = ["newTag: ", "ARG VERSION=", "appVersion: "]
                .iter()
                .filter_map(|name| line.split_once(name).map(|(_, rest)| rest));
            for tag in tags.chain(named) {
                found += 1;
                assert!(tag.starts_with(version), "{path}: expected the tag {version}: {line}");
            }
            let built =
                line.split_once("docker build ").is_none_or(|(_, rest)| rest.contains("-t tollgate:"));
            assert!(built, "{path}: expected -t tollgate:{version}: {line}");
        }
    }
    assert!(found > 8, "{found}");
}

#[test]
fn manifests_never_create_or_change_the_users_rules() {
    for directory in APPLIED {
        let objects = kustomized(directory);
        assert!(objects.iter().all(|object| object["kind"] != "ConfigMap"), "{directory}");
        let volumes = &object(&objects, "Deployment")["spec"]["template"]["spec"]["volumes"];
        assert_eq!(volumes[0]["configMap"]["name"], "tollgate-rules");
    }
    for path in files_below("deploy/istio", &["yaml"]) {
        assert!(!read(&path).contains("kind: ConfigMap"), "{path}");
    }
}

#[test]
fn components_are_opt_in() {
    let kinds = |directory: &str| -> BTreeSet<String> {
        kustomized(directory).iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect()
    };
    let optional = ["NetworkPolicy", "ServiceMonitor", "PrometheusRule"].map(str::to_owned);
    let (base, example) = (kinds("deploy/kubernetes"), kinds("deploy/kubernetes/example"));
    assert!(optional.iter().all(|kind| !base.contains(kind) && example.contains(kind)));
    assert_eq!(example.difference(&base).count(), optional.len());
}

#[test]
fn a_missing_secret_keeps_the_pod_from_starting() {
    let dir = tempfile::Builder::new().prefix("tollgate-overlay-").tempdir_in(root().join("target")).unwrap();
    let components = "  - ../../deploy/kubernetes/components/redis-auth\n";
    let overlay = format!("resources:\n  - ../../deploy/kubernetes/base\ncomponents:\n{components}");
    fs::write(dir.path().join("kustomization.yaml"), overlay).unwrap();
    let objects = kustomized(dir.path().to_str().unwrap());
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let auth = json!({"name": "REDIS_AUTH_FILE", "value": "/secrets/redis/auth"});
    assert!(variables.contains(&auth), "{variables:?}");
    assert!(variables.iter().any(|variable| variable["name"] == "REDIS_URL"), "{variables:?}");
    let mount = json!({"name": "redis-auth", "mountPath": "/secrets/redis", "readOnly": true});
    assert!(container["volumeMounts"].as_array().unwrap().contains(&mount), "{container}");
    let items = json!([{"key": "auth", "path": "auth"}]);
    let volume = json!({"name": "redis-auth", "secret": {"secretName": "tollgate-redis", "items": items}});
    assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod}");
    for path in files_below("deploy", &["yaml", "tpl"]) {
        assert!(!read(&path).contains("optional: true"), "{path}");
    }
}

/// `OpenShift`'s `restricted-v2` refuses a pod that names a user outside of the range of its namespace.
#[test]
fn no_manifest_names_a_user_and_that_of_the_image_is_a_number() {
    for path in files_below("deploy", &["yaml", "tpl"]) {
        assert!(!read(&path).contains("runAsUser") && !read(&path).contains("runAsGroup"), "{path}");
    }
    let user = image::user();
    // `runAsNonRoot` refuses an image whose user is a name.
    assert!(user.split(':').all(|id| id.parse().is_ok_and(|id: u32| id > 0)), "{user}");
}

#[test]
fn the_network_policy_needs_no_address_of_the_cluster() {
    let objects = kustomized("deploy/kubernetes/example");
    let policy = &object(&objects, "NetworkPolicy")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let ports = json!([{"port": "grpc"}, {"port": "metrics"}]);
    assert_eq!(policy["ingress"], json!([{"from": [{"namespaceSelector": {}}], "ports": ports}]));
}

/// The manifests shown on pages: whole objects, and parts of the spec of a `NetworkPolicy`.
#[test]
fn manifests_on_pages_are_valid_for_kubernetes() {
    let mut seen = 0;
    for page in ["deploy/README.md", "deploy/istio/README.md"] {
        for block in blocks(&read(page)).iter().filter(|block| block.is("yaml")) {
            let mut shown = documents(&block.text).remove(0);
            if shown["kind"].is_null() {
                shown["podSelector"] = json!({});
                let (kind, metadata) = ("NetworkPolicy", json!({"name": "shown"}));
                let version = "networking.k8s.io/v1";
                shown = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": shown});
            }
            validate(&shown.to_string());
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn replicas_are_added_before_they_use_what_they_request() {
    let objects = kustomized("deploy/kubernetes");
    scales_sensibly(&objects);
}

/// The target of the autoscaler is between 30 % and 90 % of what the workers of a replica can use.
pub(super) fn scales_sensibly(objects: &[Value]) {
    let container = &object(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let workers = variables.iter().find(|variable| variable["name"] == "GRPC_WORKERS").unwrap();
    let workers: u64 = workers["value"].as_str().unwrap().parse().unwrap();
    let requested = container["resources"]["requests"]["cpu"].as_str().unwrap();
    let requested: u64 = requested.strip_suffix('m').unwrap().parse().unwrap();
    let target = &object(objects, "HorizontalPodAutoscaler")["spec"]["metrics"][0]["resource"]["target"];
    let percent = target["averageUtilization"].as_u64().unwrap();
    // Above 100 % a replica on a busy node never reaches it.
    assert!(percent < 100, "{target}");
    let millicores = requested * percent / 100;
    assert!((300..900).contains(&(millicores / workers)), "{millicores}m of {workers} cores");
}

#[test]
fn selectors_and_ports_match_the_deployment() {
    let objects = kustomized("deploy/kubernetes/example");
    let pod = &object(&objects, "Deployment")["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    for (kind, selector) in [
        ("Deployment", "/spec/selector/matchLabels"),
        ("Service", "/spec/selector"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(object(&objects, kind).pointer(selector), Some(labels), "{kind}");
    }
    let service = object(&objects, "Service");
    let monitor = object(&objects, "ServiceMonitor");
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    assert!(
        names(&service["spec"]["ports"]).contains(monitor["spec"]["endpoints"][0]["port"].as_str().unwrap())
    );
    let ports = names(&pod["spec"]["containers"][0]["ports"]);
    for port in service["spec"]["ports"].as_array().unwrap() {
        assert!(ports.contains(port["targetPort"].as_str().unwrap()), "{port}");
    }
    let scaled = &object(&objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"];
    assert_eq!(scaled, &json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "tollgate"}));
}

#[test]
fn a_pod_has_longer_to_stop_than_the_service_takes() {
    let objects = kustomized("deploy/kubernetes");
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let seconds = |name: &str| {
        let variables = pod["containers"][0]["env"].as_array().unwrap();
        let value = variables.iter().find(|variable| variable["name"] == name).unwrap()["value"].as_str();
        value.and_then(|text| text.strip_suffix('s')?.parse::<u64>().ok()).unwrap()
    };
    let given = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    // The process has ended 2 s after the timeout; tests/operations/hangs.rs.
    assert!(given > seconds("SHUTDOWN_DELAY") + seconds("SHUTDOWN_TIMEOUT") + 2);
}

#[test]
fn the_istio_patches_change_only_the_image() {
    let before = documents(&read(ISTIO));
    let dir = tempfile::tempdir().unwrap();
    output(Command::new("cp").args(["-r", "deploy/istio", ISTIO]).arg(dir.path()));
    let kustomization = "resources: [istio.yaml]\ncomponents: [istio]\n";
    fs::write(dir.path().join("kustomization.yaml"), kustomization).unwrap();
    only_the_image_differs(&before, kustomized(dir.path().to_str().unwrap()));

    let deployment = object(&before, "Deployment");
    fs::write(dir.path().join("deployment.json"), deployment.to_string()).unwrap();
    let mut patch = tool("kubectl");
    patch.args(["patch", "--local", "--patch-file", "deploy/istio/image.yaml", "-o", "json", "-f"]);
    let patched = output(patch.arg(dir.path().join("deployment.json")));
    only_the_image_differs(std::slice::from_ref(deployment), documents(&patched));
}

/// Compares objects before and after the image of their Deployment was replaced.
fn only_the_image_differs(before: &[Value], mut after: Vec<Value>) {
    let deployment = after.iter_mut().find(|object| object["kind"] == "Deployment").unwrap();
    let image = deployment.pointer_mut("/spec/template/spec/containers/0/image").unwrap();
    assert_eq!(*image, json!(format!("tollgate:{}", env!("CARGO_PKG_VERSION"))));
    *image = json!("envoyproxy/ratelimit");
    assert_eq!(before.len(), after.len());
    for object in before {
        assert!(after.contains(object), "{object} is not among {after:?}");
    }
}

#[test]
fn every_variable_that_a_deployment_sets_exists() {
    let settings = output(Command::new(BINARY).arg("settings"));
    let known: BTreeSet<&str> = settings.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let variable = |object: &Value| object["name"].as_str().unwrap().to_owned();
    let mut set: Vec<String> = Vec::new();
    for objects in
        [kustomized("deploy/kubernetes"), kustomized("deploy/agent-router"), documents(&read(ISTIO))]
    {
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        set.extend(container["env"].as_array().unwrap().iter().map(variable));
    }
    let composed = &documents(&read("deploy/compose.yaml"))[0];
    set.extend(composed["services"]["tollgate"]["environment"].as_object().unwrap().keys().cloned());
    for name in set {
        assert!(known.contains(name.as_str()), "unknown variable {name}");
    }
}

#[test]
fn compose_publishes_the_ports_of_the_service() {
    let composed = &documents(&read("deploy/compose.yaml"))[0];
    let published = composed["services"]["tollgate"]["ports"].as_array().unwrap();
    for port in ["8080", "8081", "6070", "6071", "9090"] {
        assert!(published.contains(&json!(format!("127.0.0.1:{port}:{port}"))), "{port}");
    }
}

#[test]
fn envoy_accepts_every_configuration() {
    let configurations: Vec<_> = files_below("deploy", &["yaml"])
        .into_iter()
        .filter(|path| read(path).contains("static_resources:"))
        .collect();
    assert!(!configurations.is_empty());
    for path in configurations {
        output(Command::new(binary()).args(["--mode", "validate", "--log-level", "warning", "-c", &path]));
    }
}

/// The names of a list of objects.
fn names(list: &Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}
