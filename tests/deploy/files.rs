//! Each file of `deploy/`, held against the tool made for its kind, and against the others.

use std::{collections::BTreeSet, process::Command};

use serde_json::{Value, json};

use crate::support::{envoy::binary, server::BINARY};

use super::{documents, files_below, kustomized, object, output, read, root, tool};

/// The directories that `kubectl apply -k` takes.
const APPLIED: [&str; 3] = ["deploy/kubernetes", "deploy/kubernetes/monitoring", "deploy/istio"];

#[test]
fn the_dockerfile_is_as_hadolint_wants_it() {
    output(tool("hadolint").arg("deploy/Dockerfile"));
}

#[test]
fn compose_takes_its_file_and_what_it_mounts_is_there() {
    let text =
        output(tool("docker-compose").args(["-f", "deploy/compose.yaml", "config", "--format", "json"]));
    let composed: Value = serde_json::from_str(&text).unwrap();
    for (name, service) in composed["services"].as_object().unwrap() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume["source"].as_str().unwrap();
            assert!(root().join(source).exists(), "{name} mounts {source}");
        }
    }
}

#[test]
fn kubernetes_takes_the_objects() {
    for directory in APPLIED {
        let objects = tempfile::NamedTempFile::new().unwrap();
        let rendered = output(tool("kubectl").args(["kustomize", directory]));
        std::fs::write(objects.path(), rendered).unwrap();
        validated(objects.path().to_str().unwrap());
    }
    validated("deploy/envoy-gateway/envoy-gateway.yaml");
}

/// Holds a file against the schemas of Kubernetes. Those of Prometheus's operator are not among them.
fn validated(path: &str) {
    let said = output(tool("kubernetes-validate").args(["--strict", path]));
    let passed_over = said.lines().filter(|line| line.starts_with("WARN"));
    for line in passed_over {
        assert!(line.contains("monitoring.coreos.com/v1"), "{line}");
    }
}

#[test]
fn what_belongs_to_the_deployment_finds_its_pods_and_ports() {
    let mut objects = kustomized("deploy/kubernetes");
    objects.extend(kustomized("deploy/kubernetes/monitoring"));
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
fn a_pod_is_given_longer_to_end_than_the_service_takes() {
    let objects = kustomized("deploy/kubernetes");
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let seconds = |name: &str| {
        let variables = pod["containers"][0]["env"].as_array().unwrap();
        let value = variables.iter().find(|variable| variable["name"] == name).unwrap()["value"].as_str();
        value.and_then(|text| text.strip_suffix('s')?.parse::<u64>().ok()).unwrap()
    };
    let given = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(given > seconds("SHUTDOWN_DELAY") + seconds("SHUTDOWN_TIMEOUT"));
}

#[test]
fn the_example_of_istio_changes_the_image_alone() {
    let before = documents(&read("deploy/istio/ratelimit.yaml"));
    let mut after = kustomized("deploy/istio");
    let deployment = after.iter_mut().find(|object| object["kind"] == "Deployment").unwrap();
    let image = deployment.pointer_mut("/spec/template/spec/containers/0/image").unwrap();
    assert_eq!(image.as_str().and_then(|image| image.split(':').next()), Some("tollgate"));
    *image = json!("envoyproxy/ratelimit");
    for object in &before {
        assert!(after.contains(object), "{object} is not among {after:?}");
    }
    assert_eq!(before.len(), after.len());
}

#[test]
fn every_variable_that_a_deployment_sets_exists() {
    let settings = output(Command::new(BINARY).arg("settings"));
    let known: BTreeSet<&str> = settings.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let variable = |object: &Value| object["name"].as_str().unwrap().to_owned();
    let mut set: Vec<String> = Vec::new();
    for directory in ["deploy/kubernetes", "deploy/istio"] {
        let objects = kustomized(directory);
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        set.extend(container["env"].as_array().unwrap().iter().map(variable));
    }
    let composed = &documents(&read("deploy/compose.yaml"))[0];
    set.extend(composed["services"]["tollgate"]["environment"].as_object().unwrap().keys().cloned());
    for name in set {
        assert!(known.contains(name.as_str()), "{name} is no variable");
    }
}

#[test]
fn envoy_takes_every_configuration_of_it() {
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
